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

KB = 1024
MB = 1024 * KB
GB = 1024 * MB


class InMemoryMode(StrEnum):
    """Whether a table is meant to live in its nodes' memory: it then has its own size limits and its own balance."""

    NONE = "none"
    COMPRESSED = "compressed"
    UNCOMPRESSED = "uncompressed"


class Placement(StrEnum):
    """How the vbuckets of a table are given to nodes: by the planner's objective, or by a fixed sharding function."""

    BALANCED = "balanced"
    MODULO = "modulo"
    RENDEZVOUS = "rendezvous"
    RING = "ring"
    JUMP = "jump"
    FIBONACCI = "fibonacci"


class PlannedLoad(StrEnum):
    """Which reads and writes a plan evens out."""

    PROFILE = "profile"
    """Those of the whole day, every part of it a dimension of its own, once a day is known; until then those of now."""
    NOW = "now"
    """Those of the last ten minutes."""


class Mover(StrEnum):
    """How the tables that are neither in-memory nor moved by a metric are spread over the nodes."""

    OBJECTIVE = "objective"
    """One objective over all dimensions at once."""
    COUNT = "count"
    """YT's ordinary mover: every node gets an equal number of each table's tablets."""


@dataclass(frozen=True, slots=True)
class ParameterizedOptions:
    """`parameterized = { … }` of a group, as YT writes it: each takes the place of the group's key of that name."""

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
    """Whether tablets of its tables are moved."""
    enable_reshard: bool = True
    """Whether tablets of its tables are split and merged."""
    metric: str = ""
    """Formula over a tablet's statistics and rates; empty: the group is not moved by a metric."""
    max_action_count: int = 50
    """Most moves by metric in one plan. More: balance is reached in fewer plans; fewer: calmer."""
    node_deviation_threshold: float = 0.1
    """Moves by metric start when the fullest node's load reaches the emptiest's × (1 + this). Larger: fewer moves;
    smaller: closer balance."""
    cell_deviation_threshold: float = 0.1
    """The same; the smaller of the two counts. Larger: fewer moves; smaller: closer balance."""
    min_relative_metric_improvement: float = 0.0
    """Share of the metric's squared deviation, per node, that a move must take away. Larger: only moves that help
    much; smaller: more moves."""
    per_table_uniform: bool = False
    """Whether the metric of each table is spread evenly over the nodes. Off: only that of the whole group is, and one
    table may lie on few nodes."""
    reshard_by_metric: bool = False
    """Whether tables with a `desired_tablet_count` are split and merged so that their tablets carry equal parts of the
    metric as well as of the bytes. Off: by bytes alone."""
    parameterized: ParameterizedOptions = field(default_factory=ParameterizedOptions)

    def flat(self) -> "GroupOptions":
        """With what `parameterized` says in the places where the policies look."""
        return replace(self, **self.parameterized.given(), parameterized=ParameterizedOptions())  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class BalancerOptions:
    """`[tablet_balancer_config]` of a bundle: YT's names and defaults."""

    min_tablet_size: Bytes = 128 * MB
    """Tablets below it are merged. Larger: fewer, larger tablets; smaller: small ones are left alone."""
    desired_tablet_size: Bytes = 10 * GB
    """What splits and merges aim at. Larger: fewer tablets, coarser balance, longer moves; smaller: more partitions
    to plan over."""
    max_tablet_size: Bytes = 20 * GB
    """Tablets above it are split. Larger: fewer splits, longer moves; smaller: more tablets."""
    min_in_memory_tablet_size: Bytes = 512 * MB
    """The same for tables that are meant to live in memory. Larger: fewer, larger tablets; smaller: small ones are
    left alone."""
    desired_in_memory_tablet_size: Bytes = 1 * GB
    """The same for tables that are meant to live in memory. Larger: fewer tablets; smaller: more."""
    max_in_memory_tablet_size: Bytes = 2 * GB
    """The same for tables that are meant to live in memory. Larger: fewer splits; smaller: more tablets."""
    min_desired_tablet_size: Bytes = 5 * MB
    """A floor on the desired size: smaller tablets cost more than they balance. Larger: a wanted number of tablets
    gives way sooner; smaller: tiny tablets are made where they are asked for."""
    enable_tablet_size_balancer: bool = True
    """Whether tablets are split and merged by their size."""
    enable_in_memory_cell_balancer: bool = True
    """Whether tablets of in-memory tables are moved between nodes."""
    enable_cell_balancer: bool = False
    """Whether the other tablets are moved between nodes. Off, as in YT: nothing moves before you want it."""
    soft_in_memory_cell_balance_threshold: float = 0.05
    """In-memory moves relieve nodes that are this share above the mean … Larger: fewer moves; smaller: closer
    balance."""
    hard_in_memory_cell_balance_threshold: float = 0.15
    """… and begin when the emptiest node has this share less than the fullest. Larger: they begin later; smaller:
    sooner."""
    tablet_to_cell_ratio: float = 10000.0
    """Caps the tablets of a table at nodes × this. Larger: more tablets are allowed; smaller: splits end sooner."""
    safe_used_tablet_static_ratio: float = 0.98
    """Share of a node's `memory` that moves may fill with in-memory tables. Larger: less memory lies idle; smaller:
    more is kept for what tables grow by."""
    default_in_memory_group: str = ""
    """Group of the in-memory tables that name none; empty: `default`, as for all others."""
    tablet_balancer_schedule: FormulaText = ""
    """Formula over hours and minutes; empty: the cluster's default."""
    groups: Mapping[str, GroupOptions] = field(default_factory=dict)
    """By name; the group `default` always exists."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """`[tables.NAME]` of a bundle: what decides about one table."""

    enable_auto_reshard: bool = True
    """Whether its tablets are split and merged without being asked."""
    enable_auto_tablet_move: bool = True
    """Whether its tablets are moved without being asked."""
    min_tablet_size: Bytes | None = None
    """The three sizes are used only when all are set and strictly increasing. Larger: more merges; smaller:
    fewer."""
    desired_tablet_size: Bytes | None = None
    """See `min_tablet_size`. Larger: fewer tablets; smaller: more."""
    max_tablet_size: Bytes | None = None
    """See `min_tablet_size`. Larger: fewer splits; smaller: more."""
    desired_tablet_count: int | None = None
    """Overrides every size. More: finer balance; fewer: fewer partitions."""
    min_tablet_count: int | None = None
    """Merges leave at least so many. More: load stays spread; fewer: small tables shrink further."""
    desired_tablet_metric: float | None = None
    """What each tablet should carry of its group's metric. Larger: fewer tablets; smaller: more."""
    enable_parameterized: bool | None = None
    """Whether its tablets are moved, split and merged by its group's metric; None: if the group has one."""
    group: str = "default"
    """The group whose schedule and parameters it has."""
    in_memory_mode: InMemoryMode = InMemoryMode.NONE
    """Not `none`: it has the sizes and the balance of in-memory tables, and a tablet is read into the target's cache
    before the switch."""
    placement: Placement = Placement.BALANCED
    """`balanced`: by the planner's objective; else the fixed function that says which node a vbucket belongs to."""
    zones: tuple[str, ...] = ()
    """Zones its tablets may live in; empty: any."""
    every: Seconds | None = None
    """Of a range table whose key begins with a time: how much time a new tablet is for, counted from midnight UTC;
    weeks begin on Mondays. None: its tablets are cut by size and heat alone. Longer: fewer, larger tablets; shorter:
    finer expiry, more partitions."""
    premake: Seconds | None = None
    """How far ahead of now there are tablets, each on a node that the planner has chosen; needs `every`. None: none
    are made ahead. Longer: longer outages of the daemon do not matter; shorter: fewer empty partitions."""
    expire_after: Seconds | None = None
    """Tablets whose every key is older than this are retired, with their rows, within the schedule. None: nothing is.
    Longer: more is kept; shorter: more is deleted."""
    key_unit: str = ""
    """What a bigint key counts since 1970: `s`, `ms` or `us`. Empty: the key is a date or a timestamptz."""


@dataclass(frozen=True, slots=True)
class HeatOptions:
    """`[heat]` of a bundle: when a tablet is too hot, and when two are cool enough to be joined again."""

    enable: bool = True
    """Whether hot tablets are found and split."""
    schedule: FormulaText = ""
    """Formula for heat alone; empty: the bundle's."""
    max_rows_per_second: float | None = None
    """Rows written and read per second by one tablet; None: no absolute limit. Larger: fewer splits by heat;
    smaller: more."""
    max_node_share: float = 0.20
    """Share of its node's load that one tablet may carry. Larger: only very hot tablets are split; smaller: more
    are."""
    min_rows_per_second: float = 100.0
    """Below this a tablet is never hot, whatever its share: an idle cluster has no hot spots. Larger: quiet
    clusters are left alone; smaller: splits begin at less load."""
    polls_to_confirm: int = 3
    """Polls in a row a trigger must hold: a burst is not a hot range. More: fewer false alarms; fewer: it acts
    sooner."""
    hot_key_share: float = 0.25
    """Share of a tablet's samples from which on one key is called hot: no split helps it. Larger: splits are tried
    for longer; smaller: it is named a hot key sooner."""
    front_share: float = 0.80
    """Share of its writes at one end that makes a tablet a moving front. Larger: fewer are called one; smaller:
    more."""
    min_samples: int = 100
    """Fewer key samples than this decide nothing. More: surer cuts, later; fewer: sooner, and less sure."""
    min_confidence: float = 0.5
    """How far the samples must be believed, from 0 to 1, before a tablet is split. Larger: fewer splits that were not
    needed; smaller: PostgreSQL's statistics alone (at most 0.3), which know nothing of reads, are enough."""
    min_split_age: Seconds = 3600.0
    """Seconds before what heat has split may be merged again. Longer: steadier; shorter: partitions go sooner once
    it is cool."""


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """`[placement]` of a bundle: the objective over several dimensions, and what a move must be worth."""

    dimensions: Mapping[str, float] = field(
        default_factory=lambda: {"bytes": 1.0, "write_rate": 1.0, "read_rate": 0.5, "tablets": 0.1}
    )
    """Dimension → weight. Known: bytes, memory, write_rate, read_rate, tablets. The tightest one decides. Larger:
    that dimension is balanced more closely; smaller: less."""
    load: PlannedLoad = PlannedLoad.PROFILE
    """Which reads and writes are evened out: those of the whole day, so that a window at night mends the peaks of the
    day, or those of now. Drained nodes, full disks and heat always go by now."""
    start_threshold: float = 0.10
    """Moves start when some dimension's fullest node is this much above the mean … Larger: fewer moves; smaller:
    closer balance."""
    stop_threshold: float = 0.05
    """… and stop when every one is within this: the gap keeps the plan steady. Larger: they stop sooner; smaller:
    they go on to a closer balance."""
    min_gain: float = 0.02
    """How much emptier, as a share of the mean, a move's target must still be than its source once the move is
    done. Larger: only moves that help much; smaller: more moves."""
    payback_horizon: Seconds = 86400.0
    """Seconds. A move that relieves neither disk nor memory must carry off more load in this time than copying
    costs: a day, so that a move for a daily peak pays and one for a passing burst does not. Longer: more moves pay;
    shorter: fewer."""
    ordinary_mover: Mover = Mover.OBJECTIVE
    """What `enable_cell_balancer` switches on."""
    table_spread: float | None = None
    """Most tablets of one table that a node may be given, as a multiple of the even number, rounded up; None: any.
    Larger: more freedom for the other dimensions; smaller: each table is spread more evenly."""
    evacuate_full_nodes: bool = True
    """Whether a node over `close_at_disk_share` gives tablets away at once, even where the movers are switched off."""
    close_at_disk_share: float = 0.85
    """A node fuller than this gets no new tablets … Larger: disks are used further; smaller: more room is left to
    grow."""
    reopen_at_disk_share: float = 0.80
    """… until it is below this. Moves that balance fill no node further: it must be able to grow without closing.
    Larger: it opens sooner; smaller: later."""
    close_at_load: float = 2.0
    """A node that reads or writes this many times its due share gets no new tablets … Larger: it is closed later;
    smaller: sooner."""
    reopen_at_load: float = 1.5
    """… until it does less than this. Larger: it opens sooner; smaller: later."""
    close_after: Seconds = 300.0
    """Seconds that a node must have been over `close_at_load` without a break. Longer: fewer nodes are closed for what
    passes by itself; shorter: an overloaded node is spared sooner."""


@dataclass(frozen=True, slots=True)
class BudgetOptions:
    """`[migration]` of a bundle, as far as it decides how much is done at once."""

    moves_per_node: int = 1
    """Migrations in which a node may take part at once. More: balance is reached sooner; fewer: applications notice
    less."""
    moves_total: AutoCount = 4
    """Migrations of the bundle that run at once, or "auto": as many as there are pairs of nodes for, and as one process
    can carry at the rate that was measured. More: balance is reached sooner; fewer: applications notice less."""
    bytes_per_window: Bytes | None = None
    """Bytes that may be moved in one window of the schedule; None: no limit. Larger: more is done in a night;
    smaller: less."""
    expected_bytes_per_second: Annotated[float, "bytes"] = 32 * MB
    """Used until a rate has been measured. Larger: more moves are expected to fit into a window; smaller: fewer."""
    cool_down: Seconds = 600.0
    """Seconds a tablet rests after a migration. Longer: steadier; shorter: it may be moved again sooner."""
    back_off: Seconds = 300.0
    """Seconds after a first failure; doubled with each further one. Longer: less is tried in vain; shorter: it
    succeeds sooner once the cause is gone."""
    quarantine_after: int = 3
    """Failures in a row after which a tablet is left alone until an operator says otherwise. More: it tries for
    longer; fewer: an operator is asked sooner."""


class Apart(StrEnum):
    """What a rule keeps on different nodes."""

    TABLETS = "tablets"
    TABLES = "tables"


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """`[[rules]]` of a bundle: where tablets of some tables, or of a range of their keys, must and must not live."""

    name: str = ""
    """What plans and messages call it."""
    tables: tuple[str, ...] = ()
    """The tables that it is about."""
    key: KeyValues = ()
    """The first values of the keys that it is about, as in ["EU"] for the key (region, id); empty: all keys."""
    keys_from: KeyValues = ()
    """The first key that it is about; empty: the lowest. Fewer values than the key has columns are allowed."""
    keys_to: KeyValues = ()
    """The first key that it is no longer about; empty: up to the highest."""
    zones: tuple[str, ...] = ()
    """Zones they must live in; empty: any."""
    nodes: tuple[str, ...] = ()
    """Nodes they must live on; empty: any."""
    not_zones: tuple[str, ...] = ()
    """Zones in which they must not live."""
    not_nodes: tuple[str, ...] = ()
    """Nodes on which they must not live."""
    spread: Apart | None = None
    """`tablets`: no node has two of them; `tables`: no node has tablets of two of the tables; None: they may share."""
    together: bool = False
    """Whether all of them live on one node."""

    @property
    def has_keys(self) -> bool:
        """Whether it is about a part of the keys only."""
        return bool(self.key or self.keys_from or self.keys_to)


@dataclass(frozen=True, slots=True)
class BundleOptions:
    """All that decides about one bundle."""

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
