"""Foreign keys that keep a partition from being detached: rows of it point to rows of the same partition.

Before it detaches a partition, PostgreSQL checks whether anything still points to its rows, and counts the partition's
own rows among those that point. So a partition of a root that refers to itself, or to one that comes after it, is
emptied first: its rows have moved, or are not wanted. Nobody may write to them meanwhile or afterwards: the fence's
triggers are off only inside the caller's transaction, which holds the lock. Called by migrations.
"""

from collections.abc import Sequence

from psycopg import sql

from balancer.nodes.connection import Cursor
from balancer.nodes.names import Name
from balancer.nodes.objects import FENCE_TRIGGER, FENCE_TRUNCATE_TRIGGER
from balancer.nodes.references import read_references, without_triggers

_FENCES = "SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND tgname = ANY (%s) ORDER BY 1"


def tied(cursor: Cursor, roots: Sequence[Name]) -> bool:
    """Whether partitions of these roots cannot simply be detached from the last root to the first."""
    places = {root: place for place, root in enumerate(roots)}
    return any(
        places.get(reference.referenced, -1) >= places[reference.root] for reference in read_references(cursor, roots)
    )


def empty_partitions(cursor: Cursor, partitions: Sequence[Name]) -> None:
    """Deletes all rows of locked partitions. Their fences are off when it returns: the caller renews them."""
    without_triggers(cursor)
    cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    for partition in partitions:
        for (trigger,) in cursor.execute(_FENCES, (str(partition), [FENCE_TRIGGER, FENCE_TRUNCATE_TRIGGER])).fetchall():
            disable = sql.SQL("ALTER TABLE {} DISABLE TRIGGER {}")
            cursor.execute(disable.format(partition.identifier, sql.Identifier(trigger)))
    for partition in reversed(partitions):
        cursor.execute(sql.SQL("DELETE FROM ONLY {}").format(partition.identifier))
