"""Rows whose key changes: taken out where the old key is, put in where the new one is, in one atomic transaction.

All roots of the table go together: rows of referencing roots are taken out first and put in last. Values travel as
PostgreSQL writes whole rows, so that every type goes through as it is. Generated columns are made again.
"""

from typing import Any, NamedTuple, Protocol

import psycopg
from psycopg import sql

from balancer.client.locate import AnyKey
from balancer.directory.model import Table
from balancer.errors import UserError
from balancer.relation_names import Name, parse_name


class Executor(Protocol):
    """A connection in the transaction."""

    def execute(self, query: Any, params: Any = None) -> Any: ...


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
        """Those with rows of the application. What is remembered of messages belongs to the key that they were for."""
        ours = self.table.message_roots or ()
        return tuple(parse_name(root) for number, root in enumerate(self.table.roots) if number not in ours)

    def check_messages(self, connection: Executor) -> None:
        """Raises a serialization failure while messages of the old key wait: they would be reversed nowhere."""
        if self.table.message_roots is None:
            return
        outbox = parse_name(self.table.roots[self.table.message_roots[0]])
        statement = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(outbox.identifier, self._where)
        if connection.execute(statement, self.old).fetchone()[0]:
            raise psycopg.errors.SerializationFailure(
                "messages of the old key are not settled yet: try again; `balancer messages list` shows them"
            )

    def take(self, connection: Executor) -> list[list[str]]:
        """Deletes the rows of the old key; returns them by root, as PostgreSQL writes rows."""
        self.check_messages(connection)
        taken: list[list[str]] = []
        for root in reversed(self.roots):
            statement = sql.SQL("DELETE FROM {} AS r WHERE {} RETURNING r::text").format(root.identifier, self._where)
            taken.insert(0, [str(row[0]) for row in connection.execute(statement, self.old).fetchall()])
        return taken

    def put(self, connection: Executor, taken: list[list[str]]) -> int:
        """Inserts what was taken, under the new key; returns the number of rows."""
        for root, rows in zip(self.roots, taken, strict=True):
            if rows:
                (names,) = connection.execute(sql.SQL(_COLUMNS).format(sql.Literal(str(root)))).fetchone()
                self._insert(connection, root, names, rows)
        return sum(map(len, taken))

    def _insert(self, connection: Executor, root: Name, names: list[str], rows: list[str]) -> None:
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
        connection.execute(statement, [*(fresh[name] for name in names if name in fresh), rows])

    @property
    def _where(self) -> sql.Composed:
        return sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.table.columns)


def rekeying(table: Table, old: AnyKey, new: AnyKey) -> Rekeying:
    """Of two keys; refused where there is nothing to change."""
    if table.whole:
        raise UserError(f"table {table.name} is whole: it has no key that could be changed")
    values = [key if isinstance(key, tuple) else (key,) for key in (old, new)]
    if any(len(one) != len(table.columns) for one in values):
        raise UserError(f"the key of table {table.name} has {len(table.columns)} columns; give a value for each")
    if values[0] == values[1]:
        raise UserError(f"{old!r} is the old and the new key: nothing would change")
    return Rekeying(table, *values)
