"""One migration at work: its record and what the steps need to act on it. Made by the runner, belongs to its thread.

Steps read the facts here, act through `source` and `target` (transactions under the leader's epoch), remember things
with `note`, and call `checkpoint` wherever they may be stopped. Only the runner changes the state.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, Protocol

import psycopg
from psycopg import sql

from balancer.clock import Clock
from balancer.directory.contract import Leadership
from balancer.directory.model import Migration, MigrationMode, RangeBounds, Table, Tablet
from balancer.errors import BalancerError
from balancer.migration.journal import MigrationDetail, read_detail
from balancer.migration.machine import State, Track, row_of, track_of
from balancer.migration.progress import ProgressMeter
from balancer.migration.retries import CancelRequested, Control, Overrun
from balancer.naming import Name, parse_name, partition_name
from balancer.nodes.catalog.bounds import KeyColumn, KeyRange
from balancer.nodes.catalog.shapes import Shape
from balancer.nodes.schema import proof
from balancer.nodes.schema.leader_transaction import commit_and_begin, node_command, node_transaction
from balancer.nodes.session.connection import Connection, Cursor, Ready, Statement, deadline, run_together, translated
from balancer.nodes.session.holder import NodeSessions
from balancer.nodes.tablets.fence import SEALED, Fence
from balancer.nodes.tablets.partition import Place
from balancer.settings import MigrationSettings

_LAZILY = sql.SQL("SET LOCAL synchronous_commit TO off")


class OpenTransaction:
    """A transaction on a node that outlives a step, or several of them in a row. Its holder ends it."""

    def __init__(self, node: str, leader_epoch: int, transaction: AbstractContextManager[Cursor]) -> None:
        self._node, self._leader_epoch = node, leader_epoch
        self._transaction = transaction
        self._kept: Sequence[int] = ()
        self.cursor = transaction.__enter__()

    def check(self) -> None:
        """Raises `Unavailable` if it, and its locks with it, is lost."""
        with translated(self._node):
            self.cursor.execute("SELECT 1")

    def commit_and_begin(self, together: Sequence[Statement]) -> None:
        """Commits what was done and continues in a new transaction, in one message: writers wait for it."""
        commit_and_begin(self.cursor, self._leader_epoch, self._node, together)

    def keep_out_writers(self, tablets: Sequence[int]) -> Statement:
        """Over all of them, whose lock one of them has: the statement that begins it. Its end is theirs."""
        self._kept = tablets
        return proof.keep_statement(tablets)

    def commit(self) -> None:
        try:
            if self._kept:
                with translated(self._node):
                    run_together(self.cursor, [sql.SQL("COMMIT"), proof.let_go_statement(self._kept)])
        except BalancerError:
            self.roll_back()
            raise
        self._transaction.__exit__(None, None, None)

    def commit_within(self, seconds: float) -> None:
        """The same, for a node that may be out of reach: its connection is broken after this long."""
        with deadline(self.cursor.connection, seconds):
            self.commit()

    def roll_back(self) -> None:
        undone = Overrun("it was not needed")
        connection = self.cursor.connection
        with suppress(BalancerError):
            self._transaction.__exit__(type(undone), undone, None)
        if self._kept and not connection.closed:
            try:
                run_together(connection.cursor(), [proof.let_go_statement(self._kept)])
            except psycopg.Error:
                connection.close()  # and with it the lock


class Others(Protocol):
    """What a migration owes to those that run alongside it: see `concurrency`."""

    def give_way(self, migration: str) -> None:
        """Waits while another one switches."""

    def work(self, migration: str, *, waits: bool) -> AbstractContextManager[None]:
        """Wraps each transaction on a node; if it `waits`, it gives way first."""


class Alone:
    """Nobody runs alongside it."""

    def give_way(self, migration: str) -> None:
        """Nobody switches."""

    def work(self, migration: str, *, waits: bool) -> AbstractContextManager[None]:
        """Begins at once."""
        return nullcontext()


class Context:
    """The facts of one migration, and its hands."""

    def __init__(
        self,
        record: Migration,
        table: Table,
        sources: tuple[Tablet, ...],
        *,
        leadership: Leadership,
        links: NodeSessions,
        settings: MigrationSettings,
        clock: Clock,
        control: Control,
        progress: ProgressMeter,
    ) -> None:
        self.record = record
        self.table = table
        self.sources = sources
        self.leadership = leadership
        self.links = links
        self.settings = settings
        self.clock = clock
        self.control = control
        self.progress = progress
        self.state = State(record.state)
        self.detail: MigrationDetail = read_detail(record)
        self.track: Track = track_of(record.operation, record.mode)
        self.fence: Fence | None = None
        self.fenced_at: float | None = None  # monotonic; None: writers are not held back
        self.closed: OpenTransaction | None = None  # on the source, from the fence until it says where the tablet went
        self.opened: OpenTransaction | None = None  # on the target: what opens it, ready until the directory's commit
        self.shapes: tuple[Shape, ...] | None = None  # of the source's partitions, once read
        self.different = False  # the copy differed from the source
        self.prepared: Any = None  # what one step hands to others: `draining` to `verifying`, `mirroring` its mirror
        self.sequences: tuple[str, ...] = ()  # those behind the roots' columns, once found
        self.followed: tuple[tuple[str, str], ...] = ()  # homes of reference tables, with the target's stream from each
        self.swapping_since: float | None = None  # monotonic: the first attempt to lock everybody out for the swap
        self.planned_on: dict[str, Connection] = {}  # node → where the query for its definitions was planned
        self.messages: dict[str, Statement] = {}  # for a switch, composed before anybody waits for them
        self.others: Others = Alone()
        self.known_standbys: Callable[[], tuple[str, ...]] = tuple  # those that the target was ever seen to have
        self.stream = record.id  # under whose name changes are streamed; for a reference table, its copy's own

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def moved(self) -> Tablet:
        """The tablet of a move, as it will be afterwards."""
        return self.record.targets[0]

    @property
    def source_ids(self) -> tuple[int, ...]:
        """The ids of the tablets that exist before."""
        return tuple(tablet.id for tablet in self.sources)

    @property
    def source_places(self) -> tuple[Place, ...]:
        """Every partition that exists before, tablet by tablet, in the order of the roots."""
        return tuple(place for tablet in self.sources for place in places(self.table, tablet))

    @property
    def target_places(self) -> tuple[Place, ...]:
        """Every partition that exists after."""
        return tuple(place for tablet in self.record.targets for place in places(self.table, tablet))

    def source_places_by_root(self) -> tuple[Place, ...]:
        """Every partition that exists before, root after root."""
        return tuple(sorted(self.source_places, key=lambda place: self.roots.index(place.root)))

    def target_places_by_root(self) -> tuple[Place, ...]:
        """Every partition that exists after, root after root: a referenced root is complete before the next begins."""
        return tuple(sorted(self.target_places, key=lambda place: self.roots.index(place.root)))

    @property
    def roots(self) -> tuple[Name, ...]:
        return tuple(map(parse_name, self.table.roots))

    @property
    def guard(self) -> Fence:
        """What refuses writes to the target's partitions until they are opened."""
        return Fence(self.id, self.leadership.epoch, SEALED, 0, self.moved.id)

    def note(self, **changes: Any) -> None:
        """Remembers something in the detail; saved with the next journaled state."""
        self.detail = replace(self.detail, **changes)

    def become_read_only(self, why: str) -> None:
        """Makes it read-only, for this reason, before anything is made: writers will wait for the whole copy."""
        self.record = replace(self.record, mode=MigrationMode.READ_ONLY)
        self.track = track_of(self.record.operation, self.record.mode)
        self.note(mode_reason=why)

    def forget_copy(self) -> None:
        """Everything that was made is gone; the next attempt reads and makes it all again."""
        self.fence, self.fenced_at = None, None
        self.shapes, self.prepared = None, None
        self.note(bulk_verified=False, verified="", rows=0, sequences=(), fingerprints={})

    @contextmanager
    def node(self, node: str) -> Iterator[Cursor]:
        """A transaction on one of the two nodes under the leader's epoch."""
        with self._transaction(node, ()) as cursor:
            yield cursor

    @contextmanager
    def source(self, together: Sequence[Statement] = ()) -> Iterator[Cursor]:
        """A transaction on the source under the leader's epoch; `together` as in `node_transaction`."""
        with self._transaction(self.record.source_node, together) as cursor:
            yield cursor

    @contextmanager
    def target(self, together: Sequence[Statement] = ()) -> Iterator[Cursor]:
        """A transaction on the target under the leader's epoch; `together` as in `node_transaction`."""
        with self._transaction(self.record.target_node, together) as cursor:
            yield cursor

    @contextmanager
    def long_work(self, connection: Connection, node: str, *, lazily: bool = False) -> Iterator[Cursor]:
        """A transaction on a connection of `links.data`, for statements that take long, under the leader's epoch.

        A successor must wait for it, and ends it first (`NodeSessions.evict`). `lazily`: its commit does not wait for
        the disk, because a later commit that does comes before anything relies on it."""
        first = [_LAZILY] if lazily else []
        with self._work(), node_transaction(connection, self.leadership.epoch, node, first=first) as cursor:
            yield cursor

    @contextmanager
    def durable_work(self, connection: Connection, node: str) -> Iterator[Cursor]:
        """The same for work that others rely on after its commit, which waits for the disk."""
        with self._work(), node_transaction(connection, self.leadership.epoch, node, durable=True) as cursor:
            yield cursor

    @contextmanager
    def source_at(self, snapshot: str) -> Iterator[Cursor]:
        """A transaction on the source under the leader's epoch that uses a snapshot exported by another session."""
        node = self.record.source_node
        first = [
            sql.SQL("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"),
            sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)),
        ]
        connection, epoch = self.links.control(node), self.leadership.epoch
        with self._work(), node_transaction(connection, epoch, node, durable=True, first=first) as cursor:
            yield cursor

    @contextmanager
    def source_command(self) -> Iterator[Connection]:
        """For statements that cannot run in a transaction."""
        node = self.record.source_node
        with self._work(), node_command(self.links.control(node), self.leadership.epoch, node) as connection:
            yield connection

    def check(self) -> None:
        """Raises `Fenced` if nothing may be done any more: another instance leads, or the migration was ended."""
        self.leadership.check()
        self.control.check()

    def checkpoint(self) -> None:
        """A place to stop at: raises `Fenced`, `CancelRequested` or `Overrun`; waits here while paused."""
        self.check()
        row = row_of(self.track, self.state)
        if self.control.cancelled and row.cancellable:
            raise CancelRequested(self.control.reason)
        if self.fenced_at is not None and row.retreat is not None:
            self.check_budget()
        if self._nobody_waits:
            self.others.give_way(self.id)
        while self.control.paused and not row.writers_held and row.cancellable:
            self.progress.waiting(self.control.waiting_for)
            self.control.wait(0.2)
            self.check()
            if self.control.cancelled:
                raise CancelRequested(self.control.reason)

    def message(self, name: str, node: str, make: Callable[[], Sequence[Statement]]) -> Statement:
        """Statements for a node, composed when first asked for in this switch."""
        found = self.messages.get(name)
        if found is None:
            found = self.messages[name] = Ready(self.links.control(node), make())
        return found

    def open_source(self, together: Sequence[Statement]) -> OpenTransaction:
        """As `source`; the caller ends it."""
        return OpenTransaction(self.record.source_node, self.leadership.epoch, self.source(together))

    def open_target(self, together: Sequence[Statement]) -> OpenTransaction:
        """As `target`; the caller ends it."""
        return OpenTransaction(self.record.target_node, self.leadership.epoch, self.target(together))

    def reopen(self) -> None:
        """Releases what keeps everybody away from the sealed fence, and what would open the target. Idempotent."""
        prepared = (self.closed, self.opened)
        self.closed = self.opened = None
        for transaction in prepared:
            if transaction is not None:
                transaction.roll_back()

    def check_budget(self) -> None:
        """Raises `Overrun` once writers have been held back for longer than promised."""
        if self.fenced_at is None or self.track is not Track.MOVE_REPLICATE:
            return
        held = self.clock.monotonic() - self.fenced_at
        if held > self.settings.write_pause_budget:
            raise Overrun(
                f"writers were held back for {held * 1000:.0f} ms in {self.state},"
                f" more than the {self.settings.write_pause_budget * 1000:.0f} ms allowed"
            )

    def sleep(self, seconds: float) -> None:
        """Waits in small steps, with a checkpoint at each."""
        until = self.clock.monotonic() + seconds
        while (left := until - self.clock.monotonic()) > 0:
            self.checkpoint()
            self.clock.sleep(min(left, 0.2))

    @contextmanager
    def _work(self) -> Iterator[None]:
        """Wraps each transaction of the migration."""
        self.check()
        with self.others.work(self.id, waits=self._nobody_waits):
            yield

    @property
    def _nobody_waits(self) -> bool:
        """Whether no writer waits for this migration."""
        return not row_of(self.track, self.state).writers_held and self.fenced_at is None

    @contextmanager
    def _transaction(self, node: str, together: Sequence[Statement]) -> Iterator[Cursor]:
        connection, epoch = self.links.control(node), self.leadership.epoch
        # A step that was acknowledged must survive the node's crash, whatever its own default is.
        with self._work(), node_transaction(connection, epoch, node, durable=True, together=together) as cursor:
            yield cursor


def places(table: Table, tablet: Tablet) -> tuple[Place, ...]:
    """The partitions of a tablet, one in each root."""
    part = tablet.bounds
    known = KeyRange(part.lower, part.upper) if isinstance(part, RangeBounds) else part
    found = []
    for number, text in enumerate(table.roots):
        root = parse_name(text)
        name = Name(root.schema, tablet.partitions[number]) if tablet.partitions else partition_name(root, tablet.id)
        columns = tuple(KeyColumn(column.name, column.type) for column in table.columns_of(number))
        found.append(Place(root, name, columns, known))
    return tuple(found)


def partitions_of(table: Table, tablet: Tablet) -> tuple[Name, ...]:
    """The names of a tablet's partitions."""
    return tuple(place.partition for place in places(table, tablet))
