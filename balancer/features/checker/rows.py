"""Looks at the rows of tablets, some pages at a time: out of bounds, without parents, ids that nobody handed out.

Questions of the consistency checker about the rows of one partition, some pages at a time. Only reads.

Each is one statement, so that its answer is of one moment. The planner must not answer from constraints instead of
rows: it would trust the very promise that is being checked. (It does so for NOT (…) where constraint_exclusion is on;
for IS NOT TRUE no version up to 18 does.)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from psycopg import sql

from balancer.directory.locate import SEQUENCE_BITS
from balancer.directory.model import Table
from balancer.directory.snapshot import BLOCK, Snapshot, counter_of
from balancer.features.checker.evidence import CheckScope, HeldTablet, on_owner
from balancer.migration.context import places
from balancer.naming import Name, parse_name
from balancer.nodes.catalog.bounds import check_expression
from balancer.nodes.session.connection import Cursor
from balancer.nodes.tablets.checksum import pages
from balancer.nodes.tablets.partition import Place, root_oid
from balancer.nodes.tablets.references import Reference, read_references
from balancer.policies.check_options import CheckKind
from balancer.policies.checking import Anomaly, CheckResult, CheckUnit

PAGES = 2048
"""Pages (8 kB) that one statement reads: 16 MB, a few dozen milliseconds."""
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Counted:
    """What some pages of a partition have."""

    rows: int
    bad: int
    examples: tuple[str, ...]
    """Some of the bad rows' keys, as text."""
    next_page: int
    """0: these were the last."""


def outside_rows(cursor: Cursor, place: Place, root_oid: int, first: int) -> Counted:
    """Rows that the partition must not have, by the tablet's part of the key space."""
    bad = sql.SQL("({}) IS NOT TRUE").format(check_expression(place.columns, place.part, root_oid))
    return _counted(cursor, place.partition, [column.name for column in place.columns], bad, first)


def orphan_rows(cursor: Cursor, child: Name, parent: Name, reference: Reference, first: int) -> Counted:
    """Rows of a partition that refer to a row which the parent does not have. A NULL refers to nothing."""
    columns = reference.columns
    pairs = zip(columns, reference.referenced_columns, strict=True)
    same = [sql.SQL("p.{} = t.{}").format(sql.Identifier(theirs), sql.Identifier(mine)) for mine, theirs in pairs]
    filled = [sql.SQL("t.{} IS NOT NULL").format(sql.Identifier(mine)) for mine in columns]
    bad = sql.SQL("{} AND NOT EXISTS (SELECT FROM {} AS p WHERE {})").format(
        sql.SQL(" AND ").join(filled), parent.identifier, sql.SQL(" AND ").join(same)
    )
    return _counted(cursor, child, columns, bad, first)


def largest_id(cursor: Cursor, partition: Name, column: str, bits: int, first: int) -> tuple[Counted, int]:
    """The largest number in a column, without the bits above these; 0 if there is none."""
    largest = sql.SQL("max(t.{}::pg_catalog.int8 & {})").format(sql.Identifier(column), sql.Literal((1 << bits) - 1))
    end = page_after(cursor, partition, first)
    statement = sql.SQL("SELECT count(*), coalesce({}, 0) FROM ONLY {} AS t WHERE {}")
    row = cursor.execute(statement.format(largest, partition.identifier, pages(first, end or None))).fetchone()
    assert row is not None, "an aggregate has one row"
    return Counted(int(row[0]), 0, (), end), int(row[1])


def _counted(cursor: Cursor, table: Name, shown: Sequence[str], bad: sql.Composable, first: int) -> Counted:
    cursor.execute("SELECT set_config('constraint_exclusion', 'off', true), set_config('jit', 'off', true)")
    end = page_after(cursor, table, first)
    key = sql.SQL(", ").join(sql.SQL("t.{}").format(sql.Identifier(name)) for name in shown)
    statement = sql.SQL(
        "WITH bad AS MATERIALIZED (SELECT left(ROW({key})::text, 100) AS key FROM ONLY {table} AS t"
        " WHERE {pages} AND {bad})"
        " SELECT (SELECT count(*) FROM ONLY {table} AS t WHERE {pages}), (SELECT count(*) FROM bad),"
        " ARRAY(SELECT key FROM bad LIMIT {most})"
    ).format(
        key=key,
        table=table.identifier,
        pages=pages(first, end or None),
        bad=bad,
        most=sql.Literal(_EXAMPLES),
    )
    row = cursor.execute(statement).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return Counted(int(row[0]), int(row[1]), tuple(row[2]), end)


def page_after(cursor: Cursor, table: Name, first: int, count: int = PAGES) -> int:
    """The page after this many; 0: they reach the end."""
    row = cursor.execute(
        "SELECT pg_relation_size(to_regclass(%s)) / current_setting('block_size')::int",
        (str(table),),
    ).fetchone()
    size = int(row[0]) if row and row[0] is not None else 0
    return first + count if first + count < size else 0


def tablets_with_keys(ground: CheckScope, snapshot: Snapshot) -> Sequence[int]:
    """The tablets whose rows must lie within bounds."""
    return tablet_ids(ground, snapshot, [table for table in snapshot.tables.values() if not table.whole])


def tablets_with_rows(ground: CheckScope, snapshot: Snapshot) -> Sequence[int]:
    """The tablets that may have foreign keys: all except reference tables."""
    return tablet_ids(ground, snapshot, [table for table in snapshot.tables.values() if not table.everywhere])


def tablets_with_ids(ground: CheckScope, snapshot: Snapshot) -> Sequence[int]:
    """The tablets with a column that is filled from `router.ids`."""
    named = {column.table for column in ground.bundle.checks.ids}
    return tablet_ids(ground, snapshot, [table for table in snapshot.tables.values() if table.name in named])


def tablet_ids(ground: CheckScope, snapshot: Snapshot, tables: Sequence[Table]) -> Sequence[int]:
    """Of these tables, as far as they are wanted, in order."""
    if ground.tablets is not None:
        return sorted(ground.tablets)
    columns = [np.frombuffer(snapshot.columns(table.id).ids, np.int64) for table in tables if ground.wanted(table)]
    return np.unique(np.concatenate(columns)).tolist() if columns else []


def look_at_bounds(ground: CheckScope, unit: CheckUnit) -> CheckResult:
    """Rows outside their tablet's part of the key space, in one root."""

    def look(held: HeldTablet) -> CheckResult:
        table, tablet = held.table, held.tablet
        if table.whole:
            return CheckResult()
        place = places(table, tablet)[unit.item]
        held.check_readable(ground, place.partition, root=place.root)
        oid = root_oid(held.cursor, place.root)
        found = outside_rows(held.cursor, place, oid, _page(unit, tablet.epoch))
        more = unit.item + 1 < len(table.roots)
        if not found.bad:
            return _paged(found, tablet.epoch, more)
        text = f"{place.partition} has {found.bad} rows outside the bounds of tablet {tablet.id}"
        anomaly = Anomaly(
            CheckKind.BOUNDS,
            f"{text} on node {tablet.node}, such as {', '.join(found.examples)}",
            table=table.name,
            tablet=tablet.id,
            node=tablet.node,
            root=str(place.root),
            count=found.bad,
            advice=f"copy them to where their keys belong (balancer route {table.name} KEY), then delete them here",
        )
        return _paged(found, tablet.epoch, more, anomaly)

    return on_owner(ground, unit.subject, look)


def look_for_orphans(ground: CheckScope, unit: CheckUnit) -> CheckResult:
    """Rows that refer to a missing row of a colocated root or of a reference table."""

    def look(held: HeldTablet) -> CheckResult:
        table, tablet = held.table, held.tablet
        rules = list(_references(ground, held))
        if unit.item >= len(rules):
            return CheckResult()
        rule = rules[unit.item]
        leaves = {place.root: place.partition for place in places(table, tablet)}
        child, parent = leaves[rule.root], leaves.get(rule.referenced, rule.referenced)
        held.check_readable(ground, child, parent)
        page = _page(unit, tablet.epoch)
        found = orphan_rows(held.cursor, child, parent, rule, page)
        more = unit.item + 1 < len(rules)
        if not found.bad:
            return _paged(found, tablet.epoch, more)
        columns = ", ".join(rule.columns)
        text = (
            f"{found.bad} rows of {child} on node {tablet.node} refer by {columns} to rows that {parent} does not have"
        )
        anomaly = Anomaly(
            CheckKind.ORPHANS,
            f"{text}, such as {', '.join(found.examples)}",
            table=table.name,
            tablet=tablet.id,
            node=tablet.node,
            root=str(rule.root),
            count=found.bad,
            advice=f"bring the rows of {rule.referenced} back, or delete these of {rule.root}",
            about=f"{columns} of {rule.referenced}",
        )
        return _paged(found, tablet.epoch, more, anomaly)

    return on_owner(ground, unit.subject, look)


def _references(ground: CheckScope, held: HeldTablet) -> Iterator[Reference]:
    """Declared in the bundle's file, and the foreign keys of the roots.

    PostgreSQL enforces these for writers, but not for rows that came with triggers off, as copies and replication write
    them, nor where a key is NOT VALID or NOT ENFORCED.
    """
    roots = [parse_name(root) for root in held.table.roots]
    for rule in ground.bundle.checks.orphans:
        child = parse_name(rule.child)
        if child in roots:
            yield Reference(child, rule.columns, parse_name(rule.parent), rule.parent_columns)
    everywhere = _reference_roots(ground)
    for found in read_references(held.cursor, roots):
        if found.referenced in everywhere or _colocated(found, held.table):
            yield found


def _reference_roots(ground: CheckScope) -> set[Name]:
    tables = ground.snapshot().tables.values()
    return {parse_name(root) for table in tables if table.everywhere for root in table.roots}


def _colocated(reference: Reference, table: Table) -> bool:
    """Whether the referenced row is in the same tablet: its key is the referring row's own."""
    if reference.referenced not in [parse_name(root) for root in table.roots]:
        return False
    key = [column.name for column in table.key_columns]
    pairs = set(zip(reference.columns, reference.referenced_columns, strict=True))
    return all((name, name) in pairs for name in key)


def look_at_ids(ground: CheckScope, unit: CheckUnit) -> CheckResult:
    """Ids in rows that the directory has not handed out: it will, a second time."""

    def look(held: HeldTablet) -> CheckResult:
        table, tablet = held.table, held.tablet
        columns = [one for one in ground.bundle.checks.ids if one.table == table.name]
        if unit.item >= len(columns):
            return CheckResult()
        wanted = columns[unit.item]
        by_root = {place.root: place.partition for place in places(table, tablet)}
        root = parse_name(wanted.root) if wanted.root else parse_name(table.roots[0])
        held.check_readable(ground, by_root[root])
        page = _page(unit, tablet.epoch)
        found, largest = largest_id(held.cursor, by_root[root], wanted.column, SEQUENCE_BITS, page)
        more = unit.item + 1 < len(columns)
        # After the rows: an id in a row was handed out before the row was written.
        start = counter_of(ground.snapshot(), table.id).next
        limit = start + ground.directory.blocks().get(table.id, 0) * BLOCK
        if largest < limit:
            return _paged(found, tablet.epoch, more)
        anomaly = Anomaly(
            CheckKind.IDS,
            f"{by_root[root]} on node {tablet.node} has the id {largest} in {wanted.column}, and the directory has"
            f" handed out ids below {limit} only: it will hand this one out again",
            table=table.name,
            tablet=tablet.id,
            node=tablet.node,
            root=str(root),
            advice=f"was an old export of the directory imported? take ids from above {largest} until it is passed",
            about=wanted.column,
        )
        return _paged(found, tablet.epoch, more, anomaly)

    return on_owner(ground, unit.subject, look)


def _page(unit: CheckUnit, epoch: int) -> int:
    """Where to continue; from the beginning if the tablet has another owner by now, whose rows lie elsewhere."""
    return unit.page if unit.epoch == epoch else 0


def _paged(found: Counted, epoch: int, more: bool, *anomalies: Anomaly) -> CheckResult:
    return CheckResult(anomalies, found.rows, found.next_page, epoch, more=more)
