"""How a migration is carried out: the part of a bundle's `[migration]` section that decides nothing, only limits.

The other part (`policies.options.BudgetOptions`) decides how much is done at once.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from balancer.policies.finish_by import ANY
from balancer.policies.options import GB, MB, AutoBytes, Bytes, MigrationMode, Seconds

FinishByText = Annotated[str, "finish by"]
"""A word, or a time of day; see `policies.finish_by`."""


class WantedMode(StrEnum):
    """How writers are treated while rows are copied, as the user asks for it."""

    AUTO = "auto"
    REPLICATE = "replicate"
    READ_ONLY = "read-only"

    @property
    def first(self) -> MigrationMode:
        """The mode that a migration begins with."""
        return MigrationMode.READ_ONLY if self is WantedMode.READ_ONLY else MigrationMode.REPLICATE


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    """How gently a migration treats applications and servers."""

    archive_command: tuple[str, ...] = ()
    """A program and its arguments, run without a shell for each expired tablet before its rows are dropped, with the
    tablet's details as further arguments (`--table=…`). The tablet stays unless the exit code is 0. It may run more
    than once for the same tablet. Empty: rows are not archived."""

    mode: WantedMode = WantedMode.AUTO
    """`replicate`: writers wait for milliseconds; `read-only`: writers wait for the whole copy; `auto`: replicate, but
    read-only for tables without a replica identity and servers without logical replication, where nothing else
    works."""
    finish_by: FinishByText = ANY
    """By when what has started must be done. `any`, as in YT: the schedule says when to start, and what has started may
    run on. `window`: start only what is expected to finish in the window; `park`: also park what overruns until the
    next one; a time of day such as "06:00": start only what is expected to finish by then. A plan names what does not
    fit before the window opens."""
    write_pause_budget: Seconds = 0.25
    """The longest time that a replicated move may hold back writers. The default of 250 ms is below what a user notices
    as a failure. Longer: moves of busy tablets succeed at the first fence; shorter: more fences are lifted and tried
    again."""
    lock_timeout: Seconds = 0.1
    """How long the balancer's statements wait for a lock, while later sessions queue behind them; less than
    `write_pause_budget`. Longer: the lock is acquired despite longer transactions, but others wait as long; shorter:
    more attempts, each less noticeable."""
    swap_patience: Seconds | None = None
    """The longest that the swap of a split or merge may make others wait for once, when short attempts have failed for
    five seconds because statements on the table take longer than `write_pause_budget`; None: never longer than that.
    Each attempt waits twice as long as the one before, up to this, and never as long as the server's deadlock_timeout.
    Longer: splits end beside long statements; shorter: nobody waits for them."""
    fence_deadline: Seconds = 2.0
    """After this time an unsealed fence expires. It is longer than `write_pause_budget`, so that this happens only when
    the daemon is dead. Longer: writers wait longer when the daemon dies; shorter: on a slow server the fence expires in
    the middle of a switch."""
    read_only_fence_deadline: Seconds = 15.0
    """`fence_deadline` for read-only mode; the fence is renewed after a third of it while rows are copied. Longer:
    writers wait longer when the daemon dies; shorter: a busy daemon may renew it too late and has to copy again."""
    fence_attempts: int = 20
    """How many fences are tried (a lock not granted, a budget exceeded) before the migration gives up. More: it
    survives longer reports and batches; fewer: it fails sooner, and its copy was wasted."""
    copy_attempts: int = 5
    """How many copies are tried (a server lost, a lock not granted) before the migration gives up. Each starts from
    scratch; a replicated move does so only once `retry_patience` is over. More: it survives longer outages, at the
    price of repeated work; fewer: it fails sooner."""
    retry_back_off: Seconds = 0.2
    """The pause before the second fence or copy; doubled each time up to `retry_back_off_limit`. Longer: writers are
    disturbed less; shorter: the migration ends sooner after a passing blocker."""
    retry_back_off_limit: Seconds = 10.0
    """The longest pause between two fences or copies; a blocker that lasts minutes is worth checking every ten seconds.
    Longer: fewer interruptions; shorter: the migration notices sooner that the way is clear."""
    throttle: AutoBytes | None = None
    """Bytes copied per second; None: as fast as the servers can; "auto": as fast as commits on both nodes allow, which
    are timed meanwhile. Larger: moves end sooner; smaller: applications notice less, but more rows change while a move
    lasts."""
    throttle_share: float = 0.2
    """With `throttle = "auto"`: how much longer a commit on either node may take than without the copy, as a share.
    Larger: moves end sooner; smaller: applications notice less."""
    wal_budget: Bytes = 8 * GB
    """How much write-ahead log a migration may keep on the source; beyond it the migration is given up. Larger: big
    tablets of busy nodes can be moved, if the disk has room; smaller: the disk is safer."""
    disk_budget: Bytes | None = None
    """How much data a migration may add on the target; None: no limit here (the planner knows the nodes' disks).
    Larger: larger tablets are moved; smaller: they are refused."""
    lag_patience: Seconds = 300.0
    """If the lag has not reached a new minimum for this long, catching up is given up as hopeless. Longer: it may still
    succeed after a peak; shorter: the source's log is freed sooner."""
    retire_grace: Seconds = 5.0
    """How long after the switch the former owner's rows are dropped, so that readers with an old map can finish.
    Longer: clients with old maps get a refusal that names the new owner for longer; shorter: disk is freed sooner."""
    terminate_blockers: bool = False
    """Whether sessions that block a lock are terminated, including those that hold a tablet's advisory lock without a
    transaction; otherwise they are named and waited for. A role that is not a superuser needs pg_signal_backend for
    this."""
    blocker_age: Seconds = 5.0
    """How old a transaction must be before it may be terminated as a blocker. Longer: fewer of the application's
    transactions are terminated; shorter: migrations wait less."""
    trust_table_owners: bool = False
    """Whether functions, operators and domains of the tables' owners may run with the balancer's own rights. That
    happens when rows are copied into tables whose checks, generated columns, types or indexes use them, and when
    partitions with such indexes or statistics are counted, sampled or created. Off by default, because such an owner
    could then do whatever the balancer can; tables that use them are named, and not moved, sampled or counted."""
    checksum_pages: int = 4096
    """Pages (8 kB) per chunk of a checksum. The default is 32 MB, so that a throttle or a cancel takes effect several
    times a second. More: fewer statements; fewer: a cancel takes effect sooner."""
    verify_keys_in_fence: int = 2000
    """How many changed keys may be left to compare when the fence is raised; any more are first compared without it.
    More: writers pause longer; fewer: more rounds before the fence on a busy tablet."""
    retry_patience: Seconds = 120.0
    """How long a step is retried while a server is out of reach; after that it is given up (before the commit), or a
    copy starts over. Longer: it survives server restarts, and keeps what was copied of a large tablet; shorter: its
    tablet can be moved elsewhere sooner."""
    chunk_size: Bytes = 64 * MB
    """How much of the source's heap goes into one chunk of a replicated move's copy; an interruption costs the chunks
    in transit. Larger: fewer transactions; smaller: less work is repeated."""
    chunks_at_once: int = 2
    """How many chunks are copied at the same time, each by one session on each node. More: the copy uses more cores and
    disk of both nodes; fewer: more is left to applications."""
    indexes_at_once: int = 2
    """How many indexes are built on the target at the same time. More: they use more cores, each with the server's
    `maintenance_work_mem`; fewer: more is left to the target's applications."""
    index_workers: int | None = None
    """Parallel workers for building indexes on the target; None: the server's own setting, divided among the
    migration's sessions there. More: indexes are built sooner if cores are idle; fewer: the target's applications keep
    their cores, and less is sorted through files."""
