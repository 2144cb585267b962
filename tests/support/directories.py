"""Records and clusters for tests of the directory, and of anything that needs one."""

from collections.abc import Callable, Sequence
from uuid import uuid4

from balancer.directory.contract import Directory
from balancer.directory.invariants import TABLET_COUNTER
from balancer.directory.model import (
    Bundle,
    Change,
    Counter,
    KeyColumn,
    Layout,
    Migration,
    MigrationKind,
    MigrationMode,
    Node,
    Put,
    RangeBounds,
    Record,
    Table,
    Tablet,
    Transaction,
)
from balancer.directory.snapshot import Snapshot
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import HIGHEST, LOWEST, KeyType, encode_key

Opener = Callable[[], Directory]
"""Opens the same directory again, as another process would."""

NODES = ("pg-a", "pg-b", "pg-c")
HASHED = Table(1, "orders", "shop", Layout.HASH, (KeyColumn("user_id", KeyType.BIGINT),), ("public.orders",))
RANGED = Table(2, "events", "shop", Layout.RANGE, (KeyColumn("at", KeyType.BIGINT),), ("public.events",))


def frame(nodes: Sequence[str] = NODES) -> list[Record]:
    """A bundle with its nodes."""
    return [Bundle("shop"), *(Node(node, "shop", f"postgresql://balancer@{node}/shop") for node in nodes)]


def leaves(count: int, first: int = 1, nodes: Sequence[str] = NODES) -> list[Tablet]:
    """A hash table's tablets: a power of two."""
    return [Tablet(first + i, HASHED.id, Leaf(count, i), nodes[i % len(nodes)]) for i in range(count)]


def key(number: int) -> bytes:
    return encode_key(RANGED.key_types, (number,))


def ranges(bounds: Sequence[int], first: int = 1001, nodes: Sequence[str] = NODES) -> list[Tablet]:
    """A range table's tablets, cut at these keys."""
    edges = [LOWEST, *map(key, bounds), HIGHEST]
    return [
        Tablet(first + i, RANGED.id, RangeBounds(edges[i], edges[i + 1]), nodes[i % len(nodes)])
        for i in range(len(edges) - 1)
    ]


def puts(records: Sequence[Record]) -> tuple[Change, ...]:
    return tuple(map(Put, records))


def small_cluster() -> list[Record]:
    """A bundle of three nodes, a hash table of eight tablets, a range table of four."""
    return [*frame(), HASHED, *leaves(8), RANGED, *ranges([10, 20, 30]), Counter(TABLET_COUNTER, 2000)]


def transaction(changes: Sequence[Change], base: int, epoch: int | None = None, reason: str = "test") -> Transaction:
    return Transaction(tuple(changes), base, reason, "test", epoch)


def fill(directory: Directory, records: Sequence[Record] | None = None) -> Snapshot:
    """Commits records into an empty directory."""
    directory.commit(
        transaction(puts(records if records is not None else small_cluster()), directory.snapshot().version)
    )
    return directory.snapshot()


def moved(tablet: Tablet, node: str) -> Tablet:
    """The tablet with a new owner."""
    return Tablet(tablet.id, tablet.table, tablet.bounds, node, tablet.epoch + 1, tablet.state, tablet.partitions)


def migration(tablet: Tablet, target: str, state: str = "planned") -> Migration:
    return Migration(
        uuid4().hex,
        "shop",
        tablet.table,
        MigrationKind.MOVE,
        MigrationMode.REPLICATE,
        (tablet.id,),
        (moved(tablet, target),),
        tablet.node,
        target,
        state,
    )
