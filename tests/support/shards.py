"""A table spread over databases, with a directory that says so: what a client of a cluster sees.

`Shards.switch` changes a tablet's owner by the same statements that a migration uses (fence, seal, commit, attach,
moved, detach), without copying under load, so that a test can stop between any two of them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from balancer.directory.contract import Directory, Leadership
from balancer.directory.invariants import TABLET_COUNTER
from balancer.directory.locate import locate_key
from balancer.directory.model import (
    Bundle,
    Counter,
    KeyColumn,
    Layout,
    Migration,
    Node,
    Put,
    Record,
    Table,
    Tablet,
    Transaction,
)
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.migration.begin import begin_move
from balancer.migration.progress import Observer
from balancer.migration.runner import Runner
from balancer.naming import Name
from balancer.nodes.schema.install import OwnedTablet, OwnState, install_schema, write_tablets
from balancer.nodes.session.connection import Address, Connection
from balancer.nodes.tablets.fence import Fence, drop_fence, lift_fence, mark_moved
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import KeyType
from balancer.settings import MigrationSettings
from tests.support.fencing import raise_fence, seal_fence
from tests.support.opening import connect
from tests.support.resharding import begin_merge, begin_split
from tests.support.servers import new_database

ROOTS = ("public.orders", "public.items")
COLUMNS = "(user_id bigint NOT NULL, n bigint NOT NULL, note text NOT NULL DEFAULT '', PRIMARY KEY (user_id, n))"
SETTINGS = MigrationSettings(retire_grace=0.0, retry_back_off=0.05)


@dataclass
class Shards:
    """Nodes, their directory, and the hash table `orders` with a colocated root `items`."""

    url: str
    directory: Directory
    table: Table
    dsns: dict[str, str]
    _links: dict[str, Connection] = field(default_factory=dict)

    def node(self, name: str) -> Connection:
        """The test's own connection, in autocommit."""
        if name not in self._links:
            self._links[name] = connect(Address(name, self.dsns[name]), purpose="test")
        return self._links[name]

    def tablet(self, number: int) -> Tablet:
        return self.directory.snapshot().tablet(number)

    def tablets(self) -> list[Tablet]:
        return list(self.directory.snapshot().tablets(self.table.id))

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self.directory.close()

    def count(self, user: int | None = None, root: str = "orders") -> int:
        """Rows over all nodes, of one user or of all."""
        where = "" if user is None else f" WHERE user_id = {user}"
        return sum(self.node(name).execute(f"SELECT count(*) FROM {root}{where}").fetchone()[0] for name in self.dsns)  # type: ignore[index]

    def fence(self, number: int, seconds: float = 5.0, lock_timeout: float = 2.0) -> Fence:
        """As a migration fences: durable, with a deadline."""
        tablet = self.tablet(number)
        with self.node(tablet.node).transaction(), self.node(tablet.node).cursor() as cursor:
            wanted = Fence("mtest", 1, "", 0, number)
            return raise_fence(cursor, leaves(number), wanted, seconds, lock_timeout)

    def seal(self, number: int, fence: Fence) -> Fence:
        node = self.node(self.tablet(number).node)
        with node.transaction(), node.cursor() as cursor:
            return seal_fence(cursor, leaves(number), fence, lock_timeout=2.0)

    def lift(self, number: int) -> None:
        node = self.node(self.tablet(number).node)
        with node.transaction(), node.cursor() as cursor:
            lift_fence(cursor, leaves(number), lock_timeout=2.0)
            drop_fence(cursor, leaves(number), lock_timeout=2.0)

    def copy(self, number: int, target: str) -> None:
        """The rows, into partitions that are not attached yet."""
        source, there = self.node(self.tablet(number).node), self.node(target)
        for root, leaf in zip(ROOTS, leaves(number), strict=True):
            there.execute(f"CREATE TABLE {leaf} (LIKE {root})")
            rows = source.execute(f"SELECT user_id, n, note FROM {leaf}").fetchall()
            with there.cursor() as cursor:
                cursor.executemany(f"INSERT INTO {leaf} VALUES (%s, %s, %s)", rows)
        record(there, OwnedTablet(number, self.tablet(number).epoch + 1, OwnState.INCOMING, leaves(number)))

    def commit(self, number: int, target: str) -> Tablet:
        """The one moment at which the owner changes."""
        snapshot = self.directory.snapshot()
        tablet = snapshot.tablet(number)
        moved = replace(tablet, node=target, epoch=tablet.epoch + 1)
        self.directory.commit(Transaction((Put(moved),), snapshot.version, f"move {number}", "test"))
        return moved

    def open(self, moved: Tablet) -> None:
        there = self.node(moved.node)
        with there.transaction():
            attach(there, moved)
            record(there, OwnedTablet(moved.id, moved.epoch, OwnState.OWNED, leaves(moved.id)))

    def retire(self, moved: Tablet, source: str) -> None:
        node = self.node(source)
        with node.transaction(), node.cursor() as cursor:
            gone = Fence("mtest", 1, "", 0, moved.id, moved.node, moved.epoch)
            mark_moved(cursor, leaves(moved.id), gone, lock_timeout=2.0)
            record(node, OwnedTablet(moved.id, moved.epoch, OwnState.MOVED, leaves(moved.id), moved_to=moved.node))
        for root, leaf in zip(ROOTS, leaves(moved.id), strict=True):
            node.execute(f"ALTER TABLE {root} DETACH PARTITION {leaf} CONCURRENTLY")
            node.execute(f"DROP TABLE {leaf}")

    @contextmanager
    def leading(self, observer: Observer | None = None) -> Iterator["Leader"]:
        """Real migrations, one after another, as the leading daemon makes them."""
        with open_directory(self.url) as directory:
            leadership = directory.campaign("test", 20.0)
            assert leadership is not None
            addresses = {node: Address(node, dsn) for node, dsn in self.dsns.items()}
            runner = Runner(directory, leadership, addresses.__getitem__, SETTINGS, observer=observer)
            yield Leader(directory, leadership, runner)

    def switch(self, number: int, target: str) -> Tablet:
        """The whole of it."""
        source = self.tablet(number).node
        fence = self.fence(number)
        self.copy(number, target)
        self.seal(number, fence)
        moved = self.commit(number, target)
        self.open(moved)
        self.retire(moved, source)
        return moved


@dataclass(frozen=True)
class Leader:
    """Called with a tablet and a node, it moves the one to the other."""

    directory: Directory
    leadership: Leadership
    runner: Runner

    def __call__(self, tablet: int, target: str) -> Migration:
        return self._surely(lambda: begin_move(self.directory, self.leadership, tablet, target))

    def split(self, tablet: int) -> Migration:
        return self._surely(lambda: begin_split(self.directory, self.leadership, tablet))

    def merge(self, tablets: Sequence[int]) -> Migration:
        return self._surely(lambda: begin_merge(self.directory, self.leadership, tablets))

    def _surely(self, begin: Callable[[], Migration]) -> Migration:
        """A move that finds the server too busy is undone and may be retried, as the planner does."""
        for _ in range(5):
            done = self.runner.run(begin().id)
            if done.state == "done":
                break
            print(f"{done.operation} of {done.sources} was undone: {done.error}")
        return done


def leaves(number: int) -> tuple[Name, ...]:
    return tuple(Name("public", f"{root.split('.')[1]}_t{number}") for root in ROOTS)


def record(node: Connection, tablet: OwnedTablet) -> None:
    with node.cursor() as cursor:
        write_tablets(cursor, [tablet])


def attach(node: Connection, tablet: Tablet) -> None:
    assert isinstance(tablet.bounds, Leaf)
    for root, leaf in zip(ROOTS, leaves(tablet.id), strict=True):
        node.execute(
            f"ALTER TABLE {root} ATTACH PARTITION {leaf} "
            f"FOR VALUES WITH (MODULUS {tablet.bounds.modulus}, REMAINDER {tablet.bounds.remainder})"
        )


@contextmanager
def new_shards(folder: Path, dsns: Sequence[str], tablets: int = 4, url: str = "") -> Iterator[Shards]:
    """A cluster on these databases, which keep nothing else; its directory is a file, or at `url`."""
    names = [f"pg-{letter}" for letter in "abcdefgh"[: len(dsns)]]
    url = url or f"sqlite://{folder}/directory.sqlite"
    columns = (KeyColumn("user_id", KeyType.BIGINT),)
    table = Table(1, "orders", "shop", Layout.HASH, columns, ROOTS)
    owned = [Tablet(i + 1, 1, Leaf(tablets, i), names[i % len(names)]) for i in range(tablets)]
    shards = Shards(url, open_directory(url), table, dict(zip(names, dsns, strict=True)))
    try:
        records: list[Record] = [Bundle("shop"), *(Node(name, "shop", shards.dsns[name]) for name in names)]
        records += [table, *owned, Counter(TABLET_COUNTER, 1000)]
        for name in names:
            _prepare(shards.node(name), name, [tablet for tablet in owned if tablet.node == name])
        base = shards.directory.snapshot().version
        shards.directory.commit(Transaction(tuple(map(Put, records)), base, "fill", "test"))
        yield shards
    finally:
        shards.close()


@contextmanager
def databases(server: PostgresServer, count: int = 2) -> Iterator[list[str]]:
    """Databases that are reused for one cluster after another: making them takes far longer than emptying them."""
    with ExitStack() as stack:
        yield [stack.enter_context(new_database(server)).dsn for _ in range(count)]


def _prepare(node: Connection, name: str, tablets: list[Tablet]) -> None:
    node.execute("DROP SCHEMA IF EXISTS balancer CASCADE")
    for root in ROOTS:
        node.execute(f"DROP TABLE IF EXISTS {root}")
    for (leaf,) in node.execute("SELECT oid::regclass::text FROM pg_class WHERE relname ~ '_t[0-9]+$'").fetchall():
        node.execute(f"DROP TABLE {leaf}")
    install_schema(node, "shop", name)
    for root in ROOTS:
        node.execute(f"CREATE TABLE {root} {COLUMNS} PARTITION BY HASH (user_id)")
    for tablet in tablets:
        for root, leaf in zip(ROOTS, leaves(tablet.id), strict=True):
            node.execute(f"CREATE TABLE {leaf} (LIKE {root})")
        attach(node, tablet)
        record(node, OwnedTablet(tablet.id, tablet.epoch, OwnState.OWNED, leaves(tablet.id)))


def user_of(shards: Shards, tablet: int, after: int = 0) -> int:
    """A key above `after` that belongs to this tablet."""
    snapshot = shards.directory.snapshot()
    return next(
        user for user in range(after + 1, after + 1000) if locate_key(snapshot, "orders", user).tablet == tablet
    )
