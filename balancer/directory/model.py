"""What the directory keeps: frozen records, each with a kind and a key. Changing one means making a new one.

`Put` and `Remove` of these records are the only changes there are; a `Transaction` is a set of them with the version
it was based on, the leader's epoch, an id of its own and a reason for people. Backends store records; `invariants.py`
says which sets of records are lawful. Nothing here does I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar
from uuid import uuid4

from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import HIGHEST, LOWEST, KeyType
from balancer.policies.migration_mode import MigrationMode as MigrationMode  # part of the model for everybody above

Json = Any
"""What `json.loads` gives: kept opaque here, owned by the package that wrote it."""


class RecordKind(StrEnum):
    """The kinds of records."""

    BUNDLE = "bundle"
    NODE = "node"
    TABLE = "table"
    TABLET = "tablet"
    MIGRATION = "migration"
    COMMAND = "command"
    PLAN = "plan"
    PIN = "pin"
    PAUSE = "pause"
    COUNTER = "counter"

    __hash__ = str.__hash__
    """An enumeration's own hash is a Python function; kinds are parts of keys that every check of a commit looks up."""


class NodeState(StrEnum):
    """What a node may be given. Only `active` nodes receive tablets; `draining` ones give theirs away."""

    ACTIVE = "active"
    DRAINING = "draining"
    CLOSED = "closed"  # keeps what it has, gets nothing new
    DOWN = "down"
    LOST = "lost"  # gone for good, on an operator's word: nobody waits for it, its tablets wait for an operator


EXPIRY = "expiry"
"""Of a pause that keeps expired tablets from being retired: its `only`."""
CLOSED_BY_DAEMON = "closed by the daemon: "
"""Prefix of the reason of a closed node that may be opened again without an operator."""


OUTBOX = "balancer_outbox_{}"
INBOX = "balancer_inbox_{}"
"""Names of the roots of a table, by its id, that hold its messages; see `balancer/nodes/schema/messages.sql`."""


class Layout(StrEnum):
    """How a table's key space is cut."""

    HASH = "hash"
    RANGE = "range"
    WHOLE = "whole"  # not at all: one tablet, the leaf (1, 0), and no key
    EVERYWHERE = "everywhere"  # likewise; its owner is the home, and every other node has a copy of the rows


class TabletState(StrEnum):
    """Of a tablet in the directory. Which of them is being migrated is said by the migrations, not here."""

    OWNED = "owned"
    QUARANTINED = "quarantined"  # left alone until an operator has looked at it
    EXPIRED = "expired"  # empty, replaces tablets whose keys have expired; takes no rows


class MigrationKind(StrEnum):
    """What a migration does."""

    MOVE = "move"
    SPLIT = "split"
    MERGE = "merge"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True)
class RangeBounds:
    """`lower <= key < upper`, both encoded by `policies.keyspace.keys`."""

    lower: bytes = LOWEST
    upper: bytes = HIGHEST


Bounds = RangeBounds | Leaf
"""A tablet's part of its table's key space: a range, or a hash leaf."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Tables and nodes under one policy file."""

    kind: ClassVar[RecordKind] = RecordKind.BUNDLE
    name: str

    @property
    def key(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Node:
    """One PostgreSQL database that holds tablets. The DSN has no password: each client brings its own."""

    kind: ClassVar[RecordKind] = RecordKind.NODE
    id: str
    bundle: str
    dsn: str
    state: NodeState = NodeState.ACTIVE
    zone: str = ""
    weight: float = 1.0
    reason: str = ""  # why it is in a state other than active
    rewound: str = ""
    """Why it is known to have gone back in time; empty: it is not. Stays until an operator accepts it."""
    generation: int = 0
    """Grows each time an operator accepts the node as it is: what it said before no longer counts."""

    @property
    def key(self) -> str:
        return self.id


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One column of a table's key."""

    name: str
    type: KeyType


@dataclass(frozen=True, slots=True)
class Table:
    """Colocated partitioned roots with one key. Roots are schema-qualified; the first one names the table's heat.

    A whole table has no key. PostgreSQL still wants a column to partition by, which may be a different one in each
    root: `columns` has them in the order of the roots.

    The roots of a table that is everywhere are plain tables, which are themselves the partitions of its one tablet.
    """

    kind: ClassVar[RecordKind] = RecordKind.TABLE
    id: int
    name: str
    bundle: str
    layout: Layout
    columns: tuple[KeyColumn, ...]
    roots: tuple[str, ...]

    @property
    def key(self) -> str:
        return str(self.id)

    @property
    def whole(self) -> bool:
        """Whether it has no key and always one tablet."""
        return self.layout in (Layout.WHOLE, Layout.EVERYWHERE)

    @property
    def everywhere(self) -> bool:
        """Whether it is a reference table: every node of its bundle has all rows."""
        return self.layout is Layout.EVERYWHERE

    @property
    def hashed(self) -> bool:
        """Whether its tablets are leaves."""
        return self.layout is not Layout.RANGE

    @property
    def key_columns(self) -> tuple[KeyColumn, ...]:
        """The columns by which rows are found: none for a whole table."""
        return () if self.whole else self.columns

    @property
    def key_types(self) -> tuple[KeyType, ...]:
        return tuple(column.type for column in self.key_columns)

    @property
    def message_roots(self) -> tuple[int, int] | None:
        """Which of its roots are the outbox and the inbox of its messages; None: it takes no part in messages."""
        names = [root.rpartition(".")[2] for root in self.roots]
        outbox, inbox = (word.format(self.id) for word in (OUTBOX, INBOX))
        return (names.index(outbox), names.index(inbox)) if {outbox, inbox} <= {*names} else None

    def columns_of(self, root: int) -> tuple[KeyColumn, ...]:
        """The columns by which PostgreSQL partitions the root with this number."""
        return self.columns[root : root + 1] if self.whole else self.columns


@dataclass(frozen=True, slots=True)
class Tablet:
    """A part of a table's key space and its owner. Ids are never reused; the epoch grows with each change of owner."""

    kind: ClassVar[RecordKind] = RecordKind.TABLET
    id: int
    table: int
    bounds: Bounds
    node: str
    epoch: int = 1
    state: TabletState = TabletState.OWNED
    partitions: tuple[str, ...] = ()
    """The partition's name in each root's schema, in the order of the table's roots; empty: `<root>_t<id>`."""

    @property
    def key(self) -> str:
        return str(self.id)


@dataclass(frozen=True, slots=True)
class Migration:
    """A journal record. `state` is a word of `balancer.migration.machine`; here only `finished` has a meaning."""

    kind: ClassVar[RecordKind] = RecordKind.MIGRATION
    id: str
    bundle: str
    table: int
    operation: MigrationKind
    mode: MigrationMode
    sources: tuple[int, ...]  # tablets that exist before
    targets: tuple[Tablet, ...]  # tablets as they will be after the commit
    source_node: str
    target_node: str
    state: str
    finished: bool = False
    reason: str = ""
    created: float = 0.0  # seconds since 1970
    updated: float = 0.0
    attempt: int = 1
    error: str = ""
    detail: Mapping[str, Json] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return self.id


class CommandState(StrEnum):
    """How far an operator's command has come."""

    WAITING = "waiting"
    ACCEPTED = "accepted"
    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Command:
    """An operator's request, put here from any host and carried out by the leader."""

    kind: ClassVar[RecordKind] = RecordKind.COMMAND
    id: str
    verb: str
    arguments: Mapping[str, Json]
    author: str
    created: float
    state: CommandState = CommandState.WAITING
    result: str = ""
    migration: str = ""
    """The migration that it began, if it began one."""

    @property
    def key(self) -> str:
        return self.id


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan of one bundle, as `policies` made it, with its inputs."""

    kind: ClassVar[RecordKind] = RecordKind.PLAN
    id: str
    bundle: str
    created: float
    state: str  # proposed, approved, superseded, done
    document: Json

    @property
    def key(self) -> str:
        return self.id


@dataclass(frozen=True, slots=True)
class Pin:
    """Keeps a tablet where it is."""

    kind: ClassVar[RecordKind] = RecordKind.PIN
    tablet: int
    until: float | None  # seconds since 1970; None: until it is unpinned
    author: str = ""
    reason: str = ""

    @property
    def key(self) -> str:
        return str(self.tablet)


@dataclass(frozen=True, slots=True)
class Pause:
    """A bundle in which nothing new is started; or, with `only`, nothing of that kind."""

    kind: ClassVar[RecordKind] = RecordKind.PAUSE
    bundle: str
    until: float | None
    author: str = ""
    reason: str = ""
    only: str = ""

    @property
    def key(self) -> str:
        return f"{self.bundle} {self.only}" if self.only else self.bundle


@dataclass(frozen=True, slots=True)
class Counter:
    """A number that only grows: the next tablet id, the next table id, blocks of row ids."""

    kind: ClassVar[RecordKind] = RecordKind.COUNTER
    name: str
    next: int = 1

    @property
    def key(self) -> str:
        return self.name


Record = Bundle | Node | Table | Tablet | Migration | Command | Plan | Pin | Pause | Counter


@dataclass(frozen=True, slots=True)
class Put:
    """Creates or replaces a record."""

    record: Record


@dataclass(frozen=True, slots=True)
class Remove:
    """Removes a record; removing one that does not exist is a conflict."""

    kind: RecordKind
    key: str


Change = Put | Remove


@dataclass(frozen=True, slots=True)
class Transaction:
    """A set of changes, applied together or not at all.

    It is refused with `Conflict` if any record that it changes was changed after version `base`, and with `Fenced`
    if `leader_epoch` is given and is no longer the newest. Operators and clients (commands, id blocks) give no epoch.
    """

    changes: tuple[Change, ...]
    base: int
    reason: str
    author: str
    leader_epoch: int | None = None
    id: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One commit, as the history shows it."""

    version: int
    transaction: str
    at: float
    author: str
    leader_epoch: int | None
    reason: str
    changes: tuple[Change, ...]
