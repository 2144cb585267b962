"""Reading a tablet's rows on the node that has proven to own it, as clients do (`balancer.hold`).

For the consistency checker. After the proof no statement of the transaction meets a former owner's rows or an absent
partition, so a tablet that moves meanwhile causes no false alarm. In READ COMMITTED the owner does not change before
the end, so such transactions are short; with one snapshot a switch does not wait, and the rows are those of that
moment.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import LiteralString

import psycopg
from psycopg import sql

from balancer.errors import Unavailable
from balancer.nodes.connection import Connection, Cursor, run_together

_HOLD: LiteralString = "CALL balancer.hold({}, {}, false)"


class NotHeld(Unavailable):
    """The tablet is not here with this epoch, or is moving right now: look at the map again."""


@contextmanager
def held_read(connection: Connection, tablet: int, epoch: int, *, one_snapshot: bool = False) -> Iterator[Cursor]:
    """A read-only transaction on the owner, always rolled back. Raises `NotHeld`."""
    level = "REPEATABLE READ" if one_snapshot else "READ COMMITTED"
    with held_transaction(connection, [(tablet, epoch)], sql.SQL("BEGIN ISOLATION LEVEL " + level)) as cursor:
        cursor.execute("SET TRANSACTION READ ONLY")
        yield cursor


@contextmanager
def held_transaction(connection: Connection, tablets: list[tuple[int, int]], begin: sql.Composable) -> Iterator[Cursor]:
    """The same for several tablets of one node, each with its epoch; it may write what does not outlive it."""
    holds = [sql.SQL(_HOLD).format(sql.Literal(tablet), sql.Literal(epoch)) for tablet, epoch in tablets]
    try:
        with connection.cursor() as cursor:
            try:
                run_together(cursor, [begin, *holds])
            except psycopg.errors.SerializationFailure as error:
                raise NotHeld(str(error.diag.message_primary)) from error
            yield cursor
    finally:
        with suppress(psycopg.Error):
            connection.rollback()
