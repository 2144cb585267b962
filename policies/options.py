"""The options that decide: names, defaults and meanings as users of YT know them. Plain values; no files here.

`balancer.settings` reads them from a bundle's file; the policies take them as arguments. Sizes are bytes, times are
seconds, rates are per second. What is `None` is unset and falls back as its docstring says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Annotated

from balancer.policies.migration_mode import MigrationMode as MigrationMode  # part of the options for everybody

Bytes = Annotated[int, "bytes"]
"""A size; written "10GB" in a file, powers of 1024."""
Seconds = Annotated[float, "seconds"]
"""A duration; written "250ms" or "10m" in a file."""
AUTO = -1
"""What "auto" in a file is read as."""
AutoBytes = Annotated[int, "bytes or auto"]
"""A size, or "auto"."""
AutoCount = Annotated[int, "count or auto"]
"""A number, or "auto"."""
FormulaText = Annotated[str, "formula"]
"""A schedule formula; empty: unset."""

KeyValues = tuple[str | int, ...]
"""Values of the first columns of a key, as text or whole numbers."""

DEFAULT_GROUP = "default"
"""The group that always exists."""

VIRTUAL_NODES = 256
"""Points on the ring of a node of weight 1: its share then deviates by about a sixteenth."""

KB = 1024
MB = 1024 * KB
GB = 1024 * MB


class InMemoryMode(StrEnum):
    """Whether a table is meant to live in its nodes' memory; such a table has separate size limits and a separate
    balance."""

    NONE = "none"
    COMPRESSED = "compressed"
    UNCOMPRESSED = "uncompressed"


class Placement(StrEnum):
    """How the vbuckets of a table are assigned to nodes: by the planner's objective, or by a fixed sharding
    function."""

    BALANCED = "balanced"
    MODULO = "modulo"
    RENDEZVOUS = "rendezvous"
    RING = "ring"
    JUMP = "jump"
    FIBONACCI = "fibonacci"


class PlannedLoad(StrEnum):
    """Which reads and writes a plan balances."""

    PROFILE = "profile"
    """Those of the whole day, with each part of it as its own dimension, once a day is known; until then the current
    ones."""
    NOW = "now"
    """Those of the last ten minutes."""


class Mover(StrEnum):
    """How tables that are neither in-memory nor moved by a metric are spread over the nodes."""

    OBJECTIVE = "objective"
    """One objective over all dimensions at once."""
    COUNT = "count"
    """YT's ordinary mover: every node gets an equal number of each table's tablets."""


@dataclass(frozen=True, slots=True)
class ParameterizedOptions:
    """`parameterized = { … }` of a group, as YT writes it: each key overrides the group's key of the same name."""

    metric: str | None = None
    """The formula, as in the group's `metric`."""
    max_action_count: int | None = None
    """More: balance is reached in fewer plans; fewer: calmer."""
    node_deviation_threshold: float | None = None
    """Larger: fewer moves; smaller: closer balance."""
    cell_deviation_threshold: float | None = None
    """Larger: fewer moves; smaller: closer balance."""
    min_relative_metric_improvement: float | None = None
    """Larger: only moves that help much; smaller: more moves."""
    per_table_uniform: bool | None = None
    """As in the group."""
    enable_reshard: bool | None = None
    """The group's `reshard_by_metric`."""

    def given(self) -> dict[str, object]:
        """What it sets, by the names of the group's own keys."""
        found = {known.name: getattr(self, known.name) for known in fields(self)}
        found["reshard_by_metric"] = found.pop("enable_reshard")
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """A named group of tables with its own schedule and parameters."""

    schedule: FormulaText = ""
    """Formula; empty: the bundle's."""
    enable_move: bool = True
    """Whether tablets of the group's tables are moved."""
    enable_reshard: bool = True
    """Whether tablets of the group's tables are split and merged."""
    metric: str = ""
    """Formula over a tablet's statistics and rates; empty: the group is not moved by a metric."""
    max_action_count: int = 50
    """At most this many moves by metric in one plan. More: balance is reached in fewer plans; fewer: less happens at
    once."""
    node_deviation_threshold: float = 0.1
    """Moves by metric start when the fullest node's load reaches the emptiest's × (1 + this). Larger: fewer moves;
    smaller: closer balance."""
    cell_deviation_threshold: float = 0.1
    """Like `node_deviation_threshold`; the smaller of the two counts. Larger: fewer moves; smaller: closer balance."""
    min_relative_metric_improvement: float = 0.0
    """The share of the metric's squared deviation, per node, that a move must remove. Larger: only moves that help a
    lot; smaller: more moves."""
    per_table_uniform: bool = False
    """Whether the metric of each table is spread evenly over the nodes. Off: only the metric of the whole group is, and
    a single table may end up on few nodes."""
    reshard_by_metric: bool = False
    """Whether tables with a `desired_tablet_count` are split and merged so that their tablets carry equal shares of the
    metric as well as of the bytes. Off: by bytes alone."""
    parameterized: ParameterizedOptions = field(default_factory=ParameterizedOptions)

    def flat(self) -> "GroupOptions":
        """With what `parameterized` says in the places where the policies look."""
        return replace(self, **self.parameterized.given(), parameterized=ParameterizedOptions())  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class BalancerOptions:
    """`[tablet_balancer_config]` of a bundle: YT's names and defaults; docs/policies.md lists those that differ."""

    min_tablet_size: Bytes = 128 * MB
    """Tablets below this size are merged. Larger: fewer, larger tablets; smaller: small tablets are left alone."""
    desired_tablet_size: Bytes = 10 * GB
    """The size that splits and merges aim at. Larger: fewer tablets, coarser balance, longer moves; smaller: more
    partitions to plan over."""
    max_tablet_size: Bytes = 20 * GB
    """Tablets above this size are split. Larger: fewer splits, longer moves; smaller: more tablets."""
    min_in_memory_tablet_size: Bytes = 512 * MB
    """`min_tablet_size` for in-memory tables. Larger: fewer, larger tablets; smaller: small tablets are left alone."""
    desired_in_memory_tablet_size: Bytes = 1 * GB
    """`desired_tablet_size` for in-memory tables. Larger: fewer tablets; smaller: more."""
    max_in_memory_tablet_size: Bytes = 2 * GB
    """`max_tablet_size` for in-memory tables. Larger: fewer splits; smaller: more tablets."""
    min_desired_tablet_size: Bytes = 5 * MB
    """The desired size never falls below this, because smaller tablets cost more than they help. Larger: it overrides a
    requested number of tablets sooner; smaller: tiny tablets are created on request."""
    enable_tablet_size_balancer: bool = True
    """Whether tablets are split and merged by their size."""
    enable_in_memory_cell_balancer: bool = True
    """Whether tablets of in-memory tables are moved between nodes."""
    enable_cell_balancer: bool = False
    """Whether all other tablets are moved between nodes. Off by default, as in YT: nothing moves before you ask for
    it."""
    soft_in_memory_cell_balance_threshold: float = 0.05
    """In-memory moves relieve nodes that are more than this share above the mean. Larger: fewer moves; smaller: closer
    balance."""
    hard_in_memory_cell_balance_threshold: float = 0.15
    """In-memory moves begin when the emptiest node has this share less than the fullest. Larger: they begin later;
    smaller: sooner."""
    tablet_to_cell_ratio: float = 10000.0
    """Limits the tablets of a table to the number of nodes × this. Larger: more tablets are allowed; smaller: splits
    stop sooner."""
    safe_used_tablet_static_ratio: float = 0.98
    """The share of a node's `memory` that moves may fill with in-memory tables. Larger: less memory is idle; smaller:
    tables have more room to grow."""
    default_in_memory_group: str = ""
    """The group of in-memory tables that do not name one; empty: `default`, as for all other tables."""
    tablet_balancer_schedule: FormulaText = ""
    """Formula over hours and minutes; empty: the cluster's default."""
    groups: Mapping[str, GroupOptions] = field(default_factory=dict)
    """By name; the group `default` always exists."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """`[tables.NAME]` of a bundle: the options of one table. Those that YT nests under `tablet_balancer_config` of a
    table may be nested here too."""

    enable_auto_reshard: bool = True
    """Whether its tablets are split and merged automatically. YT's older `enable_tablet_balancer` and
    `disable_tablet_balancer` are read as this, with a notice."""
    enable_auto_tablet_move: bool = True
    """Whether its tablets are moved automatically."""
    min_tablet_size: Bytes | None = None
    """As in the bundle. The table's three sizes are used only if all are set and strictly increasing, as in YT; if not,
    the bundle's are, and `config check` says so. Larger: more merges; smaller: fewer."""
    desired_tablet_size: Bytes | None = None
    """See `min_tablet_size`. Larger: fewer tablets; smaller: more."""
    max_tablet_size: Bytes | None = None
    """See `min_tablet_size`. Larger: fewer splits; smaller: more."""
    desired_tablet_count: int | None = None
    """Overrides every size. A hash table gets the nearest power of two by ratio (10 becomes 8, 12 becomes 16), and not
    fewer than `min_tablet_count`. More: finer balance; fewer: fewer partitions."""
    min_tablet_count: int | None = None
    """Merges leave at least this many tablets. More: load stays spread; fewer: small tables shrink further."""
    desired_tablet_metric: float | None = None
    """How much of its group's metric each tablet should carry. Larger: fewer tablets; smaller: more."""
    enable_parameterized: bool | None = None
    """Whether its tablets are moved, split and merged by its group's metric; None: yes, if the group has one."""
    group: str = "default"
    """The group whose schedule and parameters apply to it."""
    in_memory_mode: InMemoryMode = InMemoryMode.NONE
    """Anything but `none`: the sizes and balance of in-memory tables apply, and a tablet is read into the target's
    cache before the switch."""
    placement: Placement = Placement.BALANCED
    """`balanced`: by the planner's objective; otherwise the fixed function that decides which node a vbucket belongs
    to."""
    virtual_nodes: int = VIRTUAL_NODES
    """With `placement = "ring"`: how many points a node of weight 1 has on the ring. More: nodes carry more equal
    shares; fewer: placing takes less time."""
    zones: tuple[str, ...] = ()
    """Zones its tablets may live in; empty: any."""
    every: Seconds | None = None
    """For a range table whose key begins with a time: the period that each new tablet covers, counted from midnight
    UTC; weeks begin on Monday. None: its tablets are cut only by size and heat. Longer: fewer, larger tablets; shorter:
    finer expiry, more partitions."""
    premake: Seconds | None = None
    """How far ahead tablets are created, each on a node that the planner has chosen; needs `every`. None: none are
    created ahead. Longer: the table survives longer outages of the daemon; shorter: fewer empty partitions."""
    expire_after: Seconds | None = None
    """Tablets in which every key is older than this are retired, with their rows, within the schedule. None: nothing
    expires. Longer: more is kept; shorter: more is deleted."""
    key_unit: str = ""
    """The unit that a bigint key counts since 1970: `s`, `ms` or `us`. Empty: the key is a date or a timestamptz."""


@dataclass(frozen=True, slots=True)
class HeatOptions:
    """`[heat]` of a bundle: when a tablet is too hot, and when two are cool enough to be merged again."""

    enable: bool = True
    """Whether hot tablets are detected and split."""
    schedule: FormulaText = ""
    """Formula for splits by heat only; empty: the bundle's."""
    max_rows_per_second: float | None = None
    """Rows per second, written and read, above which a tablet is hot; None: no absolute limit. Larger: fewer splits by
    heat; smaller: more."""
    max_node_share: float = 0.20
    """The share of its node's load that one tablet may carry. Larger: only very hot tablets are split; smaller: more
    are."""
    min_rows_per_second: float = 100.0
    """Below this rate a tablet is never hot, whatever its share: an idle cluster has no hot spots. Larger: quiet
    clusters are left alone; smaller: splits begin at a lower load."""
    polls_to_confirm: int = 3
    """For how many polls in a row a tablet must be hot: a burst is not a hot range. More: fewer false alarms; fewer:
    hot tablets are split sooner."""
    hot_key_share: float = 0.25
    """A key with at least this share of its tablet's samples is a hot key, which no split helps. Larger: splits are
    tried for longer; smaller: a key is reported as hot sooner."""
    front_share: float = 0.80
    """A tablet with at least this share of its writes at one end is a moving front. Larger: fewer tablets count as one;
    smaller: more."""
    min_samples: int = 100
    """With fewer key samples than this nothing is decided. More: cuts are surer, but later; fewer: sooner, but less
    sure."""
    min_confidence: float = 0.5
    """The confidence in the samples, from 0 to 1, needed to split a tablet. Larger: fewer unnecessary splits; smaller:
    at 0.3 or less PostgreSQL's statistics alone, which know nothing about reads, are enough."""
    min_split_age: Seconds = 3600.0
    """How long tablets split by heat stay split before they may be merged again. Longer: fewer changes; shorter: cool
    partitions are merged sooner."""


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """`[placement]` of a bundle: the objective over several dimensions, and how much a move must gain."""

    dimensions: Mapping[str, float] = field(
        default_factory=lambda: {"bytes": 1.0, "write_rate": 1.0, "read_rate": 0.5, "tablets": 0.1}
    )
    """Dimension → weight. The dimensions are bytes, memory, write_rate, read_rate and tablets. The tightest one
    decides. Larger: that dimension is balanced more closely; smaller: less."""
    load: PlannedLoad = PlannedLoad.PROFILE
    """Which reads and writes are balanced: those of the whole day, so that a window at night takes care of the day's
    peaks, or the current ones. Drained nodes, full disks and heat always use the current load."""
    start_threshold: float = 0.10
    """Moves start when the fullest node in some dimension is this share above the mean. Larger: fewer moves; smaller:
    closer balance."""
    stop_threshold: float = 0.05
    """Moves stop when every dimension is within this share of the mean; the gap to `start_threshold` keeps the plan
    steady. Larger: they stop sooner; smaller: they continue to a closer balance."""
    min_gain: float = 0.02
    """How much emptier than its source, as a share of the mean, a move's target must still be after the move. Larger:
    only moves that help a lot; smaller: more moves."""
    payback_horizon: Seconds = 86400.0
    """A move that relieves neither disk nor memory must take away more load within this time than copying costs. The
    default is a day, so that a move for a daily peak pays off and one for a passing burst does not. Longer: more moves
    pay off; shorter: fewer."""
    ordinary_mover: Mover = Mover.OBJECTIVE
    """Which mover `enable_cell_balancer` switches on."""
    table_spread: float | None = None
    """The most tablets of one table that a node may get, as a multiple of an even share, rounded up; None: no limit.
    Larger: more freedom for the other dimensions; smaller: each table is spread more evenly."""
    evacuate_full_nodes: bool = True
    """Whether a node above `close_at_disk_share` gives tablets away at once, even if the movers are switched off."""
    close_at_disk_share: float = 0.85
    """A node whose disk is fuller than this gets no new tablets. Larger: disks are filled further; smaller: more room
    is left to grow."""
    reopen_at_disk_share: float = 0.80
    """A closed node opens again below this. Balancing moves do not fill any node beyond it, so that the node can grow
    without closing. Larger: it opens sooner; smaller: later."""
    close_at_load: float = 2.0
    """A node that reads or writes this many times its fair share gets no new tablets. Larger: it is closed later;
    smaller: sooner."""
    reopen_at_load: float = 1.5
    """A node closed for its load opens again below this multiple of its fair share. Larger: it opens sooner; smaller:
    later."""
    close_after: Seconds = 300.0
    """How long a node must have been above `close_at_load` without a break before it is closed. Longer: fewer nodes are
    closed for passing peaks; shorter: an overloaded node is relieved sooner."""


@dataclass(frozen=True, slots=True)
class BudgetOptions:
    """`[migration]` of a bundle, the part that decides how much is done at once."""

    moves_per_node: int = 1
    """How many migrations a node may take part in at once. More: balance is reached sooner; fewer: applications notice
    less."""
    moves_total: AutoCount = 4
    """How many migrations of the bundle run at once, or "auto": as many as there are pairs of nodes, but no more than
    one process can carry at the measured rate. More: balance is reached sooner; fewer: applications notice less."""
    bytes_per_window: Bytes | None = None
    """How many bytes may be moved in one window of the schedule; None: no limit. Larger: more is moved in a night;
    smaller: less."""
    expected_bytes_per_second: Annotated[float, "bytes"] = 32 * MB
    """The expected copy rate until one has been measured. Larger: more moves are expected to fit into a window;
    smaller: fewer."""
    cool_down: Seconds = 600.0
    """How long a tablet rests after a migration. Longer: fewer changes; shorter: it may be moved again sooner."""
    back_off: Seconds = 300.0
    """How long a tablet waits after its first failed migration; doubled with each further failure. Longer: fewer
    useless attempts; shorter: it succeeds sooner once the cause is gone."""
    quarantine_after: int = 3
    """After this many failures in a row a tablet is left alone until an operator runs `balancer release`. More: it is
    tried for longer; fewer: an operator is needed sooner."""


class Apart(StrEnum):
    """What a rule keeps on different nodes."""

    TABLETS = "tablets"
    TABLES = "tables"


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """`[[rules]]` of a bundle: where the tablets of some tables, or of a range of their keys, must or must not live."""

    name: str = ""
    """The name that plans and messages use for it."""
    tables: tuple[str, ...] = ()
    """The tables it applies to."""
    key: KeyValues = ()
    """The first values of the keys it applies to, as in ["EU"] for the key (region, id); empty: all keys."""
    keys_from: KeyValues = ()
    """The first key it applies to; empty: the lowest. It may have fewer values than the key has columns."""
    keys_to: KeyValues = ()
    """The first key it no longer applies to; empty: up to the highest."""
    zones: tuple[str, ...] = ()
    """Zones the tablets must live in; empty: any."""
    nodes: tuple[str, ...] = ()
    """Nodes the tablets must live on; empty: any."""
    not_zones: tuple[str, ...] = ()
    """Zones the tablets must not live in."""
    not_nodes: tuple[str, ...] = ()
    """Nodes the tablets must not live on."""
    spread: Apart | None = None
    """`tablets`: no node has two of them; `tables`: no node has tablets of two of the tables; None: they may share
    nodes."""
    together: bool = False
    """Whether all the tablets must live on one node."""

    @property
    def has_keys(self) -> bool:
        """Whether it is about a part of the keys only."""
        return bool(self.key or self.keys_from or self.keys_to)


@dataclass(frozen=True, slots=True)
class BundleOptions:
    """All options of one bundle."""

    balancer: BalancerOptions = field(default_factory=BalancerOptions)
    tables: Mapping[str, TableOptions] = field(default_factory=dict)
    heat: HeatOptions = field(default_factory=HeatOptions)
    placement: PlacementOptions = field(default_factory=PlacementOptions)
    budgets: BudgetOptions = field(default_factory=BudgetOptions)
    rules: tuple[PlacementRule, ...] = ()

    def table(self, name: str) -> TableOptions:
        """The options of a table; defaults where the file says nothing."""
        return self.tables.get(name) or TableOptions()

    def group_name(self, table: str) -> str:
        """The group that a table belongs to."""
        options, in_memory = self.table(table), self.balancer.default_in_memory_group
        if options.group == DEFAULT_GROUP and in_memory and options.in_memory_mode is not InMemoryMode.NONE:
            return in_memory
        return options.group

    def group(self, table: str) -> GroupOptions:
        """The options of a table's group; a group nobody described has the defaults."""
        return self.balancer.groups.get(self.group_name(table)) or GroupOptions()

    def metric(self, table: str) -> str:
        """The metric by which a table is balanced; empty: by none."""
        return "" if self.table(table).enable_parameterized is False else self.group(table).metric
