"""The definition of a root as statements, so that a node that lacks it can be given the same one.

Read from the catalog, without partitions: columns, keys, indexes, statistics, triggers, policies, grants, comments.
What a table needs beyond itself (types, functions, roles, tables that foreign keys point to) must be on the other node
already; sequences do not travel, because two nodes would hand out the same number. Both sides have full names and are
sent one by one, because a catalog's text is nobody's promise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from balancer.errors import Refused
from balancer.nodes.catalog import Root, find_root
from balancer.nodes.connection import Cursor, Statement, printed, run_single
from balancer.nodes.names import Name
from balancer.nodes.owners_code import check_named, code_named
from balancer.nodes.partition import option_clause, trigger_statements
from balancer.nodes.printing import TRIGGER_EVENTS, TRIGGER_TAIL
from balancer.nodes.root_facts import full_names
from balancer.nodes.shape import Trigger

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity::text, a.attgenerated::text,
       pg_get_expr(d.adbin, d.adrelid),
       CASE WHEN a.attcollation <> t.typcollation THEN l.collname END, ln.nspname,
       EXISTS (SELECT FROM pg_depend p JOIN pg_class s ON s.oid = p.refobjid AND s.relkind = 'S'
               WHERE p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid AND p.refclassid = 'pg_class'::regclass)
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN pg_collation l ON l.oid = a.attcollation
LEFT JOIN pg_namespace ln ON ln.oid = l.collnamespace
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""

# What was set on columns: only where it is not what the type gives.
_STORAGE = """
SELECT a.attname, nullif(a.attstorage, t.typstorage)::text, nullif(a.attcompression, '')::text,
       nullif(a.attstattarget, -1)::int, coalesce(a.attoptions, '{}')
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""

# NOT NULL is a constraint of its own since PostgreSQL 18; it is written with its column here.
_CONSTRAINTS = """
SELECT conname, pg_get_constraintdef(oid), contype = 'f'
FROM pg_constraint
WHERE conrelid = %s AND contype NOT IN ('n', 't') AND conparentid = 0
ORDER BY contype = 'f', contype <> 'p', conname
"""

_INDEXES = """
SELECT pg_get_indexdef(i.indexrelid)
FROM pg_index i
WHERE i.indrelid = %s AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid)
ORDER BY i.indexrelid
"""

_STATISTICS = """
SELECT pg_get_statisticsobjdef(s.oid), n.nspname, s.stxname, nullif(s.stxstattarget, -1)::int,
       pg_get_userbyid(s.stxowner)
FROM pg_statistic_ext s JOIN pg_namespace n ON n.oid = s.stxnamespace
WHERE s.stxrelid = %s ORDER BY s.oid
"""

_TRIGGERS = sql.SQL("""
SELECT g.tgname, g.tgconstraint <> 0, {}, {}, g.tgenabled::text
FROM pg_trigger g
WHERE g.tgrelid = %s AND NOT g.tgisinternal AND g.tgname !~ '^[!~]balancer_' ORDER BY g.tgname
""").format(TRIGGER_EVENTS, TRIGGER_TAIL)

_POLICIES = """
SELECT polname, polpermissive, polcmd::text, pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid),
       (SELECT array_agg(CASE o WHEN 0 THEN NULL ELSE pg_get_userbyid(o) END) FROM unnest(polroles) AS o)
FROM pg_policy WHERE polrelid = %s ORDER BY polname
"""

_GRANTS = """
SELECT CASE g.grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(g.grantee) END, g.privilege_type,
       bool_or(g.is_grantable) AND g.grantee <> c.relowner, NULL
FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) g
WHERE c.oid = %(root)s GROUP BY c.relowner, g.grantee, g.privilege_type
UNION ALL
SELECT CASE g.grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(g.grantee) END, g.privilege_type,
       bool_or(g.is_grantable), a.attname
FROM pg_attribute a, aclexplode(a.attacl) g
WHERE a.attrelid = %(root)s AND NOT a.attisdropped GROUP BY g.grantee, g.privilege_type, a.attname
"""

_COMMENTS = """
SELECT 'TABLE', NULL, NULL, obj_description(%(root)s, 'pg_class')
UNION ALL SELECT 'COLUMN', NULL, attname, col_description(attrelid, attnum)
    FROM pg_attribute WHERE attrelid = %(root)s AND attnum > 0
UNION ALL SELECT 'CONSTRAINT', NULL, conname, obj_description(oid, 'pg_constraint')
    FROM pg_constraint WHERE conrelid = %(root)s AND conparentid = 0 AND contype <> 'n'
UNION ALL SELECT 'TRIGGER', NULL, tgname, obj_description(oid, 'pg_trigger') FROM pg_trigger
    WHERE tgrelid = %(root)s AND NOT tgisinternal AND tgname !~ '^[!~]balancer_'
UNION ALL SELECT 'POLICY', NULL, polname, obj_description(oid, 'pg_policy') FROM pg_policy WHERE polrelid = %(root)s
UNION ALL SELECT 'INDEX', n.nspname, c.relname, obj_description(c.oid, 'pg_class')
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE i.indrelid = %(root)s
UNION ALL SELECT 'STATISTICS', n.nspname, s.stxname, obj_description(s.oid, 'pg_statistic_ext')
    FROM pg_statistic_ext s JOIN pg_namespace n ON n.oid = s.stxnamespace WHERE s.stxrelid = %(root)s
"""

_UNUSUAL = """
SELECT c.relrowsecurity, c.relforcerowsecurity,
       array_remove(ARRAY[
           (SELECT 'the rewrite rule ' || quote_ident(min(rulename)) FROM pg_rewrite WHERE ev_class = c.oid),
           (SELECT 'a label of ' || min(provider) FROM pg_seclabel
            WHERE classoid = 'pg_class'::regclass AND objoid = c.oid),
           (SELECT 'the tablespace ' || quote_ident(spcname) FROM pg_tablespace WHERE oid = c.reltablespace),
           CASE WHEN c.reloftype <> 0 THEN 'the type ' || c.reloftype::regtype END], NULL)
FROM pg_class c WHERE c.oid = %s
"""

_MAINTAIN = 170000  # the version that brought this privilege


@dataclass(frozen=True, slots=True)
class Grant:
    """A privilege; role None: everybody. Of one column, or of the whole table."""

    role: str | None
    privilege: str
    grantable: bool
    column: str | None


@dataclass(frozen=True, slots=True)
class Definition:
    """Statements that make a root, in order; foreign keys apart, because they need the other roots first."""

    root: Name
    statements: tuple[Statement, ...]
    foreign_keys: tuple[Statement, ...]
    grants: tuple[Grant, ...]
    comments: tuple[Statement, ...]
    roles: frozenset[str]
    """Every role that is named in it."""
    code: tuple[tuple[str, str], ...]
    """Functions, operators and domains that it uses: PostgreSQL calls them while it makes indexes and columns."""


def read_definition(cursor: Cursor, root: Root) -> Definition:
    """What makes the same root elsewhere. Refuses what cannot be made there, and columns that draw from a sequence."""
    with full_names(cursor):
        return _read_definition(cursor, root)


def make_roots(cursor: Cursor, definitions: Sequence[Definition], *, trusted: bool = False) -> None:
    """Makes the roots that are missing, then their foreign keys; inside the caller's transaction.

    Raises `Refused` where that would run code of their owners with our rights, unless those are `trusted`.
    """
    missing = [definition for definition in definitions if find_root(cursor, definition.root) is None]
    _check_roles(cursor, missing)
    with full_names(cursor):
        for definition in () if trusted else missing:
            check_named(cursor, definition.root, definition.code)
        for definition in missing:
            for statement in definition.statements:
                run_single(cursor, statement)
        for definition in missing:
            for statement in definition.foreign_keys:
                run_single(cursor, statement)
            _set_grants(cursor, definition)
            for statement in definition.comments:
                run_single(cursor, statement)


def _check_roles(cursor: Cursor, definitions: Sequence[Definition]) -> None:
    wanted = frozenset[str]().union(*(definition.roles for definition in definitions))
    rows = cursor.execute("SELECT rolname FROM pg_roles WHERE rolname = ANY(%s)", (list(wanted),)).fetchall()
    absent = sorted(wanted - {str(name) for (name,) in rows})
    if absent:
        names = ", ".join(str(definition.root) for definition in definitions)
        raise Refused(f"the owner, the grants or the policies of {names} name roles that are not here: {absent}")


def _read_definition(cursor: Cursor, root: Root) -> Definition:
    table = root.name.identifier
    row = cursor.execute(_UNUSUAL, (root.oid,)).fetchone()
    assert row is not None
    secured, forced, unusual = row
    if unusual:
        raise Refused(f"{root.name} has {unusual[0]}, which is not made on other nodes: make the table there yourself")
    statements: list[Statement] = [
        sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(root.name.schema)),
        sql.SQL("CREATE TABLE {} ({}) PARTITION BY {}").format(table, _columns(cursor, root), _key(cursor, root)),
        sql.SQL("ALTER TABLE {} OWNER TO {}").format(table, sql.Identifier(root.owner)),
        *_storage(cursor, root),
    ]
    foreign_keys: list[Statement] = []
    for name, text, foreign in cursor.execute(_CONSTRAINTS, (root.oid,)).fetchall():
        statement = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}").format(table, sql.Identifier(name), printed(text))
        (foreign_keys if foreign else statements).append(statement)
    statements += [printed(text) for (text,) in cursor.execute(_INDEXES, (root.oid,)).fetchall()]
    statements += _statistics(cursor, root)
    for row in cursor.execute(_TRIGGERS, (root.oid,)).fetchall():
        statements += trigger_statements(Trigger(*row), root.name)
    policies = cursor.execute(_POLICIES, (root.oid,)).fetchall()
    statements += [_policy(root, *policy) for policy in policies]
    if secured:
        statements.append(sql.SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(table))
    if forced:
        statements.append(sql.SQL("ALTER TABLE {} FORCE ROW LEVEL SECURITY").format(table))
    grants = tuple(Grant(*row) for row in cursor.execute(_GRANTS, {"root": root.oid}).fetchall())
    named = [root.owner, *(grant.role for grant in grants), *(role for policy in policies for role in policy[-1])]
    return Definition(
        root.name,
        tuple(statements),
        tuple(foreign_keys),
        grants,
        tuple(_comments(cursor, root)),
        frozenset(role for role in named if role is not None),
        code_named(cursor, root.oid),
    )


def _columns(cursor: Cursor, root: Root) -> sql.Composable:
    return sql.SQL(", ").join(_column(root, row) for row in cursor.execute(_COLUMNS, (root.oid,)).fetchall())


def _column(root: Root, row: tuple[object, ...]) -> sql.Composable:
    name, type_name, not_null, identity, generated, default, collation, collation_schema, draws = row
    if identity or draws:
        raise Refused(
            f'column "{name}" of {root.name} draws from a sequence, and two nodes would hand out the same numbers:'
            f" make the table on the other nodes yourself, with sequences that do not meet"
        )
    parts: list[sql.Composable] = [sql.Identifier(str(name)), printed(str(type_name))]
    if collation is not None:
        parts.append(sql.SQL("COLLATE {}").format(sql.Identifier(str(collation_schema), str(collation))))
    if generated:
        kept = "STORED" if generated == "s" else "VIRTUAL"
        parts.append(sql.SQL("GENERATED ALWAYS AS ({}) {}").format(printed(str(default)), sql.SQL(kept)))
    elif default is not None:
        parts.append(sql.SQL("DEFAULT {}").format(printed(str(default))))
    if not_null:
        parts.append(sql.SQL("NOT NULL"))
    return sql.SQL(" ").join(parts)


def _key(cursor: Cursor, root: Root) -> sql.Composable:
    row = cursor.execute("SELECT pg_get_partkeydef(%s)", (root.oid,)).fetchone()
    assert row is not None
    return printed(row[0])


def _storage(cursor: Cursor, root: Root) -> Iterator[Statement]:
    for name, storage, compression, statistics, options in cursor.execute(_STORAGE, (root.oid,)).fetchall():
        alter = sql.SQL("ALTER TABLE {} ALTER COLUMN {} ").format(root.name.identifier, sql.Identifier(name))
        if storage:
            word = {"p": "PLAIN", "e": "EXTERNAL", "m": "MAIN", "x": "EXTENDED"}[storage]
            yield alter + sql.SQL("SET STORAGE " + word)
        if compression:
            yield alter + sql.SQL("SET COMPRESSION " + {"p": "pglz", "l": "lz4"}[compression])
        if statistics is not None:
            yield alter + sql.SQL("SET STATISTICS {}").format(statistics)
        if options:
            yield alter + option_clause(options)


def _statistics(cursor: Cursor, root: Root) -> Iterator[Statement]:
    for text, schema, name, target, owner in cursor.execute(_STATISTICS, (root.oid,)).fetchall():
        yield printed(text)
        alter = sql.SQL("ALTER STATISTICS {} ").format(sql.Identifier(schema, name))
        if target is not None:
            yield alter + sql.SQL("SET STATISTICS {}").format(target)
        yield alter + sql.SQL("OWNER TO {}").format(sql.Identifier(owner))


def _policy(root: Root, name: str, permissive: bool, command: str, *rest: Any) -> Statement:
    using, check, roles = rest
    words = {"*": "ALL", "r": "SELECT", "a": "INSERT", "w": "UPDATE", "d": "DELETE"}
    statement = sql.SQL("CREATE POLICY {} ON {} AS {} FOR {} TO {}").format(
        sql.Identifier(name),
        root.name.identifier,
        sql.SQL("PERMISSIVE" if permissive else "RESTRICTIVE"),
        sql.SQL(words[command]),
        sql.SQL(", ").join(map(_grantee, roles)),
    )
    if using is not None:
        statement += sql.SQL(" USING ({})").format(printed(using))
    if check is not None:
        statement += sql.SQL(" WITH CHECK ({})").format(printed(check))
    return statement


def _set_grants(cursor: Cursor, definition: Definition) -> None:
    """Exactly these: default privileges of this database may have given others."""
    table = definition.root.identifier
    given = cursor.execute(
        "SELECT DISTINCT CASE g.grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(g.grantee) END"
        " FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) g WHERE c.oid = to_regclass(%s)",
        (str(definition.root),),
    ).fetchall()
    for (role,) in given:
        cursor.execute(sql.SQL("REVOKE ALL ON {} FROM {} CASCADE").format(table, _grantee(role)))
    for grant in definition.grants:
        if grant.privilege == "MAINTAIN" and cursor.connection.info.server_version < _MAINTAIN:
            continue
        column = sql.SQL(" ({})").format(sql.Identifier(grant.column)) if grant.column else sql.SQL("")
        option = sql.SQL(" WITH GRANT OPTION" if grant.grantable else "")
        cursor.execute(
            sql.SQL("GRANT {}{} ON {} TO {}{}").format(
                sql.SQL(grant.privilege), column, table, _grantee(grant.role), option
            )
        )


def _grantee(role: str | None) -> sql.Composable:
    return sql.SQL("PUBLIC") if role is None else sql.Identifier(role)


def _comments(cursor: Cursor, root: Root) -> Iterator[Statement]:
    for kind, schema, name, text in cursor.execute(_COMMENTS, {"root": root.oid}).fetchall():
        if text is None:
            continue
        table = root.name.identifier
        if kind == "TABLE":
            what: sql.Composable = table
        elif kind == "COLUMN":
            what = sql.Identifier(*root.name, name)
        elif schema is not None:
            what = sql.Identifier(schema, name)
        else:
            what = sql.SQL("{} ON {}").format(sql.Identifier(name), table)
        yield sql.SQL("COMMENT ON {} {} IS {}").format(sql.SQL(kind), what, sql.Literal(text))
