"""Makes a converted table plain again, as long as it has one tablet; or undoes a conversion that was begun.

Order: the directory forgets the table, so that no migration begins; its node forgets the tablet; one short transaction
swaps back; foreign keys are validated and materialised views replaced; the empty root is dropped. Each step finds what
an interrupted run has left. Roots on other nodes stay: they are empty, and somebody may use them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from balancer.directory.contract import Directory
from balancer.directory.model import RecordKind, Remove, Tablet, Transaction
from balancer.directory.newest import commit_on_newest
from balancer.directory.snapshot import Snapshot
from balancer.errors import Conflict, Refused
from balancer.nodes.connection import Connection, Cursor, Statement, translated
from balancer.nodes.conversion import read_conversions, stub_name
from balancer.nodes.epoch_check import node_transaction
from balancer.nodes.footprint import footprint
from balancer.nodes.near_keys import read_near_keys
from balancer.nodes.preparation import drop_index, drop_stubs, unused_indexes
from balancer.nodes.proof import set_proof
from balancer.nodes.reversion import Reversion, lock_reversions, read_reversions, revert_statements
from balancer.nodes.root_facts import full_names
from balancer.nodes.schema import forget_tablets, installed, read_tablets
from balancer.tables.adopt import TableRequest
from balancer.tables.convert import ATTEMPTS, finish_views, run_all
from balancer.tables.intent import find_plain, leaves_of, one_leaf
from balancer.tables.swapping import Workplace, WorkplaceOf


@dataclass(frozen=True, slots=True)
class Unconverted:
    """The result."""

    node: str
    pause: float | None
    """Seconds for which others waited; None: the swap back had happened before, or there never was a swap."""
    kept: tuple[str, ...]
    """Nodes that keep empty roots."""


def plan_unconversion(request: TableRequest, directory: Directory, nodes: Mapping[str, Connection]) -> list[Statement]:
    """What the swap back would do; raises `Refused` naming what is in the way. Changes nothing."""
    _check_tablets(request, directory.snapshot())
    node = _home(request, nodes)
    with translated(node), nodes[node].transaction(), nodes[node].cursor() as cursor:
        if find_plain(cursor, request.roots):
            return []
        reversions = _read(cursor, request)
    return [*lock_reversions(reversions), *revert_statements(reversions)]


def unconvert(
    request: TableRequest, directory: Directory, nodes: Mapping[str, Connection], *, workplace: WorkplaceOf
) -> Unconverted:
    """Makes the table's roots plain tables again. Run again after an interruption, it continues."""
    plan_unconversion(request, directory, nodes)
    node = _home(request, nodes)
    place = workplace(node, nodes[node], directory.snapshot().epoch)
    with translated(node), place.connection.cursor() as cursor:
        plain = find_plain(cursor, request.roots)
        if not installed(cursor):
            raise Refused(f"table {request.name} is not converted, and no conversion of it was begun")
    place.observe("directory")
    _forget(request, directory)
    pause = None
    for attempt in range(0 if plain else ATTEMPTS):
        try:
            pause = _swap_back(place, request)
            break
        except Conflict:
            if attempt == ATTEMPTS - 1:
                raise
    _finish(place, request)
    return Unconverted(node, pause, tuple(other for other in nodes if other != node and _has(nodes[other], request)))


def _home(request: TableRequest, nodes: Mapping[str, Connection]) -> str:
    """The node with the rows: as plain tables, or as the one leaf of each root."""
    found = []
    for node, connection in nodes.items():
        with translated(node), connection.cursor() as cursor:
            if find_plain(cursor, request.roots) or one_leaf(cursor, request.roots):
                found.append(node)
    if len(found) != 1:
        where = f"nodes {' and '.join(found)} have it" if found else "no node has it whole, with one partition"
        raise Refused(f"table {request.name}: {where}; only a table with one tablet can become a plain one again")
    return found[0]


def _has(connection: Connection, request: TableRequest) -> bool:
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (str(request.roots[0]),)).fetchone()
    return bool(row and row[0])


def _check_tablets(request: TableRequest, snapshot: Snapshot) -> list[Tablet]:
    known = [table for table in snapshot.tables.values() if table.name == request.name]
    tablets = list(snapshot.tablets(known[0].id)) if known else []
    if len(tablets) > 1:
        raise Refused(f"table {request.name} has {len(tablets)} tablets: merge them until there is one, then undo it")
    if known and known[0].message_roots is not None:
        raise Refused(
            f"table {request.name} takes part in messages, and its outbox and inbox would be lost: say"
            f" `balancer messages disable {request.bundle} {request.name}` first"
        )
    return tablets


def _forget(request: TableRequest, directory: Directory) -> None:
    def propose(snapshot: Snapshot) -> tuple[Transaction | None, None]:
        tablets = _check_tablets(request, snapshot)
        if not tablets:
            return None, None
        table = str(tablets[0].table)
        pins = [Remove(RecordKind.PIN, str(t.id)) for t in tablets if snapshot.find(RecordKind.PIN, str(t.id))]
        gone = [Remove(RecordKind.TABLET, str(tablet.id)) for tablet in tablets]
        reason = f"table {request.name} becomes a plain one again"
        changes = (*pins, *gone, Remove(RecordKind.TABLE, table))
        return Transaction(changes, snapshot.version, reason, request.author), None

    commit_on_newest(directory, propose, f"table {request.name} could not be forgotten")


def _read(cursor: Cursor, request: TableRequest) -> list[Reversion]:
    with full_names(cursor):
        found = read_reversions(cursor, request.roots, whole=request.whole)
    if refusals := [text for reversion in found for text in reversion.refusals]:
        raise Refused(f"table {request.name}: {'; '.join(dict.fromkeys(refusals))}")
    return found


def _swap_back(place: Workplace, request: TableRequest) -> float:
    with node_transaction(place.connection, place.leader_epoch, place.node) as cursor:
        set_proof(cursor, request.roots, wanted=False)

    def work(cursor: Cursor) -> None:
        leaves = leaves_of(cursor, request.roots)
        concerned = [*request.roots, *leaves]
        before = footprint(cursor, concerned)
        planned = _read(cursor, request)
        forgotten = [tablet.id for tablet in read_tablets(cursor) if {*leaves} & {*tablet.partitions}]
        place.lock(cursor, lock_reversions(planned))
        if footprint(cursor, concerned) != before:
            raise Conflict(f"the definition of table {request.name} has changed meanwhile: run it again")
        forget_tablets(cursor, forgotten)
        run_all(revert_statements(planned), cursor)
        place.observe("swap back")

    return place.short(request.roots, work)


def _finish(place: Workplace, request: TableRequest) -> None:
    with translated(place.node), place.connection.cursor() as cursor, full_names(cursor):
        keys = read_near_keys(cursor, request.roots, request.roots)
        conversions = read_conversions(cursor, request.roots, request.layout, request.key, widen=True)
        indexes = unused_indexes(cursor, conversions)
    for key in keys:
        if not key.validated:
            place.observe(f"foreign key {key.name}")
            place.long(key.validate(), request.roots)
    finish_views(place, [stub_name(root) for root in request.roots])
    for table, index in indexes:
        place.observe(f"index {index}")
        with translated(place.node):
            drop_index(place.connection, table, index)
    place.observe("empty roots")
    place.short(request.roots, partial(drop_stubs, request.roots))
