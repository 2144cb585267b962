"""What a conversion builds before its swap, found again by name after a crash, or removed.

The root and the CHECK that names its oid come and go in one transaction. The root is marked by its comment, so that
somebody else's table of this name is neither used nor dropped. Indexes are built alongside the writers; one left
half-built is dropped and rebuilt. Called by `features.convert.run` and `features.convert.run`.

Makes a root with one leaf a plain table again: the swap of a conversion, in reverse.

The leaf is detached and gets the root's name; what the root carried is made on it from the texts that the catalog
printed, and its indexes get the names of the root's. The empty root stays under its first name until materialised views
that read it are replaced; then it is dropped. Foreign keys between tables that go back together are validated after the
swap, alongside the writers. Called by `features.convert.run`.

Whether anything that a swap has read about tables has changed since: one query, run before and under the locks.

Reading everything again under the locks would take longer than the swap itself. Changing a row of the catalog makes a
new row with another `xmin`, so a digest of the rows that were read shows it; of `pg_class`, which VACUUM and ANALYZE
write to as well, those columns count that DDL changes. Only reads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain

from psycopg import sql

from balancer.errors import Refused
from balancer.features.convert.plain_table import BOUND
from balancer.features.convert.statements import Conversion, NewKey, in_phases, stub_name
from balancer.naming import Name
from balancer.nodes.catalog.roots import HASH, WHOLE, find_root, read_partitions, read_root
from balancer.nodes.definitions import table_parts
from balancer.nodes.definitions.dependents import read_dependents, read_near_keys
from balancer.nodes.definitions.name_transfer import pending_shells, read_carried, shell_name
from balancer.nodes.definitions.table_parts import ColumnPart, grantee, read_columns
from balancer.nodes.session.connection import Connection, Cursor, Statement, run_single
from balancer.nodes.tablets.partition import index_name, root_oid


class Built(StrEnum):
    """How far something is."""

    ABSENT = "absent"
    BEGUN = "begun"
    DONE = "done"


_STUB = """
SELECT c.oid::bigint, c.relkind = 'p' AND obj_description(c.oid, 'pg_class') IS NOT DISTINCT FROM %s,
       EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""
_BOUND = "SELECT convalidated FROM pg_constraint WHERE conrelid = to_regclass(%s) AND conname = %s"
_INDEX = """
SELECT i.indisvalid AND i.indisunique AND i.indpred IS NULL AND ARRAY(
           SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS u (attnum, place)
           JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = u.attnum
           WHERE u.place <= i.indnkeyatts ORDER BY u.place) = %s::text[], i.indrelid = to_regclass(%s)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""
_GRANTEES = """
SELECT DISTINCT CASE g.grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(g.grantee) END
FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) g WHERE c.oid = to_regclass(%s)
"""


def _mark(root: Name) -> str:
    return f"tablet-balancer: becomes {root}"


def find_stub(cursor: Cursor, root: Name) -> int | None:
    """The oid of our root under its first name. Raises `Refused` if somebody else's table has that name."""
    stub = stub_name(root)
    row = cursor.execute(_STUB, (_mark(root), *stub)).fetchone()
    if row is None:
        return None
    if not row[1] or row[2]:
        raise Refused(f"the name {stub}, which the conversion of {root} needs, is taken: rename it")
    return int(row[0])


def mark_stub(root: Name) -> Statement:
    """What makes it ours."""
    return sql.SQL("COMMENT ON TABLE {} IS {}").format(stub_name(root).identifier, sql.Literal(_mark(root)))


def stub_state(cursor: Cursor, conversion: Conversion) -> Built:
    """Whether the root matches the table as it is now, and its CHECK is on the table."""
    stub = find_stub(cursor, conversion.plain.name)
    if stub is None:
        return Built.ABSENT
    root = find_root(cursor, conversion.stub, whole=conversion.layout == WHOLE)
    assert root is not None, conversion.stub
    fits = _alike(read_columns(cursor, stub), conversion.columns) and root.columns == conversion.plain.key
    fits = fits and root.layout == (HASH if conversion.layout == WHOLE else conversion.layout)
    bound = bound_state(cursor, conversion.plain.name)
    return Built.DONE if fits and (bound is not Built.ABSENT or not conversion.needs_bound) else Built.BEGUN


def _alike(there: Sequence[ColumnPart], wanted: Sequence[ColumnPart]) -> bool:
    """Where no name was asked for a NOT NULL, PostgreSQL has chosen one."""
    if len(there) != len(wanted):
        return False
    chosen = [mine.not_null_name if other.not_null_name else None for mine, other in zip(there, wanted, strict=True)]
    return [replace(mine, not_null_name=name) for mine, name in zip(there, chosen, strict=True)] == [*wanted]


def bound_state(cursor: Cursor, table: Name) -> Built:
    """Whether the CHECK is there, and validated."""
    row = cursor.execute(_BOUND, (str(table), BOUND)).fetchone()
    if row is None:
        return Built.ABSENT
    return Built.DONE if row[0] else Built.BEGUN


def make_stub(cursor: Cursor, conversion: Conversion) -> None:
    """Makes the root, ours alone until the swap, and the CHECK for rows that come from now on."""
    run_single(cursor, conversion.create_stub())
    run_single(cursor, mark_stub(conversion.plain.name))
    revoke = sql.SQL("REVOKE ALL ON {} FROM {} CASCADE")
    for (role,) in cursor.execute(_GRANTEES, (str(conversion.stub),)).fetchall():
        cursor.execute(revoke.format(conversion.stub.identifier, grantee(role)))
    if conversion.needs_bound:
        add = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} CHECK ({}) NOT VALID")
        bound = conversion.bound(root_oid(cursor, conversion.stub))
        table = conversion.plain.name.identifier
        run_single(cursor, add.format(table, sql.Identifier(BOUND), bound))


def validate_bound(table: Name) -> Statement:
    """Scans every row, alongside the writers."""
    return sql.SQL("ALTER TABLE {} VALIDATE CONSTRAINT {}").format(table.identifier, sql.Identifier(BOUND))


def index_state(cursor: Cursor, table: Name, new: NewKey) -> Built:
    """Whether it is there and usable. Raises `Refused` if something else has its name."""
    row = cursor.execute(_INDEX, (list(new.columns), str(table), table.schema, new.name)).fetchone()
    if row is None:
        return Built.ABSENT
    if not row[1]:
        raise Refused(f"the name {new.name}, which the conversion of {table} needs, is taken: rename it")
    return Built.DONE if row[0] else Built.BEGUN


def drop_index(connection: Connection, table: Name, name: str) -> None:
    """Builds it alongside the writers."""
    connection.execute(sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(sql.Identifier(table.schema, name)))


def drop_stubs(roots: Sequence[Name], cursor: Cursor) -> None:
    """Removes the roots and their CHECKs, if they exist; all at once, because they may refer to each other."""
    there = [root for root in roots if find_stub(cursor, root) is not None]
    for root in roots:
        if bound_state(cursor, root) is not Built.ABSENT:
            drop = sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}")
            cursor.execute(drop.format(root.identifier, sql.Identifier(BOUND)))
    if there:
        names = sql.SQL(", ").join(stub_name(root).identifier for root in there)
        cursor.execute(sql.SQL("DROP TABLE {}").format(names))


def unused_indexes(cursor: Cursor, conversions: Sequence[Conversion]) -> list[tuple[Name, str]]:
    """Table and name of each index that was built, or begun, for a swap that is no longer wanted."""
    wanted = [(conversion.plain.name, new) for conversion in conversions for new in conversion.new_keys]
    return [(table, new.name) for table, new in wanted if index_state(cursor, table, new) is not Built.ABSENT]


@dataclass(frozen=True, slots=True)
class Reversion:
    """One root of those that go back together."""

    root: Name
    leaf: Name
    locks: tuple[Statement, ...]
    phases: tuple[tuple[Statement, ...], ...]
    refusals: tuple[str, ...]


def lock_reversions(reversions: Sequence[Reversion]) -> list[Statement]:
    """What keeps everybody out: roots before leaves, tables before views, as in a conversion."""
    lock = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE")  # the leaf with it
    roots = [lock.format(reversion.root.identifier) for reversion in reversions]
    return [*roots, *chain.from_iterable(reversion.locks for reversion in reversions)]


def revert_statements(reversions: Sequence[Reversion]) -> list[Statement]:
    """Of all roots together, in order."""
    return in_phases([reversion.phases for reversion in reversions])


_INDEXES = """
SELECT p.relname, c.relname FROM pg_index i JOIN pg_class p ON p.oid = i.indexrelid
JOIN pg_inherits h ON h.inhparent = p.oid JOIN pg_class c ON c.oid = h.inhrelid
JOIN pg_index x ON x.indexrelid = c.oid AND x.indrelid = %s
WHERE i.indrelid = %s ORDER BY 1
"""
_STATISTICS = "SELECT stxnamespace::regnamespace::text, stxname FROM pg_statistic_ext WHERE stxrelid = %s ORDER BY 2"


def read_reversions(cursor: Cursor, roots: Sequence[Name], *, whole: bool = False) -> list[Reversion]:
    """What makes these roots plain tables together; the caller has set full names."""
    return [_read(cursor, name, roots, whole) for name in roots]


def _read(cursor: Cursor, name: Name, together: Sequence[Name], whole: bool) -> Reversion:
    root = read_root(cursor, name, whole=whole)
    partitions = read_partitions(cursor, root)
    if len(partitions) != 1:
        raise Refused(f"{name} has {len(partitions)} partitions: only a table with one can become a plain one again")
    leaf, stub = partitions[0], stub_name(name)
    # From an unfinished conversion: views that still read the leaf, and its foreign keys.
    shells = [shell_name(view) for view in pending_shells(cursor, [leaf.name])]
    waiting = read_near_keys(cursor, [leaf.name], together)
    carried = read_carried(cursor, root.oid, name, stub, together, near_to=name, other=leaf.oid, going=shells)
    forwarded = [text for text in read_dependents(cursor, leaf.oid, leaf.name).refusals if "forward --off" in text]
    drop = sql.SQL("DROP MATERIALIZED VIEW {}")
    detach = sql.SQL("ALTER TABLE {} DETACH PARTITION {}").format(name.identifier, leaf.name.identifier)
    return Reversion(
        name,
        leaf.name,
        carried.locks,
        (
            (
                *carried.before,
                *(key.drop() for key in waiting),
                *(drop.format(shell.identifier) for shell in shells),
                *carried.sequences.aside,
            ),
            (detach, *_renames(cursor, root.oid, leaf.oid, name, leaf.name)),
            (*carried.owner, *carried.sequences.give),
            carried.after,
            (*carried.near_keys, *(statement for key in waiting for statement in key.give(name, valid=False))),
            (*carried.last, mark_stub(name)),
        ),
        (*carried.refusals, *forwarded),
    )


def _renames(cursor: Cursor, root: int, leaf: int, name: Name, leaf_name: Name) -> Iterator[Statement]:
    """First the root's names are moved aside, then the leaf's take them."""
    stub = stub_name(name)
    rename = sql.SQL("ALTER {} {} RENAME TO {}")
    index, statistics, table = sql.SQL("INDEX"), sql.SQL("STATISTICS"), sql.SQL("TABLE")
    for mine, theirs in cursor.execute(_INDEXES, (leaf, root)).fetchall():
        aside = sql.Identifier(index_name(mine, name, stub))
        yield rename.format(index, sql.Identifier(name.schema, mine), aside)
        yield rename.format(index, sql.Identifier(name.schema, theirs), sql.Identifier(mine))
    kept = cursor.execute(_STATISTICS, (leaf,)).fetchall()
    missing = []
    for schema, mine in cursor.execute(_STATISTICS, (root,)).fetchall():
        theirs = index_name(mine, name, leaf_name)
        yield rename.format(statistics, sql.Identifier(schema, mine), sql.Identifier(index_name(mine, name, stub)))
        if (schema, theirs) in kept:
            yield rename.format(statistics, sql.Identifier(schema, theirs), sql.Identifier(mine))
        else:
            missing.append(mine)
    yield rename.format(table, name.identifier, sql.Identifier(stub.name))
    yield rename.format(table, leaf_name.identifier, sql.Identifier(name.name))
    if missing:
        yield from table_parts.read_statistics(cursor, root, missing)


_DIGEST = """
WITH base AS MATERIALIZED (
    SELECT c.oid, c.reltype FROM unnest(%s::text[]) AS n (name) JOIN pg_class c ON c.oid = to_regclass(n.name)
), row_type AS (
    SELECT t.oid FROM pg_type t JOIN base b ON t.oid = b.reltype OR t.typelem = b.reltype AND b.reltype <> 0
), dependent AS MATERIALIZED (
    SELECT d.classid, d.objid, d.objsubid, d.refobjsubid, d.deptype FROM pg_depend d
    WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid IN (SELECT oid FROM base)
       OR d.refclassid = 'pg_type'::regclass AND d.refobjid IN (SELECT oid FROM row_type)
), relation AS MATERIALIZED (
    SELECT oid FROM base
    UNION SELECT objid FROM dependent WHERE classid = 'pg_class'::regclass
    UNION SELECT r.ev_class FROM pg_rewrite r JOIN dependent d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
    UNION SELECT indexrelid FROM pg_index WHERE indrelid IN (SELECT oid FROM base)
), described AS MATERIALIZED (
    SELECT oid FROM relation
    UNION SELECT oid FROM pg_constraint WHERE conrelid IN (SELECT oid FROM base)
    UNION SELECT objid FROM dependent
), fact (text) AS (
    SELECT format('depends %%s %%s %%s %%s %%s', classid, objid, objsubid, refobjsubid, deptype) FROM dependent
    UNION ALL SELECT concat_ws(' ', 'relation', c.oid, c.relname, c.relnamespace, c.relowner, c.relacl,
                            c.reloptions, c.relkind, c.relreplident, c.relrowsecurity, c.relforcerowsecurity)
        FROM pg_class c JOIN relation USING (oid)
    UNION ALL SELECT format('column %%s %%s %%s', attrelid, attnum, xmin) FROM pg_attribute
        WHERE attrelid IN (SELECT oid FROM base)
    UNION ALL SELECT format('default %%s %%s', oid, xmin) FROM pg_attrdef WHERE adrelid IN (SELECT oid FROM base)
    UNION ALL SELECT format('constraint %%s %%s', oid, xmin) FROM pg_constraint
        WHERE conrelid IN (SELECT oid FROM base) OR confrelid IN (SELECT oid FROM base)
    UNION ALL SELECT format('index %%s %%s', indexrelid, xmin) FROM pg_index
        WHERE indrelid IN (SELECT oid FROM relation)
    UNION ALL SELECT format('trigger %%s %%s', oid, xmin) FROM pg_trigger
        WHERE tgrelid IN (SELECT oid FROM base) AND NOT tgisinternal
    UNION ALL SELECT format('policy %%s %%s', oid, xmin) FROM pg_policy
        WHERE polrelid IN (SELECT oid FROM base) OR oid IN (SELECT objid FROM dependent)
    UNION ALL SELECT format('rule %%s %%s', oid, xmin) FROM pg_rewrite
        WHERE ev_class IN (SELECT oid FROM relation) OR oid IN (SELECT objid FROM dependent)
    UNION ALL SELECT format('function %%s %%s', oid, xmin) FROM pg_proc
        WHERE oid IN (SELECT objid FROM dependent WHERE classid = 'pg_proc'::regclass)
    UNION ALL SELECT format('statistics %%s %%s', oid, xmin) FROM pg_statistic_ext
        WHERE stxrelid IN (SELECT oid FROM base)
    UNION ALL SELECT format('sequence %%s %%s', seqrelid, xmin) FROM pg_sequence
        WHERE seqrelid IN (SELECT oid FROM relation)
    UNION ALL SELECT format('published %%s %%s', oid, xmin) FROM pg_publication_rel
        WHERE prrelid IN (SELECT oid FROM base)
    UNION ALL SELECT format('publication %%s %%s', oid, xmin) FROM pg_publication
    UNION ALL SELECT format('publication of schema %%s %%s', oid, xmin) FROM pg_publication_namespace
    UNION ALL SELECT format('inherits %%s %%s %%s', inhrelid, inhparent, xmin) FROM pg_inherits
        WHERE inhrelid IN (SELECT oid FROM base) OR inhparent IN (SELECT oid FROM base)
    UNION ALL SELECT format('subscription %%s %%s', srsubid, srrelid) FROM pg_subscription_rel
        WHERE srrelid IN (SELECT oid FROM base)
    UNION ALL SELECT format('comment %%s %%s %%s', objoid, objsubid, xmin) FROM pg_description
        WHERE objoid IN (SELECT oid FROM described)
)
SELECT md5(string_agg(text, E'\\n' ORDER BY text)) FROM fact
"""


def footprint(cursor: Cursor, tables: Sequence[Name]) -> str:
    """A digest of everything in the catalog that describes these tables or refers to them."""
    row = cursor.execute(_DIGEST, ([str(table) for table in tables],)).fetchone()
    assert row is not None
    return str(row[0])
