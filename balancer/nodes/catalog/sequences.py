"""Sequences behind the columns of roots: they do not travel with rows, so the new owner's are raised to the old one's.

Without it a moved tablet would get ids that it has already. Called by migrations.

Sequences from which several nodes draw without ever handing out the same number: each node has a lane of its own.

A sequence that is *spread* counts in steps of `STRIDE`, and each node starts at a different remainder, its lane.
Numbers that were handed out before have all remainders; so every lane begins above the last of them. A move raises the
sequences of the new owner in their own steps (`sequences`), which keeps the lane.

`ALTER SEQUENCE` blocks everybody who draws until the transaction ends, so that nothing is handed out between the new
step and the new start. Called by the adoption of a table.

The sequences behind a root's columns, with what each may still hand out. Only reads.

Whether two sequences can hand out the same number. Pure arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from psycopg import sql

from balancer.naming import Name
from balancer.nodes.session.connection import Cursor, Statement

_FIND = """
    SELECT DISTINCT s.oid::regclass::text
    FROM pg_class r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0
    LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
    JOIN pg_depend p ON (p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid AND p.refclassid = 'pg_class'::regclass)
        OR (p.classid = 'pg_class'::regclass AND p.refobjid = r.oid AND p.refobjsubid = a.attnum
            AND p.deptype IN ('a', 'i'))
    JOIN pg_class s ON s.relkind = 'S' AND s.oid IN (p.objid, p.refobjid)
    WHERE r.oid = ANY(%s::regclass[]) ORDER BY 1
"""


def find_sequences(cursor: Cursor, roots: Sequence[Name]) -> tuple[str, ...]:
    """The sequences that the roots' columns draw from."""
    return tuple(str(row[0]) for row in cursor.execute(_FIND, ([str(root) for root in roots],)))


def read_sequences(cursor: Cursor, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Those of them that were used, with the last value handed out."""
    if not names:
        return ()
    found = cursor.execute(
        "SELECT name, pg_sequence_last_value(name::regclass) FROM unnest(%s::text[]) AS name", (list(names),)
    )
    return tuple((str(name), int(value)) for name, value in found if value is not None)


def raise_statements(values: Sequence[tuple[str, int]]) -> list[Statement]:
    """Keep each sequence here from handing out anything up to its value. Skips one that is not here.

    It continues in its own steps: nodes whose sequences do not collide (odd here, even there) must not begin to. Where
    it would go beyond its end, it is set to the end: PostgreSQL refuses the next nextval, and the tablet opens.
    """
    raised = sql.SQL("SELECT balancer.raise_sequence({name}, {value})")
    return [raised.format(name=sql.Literal(name), value=sql.Literal(value)) for name, value in values]


STRIDE = 1024
"""How many nodes a table may ever have had."""
ROOM = 1 << 40
"""Numbers that must be left: an integer column would run out a thousand times sooner."""

_DRAWN = """
SELECT DISTINCT n.nspname, s.relname, format('%%s of %%s', a.attname, r.oid::regclass), q.seqincrement, q.seqstart,
       pg_sequence_last_value(s.oid), q.seqmax, q.seqcycle
FROM pg_class r JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = r.oid
  AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S' JOIN pg_namespace n ON n.oid = s.relnamespace
JOIN pg_sequence q ON q.seqrelid = s.oid JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum = d.refobjsubid
WHERE r.oid = ANY(%s::regclass[]) ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class DrawnSequence:
    """The sequence of a column, as one node has it."""

    name: Name
    column: str
    step: int
    start: int
    last: int | None
    most: int
    cycles: bool

    @property
    def lane(self) -> int | None:
        """None: it is not spread."""
        return (self.start if self.last is None else self.last) % STRIDE if self.step == STRIDE else None

    @property
    def unfit(self) -> str:
        """Why it cannot be spread; empty: it can be."""
        if self.cycles or self.step < 1:
            return f"column {self.column} draws from {self.name}, which cycles or counts down: it cannot be spread"
        if self.most - (self.last or self.start) < ROOM:
            return (
                f"column {self.column} has too few numbers left to be spread over nodes: ALTER COLUMN … TYPE bigint,"
                f" and ALTER SEQUENCE {self.name} AS bigint"
            )
        return ""


def read_drawn(cursor: Cursor, roots: Sequence[Name]) -> list[DrawnSequence]:
    """The sequences that belong to columns of these roots."""
    return [
        DrawnSequence(Name(schema, name), column, step, start, last, most, cycles)
        for schema, name, column, step, start, last, most, cycles in cursor.execute(
            _DRAWN, ([str(root) for root in roots],)
        ).fetchall()
    ]


def first_in_lane(last: int, lane: int) -> int:
    """The first number of a lane that is above everything handed out so far."""
    return (last // STRIDE + 1) * STRIDE + lane


def in_lane(shape: Sequence[int], last: int | None, lane: int) -> list[int]:
    """Start, step and the rest of a sequence for a node that has none yet. `last`: what was handed out elsewhere."""
    start, _, *rest = shape
    return [first_in_lane(start if last is None else last, lane), STRIDE, *rest]


def spread(cursor: Cursor, sequence: DrawnSequence, lane: int, above: int = 0) -> None:
    """Makes a sequence continue in a lane, above what other nodes have handed out; inside the caller's transaction."""
    cursor.execute(sql.SQL("ALTER SEQUENCE {} INCREMENT BY {}").format(sequence.name.identifier, sql.Literal(STRIDE)))
    row = cursor.execute("SELECT pg_sequence_last_value(%s::regclass)", (str(sequence.name),)).fetchone()
    last = sequence.start if row is None or row[0] is None else int(row[0])
    # As if it had been handed out: a sequence whose next number is its first says nothing about its last one.
    cursor.execute("SELECT setval(%s::regclass, %s)", (str(sequence.name), first_in_lane(max(last, above), lane)))


@dataclass(frozen=True, slots=True)
class NumberSeries:
    """The numbers that a sequence may still hand out: from the next one on, in steps, up to its end."""

    next: int
    step: int
    least: int
    most: int
    cycles: bool = False

    def span(self) -> tuple[int, int]:
        """The lowest and the highest of them; empty if the first is above the second."""
        low, high = (self.next, self.most) if self.step > 0 else (self.least, self.next)
        return (self.least, self.most) if self.cycles else (low, high)


def common_number(one: NumberSeries, other: NumberSeries) -> int | None:
    """The lowest number that both may hand out; None: there is none."""
    low = max(one.span()[0], other.span()[0])
    high = min(one.span()[1], other.span()[1])
    a, b = abs(one.step), abs(other.step)
    shared = gcd(a, b)
    if low > high or (other.next - one.next) % shared:
        return None
    # x = one.next (mod a) and x = other.next (mod b): the Chinese remainder theorem.
    times = (other.next - one.next) // shared * pow(a // shared, -1, b // shared) if b > shared else 0
    together = a // shared * b
    first = (one.next + a * times) % together
    found = low + (first - low) % together
    return found if found <= high else None


_FACTS = """
SELECT n.nspname, c.relname, c.oid::regclass::text, s.seqincrement, s.seqmin, s.seqmax, s.seqcycle
FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE s.seqrelid = ANY(%s::regclass[]) ORDER BY 3
"""
# From the sequence itself: pg_sequence_last_value does not know where a restarted, unused one begins.
_NEXT = "SELECT last_value::numeric + CASE WHEN is_called THEN {} ELSE 0 END FROM {}"


def sequence_series(cursor: Cursor, root: Name) -> dict[str, NumberSeries]:
    """By the sequence's name."""
    names: Sequence[str] = find_sequences(cursor, [root])
    if not names:
        return {}
    found = {}
    for schema, bare, name, step, least, most, cycles in cursor.execute(_FACTS, (list(names),)).fetchall():
        row = cursor.execute(sql.SQL(_NEXT).format(sql.Literal(step), sql.Identifier(schema, bare))).fetchone()
        assert row is not None, "a sequence has one row"
        found[str(name)] = NumberSeries(int(row[0]), int(step), int(least), int(most), bool(cycles))
    return found
