"""The sequences behind a root's columns, with what each may still hand out. Only reads."""

from collections.abc import Sequence

from psycopg import sql

from balancer.nodes.connection import Cursor
from balancer.nodes.names import Name
from balancer.nodes.sequences import find_sequences
from balancer.policies.number_series import NumberSeries

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
