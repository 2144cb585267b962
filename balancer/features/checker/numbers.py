"""Numbers and copies on several nodes: overlapping sequences, and copies of reference tables against their home."""

from collections.abc import Iterator, Sequence
from itertools import combinations

from balancer.directory.model import Table
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.features.checker.evidence import CheckScope, MapBeforeAfter
from balancer.features.reference.findings import copy_findings
from balancer.naming import Name, parse_name
from balancer.nodes.catalog.sequences import NumberSeries, common_number, sequence_series
from balancer.nodes.session.connection import translated
from balancer.policies.check_options import CheckKind
from balancer.policies.checking import Anomaly, CheckResult, CheckUnit


def tables_on_nodes(ground: CheckScope, snapshot: Snapshot) -> Sequence[int]:
    """Tables of which several nodes have rows at the same time."""
    return sorted(table.id for table in snapshot.tables.values() if ground.wanted(table) and not table.whole)


def look_at_sequences(ground: CheckScope, unit: CheckUnit) -> CheckResult:
    """Sequences behind one column that hand out the same numbers on two nodes."""
    snapshot = ground.snapshot()
    table = snapshot.tables.get(unit.subject)
    if table is None:
        return CheckResult()
    owners = sorted({tablet.node for tablet in snapshot.tablets(table.id)})
    anomalies: list[Anomaly] = []
    for root in map(parse_name, table.roots):
        series: dict[str, dict[str, NumberSeries]] = {}
        for node in owners:
            try:
                with translated(node), ground.links.control(node).cursor() as cursor:
                    for name, found in sequence_series(cursor, root).items():
                        series.setdefault(name, {})[node] = found
            except BalancerError as error:
                return CheckResult(unchecked=f"the sequences of table {table.name}: {error}")
        for name, by_node in series.items():
            anomalies += _overlap(table, root, name, by_node)
    return CheckResult(tuple(anomalies))


def _overlap(table: Table, root: Name, sequence: str, by_node: dict[str, NumberSeries]) -> Iterator[Anomaly]:
    """The first pair of nodes stands for all; one sentence for each would be many."""
    pairs = [
        (one, other, number)
        for one, other in combinations(sorted(by_node), 2)
        if (number := common_number(by_node[one], by_node[other])) is not None
    ]
    if pairs:
        one, other, number = pairs[0]
        count = len(by_node)
        yield Anomaly(
            CheckKind.SEQUENCES,
            f"sequence {sequence} of {root} hands out the same numbers on {one} and {other}, the lowest is {number}",
            table=table.name,
            node=f"{one}, {other}",
            root=str(root),
            count=len(pairs),
            advice=f"ALTER SEQUENCE {sequence} INCREMENT BY {count} RESTART WITH another remainder of {count} on each"
            " node (spread_sequences does so for new tables), or take ids from router.ids",
            about=sequence,
        )


def look_at_copies(ground: CheckScope, _unit: CheckUnit) -> CheckResult:
    """Copies of reference tables whose rows differ from their home's. Missing copies are being made."""
    before = ground.snapshot()
    nodes = [node for node in sorted(ground.bundle.nodes) if node in before.nodes]
    found = list(copy_findings(before, ground.links, nodes))
    bracket = MapBeforeAfter(before, ground.snapshot())
    homes = {table.name: tablet.id for table in before.tables.values() for tablet in before.tablets(table.id)[:1]}
    anomalies = tuple(
        Anomaly(
            CheckKind.COPIES,
            f"node {one.node}: {one.text}",
            table=one.table,
            tablet=homes.get(one.table),
            node=one.node,
            advice=f"the home is right: on {one.node} drop the subscription of the copy, and the leader fills it again",
            about=one.node,
        )
        for one in found
        if one.differs
        and bracket.still(homes.get(one.table, 0))
        and (ground.tables is None or one.table in ground.tables)
    )
    waits = [f"node {one.node}: {one.text}" for one in found if not one.differs and one.table]
    return CheckResult(anomalies, unchecked="; ".join(waits[:3]))
