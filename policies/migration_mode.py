"""How writers are treated while a migration copies rows. Separate from the other options: the directory's records have
it, and an application that reads them needs none of the others."""

from enum import StrEnum


class MigrationMode(StrEnum):
    """How writers are treated while a migration copies rows."""

    REPLICATE = "replicate"
    READ_ONLY = "read-only"
