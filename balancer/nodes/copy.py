"""COPY from one node to another through this process: a reading thread and a writing one, so both servers work at once.

Migrations call `copy_rows` with a connection on each side that they have prepared (the snapshot, the transaction).
`on_block` is called with every block's size: a throttle sleeps in it, a cancel raises from it.
"""

import queue
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import pq, sql

from balancer.errors import Unavailable
from balancer.nodes.connection import Connection
from balancer.nodes.names import Name

BLOCK = 256 * 1024
QUEUED_BLOCKS = 32  # 8 MB between the two: enough to smooth over a checkpoint, little enough to forget about
READ_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy carried."""

    rows: int
    size: int


class _Stopped(Exception):
    """The other side has failed and says why."""


def copy_rows(
    source: Connection,
    target: Connection,
    read: sql.Composed,
    write: sql.Composed,
    on_block: Callable[[int], None],
) -> Copied:
    """Pipes `COPY … TO STDOUT` into `COPY … FROM STDIN`. What either side raises is raised here."""
    blocks: queue.Queue[bytes | None] = queue.Queue(QUEUED_BLOCKS)
    stop = threading.Event()
    failure: list[BaseException] = []

    def reading() -> None:
        try:
            for block in _read_blocks(source, read, stop):
                _put(blocks, block, stop)
        except _Stopped:
            return
        except (psycopg.Error, Unavailable, OSError) as error:
            failure.append(error)
        finally:
            _put_end(blocks, stop)

    reader = threading.Thread(target=reading, name="copy-reader", daemon=True)
    reader.start()
    try:
        copied = _write_blocks(target, write, blocks, on_block, failure)
    finally:
        stop.set()
        reader.join()
    return copied


def statements(source: Name, target: Name, columns: Sequence[str], binary: bool) -> tuple[sql.Composed, sql.Composed]:
    """The two COPY statements for the same columns of a partition and its twin."""
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    form = sql.SQL("(FORMAT binary)" if binary else "(FORMAT text)")
    read = sql.SQL("COPY {} ({}) TO STDOUT {}").format(source.identifier, names, form)
    return read, sql.SQL("COPY {} ({}) FROM STDIN {}").format(target.identifier, names, form)


def _read_blocks(connection: Connection, statement: sql.Composed, stop: threading.Event) -> Iterator[bytes]:
    """Rows joined to blocks. The driver's own iterator costs more per row than the server does."""
    raw = connection.pgconn
    raw.send_query(statement.as_bytes(connection))
    _flush(raw, stop)
    result = _result(raw, stop)
    if result is None or result.status != pq.ExecStatus.COPY_OUT:
        raise _error(raw, result)
    block = bytearray()
    while True:
        size, row = raw.get_copy_data(1)
        if size > 0:
            block += row
            if len(block) >= BLOCK:
                yield bytes(block)
                block.clear()
        elif size == 0:
            _wait(raw, select.POLLIN, stop)
            raw.consume_input()
        else:
            break
    if block:
        yield bytes(block)
    result = _result(raw, stop)
    if result is None or result.status != pq.ExecStatus.COMMAND_OK:
        raise _error(raw, result)
    while _result(raw, stop) is not None:
        pass


def _write_blocks(
    connection: Connection,
    statement: sql.Composed,
    blocks: "queue.Queue[bytes | None]",
    on_block: Callable[[int], None],
    failure: list[BaseException],
) -> Copied:
    size = 0
    with connection.cursor() as cursor:
        with cursor.copy(statement) as copy:
            while (block := blocks.get()) is not None:
                copy.write(block)
                size += len(block)
                on_block(len(block))
            if failure:  # raising inside the block makes the server discard what has come so far
                raise failure[0]
        return Copied(cursor.rowcount, size)


def _put(blocks: "queue.Queue[bytes | None]", block: bytes | None, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            blocks.put(block, timeout=0.2)
        except queue.Full:
            continue
        return
    raise _Stopped


def _put_end(blocks: "queue.Queue[bytes | None]", stop: threading.Event) -> None:
    try:
        _put(blocks, None, stop)
    except _Stopped:
        return


def _flush(raw: "pq.abc.PGconn", stop: threading.Event) -> None:
    while raw.flush():
        _wait(raw, select.POLLOUT, stop)


def _result(raw: "pq.abc.PGconn", stop: threading.Event) -> "pq.abc.PGresult | None":
    while raw.is_busy():
        _wait(raw, select.POLLIN, stop)
        raw.consume_input()
    return raw.get_result()


def _wait(raw: "pq.abc.PGconn", events: int, stop: threading.Event) -> None:
    poller = select.poll()
    poller.register(raw.socket, events)
    waited = 0.0
    while not poller.poll(200):
        waited += 0.2
        if stop.is_set():
            raise _Stopped
        if waited > READ_PATIENCE:
            raise Unavailable(f"the source sent nothing for {READ_PATIENCE:.0f} s")


def _error(raw: "pq.abc.PGconn", result: "pq.abc.PGresult | None") -> psycopg.Error:
    if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
        return psycopg.OperationalError(raw.error_message.decode(errors="replace").strip() or "the copy ended early")
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
    return psycopg.OperationalError(f"{state} {text}".strip())
