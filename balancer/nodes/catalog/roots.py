"""What PostgreSQL's catalog says about a partitioned root and its partitions, or why we cannot balance it.

`read_root` and `read_partitions` are used by adoption, creation, sampling and migrations. They only read; a refusal
names the object and what is allowed.

What two nodes' copies of a root must agree on, fact by fact, and where they differ.

Adoption, every move, `node check`, `doctor` and `verify` compare it: a tablet that moves comes under the other root,
with that root's policies, triggers, defaults and grants. Whatever changes no query's answer (comments, statistics,
storage) is not among the facts. Definitions are read with full names, whatever the session's path. Only reads.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg import sql

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.catalog.bounds import KeyColumn, Part, parse_bound
from balancer.nodes.catalog.shapes import INDEX_TAIL, TRIGGER_EVENTS, TRIGGER_TAIL
from balancer.nodes.session.connection import Connection, Cursor
from balancer.policies.keyspace.keys import KeyType

HASH = "hash"
RANGE = "range"
EVERYWHERE = "everywhere"
WHOLE = "whole"
"""For a table without a key. In PostgreSQL its roots are partitioned by HASH, with one leaf of modulus 1, by a column
that decides nothing: its type does not matter, and is called text."""
_STRATEGIES: Mapping[str, str] = {"h": HASH, "r": RANGE}


@dataclass(frozen=True, slots=True)
class Root:
    """A partitioned table, as far as it decides where rows go."""

    name: Name
    oid: int
    layout: str  # hash | range
    columns: tuple[KeyColumn, ...]
    owner: str

    @property
    def key_types(self) -> tuple[KeyType, ...]:
        return tuple(column.type for column in self.columns)


@dataclass(frozen=True, slots=True)
class Partition:
    """An attached partition and its part of the key space."""

    name: Name
    oid: int
    part: Part
    unlogged: bool = False


_ROOT = """
SELECT c.oid::bigint, c.relkind::text, c.relispartition, p.partstrat::text, pg_get_userbyid(c.relowner),
       (SELECT format('%%I.%%I', dn.nspname, d.relname)
        FROM pg_class d JOIN pg_namespace dn ON dn.oid = d.relnamespace WHERE d.oid = p.partdefid)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_partitioned_table p ON p.partrelid = c.oid
WHERE n.nspname = %s AND c.relname = %s
"""

# One row per key column. Expressions have attribute number 0 and join with nothing.
_KEY = """
SELECT a.attname, format_type(a.atttypid, NULL), o.opcdefault AND o.opcnamespace = 'pg_catalog'::regnamespace,
       o.opcname, l.collname, l.collisdeterministic,
       l.collnamespace = 'pg_catalog'::regnamespace AND CASE l.collprovider
           WHEN 'b' THEN true
           WHEN 'c' THEN l.collcollate IN ('C', 'POSIX')
           WHEN 'd' THEN (SELECT d.datlocprovider = 'b' OR d.datlocprovider = 'c' AND d.datcollate IN ('C', 'POSIX')
                          FROM pg_database d WHERE d.datname = current_database())
           ELSE false
       END
FROM pg_partitioned_table p
CROSS JOIN generate_series(0, p.partnatts - 1) AS i
LEFT JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[i] AND p.partattrs[i] <> 0
LEFT JOIN pg_opclass o ON o.oid = p.partclass[i]
LEFT JOIN pg_collation l ON l.oid = p.partcollation[i]
WHERE p.partrelid = %s
ORDER BY i
"""

_PARTITIONS = """
SELECT n.nspname, c.relname, c.oid::bigint, c.relkind::text, c.relpersistence = 'u',
       i.inhdetachpending, pg_get_expr(c.relpartbound, c.oid)
FROM pg_inherits i
JOIN pg_class c ON c.oid = i.inhrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE i.inhparent = %s
ORDER BY c.oid
"""


_PARENT = """
SELECT n.nspname, c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE i.inhrelid = to_regclass(%s)
"""


def parent_of(cursor: Cursor, partition: Name) -> Name | None:
    """The root that it is attached to; None: it is not attached, or does not exist."""
    found = cursor.execute(_PARENT, (str(partition),)).fetchone()
    return Name(*found) if found else None


def find_root(cursor: Cursor, name: Name, *, whole: bool = False) -> Root | None:
    """The root, or None if there is no such table. Raises `Refused` for what cannot be one (of a whole table)."""
    row = cursor.execute(_ROOT, name).fetchone()
    if row is None:
        return None
    oid, kind, is_partition, strategy, owner, default = row
    if kind != "p":
        raise Refused(f"{name} is not a partitioned table; `balancer table convert` makes a plain one such")
    if is_partition:
        raise Refused(f"{name} is itself a partition; name the table at the top")
    if strategy not in _STRATEGIES:
        raise Refused(f"{name} is partitioned by LIST; only RANGE and HASH can be balanced")
    if default is not None:
        raise Refused(f"{name} has the DEFAULT partition {default}, which would take any key")
    layout = _STRATEGIES[strategy]
    if whole and layout != HASH:
        raise Refused(f"{name} is partitioned by RANGE; a root of a whole table is partitioned by HASH")
    return Root(name, oid, layout, _read_key(cursor, name, oid, WHOLE if whole else layout), owner)


def read_root(cursor: Cursor, name: Name, *, whole: bool = False) -> Root:
    """The root; `Refused` if there is none."""
    root = find_root(cursor, name, whole=whole)
    if root is None:
        raise Refused(f"there is no table {name}")
    return root


def _read_key(cursor: Cursor, name: Name, oid: int, layout: str) -> tuple[KeyColumn, ...]:
    cursor.execute(_KEY, (oid,))
    columns = []
    for column, type_name, default_class, class_name, collation, deterministic, by_bytes in cursor.fetchall():
        if column is None:
            raise Refused(f"the key of {name} contains an expression; only plain columns can be balanced")
        if layout == WHOLE:
            columns.append(KeyColumn(column, KeyType.TEXT))
            continue
        where = f'key column "{column}" of {name}'
        if type_name not in set(KeyType):
            raise Refused(f"{where} is of type {type_name}; supported are {', '.join(KeyType)}")
        if not default_class:
            raise Refused(f"{where} uses the operator class {class_name}; only the type's own default is known")
        if collation is not None and not deterministic:
            raise Refused(f'{where} has the nondeterministic collation "{collation}"; use a deterministic one')
        if layout == RANGE and collation is not None and not by_bytes:
            raise Refused(f'{where} has the collation "{collation}"; ranges of texts are known under collation C only')
        columns.append(KeyColumn(column, KeyType(type_name), collation or ""))
    return tuple(columns)


def read_partitions(cursor: Cursor, root: Root) -> list[Partition]:
    """The partitions attached to a root, in no particular order of keys."""
    cursor.execute(_PARTITIONS, (root.oid,))
    return [_partition(root, row) for row in cursor.fetchall()]


def _partition(root: Root, row: tuple[object, ...]) -> Partition:
    schema, relation, oid, kind, unlogged, detaching, bound = row
    name = Name(str(schema), str(relation))
    if kind == "p":
        raise Refused(f"partition {name} has partitions of its own; only one level can be balanced")
    if kind != "r":
        raise Refused(f"partition {name} is a foreign table; its rows are not on this node")
    if detaching:
        raise Refused(f"partition {name} is half detached: ALTER TABLE {root.name} DETACH PARTITION {name} FINALIZE")
    assert isinstance(oid, int)
    try:
        return Partition(name, oid, parse_bound(root.key_types, str(bound)), bool(unlogged))
    except Refused as error:
        raise Refused(f"partition {name}: {error}") from error


Facts = Mapping[str, str]
"""`policy own_rows` → what it says; a missing root has none."""


@contextmanager
def full_names(cursor: Cursor) -> Iterator[None]:
    """Definitions that are printed or run in the block have full names; they mean the same under any path."""
    row = cursor.execute("SELECT current_setting('search_path')").fetchone()
    assert row is not None
    cursor.execute("SELECT set_config('search_path', 'pg_catalog', false)")
    yield
    # After an error a transaction is rolled back with its settings, and a connection without one is closed.
    cursor.execute("SELECT set_config('search_path', %s, false)", row)


def read_facts(cursor: Cursor, root: Name) -> Facts:
    """Everything about a root that decides what a query on it does, or may do."""
    with full_names(cursor):
        cursor.execute(_FACTS, {"name": str(root)})
        return {str(key): str(value) for key, value in cursor}


def facts_on(connection: Connection, roots: Sequence[Name]) -> dict[Name, Facts]:
    """The facts of several roots on one node."""
    with connection.cursor() as cursor:
        return {root: read_facts(cursor, root) for root in roots}


def differences(here: Facts, there: Facts, node: str, other: str) -> list[str]:
    """Each fact in which two nodes' copies of a root differ, in words."""
    return [
        f"{fact} is {here.get(fact, 'absent')} on {node} and {there.get(fact, 'absent')} on {other}"
        for fact in sorted({*here, *there})
        if here.get(fact) != there.get(fact)
    ]


# A default that draws from a sequence may name another one on each node. MAINTAIN does not exist before PostgreSQL 17
# and lets nobody read a row. Identity and NOT NULL come with their columns.
_FACTS = sql.SQL("""
    WITH t AS (SELECT c.* FROM pg_class c WHERE c.oid = to_regclass(%(name)s)),
    columns AS (
        SELECT a.*, pg_get_expr(d.adbin, d.adrelid) AS expression, EXISTS (
            SELECT FROM pg_depend p JOIN pg_class s ON s.oid = p.refobjid AND s.relkind = 'S'
            WHERE p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid AND p.refclassid = 'pg_class'::regclass
        ) AS draws
        FROM t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    ),
    grants AS (
        SELECT '' AS what, t.relowner, x.* FROM t, aclexplode(coalesce(t.relacl, acldefault('r', t.relowner))) x
        UNION ALL
        SELECT ' on column ' || a.attname, t.relowner, x.* FROM t, columns a, aclexplode(a.attacl) x
    )
    SELECT format('column %%s', attname),
           concat(format_type(atttypid, atttypmod),
                  CASE WHEN attcollation <> 0 THEN ' collate ' || attcollation::regcollation::text END,
                  CASE WHEN attnotnull THEN ' not null' END,
                  CASE attidentity WHEN 'a' THEN ' generated always as identity'
                                   WHEN 'd' THEN ' generated by default as identity' END,
                  CASE WHEN attgenerated <> '' THEN ' generated ' || attgenerated::text || ' ' || expression
                       WHEN draws THEN ' default from a sequence'
                       WHEN expression IS NOT NULL THEN ' default ' || expression END)
    FROM columns
    UNION ALL SELECT format('constraint %%s', conname), pg_get_constraintdef(k.oid)
        FROM t JOIN pg_constraint k ON k.conrelid = t.oid AND k.contype IN ('c', 'x') AND k.conparentid = 0
    UNION ALL SELECT format('foreign key %%s', pg_get_constraintdef(k.oid)), 'present'
        FROM t JOIN pg_constraint k ON k.conrelid = t.oid AND k.contype = 'f' AND k.conparentid = 0
    UNION ALL SELECT format('index %%s%%s',
                            CASE WHEN i.indisprimary THEN 'primary ' WHEN i.indisunique THEN 'unique ' END,
                            coalesce({index}, pg_get_indexdef(i.indexrelid))), 'present'
        FROM t JOIN pg_index i ON i.indrelid = t.oid
    UNION ALL SELECT format('trigger %%s', g.tgname),
                     concat_ws(' ', {events}, coalesce({trigger}, pg_get_triggerdef(g.oid)),
                               CASE g.tgenabled WHEN 'D' THEN '(disabled)' WHEN 'R' THEN '(for replicas)'
                                                WHEN 'A' THEN '(always)' END)
        FROM t JOIN pg_trigger g ON g.tgrelid = t.oid AND NOT g.tgisinternal AND g.tgname !~ '^[!~]balancer_'
    UNION ALL SELECT format('policy %%s', polname),
                     concat_ws(' ', CASE WHEN polpermissive THEN 'permissive' ELSE 'restrictive' END,
                               'for', polcmd::text, 'to',
                               (SELECT string_agg(CASE o WHEN 0 THEN 'public' ELSE pg_get_userbyid(o) END, ', '
                                    ORDER BY CASE o WHEN 0 THEN '' ELSE pg_get_userbyid(o) END)
                                FROM unnest(polroles) AS o),
                               'using ' || pg_get_expr(polqual, polrelid),
                               'with check ' || pg_get_expr(polwithcheck, polrelid))
        FROM t JOIN pg_policy p ON p.polrelid = t.oid
    UNION ALL SELECT format('rule %%s', rulename), pg_get_ruledef(r.oid) FROM t JOIN pg_rewrite r ON r.ev_class = t.oid
    UNION ALL SELECT format('grant %%s%%s to %%s', privilege_type, what,
                            CASE grantee WHEN relowner THEN 'the owner' WHEN 0 THEN 'public'
                                         ELSE pg_get_userbyid(grantee) END),
                     CASE WHEN bool_or(is_grantable AND grantee <> relowner) THEN 'with grant option' ELSE 'present' END
        FROM grants WHERE privilege_type <> 'MAINTAIN' GROUP BY privilege_type, what, grantee, relowner
    UNION ALL SELECT 'row level security', concat(CASE WHEN relrowsecurity THEN 'enabled' ELSE 'off' END,
                                                  CASE WHEN relforcerowsecurity THEN ', forced' END) FROM t
    UNION ALL SELECT 'owner', pg_get_userbyid(relowner) FROM t
    UNION ALL SELECT 'partition key', pg_get_partkeydef(t.oid) FROM t
""").format(index=INDEX_TAIL, events=TRIGGER_EVENTS, trigger=TRIGGER_TAIL)
