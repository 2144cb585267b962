"""Rows of changed keys, carried to another node: taken out there, and put in as one snapshot of the source has them.

Statements only, called by `balancer.migration.key_replay`. The keys are those that a capture has logged (`capture`).
All keys are taken out before any is put in: rows may have swapped values that must be unique.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.errors import Refused
from balancer.nodes.capture import SEQ
from balancer.nodes.checksum import Rows, row_hash
from balancer.nodes.connection import Connection, Cursor
from balancer.nodes.objects import log_name

Sum = tuple[int, int]
"""Rows, and the sum of their hashes."""
CopyPair = tuple[sql.Composed, sql.Composed]
"""COPY … TO STDOUT for the source, COPY … FROM STDIN for the target."""


@dataclass(frozen=True, slots=True)
class KeyLog:
    """A partition, its twin on the target, and the log of its changed keys."""

    migration: str
    index: int
    rows: Rows
    copied: tuple[str, ...]  # columns that travel
    binary: bool

    @property
    def log(self) -> sql.Identifier:
        return log_name(self.migration, self.index)

    @property
    def keys(self) -> sql.Composed:
        """Where the target keeps the keys during a transaction."""
        return sql.SQL("pg_temp.{}").format(sql.Identifier(f"balancer_keys_{self.index}"))

    @property
    def form(self) -> sql.SQL:
        return sql.SQL("(FORMAT binary)" if self.binary else "(FORMAT text)")


def has_entries(source: Connection, one: KeyLog) -> bool:
    """Whether this snapshot has entries. Raises `Refused` for the one that says: the partition was truncated."""
    statement = sql.SQL("SELECT EXISTS (SELECT FROM {0}), EXISTS (SELECT FROM {0} WHERE {1} IS NULL)")
    row = source.execute(statement.format(one.log, sql.Identifier(one.rows.key[0]))).fetchone()
    assert row is not None
    if row[1]:
        raise Refused(f"{one.rows.partition} was truncated, or got another key, while it was copied")
    return bool(row[0])


def analyze_statement(migration: str, index: int) -> sql.Composed:
    """For a log that may grow by millions of entries within minutes: the planner must not take it for empty."""
    return sql.SQL("ANALYZE {}").format(log_name(migration, index))


def entries(source: Connection | Cursor, migration: str, index: int) -> int:
    """Roughly how many entries are waiting, by the numbers of the oldest and the newest."""
    statement = sql.SQL("SELECT coalesce(max({0}) - min({0}) + 1, 0) FROM {1}")
    row = source.execute(statement.format(sql.Identifier(SEQ), log_name(migration, index))).fetchone()
    return int(row[0]) if row else 0


def make_room(target: Cursor, one: KeyLog) -> None:
    """An empty table for the keys, until the transaction ends."""
    target.execute(
        sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM ONLY {} WITH NO DATA").format(
            one.keys, _columns(one.rows.key), one.rows.partition.identifier
        )
    )


def copy_keys(one: KeyLog) -> CopyPair:
    """Carry the logged keys, each once, into that table."""
    names = _columns(one.rows.key)
    read = sql.SQL("COPY (SELECT DISTINCT {} FROM {}) TO STDOUT {}").format(names, one.log, one.form)
    return read, sql.SQL("COPY {} ({}) FROM STDIN {}").format(one.keys, names, one.form)


def take_out(target: Cursor, one: KeyLog) -> None:
    """Deletes the rows of these keys, however often they are there."""
    target.execute(sql.SQL("ANALYZE {}").format(one.keys))
    statement = sql.SQL("DELETE FROM ONLY {} AS t USING {} AS k WHERE {}")
    target.execute(statement.format(one.rows.partition.identifier, one.keys, _same(one.rows.key)))


def copy_changed(one: KeyLog) -> CopyPair:
    """Carry the rows of the logged keys."""
    table = one.rows.partition.identifier
    read = sql.SQL("COPY (SELECT {} FROM ONLY {} AS t WHERE {}) TO STDOUT {}").format(
        _columns(one.copied), table, _in(one.log, one.rows.key), one.form
    )
    return read, sql.SQL("COPY {} ({}) FROM STDIN {}").format(table, _columns(one.copied), one.form)


def sum_at_source(source: Connection, one: KeyLog) -> Sum:
    """The rows of the logged keys, as the source has them."""
    return _sum(source, _summed(one.rows, one.log))


def sum_at_target(target: Cursor, one: KeyLog) -> Sum:
    """The rows of the same keys on the target."""
    return _sum(target, _summed(one.rows, one.keys))


def forget_statement(migration: str, index: int) -> sql.Composed:
    """Removes the entries that the transaction's snapshot has: it does not see those that came later."""
    return sql.SQL("DELETE FROM {}").format(log_name(migration, index))


def _summed(rows: Rows, keys: sql.Composable) -> sql.Composed:
    return sql.SQL("SELECT count(*), coalesce(sum({}), 0) FROM ONLY {} AS t WHERE {}").format(
        row_hash(rows.columns), rows.partition.identifier, _in(keys, rows.key)
    )


def _in(keys: sql.Composable, key: Sequence[str]) -> sql.Composed:
    return sql.SQL("EXISTS (SELECT FROM {} AS k WHERE {})").format(keys, _same(key))


def _sum(cursor: Connection | Cursor, statement: sql.Composed) -> Sum:
    row = cursor.execute(statement).fetchone()
    assert row is not None, "an aggregate has one row"
    return int(row[0]), int(row[1])


def _columns(names: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _same(key: Sequence[str]) -> sql.Composable:
    return sql.SQL(" AND ").join(sql.SQL("t.{0} = k.{0}").format(sql.Identifier(name)) for name in key)
