"""Makes plain tables a reference table of a bundle: one node becomes their home, and the daemon makes the copies.

Nothing about them changes except triggers that the daemon adds. Everything is checked first; the directory's commit is
the moment; then the home is told. After an interruption, run it again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from balancer.directory.contract import Directory, commit_on_newest
from balancer.directory.model import Layout, Node, Put, Table, Tablet, Transaction
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused
from balancer.features.tables.adopt import TableRequest, missing_parents, next_ids, reserved, tell_nodes
from balancer.naming import Name
from balancer.nodes.catalog.owners_code import owners_code, owners_code_words
from balancer.nodes.definitions.root import make_roots, read_plain_definition
from balancer.nodes.schema.install import install_schema
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.connection import Connection, Cursor, translated
from balancer.nodes.tablets.partition import run_definition
from balancer.nodes.tablets.reference_copies import check_home, content, copied_columns, guard_home
from balancer.policies.keyspace.hash_leaves import Leaf

_FACTS = """
SELECT c.relkind::text, c.relpersistence = 'p',
       NOT EXISTS (SELECT FROM pg_inherits WHERE c.oid IN (inhparent, inhrelid)),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate),
       c.relreplident = 'd', c.relrowsecurity,
       (SELECT min(format('%%I, which points to %%s', k.conname, k.confrelid::regclass)) FROM pg_constraint k
        WHERE k.conrelid = c.oid AND k.contype = 'f' AND k.confrelid <> ALL(%(together)s::regclass[])),
       pg_has_role(c.relowner, 'USAGE')
FROM pg_class c WHERE c.oid = to_regclass(%(name)s)
"""


@dataclass(frozen=True, slots=True)
class FoundReference:
    """What was found: which node will be the home, and which have the tables already, or lack them."""

    table: str
    home: str
    others: tuple[str, ...]
    without: tuple[str, ...]


def inspect_reference(request: TableRequest, nodes: Mapping[str, Connection]) -> FoundReference:
    """What would be adopted; refuses what would be refused. Changes nothing."""
    having = [node for node, connection in nodes.items() if _has(request, node, connection)]
    if not having:
        names = ", ".join(map(str, request.roots))
        raise Refused(f"table {request.name}: no node of the bundle has {names}")
    home = having[0]
    for node in having:
        _check_home(request, node, nodes[node])
    contents = {node: _contents(request, node, nodes[node]) for node in having}
    filled = {node: found for node, found in contents.items() if any(count for count, _ in found)}
    if len(set(filled.values())) > 1:
        counts = ", ".join(f"{sum(count for count, _ in found)} on {node}" for node, found in filled.items())
        raise Refused(
            f"table {request.name}: its nodes have different rows ({counts}): leave those that count on one node, and"
            " empty the tables on the others"
        )
    home = next(iter(filled), home)
    without = tuple(node for node in nodes if node not in having)
    _try_tables(request, nodes, home, without)
    return FoundReference(request.name, home, tuple(node for node in having if node != home), without)


def _has(request: TableRequest, node: str, connection: Connection) -> bool:
    with translated(node):
        rows = [connection.execute("SELECT to_regclass(%s)", (str(name),)).fetchone() for name in request.roots]
    there = [name for name, row in zip(request.roots, rows, strict=True) if row and row[0] is not None]
    missing = [str(name) for name in request.roots if name not in there]
    if there and missing:
        raise Refused(f"table {request.name}: node {node} has {there[0]}, but not {', '.join(missing)}")
    return bool(there)


def _check_home(request: TableRequest, node: str, connection: Connection) -> None:
    with translated(node), connection.transaction(), connection.cursor() as cursor:
        wrong = [text for name in request.roots for text in _unfit(cursor, name, request.roots)]
        if not wrong and not request.trusts_owners:
            found = [(root, owners_code(cursor, [root])) for root in request.roots]
            wrong += [owners_code_words(root, code) for root, code in found if code]
    if wrong:
        raise Refused(f"table {request.name} on node {node}: {'; '.join(wrong)}")


def _unfit(cursor: Cursor, name: Name, together: Sequence[Name]) -> Iterator[str]:
    row = cursor.execute(_FACTS, {"name": str(name), "together": [str(one) for one in together]}).fetchone()
    assert row is not None, name
    kind, logged, alone, keyed, by_key, secured, outside, acts = row
    if kind != "r" or not alone:
        yield f"{name} is not an ordinary table: a reference table is neither partitioned nor inherited"
    if not logged:
        yield f"{name} is unlogged or temporary: its copies could not follow it"
    if not keyed:
        yield f"{name} has no primary key, or a deferrable one: its copies could not follow changes"
    if not by_key:
        yield f"{name} has another replica identity than its primary key: ALTER TABLE {name} REPLICA IDENTITY DEFAULT"
    if secured:
        yield f"{name} has row level security, which replication does not go round"
    if outside is not None:
        yield f"{name} has the foreign key {outside}: a reference table points to tables of its own group only"
    if not acts:
        yield f"the balancer's role does not act for the owner of {name}: GRANT the owner's role to it"


def _contents(request: TableRequest, node: str, connection: Connection) -> tuple[tuple[int, int], ...]:
    with translated(node), connection.transaction(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL TimeZone TO 'UTC'")
        cursor.execute("SET LOCAL DateStyle TO 'ISO'")
        return tuple(content(cursor, copied_columns(cursor, name)) for name in request.roots)


def _try_tables(request: TableRequest, nodes: Mapping[str, Connection], home: str, without: Sequence[str]) -> None:
    """Makes the missing tables and rolls back: only PostgreSQL can tell what else they need."""
    with translated(home), nodes[home].cursor() as cursor:
        definitions = [read_plain_definition(cursor, name) for name in request.roots]
    for node in without:
        try:
            with translated(node), nodes[node].transaction(force_rollback=True), nodes[node].cursor() as cursor:
                make_roots(cursor, definitions, trusted=request.trusts_owners)
        except Refused as error:
            raise Refused(f"table {request.name} cannot be made on node {node}: {error}") from error


def adopt_reference(
    request: TableRequest, directory: Directory, nodes: Mapping[str, Connection], records: Sequence[Node], cluster: str
) -> tuple[Table, Tablet]:
    """Takes the tables over. Run again, it tells the home once more."""
    known = _known(request, directory.snapshot())
    found = inspect_reference(request, nodes) if known is None else None
    for node, connection in nodes.items():
        install_schema(connection, cluster, node)
    table, tablet = known or _record(request, directory, records, found.home if found else "")
    epoch = directory.snapshot().epoch
    tell_nodes(epoch, table, [tablet], nodes)
    if tablet.node in nodes:
        with node_transaction(nodes[tablet.node], epoch, tablet.node) as cursor:
            check_home(cursor, request.roots, tablet.id, tablet.epoch)
            guard_home(cursor, request.roots, tablet.id)
    return table, tablet


def create_reference(
    request: TableRequest, nodes: Mapping[str, Connection], leader_epoch: int, cluster: str, definition: str
) -> None:
    """Makes the tables on the first node, if none has them; that will be their home."""
    if any(_has(request, node, connection) for node, connection in nodes.items()):
        return
    node, connection = next(iter(nodes.items()))
    install_schema(connection, cluster, node)
    with node_transaction(connection, leader_epoch, node) as cursor:
        run_definition(cursor, definition)
        for name in request.roots:
            if cursor.execute("SELECT to_regclass(%s)", (str(name),)).fetchone() in (None, (None,)):
                raise Refused(f"table {request.name}: the definition does not make {name}")
            for text in _unfit(cursor, name, request.roots):
                raise Refused(f"table {request.name}: {text}")


def _known(request: TableRequest, snapshot: Snapshot) -> tuple[Table, Tablet] | None:
    known = [table for table in snapshot.tables.values() if table.name == request.name]
    if not known:
        return None
    if not known[0].everywhere or known[0].roots != tuple(map(str, request.roots)):
        raise Refused(f"table {request.name} is in the directory already, as another one than the file describes")
    return known[0], snapshot.tablets(known[0].id)[0]


def _record(request: TableRequest, directory: Directory, records: Sequence[Node], home: str) -> tuple[Table, Tablet]:
    def propose(snapshot: Snapshot) -> tuple[Transaction | None, tuple[Table, Tablet]]:
        if known := _known(request, snapshot):
            return None, known
        table_id, tablet_id = next_ids(snapshot)
        roots = tuple(map(str, request.roots))
        table = Table(table_id, request.name, request.bundle, Layout.EVERYWHERE, (), roots)
        tablet = Tablet(tablet_id, table_id, Leaf(1, 0), home, partitions=tuple(name.name for name in request.roots))
        changes = (
            *missing_parents(request.bundle, snapshot, records),
            Put(table),
            Put(tablet),
            *reserved(table_id, tablet_id),
        )
        reason = f"adopt reference table {request.name} with its home on {home}"
        return Transaction(changes, snapshot.version, reason, request.author), (table, tablet)

    return commit_on_newest(directory, propose, f"table {request.name} could not be recorded")
