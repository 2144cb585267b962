"""What a partition is and has, read from the catalog: enough to make its twin elsewhere.

Migrations read it from the partition they move or reshard; `partition.py` makes the twin. What cannot be carried is
in `refusals`, by name. Only reads.

Definitions as PostgreSQL prints them, without their beginning: a twin has another name, or another table.

Fragments of queries on the catalog, for `shapes`, `nodes/definitions/root` and `roots`.

Fingerprints of tables, which reveal that somebody has changed a definition or a name, even if it was changed back.

Migrations take them before they read a definition, and compare them under the locks of the fence, the seal, ATTACH and
the swap. A fingerprint goes by the `xmin` of the catalog's rows, the transaction that wrote each: `DISABLE TRIGGER` and
`ENABLE TRIGGER` leave the definition as it was and two new rows behind. Of `pg_class` only those columns count that DDL
changes: ATTACH of another tablet, VACUUM and ANALYZE write to the others. Only reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql
from psycopg.rows import TupleRow

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.session.connection import Cursor

# A name may contain anything, even text that looks like a definition. So nothing is searched for in a definition: it
# begins with parts of the catalog, assembled as PostgreSQL assembles them, or it is not understood.
INDEX_TAIL = sql.SQL("""
    (SELECT CASE WHEN starts_with(text, head) THEN substr(text, length(head) + 1) END
     FROM pg_class xc JOIN pg_class xt ON xt.oid = i.indrelid JOIN pg_namespace xn ON xn.oid = xt.relnamespace
     CROSS JOIN LATERAL (SELECT pg_get_indexdef(i.indexrelid) AS text,
         format('CREATE %%sINDEX %%I ON %%s%%I.%%I ', CASE WHEN i.indisunique THEN 'UNIQUE ' END, xc.relname,
                CASE WHEN xc.relkind = 'I' THEN 'ONLY ' END, xn.nspname, xt.relname) AS head)
         AS printed
     WHERE xc.oid = i.indexrelid)
""")
"""Of `pg_index i`: what its definition says after the table's name."""

TRIGGER_EVENTS = sql.SQL("""
    concat(
        CASE WHEN g.tgtype & 2 <> 0 THEN 'BEFORE' WHEN g.tgtype & 64 <> 0 THEN 'INSTEAD OF' ELSE 'AFTER' END, ' ',
        concat_ws(' OR ', CASE WHEN g.tgtype & 4 <> 0 THEN 'INSERT' END, CASE WHEN g.tgtype & 8 <> 0 THEN 'DELETE' END,
            CASE WHEN g.tgtype & 16 <> 0 THEN 'UPDATE' || coalesce((
                SELECT ' OF ' || string_agg(quote_ident(xa.attname), ', ' ORDER BY xo.place)
                FROM unnest(g.tgattr::int2[]) WITH ORDINALITY AS xo (attnum, place)
                JOIN pg_attribute xa ON xa.attrelid = g.tgrelid AND xa.attnum = xo.attnum), '') END,
            CASE WHEN g.tgtype & 32 <> 0 THEN 'TRUNCATE' END))
""")
"""Of `pg_trigger g`: `BEFORE INSERT OR UPDATE OF "a"`, as its definition has it."""

TRIGGER_TAIL = sql.SQL("""
    (SELECT CASE WHEN starts_with(text, head) THEN substr(text, length(head) + 1) END
     FROM pg_class xt JOIN pg_namespace xn ON xn.oid = xt.relnamespace
     CROSS JOIN LATERAL (SELECT pg_get_triggerdef(g.oid) AS text,
         format('CREATE %%sTRIGGER %%I %%s ON %%I.%%I ', CASE WHEN g.tgconstraint <> 0 THEN 'CONSTRAINT ' END, g.tgname,
                {}, xn.nspname, xt.relname) AS head) AS printed
     WHERE xt.oid = g.tgrelid)
""").format(TRIGGER_EVENTS)
"""Of `pg_trigger g`: what its definition says after the table's name."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column, and what was set on it."""

    name: str
    type: str
    not_null: bool
    default: str | None
    generated: bool
    storage: str
    compression: str
    statistics: int
    options: tuple[str, ...]
    comment: str | None
    hashable: bool
    """Whether its own type has a hash that is the same on every server: a built-in type, and not one of oids."""
    portable: bool
    """Whether its binary form means the same in another database: a type with an oid of its own does not."""


@dataclass(frozen=True, slots=True)
class Index:
    """An index; `constraint` is `p` or `u` where it carries a primary key or a unique constraint."""

    name: str
    unique: bool
    tail: str | None
    """What its definition says after the name of its table; None: it does not begin the way PostgreSQL prints it."""
    constraint: str | None
    deferrable: str
    comment: str | None
    identity: bool  # REPLICA IDENTITY USING INDEX
    clustered: bool


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger; its definition in two parts, between which the table's name stands."""

    name: str
    constraint: bool
    events: str
    """`BEFORE INSERT OR UPDATE OF "a"`."""
    tail: str | None
    enabled: str  # O, D, R, A as in pg_trigger


@dataclass(frozen=True, slots=True)
class Constraint:
    """A CHECK, foreign key or exclusion constraint; `own` if the root does not have it."""

    name: str
    kind: str
    definition: str
    own: bool
    references: Name | None


@dataclass(frozen=True, slots=True)
class Shape:
    """A partition as the catalog describes it."""

    name: Name
    owner: str
    columns: tuple[Column, ...]
    indexes: tuple[Index, ...]
    constraints: tuple[Constraint, ...]
    triggers: tuple[Trigger, ...]  # the root's own are not among them
    options: tuple[str, ...]
    toast_options: tuple[str, ...]
    grants: tuple[tuple[str, str, bool], ...]  # role, privilege, grantable
    comment: str | None
    replica_identity: str  # d, n, f, i as in pg_class
    key: tuple[str, ...]  # columns of the replica identity's index; empty if it has none
    refusals: tuple[str, ...]

    @property
    def copied(self) -> tuple[str, ...]:
        """The columns that travel: generated ones are computed where they arrive."""
        return tuple(column.name for column in self.columns if not column.generated)

    @property
    def portable(self) -> bool:
        """Whether rows may travel in binary form."""
        return all(column.portable for column in self.columns)


_TABLE = """
    SELECT c.oid, pg_get_userbyid(c.relowner), c.relreplident, c.relpersistence, c.relkind,
           coalesce(c.reloptions, '{}'), coalesce(t.reloptions, '{}'), obj_description(c.oid, 'pg_class'),
           c.relrowsecurity OR EXISTS (SELECT FROM pg_policy WHERE polrelid = c.oid),
           EXISTS (SELECT FROM pg_rewrite WHERE ev_class = c.oid), c.reltablespace <> 0
    FROM pg_class c LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
    WHERE c.oid = to_regclass(%s)
"""

# A domain is sent as its base type and an enum as its label; arrays, composites and ranges of user-made types carry
# oids, and reg* types are oids.
_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid),
           a.attgenerated <> '', a.attstorage::text, a.attcompression::text, coalesce(a.attstattarget, -1)::int,
           coalesce(a.attoptions, '{}'), col_description(a.attrelid, a.attnum),
           t.oid < 16384 AND t.typtype = 'b' AND t.typname NOT LIKE 'reg%%' AND EXISTS (
               SELECT FROM pg_opclass o JOIN pg_am m ON m.oid = o.opcmethod AND m.amname = 'hash'
               JOIN pg_amproc p ON p.amprocfamily = o.opcfamily AND p.amproclefttype = o.opcintype AND p.amprocnum = 2
               WHERE o.opcdefault AND o.opcintype = t.oid),
           (coalesce(nullif(t.typbasetype, 0), t.oid) < 16384 OR t.typtype = 'e')
           AND NOT (t.typname LIKE 'reg%%' AND t.typnamespace = 'pg_catalog'::regnamespace)
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""

_INDEXES = sql.SQL("""
    SELECT c.relname, i.indisunique, {}, k.contype::text,
           CASE WHEN k.condeferred THEN ' DEFERRABLE INITIALLY DEFERRED'
                WHEN k.condeferrable THEN ' DEFERRABLE' ELSE '' END,
           obj_description(c.oid, 'pg_class'), i.indisreplident, i.indisclustered
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.conrelid = i.indrelid AND k.contype IN ('p', 'u', 'x')
    WHERE i.indrelid = %s AND i.indisvalid AND coalesce(k.contype, ' ') <> 'x' ORDER BY c.relname
""").format(INDEX_TAIL)

_CONSTRAINTS = """
    SELECT k.conname, k.contype::text, pg_get_constraintdef(k.oid), k.conislocal AND k.conparentid = 0,
           n.nspname, r.relname
    FROM pg_constraint k LEFT JOIN pg_class r ON r.oid = k.confrelid LEFT JOIN pg_namespace n ON n.oid = r.relnamespace
    WHERE k.conrelid = %s AND k.contype IN ('c', 'f', 'x') AND k.conname !~ '^tb_m[0-9a-z]+_bound$'
      AND r.relispartition IS NOT TRUE
    ORDER BY k.contype, k.conname
"""

_TRIGGERS = sql.SQL("""
    SELECT g.tgname, g.tgconstraint <> 0, {}, {}, g.tgenabled::text FROM pg_trigger g
    WHERE g.tgrelid = %s AND NOT g.tgisinternal AND g.tgparentid = 0 AND g.tgname !~ '^[!~]balancer_' ORDER BY g.tgname
""").format(TRIGGER_EVENTS, TRIGGER_TAIL)

_GRANTS = """
    SELECT CASE a.grantee WHEN 0 THEN 'public' ELSE pg_get_userbyid(a.grantee) END, a.privilege_type, a.is_grantable
    FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = %s AND a.grantee <> c.relowner ORDER BY 1, 2
"""

_KEY = """
    SELECT a.attname
    FROM pg_class c JOIN pg_index i ON i.indrelid = c.oid
    CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (attnum, place)
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
    WHERE c.oid = %s AND k.place <= i.indnkeyatts
      AND ((c.relreplident = 'd' AND i.indisprimary) OR (c.relreplident = 'i' AND i.indisreplident))
    ORDER BY k.place
"""


def read_shape(cursor: Cursor, partition: Name) -> Shape:
    """Everything about a partition. Raises `Refused` if it is not there."""
    cursor.execute(_TABLE, (str(partition),))
    table = cursor.fetchone()
    if table is None:
        raise Refused(f"there is no table {partition}")
    oid, owner, identity, persistence, relkind, options, toast, comment, policies, rules, tablespace = table
    refusals = _refusals(partition, persistence, relkind, policies=policies, rules=rules, tablespace=tablespace)
    columns = tuple(_column(*row) for row in cursor.execute(_COLUMNS, (oid,)))
    indexes = tuple(Index(*row) for row in cursor.execute(_INDEXES, (oid,)))
    constraints = tuple(
        Constraint(name, kind, text, own, Name(schema, table) if schema else None)
        for name, kind, text, own, schema, table in cursor.execute(_CONSTRAINTS, (oid,))
    )
    return Shape(
        name=partition,
        owner=owner,
        columns=columns,
        indexes=indexes,
        constraints=constraints,
        triggers=tuple(Trigger(*row) for row in cursor.execute(_TRIGGERS, (oid,))),
        options=tuple(options),
        toast_options=tuple(toast),
        grants=tuple(cursor.execute(_GRANTS, (oid,)).fetchall()),
        comment=comment,
        replica_identity=identity,
        key=tuple(row[0] for row in cursor.execute(_KEY, (oid,))),
        refusals=refusals,
    )


_OWN_EQUALITY = """
    WITH RECURSIVE based AS (
        SELECT a.attname, a.atttypid AS type FROM pg_attribute a
        WHERE a.attrelid = to_regclass(%s) AND a.attname = ANY (%s)
        UNION ALL SELECT b.attname, t.typbasetype FROM based b JOIN pg_type t ON t.oid = b.type WHERE t.typtype = 'd'
    )
    SELECT b.attname, format_type(t.oid, NULL) FROM based b JOIN pg_type t ON t.oid = b.type
    WHERE t.typtype = 'b' AND t.oid >= 16384 AND t.typcategory <> 'A' ORDER BY 1
"""


def keys_of_other_types(cursor: Cursor, table: Name, key: Sequence[str]) -> dict[str, str]:
    """Columns of a key, with their types, that an extension made: `=` by our search path is not theirs."""
    return {str(name): str(kind) for name, kind in cursor.execute(_OWN_EQUALITY, (str(table), list(key)))}


def _column(*row: Any) -> Column:
    *begin, options, comment, hashable, portable = row
    values = (*begin, tuple(options), comment, hashable, portable)
    return Column(*values)


def _refusals(
    partition: Name, persistence: str, kind: str, *, policies: bool, rules: bool, tablespace: bool
) -> tuple[str, ...]:
    found = []
    if kind != "r":
        found.append(f"{partition} is not an ordinary table (it may be partitioned itself, or foreign)")
    if persistence != "p":
        found.append(f"{partition} is unlogged: its rows would not survive a crash, nor can they be replicated")
    if policies:
        found.append(f"{partition} has row security policies of its own")
    if rules:
        found.append(f"{partition} has rewrite rules")
    if tablespace:
        found.append(f"{partition} is in a tablespace of its own")
    return tuple(found)


# Our own fence comes and goes (its own xmin is checked when it is sealed); what captures changes must stay. Foreign
# keys: a root has one more per partition of every root it references, which come and go with tablets; so does a
# partition. Their own rows are those that refer to no partition.
_FACTS = """
    SELECT n.name, md5(string_agg(f.fact, E'\\n' ORDER BY f.fact))
    FROM unnest({}::text[]) AS n (name)
    CROSS JOIN LATERAL (SELECT to_regclass(n.name)::oid AS oid) AS t
    CROSS JOIN LATERAL (
        SELECT format('table %s %s %s %s %s %s %s %s %s', c.oid, c.relfilenode, c.relreplident, c.relowner, c.relacl,
                      c.relrowsecurity, c.relforcerowsecurity, c.reloptions, c.reltablespace) AS fact
        FROM pg_class c WHERE c.oid = t.oid
        -- Rows are read by name: while a table is called something else, they may be another's. A rename also writes
        -- the row of its row type; renaming its schema writes the schema's row, as GRANT on it does.
        UNION ALL SELECT format('name %s', y.xmin) FROM pg_type y WHERE y.typrelid = t.oid
        UNION ALL SELECT format('schema %s', s.xmin) FROM pg_namespace s JOIN pg_class c ON c.relnamespace = s.oid
        WHERE c.oid = t.oid
        UNION ALL SELECT format('column %s %s', a.attnum, a.xmin) FROM pg_attribute a
        WHERE a.attrelid = t.oid AND a.attnum > 0
        UNION ALL SELECT format('default %s %s', d.adnum, d.xmin) FROM pg_attrdef d WHERE d.adrelid = t.oid
        UNION ALL SELECT format('constraint %s %s', k.oid, k.xmin) FROM pg_constraint k
        WHERE k.conrelid = t.oid AND k.conname !~ '^tb_m[0-9a-z]+_bound$'
          AND (k.contype <> 'f' OR NOT EXISTS (
              SELECT FROM pg_class r WHERE r.oid = k.confrelid AND r.relispartition))
        UNION ALL SELECT format('index %s %s', i.indexrelid, i.xmin) FROM pg_index i
        WHERE i.indrelid = t.oid AND i.indisvalid
        UNION ALL SELECT format('trigger %s %s', g.oid, g.xmin) FROM pg_trigger g
        WHERE g.tgrelid = t.oid AND NOT g.tgisinternal AND g.tgname !~ '^!balancer_'
        -- PostgreSQL evaluates their expressions with the rights of the role that plans a query: ours.
        UNION ALL SELECT format('statistics %s %s', s.oid, s.xmin) FROM pg_statistic_ext s WHERE s.stxrelid = t.oid
        UNION ALL SELECT format('policy %s %s', p.oid, p.xmin) FROM pg_policy p WHERE p.polrelid = t.oid
        UNION ALL SELECT format('rule %s %s', r.oid, r.xmin) FROM pg_rewrite r WHERE r.ev_class = t.oid
    ) AS f GROUP BY n.name
"""


def fingerprints(cursor: Cursor, names: Sequence[Name]) -> Mapping[Name, str]:
    """The fingerprint of each table, all in one query; an empty text for one that does not exist."""
    cursor.execute(fingerprint_statement(names))
    return read_fingerprints(names, cursor.fetchall())


def fingerprint_statement(names: Sequence[Name]) -> sql.Composed:
    """What `read_fingerprints` reads, for a message that asks for more."""
    return sql.SQL(_FACTS).format(sql.Literal([str(name) for name in names]))


def read_fingerprints(names: Sequence[Name], rows: Sequence[TupleRow]) -> Mapping[Name, str]:
    """The fingerprint of each table, from the rows of `fingerprint_statement`."""
    found = {str(name): str(digest) for name, digest in rows}
    return {name: found.get(str(name), "") for name in names}
