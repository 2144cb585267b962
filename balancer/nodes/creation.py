"""Empty partitions of a new table, made and, if that fails, removed again.

Called by `balancer.tables`. Migrations deal with partitions that hold rows.
"""

from collections.abc import Sequence

from psycopg import sql

from balancer.errors import Refused
from balancer.nodes.bounds import Part, for_values
from balancer.nodes.catalog import Root
from balancer.nodes.connection import Cursor
from balancer.nodes.names import Name


def create_partition(cursor: Cursor, root: Root, name: Name, part: Part) -> None:
    """Makes an empty attached partition; it belongs to the root's owner, as if that role had made it."""
    cursor.execute(
        sql.SQL("CREATE TABLE {} PARTITION OF {} {}").format(
            name.identifier, root.name.identifier, for_values(root.columns, part)
        )
    )
    take_defaults_away(cursor, name)
    cursor.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(name.identifier, sql.Identifier(root.owner)))


def take_defaults_away(cursor: Cursor, made: Name) -> None:
    """Leaves a new table to its owner alone. ALTER DEFAULT PRIVILEGES may give others rights on every table that our
    role makes; on a partition they would go past the root's grants and policies."""
    for role in [str(role) for (role,) in cursor.execute(_OTHERS, (str(made),))]:
        grantee = sql.Identifier(role) if role else sql.SQL("PUBLIC")
        cursor.execute(sql.SQL("REVOKE ALL ON {} FROM {}").format(made.identifier, grantee))


_OTHERS = """
SELECT DISTINCT CASE g.grantee WHEN 0 THEN '' ELSE pg_get_userbyid(g.grantee) END
FROM pg_class c, aclexplode(c.relacl) g
WHERE c.oid = to_regclass(%s) AND g.grantee <> c.relowner
"""


def drop_empty(cursor: Cursor, root: Name, names: Sequence[Name]) -> None:
    """Drops partitions that were made for nothing. Refuses one that somebody has written to."""
    for name in names:
        # Detached first: a foreign key of a colocated root prevents an attached partition from being dropped.
        cursor.execute(sql.SQL("ALTER TABLE {} DETACH PARTITION {}").format(root.identifier, name.identifier))
        row = cursor.execute(sql.SQL("SELECT EXISTS (SELECT FROM {})").format(name.identifier)).fetchone()
        if row is not None and row[0]:
            raise Refused(f"{name} holds rows already and is not dropped")
        cursor.execute(sql.SQL("DROP TABLE {}").format(name.identifier))


def run_definition(cursor: Cursor, text: str) -> None:
    """Runs the user's CREATE TABLE statements, in the caller's transaction; names without a schema are in public."""
    cursor.execute("SET LOCAL search_path TO public")
    cursor.execute(text.encode())
    cursor.execute("SET LOCAL search_path TO pg_catalog, pg_temp")
