"""Materialised views, which cannot be replaced: a new one is made next to the old one, filled, and takes its name.

In the swap of a conversion an empty shell is made from the old text, which then means the new table. Afterwards the
shell is filled while the old view keeps answering, and takes the name in an instant. The query runs with the rights of
the view's owner, as it always does (REFRESH), and never with ours. A shell is found again by its name.
"""

from collections.abc import Iterator, Sequence

from psycopg import sql

from balancer.nodes import table_parts
from balancer.nodes.connection import Cursor, Statement, printed
from balancer.nodes.dependents import Dependents, read_dependents
from balancer.nodes.names import Name, partition_name
from balancer.nodes.partition import index_name

_VIEW = """
SELECT c.oid::bigint, pg_get_userbyid(c.relowner), pg_get_viewdef(c.oid), coalesce(c.reloptions, '{}'),
       c.relispopulated,
       ARRAY(SELECT i.relname::text FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid WHERE x.indrelid = c.oid
             ORDER BY 1),
       ARRAY(SELECT pg_get_indexdef(x.indexrelid) FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
             WHERE x.indrelid = c.oid ORDER BY i.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind = 'm'
"""
_PENDING = """
SELECT DISTINCT n.nspname, c.relname
FROM pg_depend d JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
JOIN pg_class c ON c.oid = r.ev_class AND c.relkind = 'm' JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = to_regclass(%s)
"""


def shell_name(view: Name) -> Name:
    """What the new one is called until it takes the name."""
    return partition_name(view, 0)


def shell_refusals(cursor: Cursor, view: Name, table: Name) -> Iterator[str]:
    """What keeps a materialised view from being made again."""
    row = cursor.execute(_VIEW, view).fetchone()
    assert row is not None, view
    dependents = read_dependents(cursor, row[0], view)
    yield from dependents.refusals
    for other in dependents.materialised:
        yield f"materialised view {other} reads materialised view {view}, which reads {table}: drop it"
    if dependents.before:
        yield f"a function has the row type of materialised view {view}, which reads {table}, in its signature: drop it"


def shell_statements(cursor: Cursor, view: Name) -> Iterator[Statement]:
    """Make the empty shell; its definition is the view's, with what the names mean when these run."""
    row = cursor.execute(_VIEW, view).fetchone()
    assert row is not None, view
    _, owner, text, options, *_ = row
    shell = shell_name(view).identifier
    create = sql.SQL("CREATE MATERIALIZED VIEW {}").format(shell)
    if options:
        pairs = (option.partition("=") for option in options)
        given = [sql.SQL("{} = {}").format(sql.Identifier(key), sql.Literal(value)) for key, _, value in pairs]
        create += sql.SQL(" WITH ({})").format(sql.SQL(", ").join(given))
    yield create + sql.SQL(" AS ") + printed(text.rstrip().rstrip(";")) + sql.SQL(" WITH NO DATA")
    yield sql.SQL("ALTER MATERIALIZED VIEW {} OWNER TO {}").format(shell, sql.Identifier(owner))


def pending_shells(cursor: Cursor, formerly: Sequence[Name]) -> list[Name]:
    """Materialised views that still read one of these tables and have a shell that reads what took its name."""
    rows = [row for table in formerly for row in cursor.execute(_PENDING, (str(table),)).fetchall()]
    found = sorted({Name(*row) for row in rows})
    return [view for view in found if cursor.execute(_VIEW, shell_name(view)).fetchone() is not None]


def fill_statements(cursor: Cursor, view: Name) -> list[Statement]:
    """Give the shell its rows and indexes, keeping nobody waiting. Those already done are left out."""
    row, made = cursor.execute(_VIEW, view).fetchone(), cursor.execute(_VIEW, shell_name(view)).fetchone()
    assert row is not None, view
    assert made is not None, view
    shell = shell_name(view)
    statements: list[Statement] = []
    if row[4] and not made[4]:
        statements.append(sql.SQL("REFRESH MATERIALIZED VIEW {}").format(shell.identifier))
    for index, text in zip(row[5], row[6], strict=True):
        name = index_name(index, view, shell)
        if name not in made[5]:
            unique = "UNIQUE " if text.startswith("CREATE UNIQUE ") else ""
            create = sql.SQL("CREATE {}INDEX {} ON {} ").format(sql.SQL(unique), sql.Identifier(name), shell.identifier)
            head = _printed_head(cursor, view, index, unique)
            assert text.startswith(head), text
            statements.append(create + printed(text.removeprefix(head)))
    return statements


def _printed_head(cursor: Cursor, view: Name, index: str, unique: str) -> str:
    """What an index definition begins with, put together as PostgreSQL does it."""
    row = cursor.execute(
        "SELECT format('CREATE %%sINDEX %%I ON %%I.%%I ', %s::text, %s::text, %s::text, %s::text)",
        (unique, index, *view),
    ).fetchone()
    assert row is not None
    return str(row[0])


def take_name(cursor: Cursor, view: Name) -> tuple[list[Statement], list[Statement]]:
    """Locks, and what gives the shell the view's name, grants, comments and dependents; in one transaction."""
    row = cursor.execute(_VIEW, view).fetchone()
    assert row is not None, view
    shell, former = shell_name(view), partition_name(view, 1)
    oid, indexes = row[0], row[5]
    dependents: Dependents = read_dependents(cursor, oid, view)
    version = cursor.connection.info.server_version
    grants = [
        grant for grant in table_parts.read_grants(cursor, oid) if grant.privilege != "MAINTAIN" or version >= 170000
    ]
    comments = list(table_parts.read_comments(cursor, oid, view, word="MATERIALIZED VIEW"))
    rename = sql.SQL("ALTER MATERIALIZED VIEW {} RENAME TO {}")
    rename_index = sql.SQL("ALTER INDEX {} RENAME TO {}")
    statements: list[Statement] = [
        rename.format(view.identifier, sql.Identifier(former.name)),
        rename.format(shell.identifier, sql.Identifier(view.name)),
        *dependents.after,
        sql.SQL("DROP MATERIALIZED VIEW {}").format(former.identifier),
        *(
            rename_index.format(sql.Identifier(view.schema, index_name(i, view, shell)), sql.Identifier(i))
            for i in indexes
        ),
        *table_parts.set_grants(view, [], grants, version),
        *comments,
    ]
    # Gives the view to its current owner: this locks it and, unlike LOCK, is allowed on a materialised one.
    lock = sql.SQL("ALTER MATERIALIZED VIEW {} OWNER TO {}").format(view.identifier, sql.Identifier(row[1]))
    return [lock, *(lock for _, lock in dependents.locks)], statements
