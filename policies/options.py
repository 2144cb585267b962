"""The options that decide: names, defaults and meanings as users of YT know them. Plain values; no files here.

`balancer.settings` reads them from a bundle's file; the policies take them as arguments. Sizes are bytes, times are
seconds, rates are per second. What is `None` is unset and falls back as its docstring says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

Bytes = Annotated[int, "bytes"]
"""A size; written "10GB" in a file, powers of 1024."""
Seconds = Annotated[float, "seconds"]
"""A duration; written "250ms" or "10m" in a file."""
FormulaText = Annotated[str, "formula"]
"""A schedule formula; empty: unset."""

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


class MigrationMode(StrEnum):
    """How writers are treated while a migration copies rows."""

    REPLICATE = "replicate"
    READ_ONLY = "read-only"


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
class GroupOptions:
    """A named group of tables with its own schedule and parameters."""

    schedule: FormulaText = ""
    """Formula; empty: the bundle's."""
    enable_move: bool = True
    enable_reshard: bool = True
    metric: str = ""
    """Formula over a tablet's statistics and rates; empty: the group is not moved by a metric."""
    max_action_count: int = 50
    """Most moves by metric in one plan."""
    node_deviation_threshold: float = 0.1
    """Moves by metric start when the fullest node's load reaches the emptiest's × (1 + this)."""
    cell_deviation_threshold: float = 0.1
    min_relative_metric_improvement: float = 0.0


@dataclass(frozen=True, slots=True)
class BalancerOptions:
    """`[tablet_balancer_config]` of a bundle: YT's names and defaults."""

    min_tablet_size: Bytes = 128 * MB
    desired_tablet_size: Bytes = 10 * GB
    max_tablet_size: Bytes = 20 * GB
    min_in_memory_tablet_size: Bytes = 512 * MB
    desired_in_memory_tablet_size: Bytes = 1 * GB
    max_in_memory_tablet_size: Bytes = 2 * GB
    min_desired_tablet_size: Bytes = 5 * MB
    """A floor on the desired size: smaller tablets cost more than they balance."""
    enable_tablet_size_balancer: bool = True
    enable_in_memory_cell_balancer: bool = True
    enable_cell_balancer: bool = False
    soft_in_memory_cell_balance_threshold: float = 0.05
    hard_in_memory_cell_balance_threshold: float = 0.15
    tablet_to_cell_ratio: float = 10000.0
    """Caps the tablets of a table at nodes × this."""
    tablet_balancer_schedule: FormulaText = ""
    """Formula over hours and minutes; empty: the cluster's default."""
    groups: Mapping[str, GroupOptions] = field(default_factory=dict)
    """By name; the group `default` always exists."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """`[tables.NAME]` of a bundle: what decides about one table."""

    enable_auto_reshard: bool = True
    enable_auto_tablet_move: bool = True
    min_tablet_size: Bytes | None = None
    """The three sizes are used only when all are set and strictly increasing."""
    desired_tablet_size: Bytes | None = None
    max_tablet_size: Bytes | None = None
    desired_tablet_count: int | None = None
    """Overrides every size."""
    min_tablet_count: int | None = None
    desired_tablet_metric: float | None = None
    group: str = "default"
    in_memory_mode: InMemoryMode = InMemoryMode.NONE
    placement: Placement = Placement.BALANCED
    zones: tuple[str, ...] = ()
    """Zones its tablets may live in; empty: any."""


@dataclass(frozen=True, slots=True)
class HeatOptions:
    """`[heat]` of a bundle: when a tablet is too hot, and when two are cool enough to be joined again."""

    enable: bool = True
    schedule: FormulaText = ""
    """Formula for heat alone; empty: the bundle's."""
    max_rows_per_second: float | None = None
    """Rows written and read per second by one tablet; None: no absolute limit."""
    max_bytes_per_second: Annotated[float, "bytes"] | None = None
    max_cpu_seconds_per_second: float | None = None
    max_node_share: float = 0.20
    """Share of its node's load that one tablet may carry."""
    min_rows_per_second: float = 100.0
    """Below this a tablet is never hot, whatever its share: an idle cluster has no hot spots."""
    polls_to_confirm: int = 3
    """Polls in a row a trigger must hold: a burst is not a hot range."""
    hot_key_share: float = 0.25
    front_share: float = 0.80
    min_samples: int = 100
    """Fewer key samples than this decide nothing."""
    min_split_age: Seconds = 3600.0
    """Seconds before what heat has split may be merged again."""


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """`[placement]` of a bundle: the objective over several dimensions, and what a move must be worth."""

    dimensions: Mapping[str, float] = field(
        default_factory=lambda: {"bytes": 1.0, "write_rate": 1.0, "read_rate": 0.5, "tablets": 0.1}
    )
    """Dimension → weight. Known: bytes, memory, write_rate, read_rate, tablets. The tightest one decides."""
    load: PlannedLoad = PlannedLoad.PROFILE
    """Which reads and writes are evened out: those of the whole day, so that a window at night mends the peaks of the
    day, or those of now. Bytes, full disks and heat always go by now."""
    start_threshold: float = 0.10
    """Moves start when some dimension's fullest node is this much above the mean …"""
    stop_threshold: float = 0.05
    """… and stop when every one is within this: the gap keeps the plan steady."""
    min_gain: float = 0.02
    """How much emptier, as a share of the mean, a move's target must still be than its source once the move is done."""
    payback_horizon: Seconds = 86400.0
    """Seconds. A move that relieves neither disk nor memory must carry off more load in this time than copying costs:
    a day, so that a move for a daily peak pays and one for a passing burst does not."""
    ordinary_mover: Mover = Mover.OBJECTIVE
    """What `enable_cell_balancer` switches on."""
    table_spread: float | None = None
    """Most tablets of one table that a node may be given, as a multiple of the even number, rounded up; None: any."""
    evacuate_full_nodes: bool = True
    """Whether a node over `close_at_disk_share` gives tablets away at once, even where the movers are switched off."""
    close_at_disk_share: float = 0.85
    """A node fuller than this gets no new tablets …"""
    reopen_at_disk_share: float = 0.80
    """… until it is below this. Moves that balance fill no node further: it must be able to grow without closing."""
    close_at_load: float = 2.0
    """A node that reads or writes this many times its due share gets no new tablets …"""
    reopen_at_load: float = 1.5
    """… until it does less than this."""


@dataclass(frozen=True, slots=True)
class BudgetOptions:
    """`[migration]` of a bundle, as far as it decides how much is done at once."""

    moves_per_node: int = 1
    moves_total: int = 4
    bytes_per_window: Bytes | None = None
    """Bytes that may be moved in one window of the schedule; None: no limit."""
    expected_bytes_per_second: Annotated[float, "bytes"] = 32 * MB
    """Used until a rate has been measured."""
    cool_down: Seconds = 600.0
    """Seconds a tablet rests after a migration."""
    back_off: Seconds = 300.0
    """Seconds after a first failure; doubled with each further one."""
    quarantine_after: int = 3
    """Failures in a row after which a tablet is left alone until an operator says otherwise."""


@dataclass(frozen=True, slots=True)
class BundleOptions:
    """All that decides about one bundle."""

    balancer: BalancerOptions = field(default_factory=BalancerOptions)
    tables: Mapping[str, TableOptions] = field(default_factory=dict)
    heat: HeatOptions = field(default_factory=HeatOptions)
    placement: PlacementOptions = field(default_factory=PlacementOptions)
    budgets: BudgetOptions = field(default_factory=BudgetOptions)

    def table(self, name: str) -> TableOptions:
        """The options of a table; defaults where the file says nothing."""
        return self.tables.get(name) or TableOptions()
