"""Foreign keys of a new partition: how it gets them without a scan in the writers' pause or getting in the way.

ATTACH checks a foreign key of the root against every row of the new partition, unless the partition has an equal one
that is validated; it then only merges the two (tried on 15 and 18: 1,100 ms and 6 ms for 200,000 rows). It cannot be
validated beforehand, because the rows it refers to may be in another partition that is not attached yet. But an empty
table satisfies every foreign key: so the new partition gets it before the rows come, and these come with triggers off,
as replication applies them too. What was copied is compared with the source, where the key holds.

Until the partition is attached, such a key would make deletes from the referenced table look into a copy that is
behind, and fail for a reference that is gone already; its triggers on the referenced side are therefore disabled, and
ATTACH replaces them. All of this requires a superuser. Any other role leaves foreign keys to ATTACH, which checks them.
Called by the steps of a migration; everything is inside the caller's transaction.

Foreign keys that keep a partition from being detached: rows of it point to rows of the same partition.

Before it detaches a partition, PostgreSQL checks whether anything still points to its rows, and counts the partition's
own rows among those that point. So a partition of a root that refers to itself, or to one that comes after it, is
emptied first: its rows have moved, or are not wanted. Nobody may write to them meanwhile or afterwards: the fence's
triggers are off only inside the caller's transaction, which holds the lock. Called by migrations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.catalog.shapes import Constraint, Shape
from balancer.nodes.session.connection import Connection, Cursor, Statement, printed, run_single, run_together
from balancer.nodes.tablets.object_names import FENCE_TRIGGER, FENCE_TRUNCATE_TRIGGER
from balancer.nodes.tablets.partition import Place

_TRIGGERS = """
    WITH RECURSIVE mine AS (
        SELECT oid FROM pg_constraint WHERE conrelid = %(partition)s::regclass AND contype = 'f' AND conparentid = 0
        UNION SELECT k.oid FROM pg_constraint k JOIN mine ON k.conparentid = mine.oid
    )
    SELECT n.nspname, c.relname, t.tgname
    FROM pg_trigger t JOIN mine ON t.tgconstraint = mine.oid
    JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE t.tgrelid <> %(partition)s::regclass AND (t.tgenabled = 'D') = %(disabled)s
"""

_REFERENCES = """
    SELECT f.nspname, fc.relname, r.nspname, rc.relname,
           array_agg(fa.attname::text ORDER BY u.place), array_agg(ra.attname::text ORDER BY u.place)
    FROM pg_constraint k
    JOIN pg_class fc ON fc.oid = k.conrelid JOIN pg_namespace f ON f.oid = fc.relnamespace
    JOIN pg_class rc ON rc.oid = k.confrelid JOIN pg_namespace r ON r.oid = rc.relnamespace
    CROSS JOIN LATERAL unnest(k.conkey, k.confkey) WITH ORDINALITY AS u (mine, theirs, place)
    JOIN pg_attribute fa ON fa.attrelid = k.conrelid AND fa.attnum = u.mine
    JOIN pg_attribute ra ON ra.attrelid = k.confrelid AND ra.attnum = u.theirs
    WHERE k.contype = 'f' AND k.conparentid = 0 AND k.conrelid = ANY(%(roots)s::regclass[])
    GROUP BY k.oid, 1, 2, 3, 4 ORDER BY k.oid
"""


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key of a root, column by column."""

    root: Name
    columns: tuple[str, ...]
    referenced: Name
    referenced_columns: tuple[str, ...]


def read_references(cursor: Connection | Cursor, roots: Sequence[Name]) -> tuple[Reference, ...]:
    """The foreign keys of these roots."""
    rows = cursor.execute(_REFERENCES, {"roots": [str(root) for root in roots]}).fetchall()
    return tuple(
        Reference(Name(schema, table), tuple(mine), Name(other_schema, other), tuple(theirs))
        for schema, table, other_schema, other, mine, theirs in rows
    )


def may_prepare(cursor: Cursor) -> bool:
    """Whether this role may give an empty partition its foreign keys and then fill it."""
    row = cursor.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    return bool(row and row[0])


def prepare_references(cursor: Cursor, shape: Shape, partition: Name, but: Sequence[Name] = ()) -> None:
    """Gives a new, empty, detached partition its foreign keys, without affecting the tables that they refer to.

    Those to `but` are left to ATTACH: rows of these tables could not be detached while others refer to them.
    """
    for constraint in (one for one in _foreign_keys(shape) if one.references not in but):
        add = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}")
        name, text = sql.Identifier(constraint.name), printed(constraint.definition)
        run_single(cursor, add.format(partition.identifier, name, text))
    silence_references(cursor, partition)


def silence_references(cursor: Cursor, partition: Name) -> None:
    """Makes deletes from the tables that a detached partition refers to ignore it."""
    _switch(cursor, partition, "DISABLE")


def wake_references(cursor: Cursor, partition: Name) -> None:
    """After ATTACH, which has replaced the root's: those that only the partition has are enforced again."""
    _switch(cursor, partition, "ENABLE")


def _switch(cursor: Cursor, partition: Name, word: str) -> None:
    where = {"partition": str(partition), "disabled": word == "ENABLE"}
    for schema, table, trigger in cursor.execute(_TRIGGERS, where).fetchall():
        cursor.execute(
            sql.SQL("ALTER TABLE ONLY {} " + word + " TRIGGER {}").format(
                sql.Identifier(schema, table), sql.Identifier(trigger)
            )
        )


def there_are_any(shapes: Sequence[Shape]) -> bool:
    """Whether one of these partitions has a foreign key."""
    return any(map(_foreign_keys, shapes))


def _foreign_keys(shape: Shape) -> list[Constraint]:
    return [constraint for constraint in shape.constraints if constraint.kind == "f"]


def refuse_own(shapes: Sequence[Shape]) -> None:
    """For a role that cannot prepare: a foreign key that the root lacks would not come with ATTACH."""
    for shape in shapes:
        for constraint in _foreign_keys(shape):
            if constraint.own:
                raise Refused(
                    f"foreign key {constraint.name} is on {shape.name} alone and not on its root: only a superuser's"
                    " role can carry it"
                )


def without_triggers(cursor: Cursor) -> None:
    """Rows that this transaction writes are taken as they are, where the role may request that.

    They were checked where they come from; and what is not attached yet has no triggers to miss.
    """
    run_together(cursor, silence_statements(may_prepare(cursor)))


def silence_statements(may: bool) -> list[Statement]:
    """What `without_triggers` sends, if the role may request that."""
    return [sql.SQL("SET LOCAL session_replication_role TO replica")] if may else []


def unchecked(cursor: Cursor, reference: Reference, places: Sequence[Place]) -> bool:
    """Whether ATTACH would have to check this foreign key row by row on one of the new partitions."""
    mine = [str(place.partition) for place in places if place.root == reference.root]
    row = cursor.execute(
        """
        SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND convalidated
        AND conrelid = ANY(%s::regclass[]) AND confrelid = %s::regclass
        """,
        (mine, str(reference.referenced)),
    ).fetchone()
    return not row or int(row[0]) < len(mine)


def count_orphans(cursor: Cursor, reference: Reference, places: Sequence[Place]) -> int:
    """Rows of the new partitions without the row they refer to: the query that ATTACH runs, and just as long."""
    mine = _rows(reference.root, reference.columns, places)
    theirs = _rows(reference.referenced, reference.referenced_columns, places) or _all_rows(reference)
    pairs = zip(reference.columns, reference.referenced_columns, strict=True)
    same = sql.SQL(" AND ").join(
        sql.SQL("f.{} = r.{}").format(sql.Identifier(one), sql.Identifier(other)) for one, other in pairs
    )
    filled = sql.SQL(" AND ").join(sql.SQL("f.{} IS NOT NULL").format(sql.Identifier(one)) for one in reference.columns)
    missing = sql.SQL("r.{} IS NULL").format(sql.Identifier(reference.referenced_columns[0]))
    statement = sql.SQL("SELECT count(*) FROM ({}) AS f LEFT JOIN ({}) AS r ON {} WHERE {} AND {}")
    row = cursor.execute(statement.format(mine, theirs, same, filled, missing)).fetchone()
    return int(row[0]) if row else 0


def _all_rows(reference: Reference) -> sql.Composable:
    """For a table that is not a root of this migration."""
    wanted = sql.SQL(", ").join(map(sql.Identifier, reference.referenced_columns))
    return sql.SQL("SELECT {} FROM {}").format(wanted, reference.referenced.identifier)


def _rows(root: Name, columns: Sequence[str], places: Sequence[Place]) -> sql.Composed | None:
    """For the new partitions of a root; None if it has none."""
    if all(place.root != root for place in places):
        return None
    wanted = sql.SQL(", ").join(map(sql.Identifier, columns))
    return sql.SQL(" UNION ALL ").join(
        sql.SQL("SELECT {} FROM ONLY {}").format(wanted, place.partition.identifier)
        for place in places
        if place.root == root
    )


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
