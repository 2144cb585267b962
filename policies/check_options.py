"""What `[checks]` of a bundle's file may say: how often, how gently and what the consistency checker looks at.

Plain values, read by `balancer.settings`; `policies.checking` decides by them.
"""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from balancer.policies.options import FormulaText, Seconds


class CheckKind(StrEnum):
    """What is looked at, in the order of a round: what is cheap and tells of much comes first."""

    MAP = "map"
    """Whether the nodes own what the directory says, and nothing else."""
    STRAYS = "strays"
    """Partitions with rows on a node that does not own their keys: one key on two nodes."""
    SEQUENCES = "sequences"
    """Sequences of several nodes that hand out the same numbers."""
    COPIES = "copies"
    """Copies of reference tables that are not what their home is."""
    BOUNDS = "bounds"
    """Rows outside of their tablet's part of the key space."""
    ORPHANS = "orphans"
    """Rows that refer to a row that is not there."""
    IDS = "ids"
    """Ids in rows that the directory has not handed out yet, and will."""
    MESSAGES = "messages"
    """Messages between shards whose two ends contradict each other, or that nobody can deliver."""
    INVARIANTS = "invariants"
    """The application's own: SQL that must find nothing on any tablet."""
    SUMS = "sums"
    """The application's own: a sum over all tablets that must not change, or must be a value."""


@dataclass(frozen=True, slots=True)
class OrphanRule:
    """`[[checks.orphans]]`: rows of one root that need a row of another, beside what foreign keys say."""

    child: str
    columns: tuple[str, ...]
    parent: str
    references: tuple[str, ...] = ()
    """The parent's columns, in the same order; empty: they have the same names."""

    @property
    def parent_columns(self) -> tuple[str, ...]:
        return self.references or self.columns


@dataclass(frozen=True, slots=True)
class Invariant:
    """`[[checks.invariants]]`: a promise of the application's own, as SQL over the partitions of one tablet.

    `{orders}` in it stands for the tablet's partition of that root. Either `sql`, which must return no rows, or `sum`,
    which returns one number per tablet: together they are `equals`, or what they were at the first look.
    """

    name: str
    table: str
    sql: str = ""
    sum: str = ""
    equals: Decimal | None = None


@dataclass(frozen=True, slots=True)
class IdColumn:
    """`[[checks.ids]]`: a column that is filled from `router.ids`."""

    table: str
    column: str
    root: str = ""
    """The root that has it; empty: the table's first."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """The consistency checker of one bundle. It only reads."""

    enable: bool = False
    """Whether the leader checks on its own. Off by default, because each round reads every row once."""
    schedule: FormulaText = ""
    """When it may read; empty: the same schedule as the bundle's migrations."""
    every: Seconds = 86400.0
    """Time from the start of one round to the start of the next. Longer: less is read; shorter: damage is found
    sooner."""
    share: float = 0.05
    """The share of the time that it spends reading, over all nodes of the bundle. Larger: a round ends sooner; smaller:
    applications notice less."""
    kinds: tuple[CheckKind, ...] = tuple(CheckKind)
    """Which kinds of checks run."""
    statement_timeout: Seconds = 30.0
    """The time limit for one of the application's statements. Longer: heavier queries finish; shorter: a switch or
    split of the tablet, which waits for its readers, waits less."""
    message_age: Seconds = 3600.0
    """A message that has waited this long is a finding. Longer: a target that refuses for a while is not reported;
    shorter: undelivered messages are found sooner."""
    role: str = ""
    """The role that runs the application's statements; empty: the table's owner. A superuser, or the balancer's own
    role, is refused unless `trust_table_owners` is set, because functions that a statement calls belong to others."""
    orphans: tuple[OrphanRule, ...] = ()
    invariants: tuple[Invariant, ...] = ()
    ids: tuple[IdColumn, ...] = ()
