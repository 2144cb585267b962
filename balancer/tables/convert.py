"""Makes a plain table on one node a table of the cluster: the only leaf of a root of its name, adopted as one tablet.

Order: everything is read and checked on all nodes (`intent`); what takes long is built alongside the writers; one short
transaction swaps; foreign keys and materialised views follow; then the ordinary adoption. Each step finds what an
interrupted run has left, so running it again continues, and `unconvert` undoes it at any moment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from balancer.directory.contract import Directory
from balancer.directory.model import Node
from balancer.errors import Conflict, Refused
from balancer.nodes.connection import Connection, Cursor, Statement, run_single, translated
from balancer.nodes.conversion import Conversion, lock_statements, read_conversions, stub_name, swap_statements
from balancer.nodes.footprint import footprint
from balancer.nodes.materialised import fill_statements, pending_shells, take_name
from balancer.nodes.names import Name, partition_name
from balancer.nodes.near_keys import NearKey, read_near_keys
from balancer.nodes.owners_code import check_owners_code
from balancer.nodes.plain_table import LEAF
from balancer.nodes.preparation import (
    Built,
    bound_state,
    drop_index,
    drop_stubs,
    index_state,
    make_stub,
    stub_state,
    validate_bound,
)
from balancer.nodes.root_facts import full_names
from balancer.nodes.schema import install_schema
from balancer.nodes.wider_keys import NewKey
from balancer.tables.adopt import Adopted, TableRequest, adopt
from balancer.tables.intent import plan_conversion, read_request
from balancer.tables.swapping import Workplace, WorkplaceOf

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


def prepare(place: Workplace, request: TableRequest, *, widen: bool) -> None:
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


def _read(place: Workplace, request: TableRequest, *, widen: bool) -> list[Conversion]:
    with translated(place.node), place.connection.cursor() as cursor:
        return read_request(cursor, request, widen=widen)


def _prepare_stub(place: Workplace, conversion: Conversion) -> None:
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


def _build(place: Workplace, table: Name, new: NewKey) -> None:
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


def _validate(place: Workplace, table: Name) -> None:
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


def swap(place: Workplace, request: TableRequest, *, widen: bool) -> float:
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


def finish(place: Workplace, roots: Sequence[Name]) -> None:
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


def give_key(place: Workplace, roots: Sequence[Name], root: Name, key: NearKey, cursor: Cursor) -> None:
    """The root gets a foreign key that its partitions have, validated."""
    place.lock(cursor, key.locks(roots, root))
    run_all(key.give(root), cursor)


def run_all(statements: Sequence[Statement], cursor: Cursor) -> None:
    """One after the other, without waiting for the answers in between: everybody waits for them to end."""
    with cursor.connection.pipeline():
        for statement in statements:
            run_single(cursor, statement)


def finish_views(place: Workplace, formerly: Sequence[Name]) -> None:
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


def _take_name(place: Workplace, view: Name, cursor: Cursor) -> None:
    locks, statements = take_name(cursor, view)
    place.lock(cursor, locks)
    run_all(statements, cursor)
