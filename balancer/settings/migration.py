"""How a migration is carried out: the part of a bundle's `[migration]` section that decides nothing, only limits."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from policies.options import GB, MB, Bytes, MigrationMode, Seconds


class FinishBy(StrEnum):
    """What happens to a migration that still runs when its window closes."""

    FINISH = "finish"
    PARK = "park"


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    """Limits and patience of one migration."""

    mode: MigrationMode = MigrationMode.REPLICATE
    """`replicate` (writers wait for milliseconds) or `read-only` (writers wait for the whole copy)."""
    write_pause_budget: Seconds = 0.25
    """Longest time that writers of a tablet are held back; 250 ms passes for a slow query, not for an outage."""
    lock_timeout: Seconds = 0.2
    """Longest wait for a lock, because the application queues behind it; shorter than the pause budget."""
    statement_timeout: Seconds = 60.0
    """Longest time for one statement on a node, copies excepted."""
    copy_bytes_per_second: Annotated[float, "bytes"] = 0.0
    """Throttle of a copy; 0: as fast as both nodes allow."""
    wal_budget: Bytes = 8 * GB
    """Most WAL that a migration's slot may retain on the source; the migration is given up beyond it."""
    min_disk_free: Bytes = 1 * GB
    """Disk space that must be left on the target after the copy, where it can be known."""
    catch_up_patience: Seconds = 600.0
    """How long the lag may fail to shrink before the migration is given up."""
    drain_lag: Bytes = 1 * MB
    """The fence is only considered below this lag."""
    retire_grace: Seconds = 10.0
    """How long a former owner keeps the detached partition before it is dropped: for readers with old plans."""
    terminate_blockers: bool = False
    """Whether sessions that block a fence for longer than the budget may be terminated."""
    finish_by: FinishBy = FinishBy.FINISH
    """What runs over the end of its window is allowed to finish, or parked at a safe point."""
