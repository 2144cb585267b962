"""A plain table that is to become the one leaf of a partitioned root: what it is, and what keeps it from becoming one.

Read by `statements`, and by `balancer init` to propose keys. Everything in the way is a sentence in `refusals`, with
the statement that helps; anything in the catalog that is not understood is in the way too. Only reads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.naming import Name
from balancer.nodes.catalog.bounds import KeyColumn
from balancer.nodes.catalog.roots import RANGE, WHOLE
from balancer.nodes.session.connection import Cursor
from balancer.policies.keyspace.keys import KeyType

LEAF = 0
"""The number in the leaf's name, like a tablet's: ids of tablets begin with 1."""
BOUND = "balancer_convert_bound"
"""The CHECK that spares ATTACH the scan; on the table from the first step of a conversion to the last."""


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """A unique index of the table, whether of a constraint or not."""

    name: str
    columns: tuple[str, ...]
    included: tuple[str, ...]
    constraint: str | None  # p, u
    plain: bool
    """Whether it can be written by its columns alone: no expression, predicate, order or operator class of its own."""
    deferrable: str
    nulls_distinct: bool
    identity: bool  # REPLICA IDENTITY USING INDEX


@dataclass(frozen=True, slots=True)
class PlainTable:
    """An ordinary table, as far as a conversion itself looks at it."""

    name: Name
    oid: int
    owner: str
    row_type: int
    key: tuple[KeyColumn, ...]
    nullable: tuple[str, ...]
    """Columns of the key that may be NULL."""
    unique: tuple[UniqueIndex, ...]
    secured: bool
    forced: bool
    replica_identity: str  # d, n, f, i as in pg_class
    refusals: tuple[str, ...]


_TABLE = """
SELECT c.oid::bigint, c.relkind::text, c.relpersistence::text, c.relispartition, pg_get_userbyid(c.relowner),
       c.reltype::bigint, c.relrowsecurity, c.relforcerowsecurity, c.relreplident::text,
       pg_has_role(c.relowner, 'USAGE'), has_schema_privilege(n.oid, 'CREATE'),
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
           OR has_schema_privilege(c.relowner, n.oid, 'CREATE'),
       c.reloftype <> 0, (SELECT spcname FROM pg_tablespace WHERE oid = c.reltablespace),
       EXISTS (SELECT FROM pg_inherits WHERE c.oid IN (inhparent, inhrelid)),
       (SELECT min(provider) FROM pg_seclabel WHERE classoid = 'pg_class'::regclass AND objoid = c.oid),
       (SELECT e.extname FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
        WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
          AND d.refclassid = 'pg_extension'::regclass),
       (SELECT s.subname FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid
        WHERE r.srrelid = c.oid LIMIT 1)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""

# As for partition keys (see `nodes/catalog/roots`): the type's own default operator class, and a collation that all
# nodes share.
_KEY = """
SELECT w.name, a.attnum IS NOT NULL, format_type(a.atttypid, NULL), a.attnotnull, a.attgenerated <> '', l.collname,
       l.collisdeterministic,
       l.collnamespace = 'pg_catalog'::regnamespace AND CASE l.collprovider
           WHEN 'b' THEN true
           WHEN 'c' THEN l.collcollate IN ('C', 'POSIX')
           WHEN 'd' THEN (SELECT d.datlocprovider = 'b' OR d.datlocprovider = 'c' AND d.datcollate IN ('C', 'POSIX')
                          FROM pg_database d WHERE d.datname = current_database())
           ELSE false
       END
FROM unnest(%s::text[]) WITH ORDINALITY AS w (name, place)
LEFT JOIN pg_attribute a ON a.attrelid = %s AND a.attname = w.name AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_collation l ON l.oid = a.attcollation
ORDER BY w.place
"""

_UNIQUE = """
SELECT c.relname, k.contype::text, i.indexprs IS NULL AND i.indpred IS NULL AND NOT EXISTS (
           SELECT FROM unnest(i.indoption) AS o WHERE o <> 0) AND m.amname = 'btree' AND NOT EXISTS (
           SELECT FROM generate_series(0, i.indnkeyatts - 1) AS n
           JOIN pg_opclass p ON p.oid = i.indclass[n]
           JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[n]
           WHERE NOT p.opcdefault OR i.indcollation[n] NOT IN (0, a.attcollation)) AND c.reloptions IS NULL,
       CASE WHEN k.condeferred THEN ' DEFERRABLE INITIALLY DEFERRED'
            WHEN k.condeferrable THEN ' DEFERRABLE' ELSE '' END,
       NOT i.indnullsnotdistinct, i.indisreplident,
       ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS u (attnum, place)
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = u.attnum
             WHERE u.place <= i.indnkeyatts ORDER BY u.place),
       ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS u (attnum, place)
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = u.attnum
             WHERE u.place > i.indnkeyatts ORDER BY u.place)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.conrelid = i.indrelid AND k.contype IN ('p', 'u')
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND NOT i.indisexclusion
ORDER BY k.contype = 'p' DESC NULLS LAST, c.relname
"""

# Indexes and constraints that a partitioned table cannot have, or that it could have only after a scan.
_UNFIT = sql.SQL("""
SELECT format('index %%I is invalid: REINDEX or drop it', c.relname)
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = %(oid)s AND NOT i.indisvalid AND NOT starts_with(c.relname, %(leaf)s::text)
UNION ALL SELECT format('constraint %%I is an exclusion constraint, which is not carried over: drop it', k.conname)
    FROM pg_constraint k WHERE k.conrelid = %(oid)s AND k.contype = 'x'
UNION ALL SELECT format('constraint %%I has a period (WITHOUT OVERLAPS), which is not carried over: drop it', k.conname)
    FROM pg_constraint k JOIN pg_index i ON i.indexrelid = k.conindid AND i.indisexclusion
    WHERE k.conrelid = %(oid)s AND k.contype IN ('p', 'u')
UNION ALL SELECT format('constraint %%1$I is NOT VALID: ALTER TABLE %%2$s VALIDATE CONSTRAINT %%1$I',
                        k.conname, %(name)s::text)
    FROM pg_constraint k WHERE k.conrelid = %(oid)s AND NOT k.convalidated AND k.conname <> {bound}
UNION ALL SELECT format('constraint %%I is NO INHERIT, which a partitioned table cannot have', k.conname)
    FROM pg_constraint k WHERE k.conrelid = %(oid)s AND k.contype IN ('c', 'n') AND k.connoinherit
UNION ALL SELECT format('trigger %%I has a transition table for each row, which a partitioned table cannot have',
                        tgname)
    FROM pg_trigger WHERE tgrelid = %(oid)s AND NOT tgisinternal AND tgtype & 1 <> 0
      AND (tgoldtable IS NOT NULL OR tgnewtable IS NOT NULL)
UNION ALL SELECT format('trigger %%I refers to another table by FROM, which is not carried over', tgname)
    FROM pg_trigger WHERE tgrelid = %(oid)s AND NOT tgisinternal AND tgconstrrelid <> 0
""").format(bound=sql.Literal(BOUND))

_KINDS = {
    "v": "is a view",
    "m": "is a materialised view",
    "f": "is a foreign table; its rows are not on this node",
    "S": "is a sequence",
    "c": "is a composite type",
    "i": "is an index",
    "I": "is an index",
}


_ANY_COLUMN = """
SELECT a.attname FROM pg_attribute a
WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
  AND EXISTS (SELECT FROM pg_opclass o JOIN pg_am m ON m.oid = o.opcmethod AND m.amname = 'hash' AND o.opcdefault
              JOIN pg_type t ON t.oid = a.atttypid
              WHERE o.opcintype = t.oid OR o.opcintype = t.typbasetype
                 OR o.opcintype = 'text'::regtype AND t.oid = 'varchar'::regtype
                 OR o.opcintype = 'anyarray'::regtype AND t.typcategory = 'A'
                 OR o.opcintype = 'anyenum'::regtype AND t.typtype = 'e')
ORDER BY EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisprimary
                 AND a.attnum = ANY((i.indkey::int2[])[:i.indnkeyatts - 1])) DESC,
         (SELECT count(*) FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique
          AND a.attnum = ANY((i.indkey::int2[])[:i.indnkeyatts - 1])) DESC,
         a.attnotnull DESC, a.attnum
LIMIT 1
"""


def _column_of_whole(cursor: Cursor, oid: int) -> str:
    """By which PostgreSQL partitions the root of a whole table: one of the primary key, and of most unique keys.

    It may be NULL: there is one leaf for everything.
    """
    row = cursor.execute(_ANY_COLUMN, {"oid": oid}).fetchone()
    return str(row[0]) if row else ""


def read_plain(cursor: Cursor, name: Name, layout: str, key: Sequence[str], leaf: str) -> PlainTable:
    """The table of this name, which exists. `leaf`: the prefix of indexes that a conversion has begun to build."""
    row = cursor.execute(_TABLE, name).fetchone()
    assert row is not None, name
    oid, kind, persistence, _, owner, row_type, secured, forced, replica_identity, *_ = row
    refusals = list(_unfit_kind(name, kind, persistence, row))
    columns: list[KeyColumn] = []
    nullable: list[str] = []
    if not refusals:
        if layout == WHOLE:
            column = _column_of_whole(cursor, oid)
            columns = [KeyColumn(column, KeyType.TEXT)] if column else []
            refusals += [] if column else [f"{name} has no column that PostgreSQL can hash: add one"]
        for found in cursor.execute(_KEY, (list(key), oid)).fetchall():
            wrong = _unfit_column(name, layout, found)
            refusals += [wrong] if wrong else []
            if not wrong:
                columns.append(KeyColumn(found[0], KeyType(found[2]), found[5] or ""))
                nullable += [] if found[3] else [found[0]]
        unfit = cursor.execute(_UNFIT, {"oid": oid, "leaf": leaf, "name": str(name)}).fetchall()
        refusals += [f"{name}: {text}" for (text,) in unfit]
    return PlainTable(
        name,
        oid,
        owner,
        row_type,
        tuple(columns),
        tuple(nullable),
        tuple(_unique(*found) for found in cursor.execute(_UNIQUE, (oid,)).fetchall()),
        secured,
        forced,
        replica_identity,
        tuple(refusals),
    )


def _unique(name: str, constraint: str | None, plain: bool, *rest: object) -> UniqueIndex:
    deferrable, distinct, identity, columns, included = rest
    assert isinstance(columns, list)
    assert isinstance(included, list)
    return UniqueIndex(
        name, tuple(columns), tuple(included), constraint, plain, str(deferrable), bool(distinct), bool(identity)
    )


def _unfit_kind(name: Name, kind: str, persistence: str, row: tuple[object, ...]) -> Iterator[str]:
    if kind == "p":
        yield f"{name} is partitioned already: take it over with `balancer table adopt`"
    elif kind != "r":
        yield f"{name} {_KINDS.get(kind, 'is not an ordinary table')}: only an ordinary table can be converted"
    elif persistence == "t":
        yield f"{name} is temporary: only an ordinary table can be converted"
    elif persistence != "p":
        yield f"{name} is unlogged, and its rows would not survive a crash: ALTER TABLE {name} SET LOGGED"
    yield from _missing_rights(name, str(row[4]), *row[9:12])
    typed, tablespace, related, label, extension, subscription = row[12:]
    if related:
        yield f"{name} has children or a parent by inheritance: only a standalone table can be converted"
    if typed:
        yield f"{name} is a table of a type (OF): ALTER TABLE {name} NOT OF"
    if tablespace is not None:
        yield (
            f"{name} is in the tablespace {tablespace}, from which it could not be moved: ALTER TABLE {name} SET"
            " TABLESPACE pg_default"
        )
    if label is not None:
        yield f"{name} has a label of {label}, which is not carried over"
    if extension is not None:
        yield f"{name} belongs to the extension {extension}"
    if subscription is not None:
        yield f"{name} is filled by the subscription {subscription}, which would not find it any more"


def missing_rights_elsewhere(cursor: Cursor, name: Name, owner: str) -> list[str]:
    """What keeps us from making a table like it on another node, in words; a missing role or schema is not our
    business: PostgreSQL reports it."""
    row = cursor.execute(_RIGHTS_ELSEWHERE, {"owner": owner, "schema": name.schema}).fetchone()
    return [] if row is None else list(_missing_rights(name, owner, *row))


_RIGHTS_ELSEWHERE = """
SELECT pg_has_role(r.oid, 'USAGE'), has_schema_privilege(n.oid, 'CREATE'), has_schema_privilege(r.oid, n.oid, 'CREATE')
FROM pg_roles r, pg_namespace n WHERE r.rolname = %(owner)s AND n.nspname = %(schema)s
"""


def _missing_rights(name: Name, owner: str, acts: object, creates: object, owner_creates: object) -> Iterator[str]:
    schema = sql.Identifier(name.schema).as_string(None)
    if not acts:
        role = sql.Identifier(owner).as_string(None)
        yield f"the balancer's role does not act for {owner}, who owns {name}: GRANT {role} TO the balancer's role"
    elif not creates:
        yield f"the balancer's role may not create tables next to {name}: GRANT CREATE ON SCHEMA {schema} TO it"
    elif not owner_creates:
        yield f"{owner}, who owns {name}, may not create tables there: GRANT CREATE ON SCHEMA {schema} TO the owner"


def _unfit_column(table: Name, layout: str, found: tuple[object, ...]) -> str:
    name, there, kind, _, generated, collation, deterministic, by_bytes = found
    where = f'key column "{name}" of {table}'
    if not there:
        return f'{table} has no column "{name}", which the bundle\'s file names as its key'
    if kind not in set(KeyType):
        return f"{where} is of type {kind}; supported are {', '.join(KeyType)}"
    if generated:
        return f"{where} is generated, and PostgreSQL does not partition by such a column"
    if collation is not None and not deterministic:
        return f'{where} has the nondeterministic collation "{collation}"; use a deterministic one'
    if layout == RANGE and collation is not None and not by_bytes:
        return f'{where} has the collation "{collation}"; ranges of texts are known under collation C only'
    return ""
