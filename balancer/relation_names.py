"""Names on a node: roots as the user writes them, partitions as we name them, always quoted by the driver.

All code that builds SQL uses these; no statement glues a name into text by hand.
"""

import re
from hashlib import sha256
from typing import NamedTuple

from psycopg import sql

from balancer.errors import UserError

MAX_BYTES = 63  # PostgreSQL's NAMEDATALEN − 1
SCHEMA = "balancer"
"""Our schema on every node."""

_PART = r'(?:"(?:[^"]|"")+"|[^".\s]+)'
_QUALIFIED = re.compile(rf"(?:({_PART})\.)?({_PART})")


class Name(NamedTuple):
    """A relation by schema and name, unquoted."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{_quoted(self.schema)}.{_quoted(self.name)}"

    @property
    def identifier(self) -> sql.Identifier:
        """For composing statements."""
        return sql.Identifier(self.schema, self.name)


def parse_name(text: str) -> Name:
    """A name as PostgreSQL reads it: unquoted parts are folded to lower case; without a schema it is in `public`."""
    match = _QUALIFIED.fullmatch(text.strip())
    if match is None:
        raise UserError(f"{text!r} is not a table's name; write schema.table, with double quotes where needed")
    schema, name = match.groups()
    return Name(_unquoted(schema) if schema else "public", _unquoted(name))


def partition_name(root: Name, tablet: int) -> Name:
    """`<root>_t<id>`; a root too long for it is cut and marked with a digest, so that colocated roots stay apart."""
    suffix = f"_t{tablet}"
    room = MAX_BYTES - len(suffix)
    if len(root.name.encode()) > room:
        digest = sha256(root.name.encode()).hexdigest()[:8]
        return Name(root.schema, f"{_cut(root.name, room - 9)}_{digest}{suffix}")
    return Name(root.schema, root.name + suffix)


def _cut(text: str, size: int) -> str:
    return text.encode()[:size].decode(errors="ignore")


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()


def _quoted(part: str) -> str:
    return part if re.fullmatch(r"[a-z_][a-z0-9_$]*", part) else '"' + part.replace('"', '""') + '"'
