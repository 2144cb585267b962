"""COPY from one node to another through this process, by one thread: rows are read as they come and sent on in blocks.

Both servers work at once, because the sockets between them hold more than a block. One thread and not two, because two
would hand the interpreter to each other with every block, which costs more than the copying.

Migrations call `copy_rows` with a connection on each side that they have prepared (the snapshot, the transaction).
`on_block` is called with every block's size, and with 0 now and then while nothing moves: a throttle sleeps in it, a
cancel raises from it.
"""

import select
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass

import psycopg
from psycopg import pq, sql

from balancer.errors import Unavailable
from balancer.nodes.connection import Connection, translate, translated
from balancer.nodes.names import Name

BLOCK = 128 * 1024
PATIENCE = 60.0
"""Seconds for which either side may be silent."""
_LOOK = 0.2  # seconds between two checks for a cancel while nothing moves


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy carried."""

    rows: int
    size: int


def copy_rows(
    source: Connection,
    target: Connection,
    read: sql.Composed,
    write: sql.Composed,
    on_block: Callable[[int], None],
    *,
    source_node: str = "",
    patience: float = PATIENCE,
) -> Copied:
    """Pipes `COPY … TO STDOUT` into `COPY … FROM STDIN`. Raises what either side raises.

    The source's errors are translated with the name of its node, if that is given: the caller has the target's.
    `patience`: seconds for which either side may be silent.

    After an error there is nothing on the target; the source's connection may be in the middle of a COPY and must be
    closed.
    """
    reading, writing = _Side(source, "source", on_block, patience), _Side(target, "target", on_block, patience)
    with translated(source_node) if source_node else nullcontext():
        reading.begin(read, pq.ExecStatus.COPY_OUT)
    writing.begin(write, pq.ExecStatus.COPY_IN)
    try:
        size = _pump(reading, writing, on_block, source_node)
        with translated(source_node) if source_node else nullcontext():
            reading.end()
    except BaseException:
        writing.discard()
        raise
    writing.finish()
    return Copied(writing.end(), size)


def statements(
    source: Name, target: Name, columns: Sequence[str], binary: bool, *, where: sql.Composable | None = None
) -> tuple[sql.Composed, sql.Composed]:
    """The two COPY statements for the same columns of a partition and its twin; `where` refers to rows of `t`."""
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    form = sql.SQL("(FORMAT binary)" if binary else "(FORMAT text)")
    read = sql.SQL("COPY {} ({}) TO STDOUT {}").format(source.identifier, names, form)
    if where is not None:
        read = sql.SQL("COPY (SELECT {} FROM ONLY {} AS t WHERE {}) TO STDOUT {}").format(
            names, source.identifier, where, form
        )
    return read, sql.SQL("COPY {} ({}) FROM STDIN {}").format(target.identifier, names, form)


def _pump(reading: "_Side", writing: "_Side", on_block: Callable[[int], None], source_node: str) -> int:
    """Joins rows into blocks: the only cost per row is this loop. Returns the bytes."""
    take = reading.raw.get_copy_data
    block = bytearray()
    total = 0
    while True:
        try:
            size, row = take(1)
            if size > 0:
                block += row
                if len(block) < BLOCK:
                    continue
            elif size == 0:
                reading.wait(select.POLLIN)
                reading.raw.consume_input()
                continue
        except psycopg.Error as error:
            raise (translate(source_node, error) if source_node else error) from error
        if block:
            writing.put(block)
            total += len(block)
            on_block(len(block))
            block.clear()
        if size < 0:
            return total


class _Side:
    """One connection in the middle of a COPY; the driver's own loop costs more per row than the server does."""

    def __init__(
        self, connection: Connection, name: str, on_block: Callable[[int], None], patience: float = PATIENCE
    ) -> None:
        self.raw = connection.pgconn
        self._patience = patience
        self._connection = connection
        self._name = name
        self._on_block = on_block

    def begin(self, statement: sql.Composed, wanted: pq.ExecStatus) -> None:
        self.raw.send_query(statement.as_bytes(self._connection))
        self._flush()
        result = self._result()
        if result is None or result.status != wanted:
            self._drain()
            raise self._error(result)

    def put(self, block: bytearray) -> None:
        while self.raw.put_copy_data(block) == 0:
            self.wait(select.POLLOUT)
        self._flush()

    def finish(self) -> None:
        """Tells the target that the rows are complete."""
        while self.raw.put_copy_end() == 0:
            self.wait(select.POLLOUT)
        self._flush()

    def discard(self) -> None:
        """Makes the target discard what it has received and release its lock, if it still can."""
        with suppress(psycopg.Error, Unavailable):
            self._on_block = _ignore
            self.raw.put_copy_end(b"the copy is not wanted any more")
            self._flush()
            self._drain()

    def end(self) -> int:
        """The rows that the server counted, once it has ended the command. Raises the server's error, if any."""
        result = self._result()
        self._drain()
        if result is None or result.status != pq.ExecStatus.COMMAND_OK:
            raise self._error(result)
        return result.command_tuples or 0

    def wait(self, events: int) -> None:
        poller = select.poll()
        poller.register(self.raw.socket, events)
        waited = 0.0
        while not poller.poll(_LOOK * 1000):
            self._on_block(0)
            waited += _LOOK
            if waited > self._patience:
                raise Unavailable(f"the {self._name} of a copy has stood still for {self._patience:.0f} s")

    def _flush(self) -> None:
        while self.raw.flush():
            self.wait(select.POLLOUT)

    def _result(self) -> "pq.abc.PGresult | None":
        while self.raw.is_busy():
            self.wait(select.POLLIN)
            self.raw.consume_input()
        return self.raw.get_result()

    def _drain(self) -> None:
        while self._result() is not None:
            pass

    def _error(self, result: "pq.abc.PGresult | None") -> psycopg.Error:
        if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
            text = self.raw.error_message.decode(errors="replace").strip()
            return psycopg.OperationalError(text or "the copy ended early")
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
        try:
            return psycopg.errors.lookup(state)(f"{self._name}: {text}")
        except KeyError:
            return psycopg.OperationalError(f"{self._name}: {state} {text}")


def _ignore(_: int) -> None:
    """A copy that was told to stop is not told again."""
