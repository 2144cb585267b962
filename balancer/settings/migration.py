"""How a migration is carried out: the part of a bundle's `[migration]` section that decides nothing, only limits.

The other part (`policies.options.BudgetOptions`) decides how much is done at once.
"""

from dataclasses import dataclass
from enum import StrEnum

from balancer.policies.options import GB, MB, AutoBytes, Bytes, MigrationMode, Seconds


class FinishBy(StrEnum):
    """How migrations and the end of their window go together."""

    WINDOW = "window"  # start only what is expected to finish in it; what runs over may finish
    PARK = "park"  # likewise, and what runs over is held at a safe point until the next window
    ANY = "any"  # the schedule says when to start, and nothing more


class WantedMode(StrEnum):
    """How writers are treated while rows are copied, as people ask for it."""

    AUTO = "auto"
    REPLICATE = "replicate"
    READ_ONLY = "read-only"

    @property
    def first(self) -> MigrationMode:
        """The mode that a migration begins with."""
        return MigrationMode.READ_ONLY if self is WantedMode.READ_ONLY else MigrationMode.REPLICATE


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    """How a migration behaves towards the applications and the servers."""

    archive_command: tuple[str, ...] = ()
    """A program and its arguments, run without a shell for each expired tablet before its rows go, with the tablet's
    facts as further arguments (`--table=…`); the tablet stays unless its exit code is 0. It may be run again for the
    same tablet. Empty: rows are not archived."""

    mode: WantedMode = WantedMode.AUTO
    """`replicate`: writers wait for milliseconds; `read-only`: for the whole copy; `auto`: replicate, and read-only for
    tables without a replica identity and servers without logical replication, since nothing else works there."""
    finish_by: FinishBy = FinishBy.WINDOW
    """`window`, `park` or `any`; windows of a minute (`minutes % 20 == 0`) need `any` to move large tablets."""
    write_pause_budget: Seconds = 0.25
    """Longest time writers may be held back by a replicated move. 250 ms: below what a user notices as a failure.
    Longer: moves of busy tablets succeed at the first fence; shorter: more fences are lifted and tried again."""
    lock_timeout: Seconds = 0.1
    """How long our statements wait for a lock; later sessions queue behind them. Less than the budget. Longer: a lock
    is had behind longer transactions, and others wait as long; shorter: more attempts, each less noticed."""
    fence_deadline: Seconds = 2.0
    """After this an unsealed fence ends by itself. Longer than the budget, so that only a dead daemon meets it. Longer:
    writers wait longer when the daemon dies; shorter: a slow server's fence ends in the middle of a switch."""
    read_only_fence_deadline: Seconds = 15.0
    """The same in read-only mode, renewed at a third of it while rows are copied. Longer: writers wait longer when the
    daemon dies; shorter: a busy daemon may renew it too late and copies again."""
    fence_attempts: int = 20
    """Fences tried (a lock not granted, a budget exceeded) before the migration gives up. More: it outlives longer
    reports and batches; fewer: it fails sooner, and its copy was for nothing."""
    copy_attempts: int = 5
    """Copies tried (a server lost, a lock not granted) before the migration gives up; each begins from nothing, of a
    replicated move only when `retry_patience` is over. More: it outlives longer outages, at the price of work done
    again; fewer: it fails sooner."""
    retry_back_off: Seconds = 0.2
    """Seconds before the second fence or copy; doubled each time up to `retry_back_off_limit`. Longer: calmer for
    writers; shorter: the migration ends sooner after a passing blocker."""
    retry_back_off_limit: Seconds = 10.0
    """Longest pause between two fences or copies: a blocker of minutes is worth asking for every ten seconds. Longer:
    fewer interruptions; shorter: it notices sooner that the way is clear."""
    throttle: AutoBytes | None = None
    """Bytes copied per second; None: as fast as the servers can; "auto": as commits on both nodes allow, which are
    timed meanwhile. Larger: moves end sooner; smaller: applications notice less of them, and more changes are made
    while they last."""
    throttle_share: float = 0.2
    """With `throttle = "auto"`: by which share a commit on either node may take longer than without the copy. Larger:
    moves end sooner; smaller: applications notice less of them."""
    wal_budget: Bytes = 8 * GB
    """Write-ahead log that a migration may keep a source from recycling; beyond it the migration is given up. Larger:
    big tablets of busy nodes can be moved, if the disk has room for it; smaller: the disk is safer."""
    disk_budget: Bytes | None = None
    """Bytes a migration may add on the target; None: not limited here (the planner knows the nodes' disks). Larger:
    larger tablets are moved; smaller: they are refused."""
    lag_patience: Seconds = 300.0
    """Seconds without a new smallest lag after which catching up is given up as hopeless. Longer: it may still succeed
    after a peak; shorter: the source's log is freed sooner."""
    retire_grace: Seconds = 5.0
    """Seconds between the switch and the drop of the former owner's rows: readers with an old map finish in peace.
    Longer: clients with old maps are refused with the new owner's name for longer; shorter: disk is freed sooner."""
    terminate_blockers: bool = False
    """Whether sessions that keep a lock from being taken are ended, those among them that hold a tablet's advisory lock
    without a transaction; otherwise they are named and waited for. A role that is not a superuser needs
    pg_signal_backend for it."""
    blocker_age: Seconds = 5.0
    """Seconds a transaction must have lasted before it may be ended as a blocker. Longer: fewer of the application's
    transactions are ended; shorter: migrations wait less."""
    trust_table_owners: bool = False
    """Whether functions, operators and domains of the tables' owners may run with the balancer's own rights, as they do
    when rows are copied into tables whose checks, generated columns, types or indexes use them, and when partitions
    with such indexes or statistics are counted, sampled or made. Not by default: such an owner could become whatever
    the balancer is. Otherwise tables that use them are named, and neither moved nor sampled nor counted."""
    checksum_pages: int = 4096
    """Pages (8 kB) per chunk of a checksum: 32 MB, so that a throttle or a cancel is heard several times a second.
    More: fewer statements; fewer: a cancel is heard sooner."""
    verify_keys_in_fence: int = 2000
    """Changed keys left to compare when the fence is taken; more of them are first compared without it. More: the pause
    of writers is longer; fewer: more rounds before the fence on a busy tablet."""
    retry_patience: Seconds = 120.0
    """How long a step is tried again while a server is out of reach; then it is given up (before the commit), or a copy
    started over. Longer: it outlives restarts of servers, and keeps what was copied of a large tablet; shorter: its
    tablet can be moved elsewhere sooner."""
    chunk_size: Bytes = 64 * MB
    """Bytes of the source's heap in a chunk of a replicated move's copy; an interruption costs the chunks on their way.
    Larger: fewer transactions; smaller: less is done again."""
    chunks_at_once: int = 2
    """Chunks that are copied at the same time, each by a session on either node. More: it uses more cores and disks of
    both nodes; fewer: the applications keep them."""
    indexes_at_once: int = 2
    """Indexes of the target that are built at the same time. More: it uses more cores, each with the server's
    `maintenance_work_mem`; fewer: the target's applications keep them."""
    index_workers: int | None = None
    """Parallel workers for building indexes on the target; None: the server's own setting, shared out among the
    sessions that work there for the migration. More: indexes are built sooner where cores are idle; fewer: the target's
    applications keep their cores, and less is sorted through files."""
