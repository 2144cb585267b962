"""Takes over a partitioned table that somebody else made: partitions become tablets, and nothing about them changes.

Order: everything is read and checked; missing roots are made on the other nodes; the directory's commit is the moment
of adoption; then each node is told what it owns. After an interruption, run it again: if the directory already has the
table as found, only the nodes are told once more.

Gives the nodes of a table lanes for the numbers that they hand out (`nodes.catalog.sequences`). Called by `adopt`.

A lane is taken from a counter in the directory before a node uses it, and is never assigned again: a lost node, or an
adoption that died, costs a lane and nothing else. A node's own sequences say what its lane is.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from balancer.directory.contract import Directory, commit_on_newest
from balancer.directory.invariants import TABLET_COUNTER
from balancer.directory.model import (
    Bounds,
    Bundle,
    Change,
    Counter,
    KeyColumn,
    Layout,
    Node,
    Put,
    RangeBounds,
    RecordKind,
    Table,
    Tablet,
    Transaction,
)
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused
from balancer.features.tables.survey import Found, check_coverage, in_key_order, survey
from balancer.naming import Name, parse_name
from balancer.nodes.catalog.bounds import Part
from balancer.nodes.catalog.roots import EVERYWHERE, WHOLE, Root
from balancer.nodes.catalog.sequences import STRIDE, DrawnSequence, read_drawn, spread
from balancer.nodes.definitions.root import Definition, make_roots, read_definition
from balancer.nodes.schema.install import OwnedTablet, OwnState, add_tablets, install_schema
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.schema.proof import set_proof
from balancer.nodes.session.connection import Connection, translated
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.settings import BundleSettings

TABLE_COUNTER = "table"


@dataclass(frozen=True, slots=True)
class TableRequest:
    """What the user wants: a table of a bundle by its roots; layout and key as the file says, to be compared."""

    bundle: str
    name: str
    roots: tuple[Name, ...]
    layout: str
    key: tuple[str, ...]
    author: str
    others: frozenset[Name] = frozenset()
    """The roots of every other table: no foreign key may point to them."""
    require_proof: bool = False
    trusts_owners: bool = False
    """Whether code of the tables' owners may run with our rights."""
    spreads_sequences: bool = False
    """Whether each node hands out numbers of its own from the sequences of the tables' columns."""

    @property
    def whole(self) -> bool:
        """Whether it is one tablet without a key."""
        return self.layout == WHOLE


def request_of(bundle: BundleSettings, name: str, author: str) -> TableRequest:
    """A table as its bundle's file describes it, if it does."""
    shape = bundle.tables[name]
    roots = tuple(parse_name(root) for root in shape.roots)
    sharded = (table for table in bundle.tables.values() if table.layout != EVERYWHERE)
    others = frozenset(parse_name(root) for table in sharded for root in table.roots) - {*roots}
    trusts = bundle.migration.trust_table_owners
    return TableRequest(
        bundle.name,
        name,
        roots,
        shape.layout,
        shape.key,
        author,
        others,
        shape.require_proof,
        trusts,
        shape.spread_sequences,
    )


@dataclass(frozen=True, slots=True)
class Adopted:
    """The result: the table and its tablets in key order."""

    table: Table
    tablets: tuple[Tablet, ...]
    found: Found


def inspect(request: TableRequest, nodes: Mapping[str, Connection]) -> Found:
    """What an adoption would take over; refuses what it would refuse. Changes nothing."""
    found = survey(
        request.name,
        request.roots,
        nodes,
        request.others,
        trusts_owners=request.trusts_owners,
        whole=request.whole,
    )
    check_request(request, found.roots[0])
    if request.whole and len(found.tablets) > 1:
        raise Refused(f"table {request.name} has {len(found.tablets)} partitions; a whole table has one on one node")
    check_coverage(request.name, found.roots[0].columns, found.tablets)
    _try_roots(request, found, nodes)
    return found


def _try_roots(request: TableRequest, found: Found, nodes: Mapping[str, Connection]) -> None:
    """Makes the missing roots and rolls back: only PostgreSQL can tell what else they need."""
    definitions = _definitions(found, nodes, 0 if request.spreads_sequences else None)
    if request.spreads_sequences:
        check_lanes(found, nodes)
    for node in found.without:
        with (
            _said_of(found.table, node),
            nodes[node].transaction(force_rollback=True),
            nodes[node].cursor() as cursor,
        ):
            make_roots(cursor, definitions, trusted=request.trusts_owners)


@contextmanager
def _said_of(table: str, node: str) -> Iterator[None]:
    try:
        with translated(node):
            yield
    except Refused as error:
        raise Refused(f"table {table} cannot be made on node {node}: {error}") from error


def check_request(request: TableRequest, root: Root) -> None:
    """Refuses a table that differs from the file's description. What a whole one needs is read with its roots."""
    if request.whole:
        return
    names = tuple(column.name for column in root.columns)
    if (root.layout, names) != (request.layout, request.key):
        raise Refused(
            f"table {request.name}: the bundle's file says {request.layout} by ({', '.join(request.key)}),"
            f" but {root.name} is {root.layout} by ({', '.join(names)})"
        )


def adopt(
    request: TableRequest, directory: Directory, nodes: Mapping[str, Connection], records: Sequence[Node], cluster: str
) -> Adopted:
    """Takes the table over. `records` are the bundle's nodes, put into the directory if they are missing."""
    found = inspect(request, nodes)
    for node, connection in nodes.items():
        install_schema(connection, cluster, node)
    epoch = directory.snapshot().epoch
    lanes = take_lanes(request.name, directory, found, nodes, epoch) if request.spreads_sequences else {}
    spread_roots(request, found, nodes, epoch, lanes)
    table, tablets = _record(request, found, directory, records)
    tell_nodes(directory.snapshot().epoch, table, tablets, nodes)
    require_proofs(request, nodes, directory.snapshot().epoch)
    return Adopted(table, tuple(tablets), found)


def spread_roots(
    request: TableRequest,
    found: Found,
    nodes: Mapping[str, Connection],
    leader_epoch: int,
    lanes: Mapping[str, int] | None = None,
) -> None:
    """Makes the roots, without partitions, on the nodes that lack them."""
    for node in found.without:
        definitions = _definitions(found, nodes, (lanes or {}).get(node))
        with _said_of(found.table, node), node_transaction(nodes[node], leader_epoch, node) as cursor:
            make_roots(cursor, definitions, trusted=request.trusts_owners)


def _definitions(found: Found, nodes: Mapping[str, Connection], lane: int | None) -> list[Definition]:
    if not found.without:
        return []
    with nodes[found.home].cursor() as cursor:
        return [read_definition(cursor, root, whole=found.whole, lane=lane) for root in found.roots]


def tell_nodes(leader_epoch: int, table: Table, tablets: Sequence[Tablet], nodes: Mapping[str, Connection]) -> None:
    """Records on each node what it owns. Safe to repeat."""
    roots = [parse_name(root) for root in table.roots]
    for node, connection in nodes.items():
        mine = [tablet for tablet in tablets if tablet.node == node]
        with node_transaction(connection, leader_epoch, node) as cursor:
            # What the node has may be newer than our snapshot: a migration may have moved a tablet meanwhile.
            add_tablets(cursor, [owned_row(tablet, roots) for tablet in mine])


def require_proofs(request: TableRequest, nodes: Mapping[str, Connection], leader_epoch: int) -> None:
    """Closes the roots on every node to unproven writes, or opens them, as the file says. Safe to repeat."""
    for node, connection in nodes.items():
        with node_transaction(connection, leader_epoch, node) as cursor:
            set_proof(cursor, request.roots, wanted=request.require_proof)


def owned_row(tablet: Tablet, roots: Sequence[Name]) -> OwnedTablet:
    """The node's row of a tablet it owns."""
    names = tuple(Name(root.schema, name) for root, name in zip(roots, tablet.partitions, strict=True))
    return OwnedTablet(tablet.id, tablet.epoch, OwnState.OWNED, names)


def _record(
    request: TableRequest, found: Found, directory: Directory, records: Sequence[Node]
) -> tuple[Table, list[Tablet]]:
    def propose(snapshot: Snapshot) -> tuple[Transaction | None, tuple[Table, list[Tablet]]]:
        known = [table for table in snapshot.tables.values() if table.name == request.name]
        if known:
            return None, (known[0], _already(snapshot, known[0], found))
        table, tablets = _new_records(request, found, snapshot)
        changes = (
            *missing_parents(request.bundle, snapshot, records),
            Put(table),
            *map(Put, tablets),
            *reserved(table.id, tablets[-1].id),
        )
        reason = f"adopt table {request.name} with {len(tablets)} tablets"
        return Transaction(changes, snapshot.version, reason, request.author), (table, tablets)

    return commit_on_newest(directory, propose, f"table {request.name} could not be recorded")


def _new_records(request: TableRequest, found: Found, snapshot: Snapshot) -> tuple[Table, list[Tablet]]:
    table_id, first = next_ids(snapshot)
    table = table_record(request, found, table_id)
    tablets = [
        Tablet(
            id=number,
            table=table.id,
            bounds=to_bounds(tablet.part),
            node=tablet.node,
            partitions=tuple(name.name for name in tablet.partitions),
        )
        for number, tablet in enumerate(in_key_order(found.tablets), first)
    ]
    return table, tablets


def table_record(request: TableRequest, found: Found, table_id: int) -> Table:
    """The table as the directory records it."""
    root = found.roots[0]
    # For a whole table, one column of each root; otherwise all of them have the same ones.
    columns = [column for each in found.roots for column in each.columns] if request.whole else root.columns
    return Table(
        id=table_id,
        name=request.name,
        bundle=request.bundle,
        layout=Layout(request.layout),
        columns=tuple(KeyColumn(column.name, column.type) for column in columns),
        roots=tuple(str(root.name) for root in found.roots),
    )


def _already(snapshot: Snapshot, table: Table, found: Found) -> list[Tablet]:
    """The recorded tablets, if the nodes have exactly those."""
    recorded = list(snapshot.tablets(table.id))
    there = {(to_bounds(t.part), t.node, tuple(name.name for name in t.partitions)) for t in found.tablets}
    if {(t.bounds, t.node, t.partitions) for t in recorded} != there:
        raise Refused(f"table {table.name} is in the directory already, with other tablets than the nodes have")
    return recorded


def missing_parents(bundle: str, snapshot: Snapshot, records: Sequence[Node]) -> Iterator[Change]:
    """The bundle and its nodes, as far as the directory lacks them."""
    if snapshot.find(RecordKind.BUNDLE, bundle) is None:
        yield Put(Bundle(bundle))
    for node in records:
        if snapshot.find(RecordKind.NODE, node.id) is None:
            yield Put(node)


def next_ids(snapshot: Snapshot) -> tuple[int, int]:
    """The next table's id and the next tablet's; their counters may not exist yet."""
    table, tablet = (snapshot.counters.get(name) or Counter(name) for name in (TABLE_COUNTER, TABLET_COUNTER))
    return table.next, tablet.next


def reserved(table_id: int, last_tablet: int) -> tuple[Change, Change]:
    """Makes sure that ids up to these are never assigned again."""
    return Put(Counter(TABLE_COUNTER, table_id + 1)), Put(Counter(TABLET_COUNTER, last_tablet + 1))


def to_bounds(part: Part) -> Bounds:
    """A node's part as the directory records it."""
    return part if isinstance(part, Leaf) else RangeBounds(part.lower, part.upper)


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
