"""Rows whose key changes: deleted where the old key is, inserted where the new one is, in one atomic transaction.

All roots of the table go together. The promise: afterwards the new key has exactly the rows that the old one had, value
for value, or nothing has changed. What could break it, and what is done about it:

- *A cascade or a trigger takes rows before they are read.* Rows are locked first, referenced roots first, which keeps
  out rows that would refer to them; then they are deleted with RETURNING, referencing roots first, by the foreign keys
  in the catalog and not by the order in the file. Fewer rows than were locked: refused.
- *The nodes' columns are in different physical orders, or their settings differ.* Values travel by their columns'
  names, as their types' output functions write them under settings that are pinned on both sides.
- *A trigger changes what is inserted, or leaves it out.* What the new key has afterwards is read and compared.
- *A message is sent from the old key meanwhile.* The lock of `balancer.send_message` is taken before we look.

Generated columns are computed again. Steps without I/O of their own, as in `client/transaction/steps`: both routers run
what they ask for."""

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from balancer.client.messages import key_text
from balancer.directory.locate import AnyKey
from balancer.directory.model import Table
from balancer.errors import Refused, UserError
from balancer.naming import Name, parse_name


class RekeyStatement(NamedTuple):
    """What a router is asked to run on the node that owns a key; the rows that come back are its answer."""

    key: tuple[Any, ...]
    query: sql.Composable
    values: tuple[Any, ...] = ()
    answers: bool = True
    """False: no rows come back."""


Steps = Generator[RekeyStatement, Any, Any]
Values = tuple[str | None, ...]
"""A row, as its columns' output functions write it."""

_PINNED = sql.SQL(
    "SELECT set_config(name, value, true) FROM (VALUES ('datestyle', 'ISO, YMD'), ('intervalstyle', 'postgres'),"
    " ('extra_float_digits', '1'), ('bytea_output', 'hex'), ('lc_monetary', 'C')) AS pinned (name, value)"
).format()
_ZONE = sql.SQL("SELECT current_setting('timezone')").format()
_SET_ZONE = sql.SQL("SELECT set_config('timezone', %s, true)").format()
_COLUMNS = """
SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute
WHERE attrelid = {}::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""
_REFERENCES = sql.SQL(
    "SELECT array_position(r.roots, conrelid), array_position(r.roots, confrelid)"
    " FROM pg_constraint, (SELECT %s::text[]::regclass[]::oid[] AS roots) AS r"
    " WHERE contype = 'f' AND conrelid = ANY (r.roots) AND confrelid = ANY (r.roots) AND conrelid <> confrelid"
).format()
_SENDERS_LOCK = sql.SQL("SELECT pg_advisory_xact_lock(1835365235, hashtext(%s || %s::text[]::text))").format()
MOST_VALUES = 60_000
"""In one statement: PostgreSQL counts parameters in 16 bits."""


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
        ((zone,),) = yield RekeyStatement(self.new, _ZONE)
        for key in (self.old, self.new):
            yield RekeyStatement(key, _PINNED)
            yield RekeyStatement(key, _SET_ZONE, ("UTC",))
        yield from self._check_messages()
        roots = yield from self._referenced_first()
        columns: dict[Name, tuple[str, ...]] = {}
        locked: dict[Name, int] = {}
        taken: dict[Name, list[Values]] = {}
        for root in roots:
            columns[root] = yield from self._columns(root)
            locked[root] = yield from self._lock(root)
        for root in reversed(roots):
            taken[root] = yield from self._take(root, columns[root])
            if len(taken[root]) < locked[root]:
                raise Refused(
                    f"{locked[root]} rows of {root} have the key, and deleting them gave {len(taken[root])}: a trigger"
                    " or a cascade takes them; nothing was changed"
                )
        for root in roots:
            if taken[root]:
                yield from self._put(root, columns[root], taken[root], zone)
        return sum(map(len, taken.values()))

    def _check_messages(self) -> Steps:
        """Raises a serialization failure while messages of the old key wait: they could not be reversed.

        Under the lock of those that send, so that one who has sent and not yet committed is waited for.
        """
        if self.table.message_roots is None:
            return
        yield RekeyStatement(self.old, _SENDERS_LOCK, (self.table.name, key_text(self.table, self.old)))
        outbox = parse_name(self.table.roots[self.table.message_roots[0]])
        statement = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(outbox.identifier, self._where)
        ((waiting,),) = yield RekeyStatement(self.old, statement, self.old)
        if waiting:
            raise psycopg.errors.SerializationFailure(
                "messages of the old key are not settled yet: try again; `balancer messages list` shows them"
            )

    def _referenced_first(self) -> Generator[RekeyStatement, Any, list[Name]]:
        """The roots, each after those that it refers to."""
        roots = self.roots
        rows = yield RekeyStatement(self.old, _REFERENCES, (list(map(str, roots)),))
        needs: dict[Name, set[Name]] = {root: set() for root in roots}
        for child, parent in rows:
            needs[roots[child - 1]].add(roots[parent - 1])
        found: list[Name] = []
        while len(found) < len(roots):
            left = [root for root in roots if root not in found]
            ready = [root for root in left if needs[root] <= set(found)]
            found.append((ready or left)[0])  # of roots that refer to each other in a circle, any
        return found

    def _columns(self, root: Name) -> Generator[RekeyStatement, Any, tuple[str, ...]]:
        sides = []
        for key in (self.old, self.new):
            ((names,),) = yield RekeyStatement(key, sql.SQL(_COLUMNS).format(sql.Literal(str(root))))
            sides.append(names)
        if set(sides[0]) != set(sides[1]):
            odd = sorted(set(sides[0]) ^ set(sides[1]))
            raise Refused(f"{root} has different columns on the two nodes ({', '.join(odd)}); nothing was changed")
        return tuple(sides[0])

    def _lock(self, root: Name) -> Generator[RekeyStatement, Any, int]:
        statement = sql.SQL("SELECT count(*) FROM (SELECT FROM {} AS r WHERE {} FOR UPDATE) AS locked")
        ((count,),) = yield RekeyStatement(self.old, statement.format(root.identifier, self._where), self.old)
        return int(count)

    def _take(self, root: Name, columns: Sequence[str]) -> Generator[RekeyStatement, Any, list[Values]]:
        statement = sql.SQL("DELETE FROM {} AS r WHERE {} RETURNING {}")
        delete = statement.format(root.identifier, self._where, _written(columns))
        rows = yield RekeyStatement(self.old, delete, self.old)
        return [tuple(row) for row in rows]

    def _put(self, root: Name, columns: Sequence[str], rows: list[Values], zone: str) -> Steps:
        before = yield from self._there(root, columns)
        fresh = dict(zip(self._names, self.new, strict=True))
        line = sql.SQL("({})").format(sql.SQL(", ").join(sql.Placeholder() * len(columns)))
        into = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ").format(
            root.identifier, sql.SQL(", ").join(map(sql.Identifier, columns))
        )
        yield RekeyStatement(self.new, _SET_ZONE, (zone,))  # the application's triggers see what they always see
        for some in _batches(rows, MOST_VALUES // len(columns)):
            values = tuple(fresh.get(name, value) for row in some for name, value in zip(columns, row, strict=True))
            yield RekeyStatement(self.new, into + sql.SQL(", ").join([line] * len(some)), values, answers=False)
        yield RekeyStatement(self.new, _SET_ZONE, ("UTC",))
        after = yield from self._there(root, columns)
        if after != before + self._without_key(columns, rows):
            raise Refused(
                f"the rows of {root} under the new key are not those of the old one: a trigger changes or drops them;"
                " nothing was changed"
            )

    def _there(self, root: Name, columns: Sequence[str]) -> Generator[RekeyStatement, Any, "Counter[Values]"]:
        """What the new key has."""
        query = sql.SQL("SELECT {} FROM {} AS r WHERE {}").format(_written(columns), root.identifier, self._where)
        rows = yield RekeyStatement(self.new, query, self.new)
        return self._without_key(columns, rows)

    def _without_key(self, columns: Sequence[str], rows: Sequence[Values]) -> "Counter[Values]":
        kept = [at for at, name in enumerate(columns) if name not in self._names]
        return Counter(tuple(row[at] for at in kept) for row in rows)

    @property
    def _where(self) -> sql.Composed:
        return sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.table.columns)


def _written(columns: Sequence[str]) -> sql.Composed:
    """Each column's value as its output function writes it; a cast to text would be another thing for some types."""
    one = sql.SQL("CASE WHEN r.{0} IS NOT DISTINCT FROM NULL THEN NULL ELSE format('%%s', r.{0}) END")
    return sql.SQL(", ").join(one.format(sql.Identifier(name)) for name in columns)


def _batches(rows: list[Values], size: int) -> Iterator[list[Values]]:
    for first in range(0, len(rows), max(1, size)):
        yield rows[first : first + max(1, size)]


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
