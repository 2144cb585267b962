"""What the policies see and what they say: one bundle's state in columns, and actions with their reasons.

Tablets are columns (numpy), because a plan over a million of them must not make a million objects. Rows of a table
are in key order: ranges by their lower bound, vbuckets by their position (see `hash_leaves`). Time is a number of
seconds that the caller passes in; nothing here reads a clock.

The hours over which load is remembered, and the parts of the day that are planned for: spans of such hours.

A slot is one hour of a working day (0 to 23) or of a weekend day (24 to 47). The caller passes local time: the bundle's
timezone decides what an hour is. A dimension of a plan that is about one part of the day has the part in its name,
`write_rate@18-20`: `base_of` and `span_of` take such a name apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import KeyType

HOURS: Final = 24
SLOTS: Final = 2 * HOURS
"""All hours that are remembered: first those of a working day, from midnight on, then those of a weekend day."""
SLOT_SECONDS: Final = 3600.0
DAYS_A_WEEK: Final = (5, 2)
_SATURDAY: Final = 5
_MARK: Final = "@"


class DaySpan(NamedTuple):
    """A part of the day: its first and its last hour, both of a working day or both of the weekend."""

    first: int
    last: int

    @property
    def weekend(self) -> bool:
        return self.first >= HOURS

    @property
    def slots(self) -> range:
        return range(self.first, self.last + 1)


def hour_slot(local: datetime) -> int:
    """The slot in which a moment lies."""
    return HOURS * (local.weekday() >= _SATURDAY) + local.hour


def days_a_week(slot: int) -> int:
    """On how many days of a week this hour comes."""
    return DAYS_A_WEEK[slot // HOURS]


def span_text(span: DaySpan) -> str:
    """`from 18 to 21 h`, `from 18 to 21 h at weekends`, or `at weekends` if it is the whole day."""
    kind = "at weekends" if span.weekend else "on working days"
    if len(span.slots) == HOURS:
        return kind
    hours = f"from {span.first % HOURS} to {span.last % HOURS + 1} h"
    return f"{hours} {kind}" if span.weekend else hours


def named(dimension: str, span: DaySpan) -> str:
    """The name of a dimension that is about this part of the day."""
    return f"{dimension}{_MARK}{span.first}-{span.last}"


def base_of(name: str) -> str:
    """What a dimension is about, whatever the time: `write_rate`."""
    return name.partition(_MARK)[0]


def span_of(name: str) -> DaySpan | None:
    """The part of the day that a dimension is about; None: it is about now."""
    _, mark, span = name.partition(_MARK)
    if not mark:
        return None
    first, _, last = span.partition("-")
    return DaySpan(int(first), int(last))


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class NodeCondition(StrEnum):
    """What may be done with a node; the directory's states, and what the last poll saw."""

    ACTIVE = "active"
    DRAINING = "draining"
    CLOSED = "closed"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node as the policies see it."""

    id: str
    condition: NodeCondition = NodeCondition.ACTIVE
    zone: str = ""
    weight: float = 1.0
    disk_capacity: float | None = None
    """Bytes the node's disk holds in all; None: unknown."""
    disk_used: float | None = None
    """Bytes in use, including other people's; None: the sum of its tablets."""
    memory: float | None = None
    """Bytes of memory for in-memory tables; None: as much as any other."""
    write_capacity: float | None = None
    """Rows per second that may be written to its tablets in all; None: not limited."""
    read_capacity: float | None = None
    """Rows per second that may be read from its tablets in all; None: not limited."""
    closed_by_daemon: bool = False
    """A closed node that the daemon closed, and may open again; what an operator closed stays closed."""


@dataclass(frozen=True, slots=True)
class TableView:
    """One table: its tablets are the rows `first <= row < last` of the columns, in key order."""

    name: str
    hash: bool
    key_types: tuple[KeyType, ...]
    first: int
    last: int

    @property
    def whole(self) -> bool:
        """Whether it is one tablet without a key, which is neither split nor merged."""
        return not self.key_types


@dataclass(frozen=True, slots=True)
class TabletColumns:
    """All tablets of a bundle. Every array has one entry per tablet."""

    ids: Ints
    node: Ints  # index into BundleView.nodes
    sizes: Floats  # bytes on disk
    memory: Floats  # bytes that count against nodes' memory: 0 for tables that are not in-memory
    rows: Floats
    write_rate: Floats  # rows written per second
    read_rate: Floats  # rows read per second, without those of long scans
    lowers: Sequence[bytes]  # range tables: lower bound; hash tables: b""
    moduli: Ints  # hash tables; 0 for range tables
    remainders: Ints
    write_rate_1h: Floats | None = None  # as `write_rate`, over an hour; None: not measured
    read_rate_1h: Floats | None = None
    scan_rate: Floats | None = None  # rows read per second by long sequential scans; None: not measured

    def __len__(self) -> int:
        return len(self.ids)

    def leaf(self, row: int) -> Leaf:
        """The vbucket at this row of a hash table."""
        return Leaf(int(self.moduli[row]), int(self.remainders[row]))


@dataclass(frozen=True, slots=True, eq=False)
class ProfileColumns:
    """What tablets do over the course of the day, as plans see it: a few parts of it (see
    `policies/day/dimensions`)."""

    spans: tuple[DaySpan, ...]
    rates: npt.NDArray[np.float32]  # (loads, tablets, spans): rows written and read per second; NaN: not known


@dataclass(frozen=True, slots=True)
class InFlight:
    """A running migration: credited before planning, as if it had finished."""

    migration: str
    tablets: tuple[int, ...]
    source: str
    target: str
    waits: bool = False
    """A move that follows one that runs or has run, and has not been started: it is credited and keeps its nodes' slots
    for itself, but takes up none of the total."""


@dataclass(frozen=True, slots=True)
class TabletHistory:
    """What is remembered about a tablet, by id, if there is anything to remember."""

    last_migrated: float | None = None  # seconds since 1970
    failures: int = 0  # in a row
    last_failed: float | None = None
    split_for_heat_at: float | None = None
    hot_polls: int = 0  # polls in a row over a heat threshold
    max_rate_5m: float | None = None  # highest rate (reads and writes) of the last five minutes
    split_of: float | None = None  # the bytes of the tablet from which a split made it; None: none did


@dataclass(frozen=True, slots=True)
class BundleView:
    """One bundle at one moment: what a plan is made from."""

    bundle: str
    now: float  # seconds since 1970
    nodes: tuple[NodeView, ...]
    tables: tuple[TableView, ...]
    tablets: TabletColumns
    in_flight: tuple[InFlight, ...] = ()
    pinned: frozenset[int] = frozenset()
    quarantined: frozenset[int] = frozenset()
    expired: frozenset[int] = frozenset()
    """Empty tablets that stand for expired keys."""
    expiry_held: bool = False
    """Whether an operator keeps expired tablets from being retired."""
    history: Mapping[int, TabletHistory] = field(default_factory=dict)
    samples: Mapping[int, "KeySamples"] = field(default_factory=dict)
    window_seconds_left: float | None = None
    """Seconds until the schedule's window closes; None: it does not close."""
    bytes_moved_in_window: float = 0.0
    measured_bytes_per_second: float | None = None
    reshaped_last: bool = False
    """Whether the newest migration is a split or a merge: then moves go first."""
    overloaded_since: Mapping[str, float] = field(default_factory=dict)
    """Node → since when (seconds since 1970) it has done more than `close_at_load` times its share, without a break."""
    balancing: float = 0.0
    """Bytes that moves off nodes between the stop and the start threshold may copy: more than 0 if balancing has begun
    and continues to the stop threshold (see `budgets`)."""
    profile: ProfileColumns | None = None
    """What the tablets do over the course of the day; None: no day is known, or nobody asks."""


class SampleSource(StrEnum):
    """Where key samples came from, best first."""

    CLIENTS = "client samples"
    ROW_AGES = "row ages"
    STATISTICS = "table statistics"


@dataclass(frozen=True, slots=True)
class KeySamples:
    """Keys in use in one tablet, encoded by `keys` (range) or as positions of 8 bytes big-endian (hash)."""

    source: SampleSource
    keys: tuple[bytes, ...]
    weights: tuple[float, ...]
    spans: tuple[bytes, ...] = ()
    """For requests over a range: the last key of each sample's request, in the order of `keys`; empty: single keys."""
    writes: tuple[bool, ...] = ()
    """Whether each sample was a write, in the order of `keys`; empty: all were."""
    confidence: float = 1.0
    """0 to 1: how reliable the figures are."""
    row_keys: tuple[bytes, ...] = ()
    """Keys of the tablet's rows, ascending and evenly spaced by rank, as in a histogram: where its rows lie, whether in
    use or not; empty: unknown."""


class ActionKind(StrEnum):
    """What a policy may propose."""

    MOVE = "move"
    SPLIT = "split"
    MERGE = "merge"
    RESHARD = "reshard"  # a contiguous range of tablets becomes n others (many-to-many)
    EXPIRE = "expire"  # the lowest tablets of a time-range table are retired with their rows


@dataclass(frozen=True, slots=True)
class Part:
    """One tablet that a reshard makes: a leaf, or the range from `lower` to the next part's."""

    lower: bytes = b""
    leaf: Leaf | None = None
    node: str = ""  # where it should end up; empty: where its rows are


@dataclass(frozen=True, slots=True)
class Action:
    """A proposal with its reason. It becomes a migration when it is admitted."""

    kind: ActionKind
    table: str
    tablets: tuple[int, ...]
    reason: str  # one sentence with its numbers
    code: str  # a short stable word for the reason: metrics and tests use it
    source: str = ""  # node ids
    target: str = ""
    parts: tuple[Part, ...] = ()
    count: int = 0
    """For a reshard by size: how many tablets; the keys are chosen on the node when `parts` is empty."""
    size: float = 0.0  # bytes to be moved or rewritten
    gain: float = 0.0
    then: tuple[tuple[int, str], ...] = ()
    """For a move that helps only together with others: tablets and where they go once this one is done, in order."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A candidate that was not taken, and why: a value, so that `why-not` needs no second code path."""

    kind: ActionKind
    tablets: tuple[int, ...]
    code: str
    reason: str
    target: str = ""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A proposal to close a node to new data, or to open it again."""

    node: str
    condition: NodeCondition  # what it should become: closed or active
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What a policy says about one bundle: actions in the order in which they should be started, and the rest."""

    actions: tuple[Action, ...] = ()
    """What may be started now, within the budgets."""
    rejections: tuple[Rejection, ...] = ()
    """Some examples for each code; `counts` has the numbers."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many candidates each code has held back."""
    node_changes: tuple[NodeChange, ...] = ()
    pending_moves: int = 0
    """Moves that lead to the same target and wait for the budgets: the next plans will have them."""
    pending_bytes: float = 0.0
    score_before: float = 100.0
    score_after: float = 100.0
    bound: float = 100.0
    """No plan within these budgets can reach a better score."""
    limit: float = 100.0
    """No placement at all that leaves pinned tablets where they are has a better score."""
    notes: tuple[str, ...] = ()
    unfinished: bool = False
    """Whether the objective still wants moves, or migrations are running: what was begun continues."""
    overloaded: frozenset[str] = frozenset()
    """Nodes over the start threshold that the plan relieves."""
