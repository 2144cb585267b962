"""Rows whose key changes: deleted where the old key is, inserted where the new one is, in one atomic transaction.

All roots of the table go together: rows of referencing roots are deleted first and inserted last. Values travel as
PostgreSQL writes whole rows, so that every type passes through unchanged. Generated columns are computed again. Steps
without I/O of their own, as in `transaction_steps`: both routers run what they ask for.
"""

from collections.abc import Generator
from typing import Any, NamedTuple, Protocol

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from balancer.client.locate import AnyKey
from balancer.directory.model import Table
from balancer.errors import UserError
from balancer.relation_names import Name, parse_name


class RekeyStatement(NamedTuple):
    """What a router is asked to run on the node that owns a key; the rows that come back are its answer."""

    key: tuple[Any, ...]
    query: sql.Composable
    values: tuple[Any, ...] = ()
    answers: bool = True
    """False: no rows come back."""


Steps = Generator[RekeyStatement, Any, Any]

_COLUMNS = """
SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute
WHERE attrelid = {}::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""


class Rekeying(NamedTuple):
    """One table's rows of one key, with the values of both."""

    table: Table
    old: tuple[Any, ...]
    new: tuple[Any, ...]

    @property
    def roots(self) -> tuple[Name, ...]:
        """Those with rows of the application. What is remembered about messages belongs to the key they were for."""
        ours = self.table.message_roots or ()
        return tuple(parse_name(root) for number, root in enumerate(self.table.roots) if number not in ours)

    def steps(self) -> Steps:
        """Deletes the rows of the old key and inserts them under the new one; returns their number."""
        yield from self._check_messages()
        taken: list[list[str]] = []
        for root in reversed(self.roots):
            delete = sql.SQL("DELETE FROM {} AS r WHERE {} RETURNING r::text").format(root.identifier, self._where)
            rows = yield RekeyStatement(self.old, delete, self.old)
            taken.insert(0, [str(row[0]) for row in rows])
        for root, lines in zip(self.roots, taken, strict=True):
            if lines:
                yield from self._insert(root, lines)
        return sum(map(len, taken))

    def _check_messages(self) -> Steps:
        """Raises a serialization failure while messages of the old key wait: they could not be reversed."""
        if self.table.message_roots is None:
            return
        outbox = parse_name(self.table.roots[self.table.message_roots[0]])
        statement = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(outbox.identifier, self._where)
        ((waiting,),) = yield RekeyStatement(self.old, statement, self.old)
        if waiting:
            raise psycopg.errors.SerializationFailure(
                "messages of the old key are not settled yet: try again; `balancer messages list` shows them"
            )

    def _insert(self, root: Name, lines: list[str]) -> Steps:
        ((names,),) = yield RekeyStatement(self.new, sql.SQL(_COLUMNS).format(sql.Literal(str(root))))
        fresh = dict(zip(self._names, self.new, strict=True))
        values = [
            sql.Placeholder() if name in fresh else sql.SQL("(w).{}").format(sql.Identifier(name)) for name in names
        ]
        statement = sql.SQL(
            "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {}"
            " FROM unnest(%s::text[]) AS t (line), LATERAL (SELECT line::{}) AS c (w)"
        ).format(
            root.identifier,
            sql.SQL(", ").join(map(sql.Identifier, names)),
            sql.SQL(", ").join(values),
            root.identifier,
        )
        yield RekeyStatement(
            self.new, statement, (*(fresh[name] for name in names if name in fresh), lines), answers=False
        )

    @property
    def _where(self) -> sql.Composed:
        return sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.table.columns)


def rekeying(table: Table, old: AnyKey, new: AnyKey) -> Rekeying:
    """For two keys; refused if there is nothing to change."""
    if table.whole:
        raise UserError(f"table {table.name} is whole: it has no key that could be changed")
    values = [key if isinstance(key, tuple) else (key,) for key in (old, new)]
    if any(len(one) != len(table.columns) for one in values):
        raise UserError(f"the key of table {table.name} has {len(table.columns)} columns; give a value for each")
    if values[0] == values[1]:
        raise UserError(f"{old!r} is the old and the new key: nothing would change")
    return Rekeying(table, *values)


class AtomicBlock(Protocol):
    """`Atomic`."""

    def on(self, table: str, key: AnyKey) -> Any: ...


class AsyncAtomicBlock(Protocol):
    """`AsyncAtomic`."""

    async def on(self, table: str, key: AnyKey) -> Any: ...


def rekey_rows(work: Rekeying, tx: AtomicBlock) -> int:
    """All of it, in a block of `Router.atomic`."""
    steps, answer = work.steps(), None
    while True:
        try:
            asked = steps.send(answer)
        except StopIteration as done:
            return int(done.value)
        connection = tx.on(work.table.name, asked.key)
        cursor = connection.cursor(row_factory=tuple_row).execute(asked.query, asked.values)
        answer = cursor.fetchall() if asked.answers else None


async def rekey_rows_async(work: Rekeying, tx: AsyncAtomicBlock) -> int:
    """The same for `AsyncRouter.atomic`."""
    steps, answer = work.steps(), None
    while True:
        try:
            asked = steps.send(answer)
        except StopIteration as done:
            return int(done.value)
        connection = await tx.on(work.table.name, asked.key)
        cursor = await connection.cursor(row_factory=tuple_row).execute(asked.query, asked.values)
        answer = await cursor.fetchall() if asked.answers else None
