"""Makes a plain table on one node a table of the cluster: the only leaf of a root of its name, adopted as one tablet.

Order: everything is read and checked on all nodes (`plan`); what takes long is built alongside the writers; one short
transaction swaps; foreign keys and materialised views follow; then the ordinary adoption. Each step finds what an
interrupted run has left, so running it again continues, and `unconvert` undoes it at any moment.

Makes a converted table plain again, as long as it has one tablet; or undoes a conversion that was begun.

Order: the directory forgets the table, so that no migration begins; its node forgets the tablet; one short transaction
swaps back; foreign keys are validated and materialised views replaced; the empty root is dropped. Each step finds what
an interrupted run has left. Roots on other nodes stay: they are empty, and somebody may use them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from balancer.directory.contract import Directory, commit_on_newest
from balancer.directory.model import Node, RecordKind, Remove, Tablet, Transaction
from balancer.directory.snapshot import Snapshot
from balancer.errors import Conflict, Refused
from balancer.features.convert.plain_table import LEAF
from balancer.features.convert.plan import find_plain, leaves_of, one_leaf, plan_conversion, read_request
from balancer.features.convert.prepare import (
    Built,
    Reversion,
    bound_state,
    drop_index,
    drop_stubs,
    footprint,
    index_state,
    lock_reversions,
    make_stub,
    read_reversions,
    revert_statements,
    stub_state,
    unused_indexes,
    validate_bound,
)
from balancer.features.convert.statements import (
    Conversion,
    NewKey,
    lock_statements,
    read_conversions,
    stub_name,
    swap_statements,
)
from balancer.features.convert.swap import SwapSession, WorkplaceOf
from balancer.features.tables.adopt import Adopted, TableRequest, adopt
from balancer.naming import Name, partition_name
from balancer.nodes.catalog.owners_code import check_owners_code
from balancer.nodes.catalog.roots import full_names
from balancer.nodes.definitions.dependents import NearKey, read_near_keys
from balancer.nodes.definitions.name_transfer import fill_statements, pending_shells, take_name
from balancer.nodes.schema.install import forget_tablets, install_schema, read_tablets
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.schema.proof import set_proof
from balancer.nodes.session.connection import Connection, Cursor, Statement, installed, run_single, translated

ATTEMPTS = 3
"""Swaps of definitions that changed since they were prepared: this many in a row mean that somebody works on them."""


@dataclass(frozen=True, slots=True)
class Converted:
    """The result."""

    adopted: Adopted
    pause: float | None
    """Seconds for which others waited; None: the swap had happened before."""


def convert(
    request: TableRequest,
    directory: Directory,
    nodes: Mapping[str, Connection],
    records: Sequence[Node],
    cluster: str,
    *,
    workplace: WorkplaceOf,
    widen: bool = False,
) -> Converted:
    """Converts the table's plain tables and adopts them. Run again after an interruption, it continues."""
    intent = plan_conversion(request, nodes, widen=widen)
    for node, connection in nodes.items():
        with translated(node):
            install_schema(connection, cluster, node)
    home = intent.whereabouts.home
    place = workplace(home, nodes[home], directory.snapshot().epoch)
    pause = None
    for attempt in range(0 if intent.whereabouts.converted else ATTEMPTS):
        prepare(place, request, widen=widen)
        try:
            pause = swap(place, request, widen=widen)
            break
        except Conflict:
            if attempt == ATTEMPTS - 1:
                raise
    finish(place, request.roots)
    place.observe("adopt")
    return Converted(adopt(request, directory, nodes, records, cluster), pause)


def prepare(place: SwapSession, request: TableRequest, *, widen: bool) -> None:
    """Builds what the swap needs, or finds it built. Writers wait only briefly."""
    finish_views(place, [stub_name(root) for root in request.roots])  # from an interrupted way back
    conversions = _read(place, request, widen=widen)
    if refusals := [text for conversion in conversions for text in conversion.refusals]:
        raise Refused(f"table {request.name} on node {place.node}: {'; '.join(dict.fromkeys(refusals))}")
    for conversion in conversions:
        _prepare_stub(place, conversion)
        for new in conversion.new_keys:
            _build(place, conversion.plain.name, new)
        _validate(place, conversion.plain.name)


def _read(place: SwapSession, request: TableRequest, *, widen: bool) -> list[Conversion]:
    with translated(place.node), place.connection.cursor() as cursor:
        return read_request(cursor, request, widen=widen)


def _prepare_stub(place: SwapSession, conversion: Conversion) -> None:
    name = conversion.plain.name

    def work(cursor: Cursor) -> None:
        there = stub_state(cursor, conversion)
        place.lock(cursor, lock_statements([conversion])[:1] if conversion.needs_bound else [])
        if there is Built.BEGUN:
            drop_stubs([name], cursor)
        make_stub(cursor, conversion)
        place.observe(f"root of {name}")

    with translated(place.node), place.connection.cursor() as cursor, full_names(cursor):
        state = stub_state(cursor, conversion)
    if state is not Built.DONE:
        place.short([name], work)


def _build(place: SwapSession, table: Name, new: NewKey) -> None:
    with translated(place.node), place.connection.cursor() as cursor:
        state = index_state(cursor, table, new)
    if state is Built.DONE:
        return
    if state is Built.BEGUN:
        drop_index(place.connection, table, new.name)
    place.observe(f"index {new.name}")
    try:
        place.long(new.build(table))
    except Refused as error:
        drop_index(place.connection, table, new.name)
        raise Refused(f"the key ({', '.join(new.columns)}) of {table} cannot be built: {error}") from error


def _validate(place: SwapSession, table: Name) -> None:
    with translated(place.node), place.connection.cursor() as cursor:
        state = bound_state(cursor, table)
    if state is not Built.BEGUN:
        return
    place.observe(f"check of {table}")
    try:
        place.long(validate_bound(table))
    except Refused as error:
        place.short([table], partial(drop_stubs, [table]))
        raise Refused(f"{table} has rows that cannot be in a partition: {error}") from error


def swap(place: SwapSession, request: TableRequest, *, widen: bool) -> float:
    """The moment itself; returns how long others waited, in seconds. Raises `Conflict` if definitions have changed."""
    concerned = [*request.roots, *map(stub_name, request.roots)]

    def work(cursor: Cursor) -> None:
        before = footprint(cursor, concerned)
        planned = read_conversions(cursor, request.roots, request.layout, request.key, widen=widen)
        if not request.trusts_owners:
            check_owners_code(cursor, request.roots)
        fit = all(stub_state(cursor, conversion) is Built.DONE for conversion in planned)
        place.lock(cursor, lock_statements(planned))
        if not fit or footprint(cursor, concerned) != before:
            raise Conflict(f"the definition of table {request.name} has changed meanwhile: run it again")
        run_all(swap_statements(planned), cursor)
        place.observe("swap")

    return place.short(request.roots, work)


def finish(place: SwapSession, roots: Sequence[Name]) -> None:
    """What follows the swap, alongside the writers: foreign keys between the roots, and materialised views."""
    leaves = [partition_name(root, LEAF) for root in roots]
    with translated(place.node), place.connection.cursor() as cursor, full_names(cursor):
        keys = read_near_keys(cursor, leaves, roots)
    for key in keys:
        if not key.validated:
            place.observe(f"foreign key {key.name}")
            place.long(key.validate(), leaves)
        root = roots[leaves.index(key.table)]
        place.observe(f"root's foreign key {key.name}")
        place.short([root, key.referenced], partial(give_key, place, roots, root, key))
    finish_views(place, leaves)


def give_key(place: SwapSession, roots: Sequence[Name], root: Name, key: NearKey, cursor: Cursor) -> None:
    """The root gets a foreign key that its partitions have, validated."""
    place.lock(cursor, key.locks(roots, root))
    run_all(key.give(root), cursor)


def run_all(statements: Sequence[Statement], cursor: Cursor) -> None:
    """One after the other, without waiting for the answers in between: everybody waits for them to end."""
    with cursor.connection.pipeline():
        for statement in statements:
            run_single(cursor, statement)


def finish_views(place: SwapSession, formerly: Sequence[Name]) -> None:
    """Fills the shells of materialised views that still read these tables, and gives them their names."""
    with translated(place.node), place.connection.cursor() as cursor, full_names(cursor):
        views = pending_shells(cursor, formerly)
    for view in views:
        with translated(place.node), place.connection.cursor() as cursor, full_names(cursor):
            statements = fill_statements(cursor, view)
        place.observe(f"view {view}")
        for statement in statements:
            place.long(statement)
        place.observe(f"name of view {view}")
        place.short([view], partial(_take_name, place, view))


def _take_name(place: SwapSession, view: Name, cursor: Cursor) -> None:
    locks, statements = take_name(cursor, view)
    place.lock(cursor, locks)
    run_all(statements, cursor)


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
        reversions = _read_reversion(cursor, request)
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


def _read_reversion(cursor: Cursor, request: TableRequest) -> list[Reversion]:
    with full_names(cursor):
        found = read_reversions(cursor, request.roots, whole=request.whole)
    if refusals := [text for reversion in found for text in reversion.refusals]:
        raise Refused(f"table {request.name}: {'; '.join(dict.fromkeys(refusals))}")
    return found


def _swap_back(place: SwapSession, request: TableRequest) -> float:
    with node_transaction(place.connection, place.leader_epoch, place.node) as cursor:
        set_proof(cursor, request.roots, wanted=False)

    def work(cursor: Cursor) -> None:
        leaves = leaves_of(cursor, request.roots)
        concerned = [*request.roots, *leaves]
        before = footprint(cursor, concerned)
        planned = _read_reversion(cursor, request)
        forgotten = [tablet.id for tablet in read_tablets(cursor) if {*leaves} & {*tablet.partitions}]
        place.lock(cursor, lock_reversions(planned))
        if footprint(cursor, concerned) != before:
            raise Conflict(f"the definition of table {request.name} has changed meanwhile: run it again")
        forget_tablets(cursor, forgotten)
        run_all(revert_statements(planned), cursor)
        place.observe("swap back")

    return place.short(request.roots, work)


def _finish(place: SwapSession, request: TableRequest) -> None:
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
