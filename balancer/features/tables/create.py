"""Makes a new table: its roots on every node, its tablets on the nodes that will own them, its records.

Order: ids are reserved in the directory; partitions are made on the nodes, named after those ids; the directory's
commit makes them tablets. If anything fails before that commit, the partitions made here, which are empty and belong
to nobody, are dropped again. A root that has partitions already is not touched: that is an adoption.

The tablets of a new table: how its key space is cut, and which node gets which. Pure.

Neighbours go to the same node as far as possible, because only neighbours on one node can be merged later.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

from balancer.directory.contract import Directory, commit_on_newest
from balancer.directory.model import Node, Put, Table, Tablet, Transaction
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, OutcomeUnknown, Refused, UserError
from balancer.features.tables.adopt import (
    TableRequest,
    check_request,
    missing_parents,
    next_ids,
    owned_row,
    require_proofs,
    reserved,
    spread_roots,
    table_record,
    to_bounds,
)
from balancer.features.tables.survey import Found, read_roots, survey
from balancer.naming import Name, partition_name
from balancer.nodes.catalog.bounds import KeyRange, Part
from balancer.nodes.catalog.foreign_keys import check_outside_keys
from balancer.nodes.catalog.owners_code import check_extendable
from balancer.nodes.catalog.roots import HASH, Root, find_root, read_root
from balancer.nodes.schema.install import add_tablets, forget_tablets, install_schema
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.connection import Connection
from balancer.nodes.tablets.partition import create_partition, drop_empty, run_definition
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import HIGHEST, LOWEST, KeyMismatch, KeyType, KeyValue, encode_key, parse_value

BATCH = 64  # partitions per transaction: each holds locks until its end, and the lock table is small


@dataclass(frozen=True, slots=True)
class Created:
    """What was made: the table and its tablets in key order."""

    table: Table
    tablets: tuple[Tablet, ...]


def create(
    request: TableRequest,
    directory: Directory,
    nodes: Mapping[str, Connection],
    records: Sequence[Node],
    cluster: str,
    *,
    tablets: int,
    splits: Sequence[Any] = (),
    definition: str = "",
) -> Created:
    """Makes the table on every node. `definition`: statements that make the roots where no node has them yet."""
    snapshot = directory.snapshot()
    if any(table.name == request.name for table in snapshot.tables.values()):
        raise Refused(f"table {request.name} is in the directory already")
    for node, connection in nodes.items():
        install_schema(connection, cluster, node)
    if definition:
        _define(request, nodes, definition, snapshot.epoch, lambda root: _parts(root, tablets, splits))
    found = _spread(request, nodes, snapshot.epoch)
    parts = _parts(found.roots[0], 1 if request.whole else tablets, splits)
    owners = spread(parts, {record.id: record.weight for record in records})
    table_id, first = _reserve(request, directory, len(parts))
    table = table_record(request, found, table_id)
    made = [
        Tablet(
            id=number,
            table=table_id,
            bounds=to_bounds(part),
            node=owner,
            partitions=tuple(partition_name(root.name, number).name for root in found.roots),
        )
        for number, (part, owner) in enumerate(zip(parts, owners, strict=True), first)
    ]
    names = [root.name for root in found.roots]
    done: list[Tablet] = []
    try:
        for batch in _made(request, snapshot.epoch, nodes, list(zip(made, parts, strict=True))):
            done += batch
        require_proofs(request, nodes, snapshot.epoch)
        _commit(request, directory, records, table, made)
    except OutcomeUnknown:
        raise  # it may be a table by now: nothing may be removed
    except BalancerError:
        _undo(snapshot.epoch, nodes, names, done)
        raise
    return Created(table, tuple(made))


def _parts(root: Root, tablets: int, splits: Sequence[Any]) -> Sequence[Part]:
    return hash_parts(tablets) if root.layout == HASH else range_parts(root.key_types, splits)


def _define(
    request: TableRequest,
    nodes: Mapping[str, Connection],
    definition: str,
    leader_epoch: int,
    check: Callable[[Root], object],
) -> None:
    """Makes missing roots. A definition with a mistake leaves nothing: it is seen before the commit."""
    for node, connection in nodes.items():
        if _has_roots(connection, request):
            continue
        with node_transaction(connection, leader_epoch, node) as cursor:
            run_definition(cursor, definition)
            roots = read_roots(cursor, request.roots, whole=request.whole)
            if not roots:
                names = ", ".join(map(str, request.roots))
                raise Refused(f"table {request.name}: the definition does not make {names}")
            check_request(request, roots[0])
            check(roots[0])
            check_outside_keys(cursor, request.roots, request.key, request.others)
            check_extendable(cursor, request.roots, trusted=request.trusts_owners)


def _spread(request: TableRequest, nodes: Mapping[str, Connection], leader_epoch: int) -> Found:
    """Roots on every node, wherever they are now."""
    found = survey(
        request.name,
        request.roots,
        nodes,
        request.others,
        trusts_owners=request.trusts_owners,
        whole=request.whole,
    )
    check_request(request, found.roots[0])
    for tablet in found.tablets:
        raise Refused(f"table {request.name} has the partition {tablet} already; take it over with `table adopt`")
    spread_roots(request, found, nodes, leader_epoch)
    return found


def _has_roots(connection: Connection, request: TableRequest) -> bool:
    with connection.cursor() as cursor:
        return all(find_root(cursor, root, whole=request.whole) is not None for root in request.roots)


def _reserve(request: TableRequest, directory: Directory, count: int) -> tuple[int, int]:
    """Ids for the table and its tablets, never to be used for anything else."""

    def propose(snapshot: Snapshot) -> tuple[Transaction, tuple[int, int]]:
        table, first = next_ids(snapshot)
        reason = f"reserve {count} tablet ids for table {request.name}"
        changes = reserved(table, first + count - 1)
        return Transaction(changes, snapshot.version, reason, request.author), (table, first)

    return commit_on_newest(directory, propose, f"no ids could be reserved for table {request.name}")


def _commit(
    request: TableRequest, directory: Directory, records: Sequence[Node], table: Table, tablets: Sequence[Tablet]
) -> None:
    def propose(snapshot: Snapshot) -> tuple[Transaction, None]:
        changes = (*missing_parents(request.bundle, snapshot, records), Put(table), *map(Put, tablets))
        reason = f"create table {request.name} with {len(tablets)} tablets"
        return Transaction(changes, snapshot.version, reason, request.author), None

    commit_on_newest(directory, propose, f"table {request.name} could not be recorded")


def _made(
    request: TableRequest,
    leader_epoch: int,
    nodes: Mapping[str, Connection],
    tablets: Sequence[tuple[Tablet, Part]],
) -> Iterator[list[Tablet]]:
    """Makes the partitions, batch by batch; yields each batch when it is done."""
    for node, connection in nodes.items():
        mine = [(tablet, part) for tablet, part in tablets if tablet.node == node]
        for at in range(0, len(mine), BATCH):
            batch = mine[at : at + BATCH]
            with node_transaction(connection, leader_epoch, node) as cursor:
                check_extendable(cursor, request.roots, trusted=request.trusts_owners)
                for number, name in enumerate(request.roots):
                    root = read_root(cursor, name, whole=request.whole)
                    for tablet, part in batch:
                        create_partition(cursor, root, Name(name.schema, tablet.partitions[number]), part)
                add_tablets(cursor, [owned_row(tablet, request.roots) for tablet, _ in batch])
            yield [tablet for tablet, _ in batch]


def _undo(leader_epoch: int, nodes: Mapping[str, Connection], roots: Sequence[Name], done: Sequence[Tablet]) -> None:
    """Drops the partitions of tablets that did not come to be."""
    for node, connection in nodes.items():
        mine = [tablet for tablet in done if tablet.node == node]
        with node_transaction(connection, leader_epoch, node) as cursor:
            # In reverse order: a colocated root may refer to the one before it.
            for number, root in reversed(list(enumerate(roots))):
                drop_empty(cursor, root, [Name(root.schema, tablet.partitions[number]) for tablet in mine])
            forget_tablets(cursor, [tablet.id for tablet in mine])


def hash_parts(count: int) -> list[Part]:
    """`count` equal leaves in position order."""
    leaves = sorted((Leaf(count, remainder) for remainder in range(count)), key=Leaf.start)
    return [*leaves]


def range_parts(types: Sequence[KeyType], splits: Sequence[Any]) -> list[Part]:
    """The ranges between the split keys; each split is a value, or a list of values for a longer key."""
    bounds = [LOWEST, *(_encode_split(types, split) for split in splits), HIGHEST]
    for (before, after), split in zip(pairwise(bounds), [*splits, None], strict=True):
        if before >= after:
            raise UserError(f"splits: {split!r} does not come after the one before it")
    return [KeyRange(lower, upper) for lower, upper in pairwise(bounds)]


def spread(parts: Sequence[Part], weights: Mapping[str, float]) -> list[str]:
    """A node for each part, in blocks in key order, as many as its weight's share."""
    total = sum(weights.values())
    reached = 0.0
    result: list[str] = []
    for node, weight in weights.items():
        reached += weight
        result += [node] * (round(len(parts) * reached / total) - len(result))
    return result


def _encode_split(types: Sequence[KeyType], split: Any) -> bytes:
    values = split if isinstance(split, list | tuple) else [split]
    try:
        key = [_to_key(kind, value) for kind, value in zip(types, values, strict=False)]
        return encode_key(types, key if len(values) <= len(types) else values, prefix=True)
    except KeyMismatch as error:
        raise UserError(f"splits: {split!r} is not a key of this table: {error}") from error


def _to_key(kind: KeyType, value: Any) -> KeyValue:
    """A value of a TOML file as a key; dates and numbers may also be written as text."""
    if isinstance(value, str):
        return parse_value(kind, value)
    if kind is KeyType.NUMERIC and isinstance(value, float):
        return Decimal(str(value))
    if isinstance(value, int | date | datetime) and not isinstance(value, bool):
        return value
    raise KeyMismatch(f"{value!r} is not a value of type {kind}")
