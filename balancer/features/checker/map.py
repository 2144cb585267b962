"""The map against the nodes: which node claims what, and partitions that are attached where they do not belong.

The partitions attached on a node, no matter who attached them, and the keys in one of them. Only reads.

For the consistency checker: a partition that the directory does not give to the node accepts and shows rows of keys
that another node owns.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from psycopg import sql

from balancer.directory.locate import key_position
from balancer.directory.model import RangeBounds, Table
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.pages import start_of
from balancer.errors import BalancerError, Refused
from balancer.features.checker.evidence import CheckScope, HeldTablet, MapBeforeAfter, on_owner
from balancer.migration.context import partitions_of
from balancer.naming import Name, parse_name
from balancer.nodes.catalog.bounds import KeyRange, parse_bound
from balancer.nodes.catalog.owners_code import check_readable
from balancer.nodes.session.addresses import addresses_of
from balancer.nodes.session.connection import Cursor, translated
from balancer.nodes.tablets.object_names import FENCE_TRIGGER
from balancer.policies.check_options import CheckKind
from balancer.policies.checking import Anomaly, CheckResult, CheckUnit
from balancer.polling.ownership import Disagreement
from balancer.polling.poller import ClusterPoll, Health

MOST_COUNTED = 100_000
MOST_KEYS = 200


class AttachedLeaf(NamedTuple):
    """One partition of a root, as the node has it."""

    root: Name
    name: Name
    bound: str
    """As the catalog prints it."""
    closed: bool
    """Whether a fence without an end keeps writers out: a former owner's, which the mover removes."""


_ATTACHED = r"""
SELECT rn.nspname, rc.relname, n.nspname, c.relname, pg_get_expr(c.relpartbound, c.oid), EXISTS (
    SELECT FROM pg_trigger f WHERE f.tgrelid = c.oid AND f.tgname = %(fence)s AND f.tgenabled <> 'D'
    AND split_part(encode(f.tgargs, 'escape'), '\000', 3) IN ('sealed', 'moved'))
FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS wanted (schema, name)
JOIN pg_namespace rn ON rn.nspname = wanted.schema
JOIN pg_class rc ON rc.relnamespace = rn.oid AND rc.relname = wanted.name
JOIN pg_inherits i ON i.inhparent = rc.oid AND NOT i.inhdetachpending
JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY 1, 2, 3, 4
"""


def attached_leaves(cursor: Cursor, roots: Sequence[Name]) -> list[AttachedLeaf]:
    """All partitions of these roots on this node."""
    named = {"schemas": [root.schema for root in roots], "names": [root.name for root in roots]}
    rows = cursor.execute(_ATTACHED, {**named, "fence": FENCE_TRIGGER}).fetchall()
    return [AttachedLeaf(Name(*row[:2]), Name(*row[2:4]), str(row[4]), bool(row[5])) for row in rows]


def rows_up_to(cursor: Cursor, leaf: Name) -> int:
    """How many rows it has; `MOST_COUNTED` stands for as many or more."""
    statement = sql.SQL("SELECT count(*) FROM (SELECT FROM ONLY {} LIMIT {}) AS few")
    row = cursor.execute(statement.format(leaf.identifier, sql.Literal(MOST_COUNTED))).fetchone()
    assert row is not None, "an aggregate has one row"
    return int(row[0])


def some_keys(cursor: Cursor, leaf: Name, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Some keys of it, each once."""
    wanted = sql.SQL(", ").join(map(sql.Identifier, columns))
    statement = sql.SQL("SELECT DISTINCT {} FROM (SELECT {} FROM ONLY {} LIMIT {}) AS few")
    found = cursor.execute(statement.format(wanted, wanted, leaf.identifier, sql.Literal(MOST_KEYS))).fetchall()
    return [tuple(row) for row in found]


def keys_present(cursor: Cursor, leaf: Name, columns: Sequence[str], keys: Sequence[tuple[Any, ...]]) -> int:
    """How many of these keys have rows here too."""
    found = 0
    same = sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in columns)
    statement = sql.SQL("SELECT EXISTS (SELECT FROM ONLY {} WHERE {})").format(leaf.identifier, same)
    for key in keys:
        row = cursor.execute(statement, key).fetchone()
        found += bool(row and row[0])
    return found


def whole_bundle(_ground: CheckScope, _snapshot: Snapshot) -> Sequence[int]:
    """One unit of work for all nodes."""
    return (0,)


def look_at_map(ground: CheckScope, _unit: CheckUnit) -> CheckResult:
    """Whether every node owns what the directory gives it, and nothing else."""
    before = ground.snapshot()
    poll = ground.poller.poll(before, addresses_of([ground.bundle]))
    bracket = MapBeforeAfter(before, ground.snapshot())
    anomalies = []
    for node, found in _disagreements(poll):
        if found.tablet is None or (bracket.still(found.tablet) and ground.concerns(found.tablet)):
            table = _table_name(bracket.after, found.tablet)
            anomalies.append(
                Anomaly(
                    CheckKind.MAP,
                    f"node {node}: {found.text}",
                    table=table,
                    tablet=found.tablet,
                    node=node,
                    advice=f"balancer doctor --node {node}",
                    about=str(found.kind),
                )
            )
    silent = [
        f"node {node}: {report.reason}"
        for node, report in poll.nodes.items()
        if report.health in (Health.UNREACHABLE, Health.STANDBY)
    ]
    return CheckResult(tuple(one for one in anomalies if _is_wanted(ground, one)), unchecked="; ".join(silent[:3]))


def _is_wanted(ground: CheckScope, anomaly: Anomaly) -> bool:
    return ground.tables is None or not anomaly.table or anomaly.table in ground.tables


def _disagreements(poll: ClusterPoll) -> Iterator[tuple[str, Disagreement]]:
    for node, report in sorted(poll.nodes.items()):
        for found in report.disagreements:
            yield node, found


def _table_name(snapshot: Snapshot, tablet: int | None) -> str:
    found = None if tablet is None else snapshot.find_tablet(tablet)
    return "" if found is None else snapshot.tables[found.table].name


def look_for_strays(ground: CheckScope, _unit: CheckUnit) -> CheckResult:
    """Partitions that a node has attached, takes writes for and does not own: one key on two nodes."""
    anomalies: list[Anomaly] = []
    unchecked = []
    for node in sorted(ground.bundle.nodes):
        try:
            anomalies += _strays_of(ground, node)
        except BalancerError as error:
            unchecked.append(f"node {node}: {error}")
    return CheckResult(tuple(anomalies), unchecked="; ".join(unchecked[:3]))


def _strays_of(ground: CheckScope, node: str) -> Iterator[Anomaly]:
    before = ground.snapshot()
    if node not in before.nodes:
        return
    tables = {
        parse_name(root): table
        for table in before.tables.values()
        if ground.wanted(table) and not table.everywhere
        for root in table.roots
    }
    with translated(node), ground.links.control(node).cursor() as cursor:
        leaves = attached_leaves(cursor, list(tables))
    bracket = MapBeforeAfter(before, ground.snapshot())
    expected = _given(before, tables.values(), node) | _given(bracket.after, tables.values(), node)
    moving = bracket.in_motion()
    for leaf in leaves:
        if leaf.name not in expected and leaf.name not in moving and not leaf.closed and leaf.bound != "DEFAULT":
            yield _stray(ground, node, tables[leaf.root], leaf)


def _given(snapshot: Snapshot, tables: Iterable[Table], node: str) -> set[Name]:
    """The partitions that the map gives to a node."""
    return {
        name
        for table in set(tables)
        for tablet in snapshot.tablets(table.id)
        if tablet.node == node
        for name in partitions_of(table, tablet)
    }


def _stray(ground: CheckScope, node: str, table: Table, leaf: AttachedLeaf) -> Anomaly:
    rows, keys = _content(ground, node, table, leaf)
    snapshot = ground.snapshot()
    owners: dict[int, list[tuple[Any, ...]]] = {}
    for key in keys:
        owners.setdefault(snapshot.locate(table.id, key_position(table, key)).id, []).append(key)
    twice = sum(_present(ground, tablet, leaf.root, mine) for tablet, mine in owners.items())
    first = min(owners, default=None) if owners else _owner_of(snapshot, table, leaf)
    owner = "" if first is None else f"; tablet {first} of node {snapshot.tablet(first).node} has these keys"
    said = f"{rows} or more rows" if rows >= MOST_COUNTED else f"{rows} rows"
    double = f"; of {len(keys)} keys that were looked up {twice} are there, too" if keys else ""
    return Anomaly(
        CheckKind.STRAYS,
        f"node {node} has {leaf.name} attached, which the map does not give to it, with {said}{owner}{double}",
        table=table.name,
        tablet=first,
        node=node,
        root=str(leaf.root),
        count=rows,
        advice="compare its rows with the owner's, then, on this node:"
        f" ALTER TABLE {leaf.root} DETACH PARTITION {leaf.name}",
        about=str(leaf.name),
    )


def _content(ground: CheckScope, node: str, table: Table, leaf: AttachedLeaf) -> tuple[int, list[tuple[Any, ...]]]:
    connection = ground.links.control(node)
    columns = [column.name for column in table.key_columns]
    with translated(node), connection.transaction(force_rollback=True), connection.cursor() as cursor:
        check_readable(cursor, [leaf.name], trusted=ground.trusts(node))
        return rows_up_to(cursor, leaf.name), some_keys(cursor, leaf.name, columns) if columns else []


def _present(ground: CheckScope, tablet: int, root: Name, keys: Sequence[tuple[Any, ...]]) -> int:
    """How many of these keys the owner also has; 0 if it cannot be asked."""
    found = 0

    def look(held: HeldTablet) -> CheckResult:
        nonlocal found
        place = [parse_name(text) for text in held.table.roots].index(root)
        leaf = partitions_of(held.table, held.tablet)[place]
        held.check_readable(ground, leaf)
        found = keys_present(held.cursor, leaf, [column.name for column in held.table.key_columns], keys)
        return CheckResult()

    on_owner(ground, tablet, look)
    return found


def _owner_of(snapshot: Snapshot, table: Table, leaf: AttachedLeaf) -> int | None:
    """The tablet that has the first of a partition's keys."""
    try:
        part = parse_bound(table.key_types, leaf.bound)
    except Refused:
        return None
    bounds = RangeBounds(part.lower, part.upper) if isinstance(part, KeyRange) else part
    return snapshot.locate(table.id, start_of(bounds)).id
