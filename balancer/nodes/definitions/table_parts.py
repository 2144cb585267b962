"""The parts of a table as the catalog has them, each as the statements that make it on a table of the same name.

`root` puts them together for a node that lacks a root; `features/convert/statements` and `features/convert/prepare`
carry them between a plain table and the root that takes its name. Read by oid, because the name may belong to another
table by the time the statements run. The caller reads with full names (`full_names`). Only reads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from balancer.naming import Name
from balancer.nodes.catalog.shapes import TRIGGER_EVENTS, TRIGGER_TAIL, Trigger
from balancer.nodes.session.connection import Cursor, Statement, printed
from balancer.nodes.tablets.partition import option_clause, trigger_statements

# NOT NULL is a constraint with a name of its own since PostgreSQL 18.
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity::text, a.attgenerated::text,
       pg_get_expr(d.adbin, d.adrelid),
       CASE WHEN a.attcollation <> t.typcollation THEN l.collname END, ln.nspname,
       EXISTS (SELECT FROM pg_depend p JOIN pg_class s ON s.oid = p.refobjid AND s.relkind = 'S'
               WHERE p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid AND p.refclassid = 'pg_class'::regclass),
       (SELECT k.conname FROM pg_constraint k
        WHERE k.conrelid = a.attrelid AND k.contype = 'n' AND k.conkey = ARRAY[a.attnum])
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

# NOT NULL is written with its column.
_CONSTRAINTS = """
SELECT conname, contype::text, pg_get_constraintdef(oid)
FROM pg_constraint
WHERE conrelid = %s AND contype NOT IN ('n', 't') AND conparentid = 0
ORDER BY contype = 'f', contype <> 'p', conname
"""

_INDEXES = """
SELECT x.relname, pg_get_indexdef(i.indexrelid)
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
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
SELECT %(word)s::text, NULL, NULL, obj_description(%(root)s, 'pg_class')
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


@dataclass(frozen=True, slots=True)
class ColumnPart:
    """A column as its definition says it."""

    name: str
    type: str
    not_null: bool
    identity: str  # '', a(lways), d(efault) as in pg_attribute
    generated: str  # '', s(tored), v(irtual)
    default: str | None
    collation: str | None
    collation_schema: str | None
    draws: bool
    """Whether its default draws from a sequence."""
    not_null_name: str | None

    def clause(self) -> sql.Composable:
        """For CREATE TABLE; an identity is made later, with its sequence."""
        parts: list[sql.Composable] = [sql.Identifier(self.name), printed(self.type)]
        if self.collation is not None:
            parts.append(sql.SQL("COLLATE {}").format(sql.Identifier(str(self.collation_schema), self.collation)))
        if self.generated:
            kept = "STORED" if self.generated == "s" else "VIRTUAL"
            parts.append(sql.SQL("GENERATED ALWAYS AS ({}) {}").format(printed(str(self.default)), sql.SQL(kept)))
        elif self.default is not None:
            parts.append(sql.SQL("DEFAULT {}").format(printed(self.default)))
        if self.not_null and self.not_null_name is not None:
            parts.append(sql.SQL("CONSTRAINT {}").format(sql.Identifier(self.not_null_name)))
        if self.not_null:
            parts.append(sql.SQL("NOT NULL"))
        return sql.SQL(" ").join(parts)


@dataclass(frozen=True, slots=True)
class Grant:
    """A privilege; role None: everybody. Of one column, or of the whole table."""

    role: str | None
    privilege: str
    grantable: bool
    column: str | None


def read_columns(cursor: Cursor, oid: int) -> tuple[ColumnPart, ...]:
    """In their order."""
    return tuple(ColumnPart(*row) for row in cursor.execute(_COLUMNS, (oid,)).fetchall())


def read_storage(cursor: Cursor, oid: int, name: Name) -> Iterator[Statement]:
    """What was set on columns beyond what their types give."""
    for column, storage, compression, statistics, options in cursor.execute(_STORAGE, (oid,)).fetchall():
        alter = sql.SQL("ALTER TABLE {} ALTER COLUMN {} ").format(name.identifier, sql.Identifier(column))
        if storage:
            word = {"p": "PLAIN", "e": "EXTERNAL", "m": "MAIN", "x": "EXTENDED"}[storage]
            yield alter + sql.SQL("SET STORAGE " + word)
        if compression:
            yield alter + sql.SQL("SET COMPRESSION " + {"p": "pglz", "l": "lz4"}[compression])
        if statistics is not None:
            yield alter + sql.SQL("SET STATISTICS {}").format(statistics)
        if options:
            yield alter + option_clause(options)


def read_constraints(cursor: Cursor, oid: int, name: Name) -> Iterator[tuple[str, str, Statement]]:
    """Name, kind as in pg_constraint, and what adds it; foreign keys last."""
    for constraint, kind, text in cursor.execute(_CONSTRAINTS, (oid,)).fetchall():
        add = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}")
        yield constraint, kind, add.format(name.identifier, sql.Identifier(constraint), printed(text))


def read_indexes(cursor: Cursor, oid: int) -> list[tuple[str, Statement]]:
    """Those that carry no constraint, by name."""
    return [(name, printed(text)) for name, text in cursor.execute(_INDEXES, (oid,)).fetchall()]


def read_statistics(cursor: Cursor, oid: int, only: Sequence[str] | None = None) -> Iterator[Statement]:
    """Extended statistics; with `only`, those of these names."""
    for text, schema, name, target, owner in cursor.execute(_STATISTICS, (oid,)).fetchall():
        if only is not None and name not in only:
            continue
        yield printed(text)
        alter = sql.SQL("ALTER STATISTICS {} ").format(sql.Identifier(schema, name))
        if target is not None:
            yield alter + sql.SQL("SET STATISTICS {}").format(target)
        yield alter + sql.SQL("OWNER TO {}").format(sql.Identifier(owner))


def read_triggers(cursor: Cursor, oid: int) -> tuple[Trigger, ...]:
    """The table's own, and not the balancer's."""
    return tuple(Trigger(*row) for row in cursor.execute(_TRIGGERS, (oid,)).fetchall())


def make_triggers(triggers: Sequence[Trigger], name: Name) -> list[Statement]:
    """What makes them on this table."""
    return [statement for trigger in triggers for statement in trigger_statements(trigger, name)]


def read_policies(cursor: Cursor, oid: int, name: Name) -> tuple[list[str], list[Statement], list[str]]:
    """Names of the row security policies, what makes them, and the roles that they name."""
    rows = cursor.execute(_POLICIES, (oid,)).fetchall()
    roles = [role for row in rows for role in row[-1] if role is not None]
    return [row[0] for row in rows], [_policy(name, *row) for row in rows], roles


def row_security(name: Name, *, secured: bool, forced: bool) -> list[Statement]:
    """What switches it on."""
    words = [word for word, on in (("ENABLE", secured), ("FORCE", forced)) if on]
    return [sql.SQL("ALTER TABLE {} " + word + " ROW LEVEL SECURITY").format(name.identifier) for word in words]


def read_grants(cursor: Cursor, oid: int) -> tuple[Grant, ...]:
    """Everything that anybody may do, the owner included."""
    return tuple(Grant(*row) for row in cursor.execute(_GRANTS, {"root": oid}).fetchall())


_GRANTEES = """
SELECT DISTINCT CASE g.grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(g.grantee) END
FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) g
WHERE c.oid = to_regclass(%s) ORDER BY 1
"""


def roles_with_rights(cursor: Cursor, name: Name) -> list[str | None]:
    """Who may do anything with a table, the owner included; None: everybody."""
    return [role for (role,) in cursor.execute(_GRANTEES, (str(name),)).fetchall()]


def set_grants(name: Name, given: Sequence[str | None], grants: Sequence[Grant], version: int) -> Iterator[Statement]:
    """Exactly these grants; `given` are the roles that may have others, for example from default privileges."""
    for role in given:
        yield sql.SQL("REVOKE ALL ON {} FROM {} CASCADE").format(name.identifier, grantee(role))
    for grant in grants:
        if grant.privilege == "MAINTAIN" and version < _MAINTAIN:
            continue
        column = sql.SQL(" ({})").format(sql.Identifier(grant.column)) if grant.column else sql.SQL("")
        option = sql.SQL(" WITH GRANT OPTION" if grant.grantable else "")
        yield sql.SQL("GRANT {}{} ON {} TO {}{}").format(
            sql.SQL(grant.privilege), column, name.identifier, grantee(grant.role), option
        )


def grantee(role: str | None) -> sql.Composable:
    """A role, or everybody."""
    return sql.SQL("PUBLIC") if role is None else sql.Identifier(role)


def read_comments(
    cursor: Cursor, oid: int, name: Name, but: Sequence[str] = (), word: str = "TABLE"
) -> Iterator[Statement]:
    """On the table (or whatever `word` says) and all its parts; constraints and indexes in `but` are left out."""
    for kind, schema, part, text in cursor.execute(_COMMENTS, {"root": oid, "word": word}).fetchall():
        if text is None or (kind in ("CONSTRAINT", "INDEX") and part in but):
            continue
        if kind == word:
            what: sql.Composable = name.identifier
        elif kind == "COLUMN":
            what = sql.Identifier(*name, part)
        elif schema is not None:
            what = sql.Identifier(schema, part)
        else:
            what = sql.SQL("{} ON {}").format(sql.Identifier(part), name.identifier)
        yield sql.SQL("COMMENT ON {} {} IS {}").format(sql.SQL(kind), what, sql.Literal(text))


_WORDS = {"*": "ALL", "r": "SELECT", "a": "INSERT", "w": "UPDATE", "d": "DELETE"}


def _policy(table: Name, name: str, permissive: bool, command: str, *rest: Any) -> Statement:
    using, check, roles = rest
    statement = sql.SQL("CREATE POLICY {} ON {} AS {} FOR {} TO {}").format(
        sql.Identifier(name),
        table.identifier,
        sql.SQL("PERMISSIVE" if permissive else "RESTRICTIVE"),
        sql.SQL(_WORDS[command]),
        sql.SQL(", ").join(map(grantee, roles)),
    )
    if using is not None:
        statement += sql.SQL(" USING ({})").format(printed(using))
    if check is not None:
        statement += sql.SQL(" WITH CHECK ({})").format(printed(check))
    return statement


_MAINTAIN = 170000  # the version that brought this privilege
