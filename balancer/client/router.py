"""The router for ordinary (blocking) applications; all threads of one may share it.

with Router.connect("zk://zk1:2181/shop") as router, router.transaction("orders", user_id) as connection:
    connection.execute("INSERT INTO orders …")
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import psycopg

from balancer.client.atomic import LOCK_SECONDS, Atomic, AtomicMail, AtomicSteps, EndedDecisions, waited_too_long
from balancer.client.bulk_load import BulkLoad, ThreadedLoad
from balancer.client.every_shard import EveryShard, scan
from balancer.client.keys.ids import Ids, LocatedIds
from balancer.client.keys.routes import KeyExplanation, Routes
from balancer.client.messages import RoutedConnection, Tickets
from balancer.client.observing import Attachments, Sampler
from balancer.client.open_blocks import WARN_AFTER, OpenBlocks
from balancer.client.rekeying import rekey_rows, rekeying
from balancer.client.shard_steps import KeyStretch, Shard, ShardSteps, Values
from balancer.client.transaction.block import BlockParts, TransactionBlock
from balancer.client.transaction.drivers import BlockingDriver
from balancer.client.transaction.failures import Attempts, Counters
from balancer.client.transaction.pipelined import run_pipelined
from balancer.client.transaction.pools import PoolSettings
from balancer.client.transaction.replicas import ReplicaBlock, ReplicaReads, parse_token, seconds_of, token_of
from balancer.client.transaction.steps import Isolation, TransactionRequest
from balancer.directory.locate import NO_KEY, AnyKey
from balancer.directory.snapshot import Snapshot
from balancer.errors import UserError

if TYPE_CHECKING:
    from balancer.client.keys.bulk import Rows

Connection = RoutedConnection
Result = TypeVar("Result")

PATIENCE = 10.0
"""Seconds a transaction may take to begin: much longer than a switch, shorter than a user waits."""


AT_ONCE = 8
"""Tablets that are asked in parallel: this many connections are in use."""
BATCH = 20_000
"""Rows that are sent before more are read; each node gets its share of them in one transaction."""


class TabletAnswer(NamedTuple):
    """What one tablet has answered."""

    tablet: int
    node: str
    rows: list[tuple[Any, ...]]


class Router(BlockingDriver):
    """Finds the node of a key and runs transactions there."""

    def __init__(
        self,
        routes: Routes,
        pools: PoolSettings | None = None,
        *,
        samples: bool = True,
        warn_after: float = WARN_AFTER,
        tracer: Any = None,
    ) -> None:
        settings = pools or PoolSettings()
        super().__init__(routes, settings)
        self.locate = routes.locate
        """`locate(table, key)`: the node, tablet and epoch of a key, from memory. `UserError` for an unknown table or
        an unfit key. Not a method: it is called for every statement of an application."""
        self._sampler = Sampler(routes) if samples else None
        self.counters = Counters(tracer)
        """What it has encountered (waits, retries, moves): `values()` for a metrics system."""
        self._blocks = OpenBlocks(warn_after)
        routes.watch(self._blocks.look)
        self.attachments = Attachments(routes, settings, self._sampler, self._blocks, self.counters)
        """What frameworks keep with this router, such as SQLAlchemy's engines. Closed with it."""
        self._tickets = Tickets()
        self._parts = BlockParts(routes, self._sampler, self._blocks, self._tickets)
        self._ended = EndedDecisions()
        self._ids: dict[str, Ids] = {}
        self._located_ids: dict[str, LocatedIds] = {}

    @classmethod
    def connect(
        cls,
        url: str,
        pools: PoolSettings | None = None,
        *,
        samples: bool = True,
        warn_after: float = WARN_AFTER,
        tracer: Any = None,
        **directory: Any,
    ) -> "Router":
        """Opens the directory at this address and loads it; connects to nodes when they are first needed.

        `samples=False` switches off the reports of keys in use. A block that stays open for longer than `warn_after`
        seconds is logged to `balancer.client`, once for each place. `tracer`: OpenTelemetry's, see
        `client/transaction/failures`. Further arguments are the directory's own."""
        return cls(Routes.open(url, **directory), pools, samples=samples, warn_after=warn_after, tracer=tracer)

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot of the directory known here."""
        return self._routes.snapshot

    def explain(self, table: str, key: AnyKey = NO_KEY) -> KeyExplanation:
        """Where a key is, why there, and whether it is being moved: `print(router.explain("orders", 7))`."""
        return self._routes.explain(table, key)

    def group(self, table: str, keys: Any) -> "dict[str, Rows]":
        """For each node that owns any of these keys, which of them: their positions, as an array. Needs numpy.

        `keys` is an array or a sequence of values; for a key of several columns a tuple of such columns, or a list of
        tuples.
        """
        return self._routes.group(table, keys)

    def transaction(
        self,
        table: str,
        key: AnyKey = NO_KEY,
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
        patience: float = PATIENCE,
        weight: float = 1.0,
        checked: bool = False,
        replica: bool = False,
        max_lag: float | str = 1.0,
        token: str = "",
    ) -> AbstractContextManager[Connection]:
        """A connection in a transaction on the node that owns the key; committed at the end of the block.

        A whole table has no key: leave it out.

        The transaction begins with the first statement. That one waits while the tablet is being switched and follows
        it where it goes, for up to `patience` seconds, then raises `Unavailable`; nothing was done. Once begun, the
        tablet stays until the block ends: keep it short, a switch waits for it. With `read_only` it has one snapshot
        for all its statements and delays nothing. Only rows of this key's tablet are proven to be here.
        `OutcomeUnknown` if the connection breaks during COMMIT. `weight` is what the key counts for in the samples.
        `connection.send` sends messages to other keys. With `checked`, statements that name or return keys of other
        tablets raise `WrongKey` as far as that can be detected (`client.transaction.block`): for an application's
        tests.

        With `read_only` and `replica` a standby of the node answers, if the node's address has several hosts and a
        standby has replayed what the primary had written within `max_lag` (seconds, or "1s"), and what `token` has
        seen; otherwise the owner does.
        """
        clock = self._routes.clock
        wish = TransactionRequest(
            clock.monotonic() + patience,
            isolation,
            read_only,
            proof=self._routes.proof,
            wait=self.counters.wait(table),
            signpost=self._routes.signpost,
        )
        if not replica:
            return TransactionBlock(self, self._parts, table, key, wish=wish, weight=weight, checked=checked)
        if not read_only:
            raise UserError("replica=True is for reading: give read_only=True as well")
        block = ReplicaBlock(self, self._parts, table, key, wish=wish, weight=weight, checked=checked)
        block.read_from(self.attachments.get(ReplicaReads, ReplicaReads), seconds_of(max_lag), parse_token(token))
        return block

    def token(self) -> str:
        """What has been written so far, on every node that this router has used: for `token=` of a later reader.

        Ask for it after the commit, and pass it on with the answer (a cookie, a header): a reader that presents it sees
        at least that.
        """
        return token_of({node: self._pool(node) for node in self._used_nodes(self.attachments.written())})

    def run(
        self,
        table: str,
        key: AnyKey,
        function: Callable[[Connection], Result],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
        patience: float = PATIENCE,
        pipelined: bool = False,
    ) -> Result:
        """Runs `function(connection)` in a transaction, and retries it from the start if needed.

        Serialization failures, deadlocks, lost connections (before COMMIT) and fences are retried within `patience`
        seconds; the function must therefore have no effects outside its transaction.

        With `pipelined` the proof travels with the first statement and COMMIT with the last (psycopg's pipeline mode):
        one round trip where nothing is read, two where something is. A statement's error, and its `rowcount`, are then
        known where rows are fetched, or at the end; COPY cannot be used.
        """
        clock = self._routes.clock
        deadline = clock.monotonic() + patience
        attempts = Attempts(deadline, clock.monotonic, self.counters)
        while True:
            left = attempts.left()
            try:
                if pipelined:
                    if self._sampler is not None:
                        self._sampler.note(table, key, 1.0, not read_only)
                    wish = TransactionRequest(
                        deadline, isolation, read_only, proof=self._routes.proof, signpost=self._routes.signpost
                    )
                    return run_pipelined(self, self._routes.finder(table, key), wish, function, left)
                with self.transaction(
                    table, key, read_only=read_only, isolation=isolation, patience=left
                ) as connection:
                    return function(connection)
            except psycopg.Error as error:
                pause = attempts.pause_after(error)
            clock.sleep(pause)

    @contextmanager
    def atomic(
        self,
        *,
        isolation: Isolation = Isolation.READ_COMMITTED,
        patience: float = PATIENCE,
        lock_timeout: float = LOCK_SECONDS,
    ) -> Iterator[Atomic]:
        """A transaction over several keys: `tx.on(table, key)` is the connection for each. All or nothing, with the
        messages of `tx.send(…, sender=(table, key))`.

        If one node has all of them it is an ordinary transaction, otherwise a two-phase commit, whatever dies when. The
        isolation is each node's own: a reader of two nodes may see one half for a moment (docs/across-shards.md). A
        statement that waits longer than `lock_timeout` seconds for a lock ends the whole with a serialization failure,
        because nobody sees deadlocks between nodes; `run_atomic` retries. `OutcomeUnknown` if the first node's answer
        to COMMIT was lost and it cannot be asked: the leader ends the transaction, all or nothing.
        """
        steps = AtomicSteps(self._routes, self._ended, isolation=isolation, patience=patience, lock=lock_timeout)
        mail = AtomicMail(self._routes, self._tickets)
        try:
            yield Atomic(steps, mail, self._drive)
            self._drive(mail.prepare(steps.loan_on))
        except psycopg.errors.LockNotAvailable as error:
            self._drive(steps.abort())
            raise waited_too_long(lock_timeout) from error
        except BaseException:
            self._drive(steps.abort())
            raise
        self._drive(steps.commit())
        self._drive(mail.deliver(steps.unfinished))

    def run_atomic(
        self,
        function: Callable[[Atomic], Result],
        *,
        isolation: Isolation = Isolation.READ_COMMITTED,
        patience: float = PATIENCE,
        lock_timeout: float = LOCK_SECONDS,
    ) -> Result:
        """Runs `function(tx)` in an atomic transaction, and retries it from the start if needed; see `run`."""
        clock = self._routes.clock
        deadline = clock.monotonic() + patience
        attempts = Attempts(deadline, clock.monotonic, self.counters)
        while True:
            left = attempts.left()
            try:
                with self.atomic(isolation=isolation, patience=left, lock_timeout=lock_timeout) as tx:
                    return function(tx)
            except psycopg.Error as error:
                pause = attempts.pause_after(error)
            clock.sleep(pause)

    def rekey(self, table: str, old: AnyKey, new: AnyKey, *, patience: float = PATIENCE) -> int:
        """Gives the rows of a key, colocated ones too, another key, wherever that is; returns their number. Atomic.

        Foreign keys among the roots must be deferrable or follow the order of the roots; triggers see a deletion and an
        insertion.
        """
        work = rekeying(self._routes.snapshot.table(table), old, new)
        return self.run_atomic(partial(rekey_rows, work), patience=patience)

    def each(
        self,
        table: str,
        function: Callable[[Shard, Connection], Result],
        *,
        read_only: bool = True,
        at_once: int = AT_ONCE,
        patience: float = PATIENCE,
    ) -> Iterator[Result]:
        """Calls `function(shard, connection)` for every tablet once, in threads, each in a transaction on its owner.

        Results come as they are ready. The first failure ends it, and says what has answered by then.
        """
        every = self._every(table, at_once, patience)

        def work(stretch: KeyStretch) -> Result:
            with every.transaction(stretch, read_only=read_only) as (shard, connection):
                return function(shard, connection)

        return every.run(work)

    def map(
        self,
        table: str,
        statement: str,
        values: Values = None,
        *,
        at_once: int = AT_ONCE,
        patience: float = PATIENCE,
    ) -> Iterator[TabletAnswer]:
        """Asks every tablet once: `map("orders", "SELECT count(*) FROM {orders}")`. Answers come as they are ready.

        `{orders}` stands for the tablet's partition of that root. One message per tablet; each answers for its own
        moment. `client.every_shard` adds answers up.
        """
        answers = self._every(table, at_once, patience).ask_all(statement, values)
        return (TabletAnswer(*answer) for answer in answers)

    def scan(
        self,
        table: str,
        statement: str,
        values: Values = None,
        *,
        at_once: int = AT_ONCE,
        patience: float = PATIENCE,
    ) -> Generator[tuple[Any, ...], None, None]:
        """The rows of every tablet, streamed, in no order: `scan("orders", "SELECT * FROM {orders}")`.

        Few rows are kept in memory, however many there are. A failure in the middle is raised after the rows before it.
        """
        return scan(self._every(table, at_once, patience), statement, values)

    def copy_into(
        self,
        table: str,
        rows: Iterable[Sequence[Any]],
        columns: Sequence[str],
        *,
        root: str | None = None,
        batch: int = BATCH,
        patience: float = PATIENCE,
    ) -> int:
        """COPY of many rows, each to the node that owns its key; returns their number.

        A batch arrives on a node whole or not at all. `root`: one other than the table's first.
        """
        work = BulkLoad(self._routes, table, root=root, columns=columns, patience=patience)
        return ThreadedLoad(work, self._drive, len(self.snapshot.nodes)).load(rows, batch)

    def _every(self, table: str, at_once: int, patience: float) -> EveryShard:
        return EveryShard(ShardSteps(self._routes, table, at_once=at_once, patience=patience), self._drive)

    def ids(self, table: str) -> Ids:
        """Globally unique, roughly increasing 64-bit ids for rows of a table."""
        return self._ids.get(table) or self._ids.setdefault(table, Ids(self._routes, table))

    def located_ids(self, table: str) -> LocatedIds:
        """The same, with a key's vbucket in the high bits: `RowId(id)` may then be given instead of the key."""
        return self._located_ids.get(table) or self._located_ids.setdefault(table, LocatedIds(self._routes, table))

    def close(self) -> None:
        """Closes pools and directory. Idempotent. In a process that was forked since they belong to the other one."""
        if self._routes.inherited:
            return
        if self._sampler is not None:
            self._sampler.close()
        self._close_pools()
        self.attachments.close()
        self._routes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
