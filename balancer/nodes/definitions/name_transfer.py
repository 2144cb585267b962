"""What a table takes along when its name goes to another: a plain table's to its root, or a root's to its table.

Both directions are alike: the old table's parts, and everything that names it, are printed while it has the name, and
run again when the other table has it. `features/convert/statements` and `features/convert/prepare` put their own steps
in between. The caller reads with full names (`full_names`), and runs everything in one transaction. Only reads.

The publications that a table is in, carried to another table that takes its name. Only reads.

Subscribers know the table by its name. A partition is published under its root's name only where the publication says
so (`publish_via_partition_root`), which is therefore set; where that would change what subscribers get from other
partitioned tables, the publication is refused by name.

Materialised views, which cannot be replaced: a new one is made next to the old one, filled, and takes its name.

In the swap of a conversion an empty shell is made from the old text, which then means the new table. Afterwards the
shell is filled while the old view keeps answering, and takes the name in an instant. The query runs with the rights of
the view's owner, as it always does (REFRESH), and never with ours. A shell is found again by its name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.naming import Name, partition_name
from balancer.nodes.definitions import table_parts
from balancer.nodes.definitions.dependents import Dependents, read_dependents
from balancer.nodes.definitions.root import OwnedSequences, carry_sequences
from balancer.nodes.session.connection import Cursor, Statement, printed
from balancer.nodes.tablets.partition import index_name


@dataclass(frozen=True, slots=True)
class Carried:
    """In the order of a swap."""

    locks: tuple[Statement, ...]
    """On everything else that the swap changes, after the tables themselves: reading a view also locks its tables."""
    before: tuple[Statement, ...]
    """While the old table has the name."""
    owner: tuple[Statement, ...]
    """First of all when the other table has the name: with the grants, because triggers and keys need rights."""
    sequences: OwnedSequences
    far_keys: tuple[Statement, ...]
    """Foreign keys to tables that keep their names."""
    after: tuple[Statement, ...]
    """When the other table has the name, and all its columns, keys and indexes."""
    near_keys: tuple[Statement, ...]
    """Foreign keys to tables whose names go with this one's: not validated yet."""
    last: tuple[Statement, ...]
    """When all of that is done, for all tables: what named the old table now names the other one."""
    refusals: tuple[str, ...]
    names: tuple[str, ...]


_TABLE = """
SELECT pg_get_userbyid(relowner), relrowsecurity, relforcerowsecurity, relreplident::text,
       (SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE i.indrelid = t.oid AND i.indisreplident)
FROM pg_class t WHERE t.oid = %s
"""
_RULES = """
SELECT rulename, pg_get_ruledef(oid), ev_enabled::text, obj_description(oid, 'pg_rewrite')
FROM pg_rewrite WHERE ev_class = %s ORDER BY 1
"""
_REFERENCES = """
SELECT k.conname, pg_get_constraintdef(k.oid), n.nspname, c.relname, obj_description(k.oid, 'pg_constraint')
FROM pg_constraint k JOIN pg_class c ON c.oid = k.confrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE k.conrelid = %s AND k.contype = 'f' AND k.conparentid = 0 ORDER BY k.conname
"""
_GRANTEES = """
SELECT DISTINCT CASE g.grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(g.grantee) END
FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) g WHERE c.oid = %s ORDER BY 1
"""


def read_carried(
    cursor: Cursor,
    oid: int,
    name: Name,
    old: Name,
    together: Sequence[Name],
    *,
    near_to: Name,
    other: int | None = None,
    going: Sequence[Name] = (),
    kept: Sequence[str] = (),
) -> Carried:
    """Of the table with this oid and name, which will be called `old`.

    `together`: all names that go to other tables in this swap. `near_to`: which table gets the foreign keys between
    those, by its name after the swap. `other`: the table that gets the name, if it exists and has grants of its own.
    `going`: materialised views that are dropped in the swap. `kept`: unique indexes that stay on the old table alone.
    """
    row = cursor.execute(_TABLE, (oid,)).fetchone()
    assert row is not None, name
    owner, secured, forced, replica_identity, identity_index = row
    dependents = read_dependents(cursor, oid, name)
    published = carry_publications(cursor, oid, name)
    references = cursor.execute(_REFERENCES, (oid,)).fetchall()
    near = [row for row in references if Name(row[2], row[3]) in together]
    far = [row for row in references if Name(row[2], row[3]) not in together]
    _, policies, _ = table_parts.read_policies(cursor, oid, name)
    given = [role for (role,) in cursor.execute(_GRANTEES, (other,))] if other is not None else []
    version = cursor.connection.info.server_version
    table = name.identifier
    after = [
        *table_parts.make_triggers(table_parts.read_triggers(cursor, oid), name),
        *policies,
        *table_parts.row_security(name, secured=secured, forced=forced),
        *_replica_identity(name, replica_identity, identity_index),
        *_rules(cursor, oid, name),
        *table_parts.read_comments(cursor, oid, name, but=[*(row[0] for row in near), *kept]),
    ]
    drop = sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}")
    views = [view for view in dependents.materialised if view not in going]
    shells = [text for view in views for text in shell_statements(cursor, view)]
    unfit = [text for view in views for text in shell_refusals(cursor, view, name)]
    return Carried(
        (
            *(_referenced(row) for row in far),
            *(lock for named, lock in dependents.locks if named not in together),
        ),
        (*dependents.before, *published.before, *(drop.format(table, sql.Identifier(row[0])) for row in near)),
        (
            sql.SQL("ALTER TABLE {} OWNER TO {}").format(table, sql.Identifier(owner)),
            *table_parts.set_grants(name, given, table_parts.read_grants(cursor, oid), version),
        ),
        carry_sequences(cursor, oid, name, old),
        tuple(_reference(name, row) for row in far),
        tuple(after),
        tuple(text for row in near for text in _near_key(near_to, row)),
        (*dependents.after, *shells, *published.after),
        (*dependents.refusals, *published.refusals, *unfit),
        (*dependents.names, *published.names),
    )


def near_keys(cursor: Cursor, oid: int, together: Sequence[Name]) -> dict[str, Statement]:
    """By name: what the foreign keys say that the table with this oid has to one of `together`."""
    rows = cursor.execute(_REFERENCES, (oid,)).fetchall()
    return {row[0]: printed(row[1]) for row in rows if Name(row[2], row[3]) in together}


def far_keys(cursor: Cursor, oid: int, together: Sequence[Name]) -> list[tuple[str, Name]]:
    """Its foreign keys to tables outside `together`, with the tables that they point to."""
    rows = cursor.execute(_REFERENCES, (oid,)).fetchall()
    return [(row[0], Name(row[2], row[3])) for row in rows if Name(row[2], row[3]) not in together]


def _reference(table: Name, row: tuple[str, ...]) -> Statement:
    add = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}")
    return add.format(table.identifier, sql.Identifier(row[0]), printed(row[1]))


def _near_key(table: Name, row: tuple[str, ...]) -> Iterator[Statement]:
    yield _reference(table, row) + sql.SQL(" NOT VALID")
    if row[4] is not None:
        comment = sql.SQL("COMMENT ON CONSTRAINT {} ON {} IS {}")
        yield comment.format(sql.Identifier(row[0]), table.identifier, sql.Literal(row[4]))


def _referenced(row: tuple[str, ...]) -> Statement:
    """Adding a foreign key locks the table it points to."""
    return sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(sql.Identifier(row[2], row[3]))


def _replica_identity(name: Name, kind: str, index: str | None) -> Iterator[Statement]:
    alter = sql.SQL("ALTER TABLE {} REPLICA IDENTITY ").format(name.identifier)
    if kind in ("f", "n"):
        yield alter + sql.SQL("FULL" if kind == "f" else "NOTHING")
    elif kind == "i" and index is not None:
        yield alter + sql.SQL("USING INDEX {}").format(sql.Identifier(index))


def _rules(cursor: Cursor, oid: int, name: Name) -> Iterator[Statement]:
    words = {"D": "DISABLE", "R": "ENABLE REPLICA", "A": "ENABLE ALWAYS"}
    for rule, text, enabled, comment in cursor.execute(_RULES, (oid,)).fetchall():
        yield printed(text.rstrip(";"))
        if enabled in words:
            alter = sql.SQL("ALTER TABLE {} " + words[enabled] + " RULE {}")
            yield alter.format(name.identifier, sql.Identifier(rule))
        if comment is not None:
            said = sql.SQL("COMMENT ON RULE {} ON {} IS {}")
            yield said.format(sql.Identifier(rule), name.identifier, sql.Literal(comment))


_PUBLICATIONS = """
SELECT p.pubname, p.pubviaroot, r.oid IS NOT NULL, pg_has_role(p.pubowner, 'USAGE'), pg_get_userbyid(p.pubowner),
       pg_get_expr(r.prqual, r.prrelid),
       (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM unnest(r.prattrs::int2[]) AS u (attnum)
        JOIN pg_attribute a ON a.attrelid = r.prrelid AND a.attnum = u.attnum),
       EXISTS (SELECT FROM pg_publication_tables t JOIN pg_namespace n ON n.nspname = t.schemaname
               JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
               WHERE t.pubname = p.pubname AND c.relispartition)
FROM pg_publication p
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = %(oid)s
WHERE r.oid IS NOT NULL OR p.puballtables OR EXISTS (
    SELECT FROM pg_publication_namespace n JOIN pg_class c ON c.relnamespace = n.pnnspid
    WHERE n.pnpubid = p.oid AND c.oid = %(oid)s)
ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Published:
    """What carries the publications of one table."""

    before: tuple[Statement, ...]
    after: tuple[Statement, ...]
    refusals: tuple[str, ...]
    names: tuple[str, ...]


def carry_publications(cursor: Cursor, oid: int, name: Name) -> Published:
    """Of the table with this oid and name."""
    before: list[Statement] = []
    after: list[Statement] = []
    refusals: list[str] = []
    rows = cursor.execute(_PUBLICATIONS, {"oid": oid}).fetchall()
    for publication, via_root, listed, acts, owner, condition, columns, others in rows:
        called = sql.Identifier(publication)
        if not acts:
            refusals.append(
                f"the balancer's role does not act for {owner}, who owns publication {publication} with {name} in it"
            )
            continue
        if not via_root and others:
            refusals.append(
                f"publication {publication} publishes partitions under their own names, and {name} would become one:"
                f" ALTER PUBLICATION {called.as_string(None)} SET (publish_via_partition_root = true)"
            )
            continue
        if not via_root:
            before.append(sql.SQL("ALTER PUBLICATION {} SET (publish_via_partition_root = true)").format(called))
        if listed:
            before.append(sql.SQL("ALTER PUBLICATION {} DROP TABLE {}").format(called, name.identifier))
            add = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(called, name.identifier)
            if columns:
                add += sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, columns)))
            if condition is not None:
                add += sql.SQL(" WHERE ({})").format(printed(condition))
            after.append(add)
    return Published(tuple(before), tuple(after), tuple(refusals), tuple(f"publication {row[0]}" for row in rows))


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
