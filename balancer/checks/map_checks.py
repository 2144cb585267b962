"""The map against the nodes: which node claims what, and partitions that are attached where they do not belong."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from balancer.checks.ground import Bracket, Ground, HeldTablet, on_owner
from balancer.client.locate import key_position
from balancer.directory.model import RangeBounds, Table
from balancer.directory.pages import start_of
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Refused
from balancer.migration.context import partitions_of
from balancer.nodes.bounds import KeyRange, parse_bound
from balancer.nodes.connection import translated
from balancer.nodes.names import Name, parse_name
from balancer.nodes.ownership import Disagreement
from balancer.nodes.readable import check_readable
from balancer.nodes.stray_leaves import MOST_COUNTED, AttachedLeaf, attached_leaves, keys_present, rows_up_to, some_keys
from balancer.policies.check_options import CheckKind
from balancer.policies.checking import Anomaly, CheckUnit, Look
from balancer.polling.addresses import addresses_of
from balancer.polling.poller import ClusterPoll, Health


def whole_bundle(_ground: Ground, _snapshot: Snapshot) -> Sequence[int]:
    """One unit of work for all nodes."""
    return (0,)


def look_at_map(ground: Ground, _unit: CheckUnit) -> Look:
    """Whether every node owns what the directory gives it, and nothing else."""
    before = ground.snapshot()
    poll = ground.poller.poll(before, addresses_of([ground.bundle]))
    bracket = Bracket(before, ground.snapshot())
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
    return Look(tuple(one for one in anomalies if _is_wanted(ground, one)), unchecked="; ".join(silent[:3]))


def _is_wanted(ground: Ground, anomaly: Anomaly) -> bool:
    return ground.tables is None or not anomaly.table or anomaly.table in ground.tables


def _disagreements(poll: ClusterPoll) -> Iterator[tuple[str, Disagreement]]:
    for node, report in sorted(poll.nodes.items()):
        for found in report.disagreements:
            yield node, found


def _table_name(snapshot: Snapshot, tablet: int | None) -> str:
    found = None if tablet is None else snapshot.find_tablet(tablet)
    return "" if found is None else snapshot.tables[found.table].name


def look_for_strays(ground: Ground, _unit: CheckUnit) -> Look:
    """Partitions that a node has attached, takes writes for and does not own: one key on two nodes."""
    anomalies: list[Anomaly] = []
    unchecked = []
    for node in sorted(ground.bundle.nodes):
        try:
            anomalies += _strays_of(ground, node)
        except BalancerError as error:
            unchecked.append(f"node {node}: {error}")
    return Look(tuple(anomalies), unchecked="; ".join(unchecked[:3]))


def _strays_of(ground: Ground, node: str) -> Iterator[Anomaly]:
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
    bracket = Bracket(before, ground.snapshot())
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


def _stray(ground: Ground, node: str, table: Table, leaf: AttachedLeaf) -> Anomaly:
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


def _content(ground: Ground, node: str, table: Table, leaf: AttachedLeaf) -> tuple[int, list[tuple[Any, ...]]]:
    connection = ground.links.control(node)
    columns = [column.name for column in table.key_columns]
    with translated(node), connection.transaction(force_rollback=True), connection.cursor() as cursor:
        check_readable(cursor, [leaf.name], trusted=ground.trusts(node))
        return rows_up_to(cursor, leaf.name), some_keys(cursor, leaf.name, columns) if columns else []


def _present(ground: Ground, tablet: int, root: Name, keys: Sequence[tuple[Any, ...]]) -> int:
    """How many of these keys the owner also has; 0 if it cannot be asked."""
    found = 0

    def look(held: HeldTablet) -> Look:
        nonlocal found
        place = [parse_name(text) for text in held.table.roots].index(root)
        leaf = partitions_of(held.table, held.tablet)[place]
        held.check_readable(ground, leaf)
        found = keys_present(held.cursor, leaf, [column.name for column in held.table.key_columns], keys)
        return Look()

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
