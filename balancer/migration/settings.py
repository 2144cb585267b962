"""The settings of migrations: plain values, one docstring each with its unit, its default and why that default.

The bundle's section `[migration]` is mapped onto this; the entry points take it as an argument. Times are seconds,
sizes are bytes.
"""

from dataclasses import dataclass

from balancer.directory.model import MigrationMode
from balancer.errors import UserError

MB = 1024 * 1024
GB = 1024 * MB


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    """How a migration behaves towards the applications and the servers."""

    mode: MigrationMode = MigrationMode.REPLICATE
    """`replicate`: writers are held back for milliseconds; `read-only`: for the whole copy, where nothing else works."""
    write_pause_budget: float = 0.25
    """Longest time writers may be held back by a replicated move. 250 ms: below what a user notices as a failure."""
    lock_timeout: float = 0.1
    """How long a statement of ours waits for a lock; whoever comes later waits behind it. Less than the budget."""
    fence_deadline: float = 2.0
    """After this an unsealed fence ends by itself. Longer than the budget, so that only a dead daemon meets it."""
    read_only_fence_deadline: float = 15.0
    """The same in read-only mode, renewed at a third of it while rows are copied."""
    fence_attempts: int = 20
    """Fences tried (a lock not granted, a budget exceeded) before the migration gives up."""
    back_off: float = 0.2
    """Seconds before the second fence; doubled each time up to `back_off_limit`."""
    back_off_limit: float = 10.0
    """Longest pause between two fences: a blocker of minutes is worth asking for every ten seconds."""
    throttle: int | None = None
    """Bytes copied per second; None: as fast as the servers can."""
    wal_budget: int = 8 * GB
    """Write-ahead log that a migration may keep a source from recycling; beyond it the migration is given up."""
    disk_budget: int | None = None
    """Bytes a migration may add on the target; None: not limited here (the planner knows the nodes' disks)."""
    lag_patience: float = 300.0
    """Seconds without a new smallest lag after which catching up is given up as hopeless."""
    retire_grace: float = 5.0
    """Seconds between the switch and the drop of the former owner's rows: readers with an old map finish in peace."""
    terminate_blockers: bool = False
    """Whether sessions that keep a fence from being taken are ended; otherwise they are named and waited for."""
    blocker_age: float = 5.0
    """Seconds a transaction must have lasted before it may be ended as a blocker."""
    checksum_pages: int = 4096
    """Pages (8 kB) per chunk of a checksum: 32 MB, so that a throttle or a cancel is heard several times a second."""
    copy_rows_per_chunk: int = 20_000
    """Rows written by one statement while a split or merge fills its partitions: each is a short transaction."""
    verify_keys_in_fence: int = 2000
    """Changed keys left to compare when the fence is taken; more of them are first compared without it."""
    retry_patience: float = 120.0
    """Seconds a step is tried again while a server is out of reach; then the migration is given up (before the commit)."""
    index_workers: int | None = None
    """Parallel workers for building indexes on the target; None: the server's own setting."""

    def __post_init__(self) -> None:
        if self.lock_timeout > self.write_pause_budget:
            raise UserError(
                f"lock_timeout ({self.lock_timeout} s) is longer than write_pause_budget ({self.write_pause_budget} s):"
                " a waiting lock alone would exceed the budget"
            )
        if self.fence_deadline <= self.write_pause_budget:
            raise UserError("fence_deadline must be longer than write_pause_budget, or fences expire before it is used")
