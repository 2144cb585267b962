"""Sequences from which several nodes draw without ever handing out the same number: each node has a lane of its own.

A sequence that is *spread* counts in steps of `STRIDE`, and each node starts at a different remainder, its lane.
Numbers that were handed out before have all remainders; so every lane begins above the last of them. A move raises the
sequences of the new owner in their own steps (`sequences`), which keeps the lane.

`ALTER SEQUENCE` blocks everybody who draws until the transaction ends, so that nothing is handed out between the new
step and the new start. Called by the adoption of a table.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.nodes.connection import Cursor
from balancer.nodes.names import Name

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
