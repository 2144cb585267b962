"""Gives the nodes of a table lanes for the numbers that they hand out (`nodes.number_lanes`). Called by `adopt`.

A lane is taken from a counter in the directory before a node uses it, and is never assigned again: a lost node, or an
adoption that died, costs a lane and nothing else. A node's own sequences say what its lane is.
"""

from collections.abc import Mapping

from balancer.directory.contract import Directory
from balancer.directory.model import Counter, Put, Transaction
from balancer.directory.newest import commit_on_newest
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused
from balancer.nodes.connection import Connection, translated
from balancer.nodes.epoch_check import node_transaction
from balancer.nodes.number_lanes import STRIDE, DrawnSequence, read_drawn, spread
from balancer.tables.survey import Found


def check_lanes(found: Found, nodes: Mapping[str, Connection]) -> None:
    """Raises `Refused` if the table's sequences cannot be spread. Changes nothing."""
    by_node = _drawn(found, nodes)
    plain = sorted(node for node, drawn in by_node.items() if any(one.lane is None for one in drawn))
    if len(by_node) > 1 and plain:
        raise Refused(
            f"table {found.table}: its sequences are on nodes {', '.join(sorted(by_node))} already and count by a rule"
            " of their own there: leave spread_sequences out, and make the table on further nodes yourself"
        )
    for drawn in by_node.values():
        for one in drawn:
            if one.unfit:
                raise Refused(f"table {found.table}: {one.unfit}")
        if len({one.lane for one in drawn}) > 1:
            raise Refused(f"table {found.table}: some of its sequences are spread and others are not, or differently")


def take_lanes(
    table: str, directory: Directory, found: Found, nodes: Mapping[str, Connection], leader_epoch: int
) -> dict[str, int]:
    """The lane of each node; existing sequences are spread first, so that others begin above them."""
    check_lanes(found, nodes)
    by_node = _drawn(found, nodes)
    if not any(by_node.values()):
        return {}
    lanes = {node: drawn[0].lane for node, drawn in by_node.items() if drawn and drawn[0].lane is not None}
    without = [node for node in nodes if node not in lanes]
    fresh = reserve_lanes(directory, table, len(without)) if without else 0
    lanes |= {node: fresh + place for place, node in enumerate(without)}
    for node in without:
        if node in by_node:
            with node_transaction(nodes[node], leader_epoch, node) as cursor:
                for one in by_node[node]:
                    spread(cursor, one, lanes[node])
    return lanes


def _drawn(found: Found, nodes: Mapping[str, Connection]) -> dict[str, list[DrawnSequence]]:
    """What the nodes that have the roots draw from."""
    roots = [root.name for root in found.roots]
    by_node = {}
    for node, connection in nodes.items():
        if node not in found.without:
            with translated(node), connection.cursor() as cursor:
                by_node[node] = read_drawn(cursor, roots)
    return by_node


def reserve_lanes(directory: Directory, table: str, count: int) -> int:
    """The first of this many lanes that nobody had."""
    name = f"lanes of {table}"

    def propose(snapshot: Snapshot) -> tuple[Transaction | None, int]:
        first = (snapshot.counters.get(name) or Counter(name, 0)).next
        if first + count > STRIDE:
            raise Refused(f"table {table} has had {first} nodes that hand out numbers; {STRIDE} is the most")
        change = Put(Counter(name, first + count))
        return Transaction((change,), snapshot.version, f"reserve lanes of table {table}", "adopt"), first

    return commit_on_newest(directory, propose, f"lanes of table {table} could not be reserved")
