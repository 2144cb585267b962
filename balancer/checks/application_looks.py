"""The application's own invariants: SQL that must find nothing on any tablet, and sums over all of them.

A sum over tablets that are read one after the other would count money in transit twice. So if such a sum is not what it
must be, it is taken again at a cut (`consistent_cut`), at which nothing is in transit, before anybody is told. A
statement runs with the rights of the role that `[checks]` names, see `nodes.as_role`.
"""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal

from psycopg import sql

from balancer.checks.consistent_cut import TableCut, consistent_cut
from balancer.checks.ground import ATTEMPTS, PAUSE, Ground
from balancer.checks.row_looks import tablet_ids
from balancer.client.shard_steps import Shard
from balancer.directory.model import Table, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Unavailable
from balancer.migration.context import partitions_of
from balancer.nodes.as_role import become_reader, found_rows, number_of
from balancer.nodes.connection import Cursor, translated
from balancer.nodes.held_reads import NotHeld, held_transaction
from balancer.nodes.names import Name, parse_name
from balancer.policies.check_options import CheckKind, Invariant
from balancer.policies.checking import Anomaly, CheckUnit, Look

_BEGIN = sql.SQL("BEGIN ISOLATION LEVEL REPEATABLE READ")


def tablets_with_invariants(ground: Ground, snapshot: Snapshot) -> Sequence[int]:
    """The tablets of tables about which the application has promised something."""
    named = {one.table for one in ground.bundle.checks.invariants if one.sql}
    return tablet_ids(ground, snapshot, [table for table in snapshot.tables.values() if table.name in named])


def look_at_invariants(ground: Ground, unit: CheckUnit) -> Look:
    """One statement on one tablet."""
    for _ in range(ATTEMPTS):
        snapshot = ground.snapshot()
        tablet = snapshot.find_tablet(unit.subject)
        if tablet is None:
            return Look()
        table = snapshot.tables[tablet.table]
        mine = [one for one in ground.bundle.checks.invariants if one.sql and one.table == table.name]
        if unit.item >= len(mine):
            return Look()
        try:
            return _look(ground, table, tablet, mine[unit.item], more=unit.item + 1 < len(mine))
        except NotHeld:
            ground.clock.sleep(PAUSE)
        except BalancerError as error:
            return Look(
                unchecked=f"{mine[unit.item].name!r} on tablet {tablet.id}: {error}", more=unit.item + 1 < len(mine)
            )
    return Look(unchecked=f"tablet {unit.subject}: it was moving each time it was checked")


def _look(ground: Ground, table: Table, tablet: Tablet, invariant: Invariant, *, more: bool) -> Look:
    with _reader(ground, table, tablet) as cursor:
        count, examples = found_rows(cursor, statement_for(table, tablet, invariant.sql))
    if not count:
        return Look(more=more)
    anomaly = Anomaly(
        CheckKind.INVARIANTS,
        f"{invariant.name!r} does not hold on tablet {tablet.id} of node {tablet.node}: {count} rows, such as"
        f" {', '.join(examples)}",
        table=table.name,
        tablet=tablet.id,
        node=tablet.node,
        root=table.roots[0],
        count=count,
        advice="run its statement on the tablet's partitions there",
        about=invariant.name,
    )
    return Look((anomaly,), more=more)


def statement_for(table: Table, tablet: Tablet, statement: str) -> str:
    """A statement over the partitions of one tablet."""
    names: dict[str, Name] = {}
    for root, leaf in zip(table.roots, partitions_of(table, tablet), strict=True):
        names |= {root: leaf, parse_name(root).name: leaf}
    return Shard(tablet.id, tablet.node, names).format(statement).as_string(None)


@contextmanager
def _reader(ground: Ground, table: Table, tablet: Tablet) -> Iterator[Cursor]:
    """A transaction with one snapshot on the tablet's owner, with a role's rights."""
    options = ground.bundle.checks
    address = ground.links.address(tablet.node)
    with (
        ground.readers.borrow(address) as connection,
        held_transaction(connection, [(tablet.id, tablet.epoch)], _BEGIN) as cursor,
    ):
        root = parse_name(table.roots[0])
        become_reader(cursor, options.role, root, options.statement_timeout, trusted=address.trusts_owners)
        yield cursor


def sums_of_bundle(ground: Ground, snapshot: Snapshot) -> Sequence[int]:
    """The sums that the bundle's file declares, by their place in it."""
    known = {table.name for table in snapshot.tables.values() if ground.wanted(table)}
    if ground.tablets is not None:
        return ()  # single tablets have no sum over all
    return [n for n, one in enumerate(ground.bundle.checks.invariants) if one.sum and one.table in known]


def look_at_sum(ground: Ground, unit: CheckUnit) -> Look:
    """One sum over all tablets of its table."""
    invariant = ground.bundle.checks.invariants[unit.subject]
    table = ground.snapshot().table(invariant.table)
    name = sum_key(invariant)
    wanted = str(invariant.equals) if invariant.equals is not None else ground.sums.get(name)
    try:
        if wanted is not None and _loose_sum(ground, table, invariant) == Decimal(wanted):
            return Look()
        found = _exact_sum(ground, table, invariant)
    except BalancerError as error:
        return Look(unchecked=f"{invariant.name!r}: {error}")
    if wanted is None:
        return Look(sums={name: str(found)})
    if found == Decimal(wanted):
        return Look()
    must = f"must be {wanted}" if invariant.equals is not None else f"was {wanted} when it was first taken"
    anomaly = Anomaly(
        CheckKind.SUMS,
        f"{invariant.name!r} is {found} over all tablets of table {table.name}, and {must}",
        table=table.name,
        root=table.roots[0],
        count=1,
        advice="compare it with the application's books; under another name it starts from its current value",
        about=invariant.name,
    )
    return Look((anomaly,))


def sum_key(invariant: Invariant) -> str:
    """The name under which the first value of a sum is kept: another statement is another sum."""
    return f"{invariant.table} {invariant.name} {zlib.crc32(invariant.sum.encode()):08x}"


def _loose_sum(ground: Ground, table: Table, invariant: Invariant) -> Decimal | None:
    """Tablet after tablet, each at its own moment; None if the map changed meanwhile, or one could not be asked."""
    before = list(ground.snapshot().tablets(table.id))
    total = Decimal(0)
    try:
        for tablet in before:
            with _reader(ground, table, tablet) as cursor:
                total += Decimal(number_of(cursor, statement_for(table, tablet, invariant.sum)))
    except Unavailable:
        return None
    return total if list(ground.snapshot().tablets(table.id)) == before else None


def _exact_sum(ground: Ground, table: Table, invariant: Invariant) -> Decimal:
    """At one moment at which no writer of the table is at work on any node."""
    options = ground.bundle.checks
    root = parse_name(table.roots[0])
    total = Decimal(0)
    with consistent_cut(ground, table) as cut:
        for node, cursor in cut.readers.items():
            with translated(node):
                become_reader(cursor, options.role, root, options.statement_timeout, trusted=ground.trusts(node))
                for tablet in _of_node(cut, node):
                    total += Decimal(number_of(cursor, statement_for(table, tablet, invariant.sum)))
    return total


def _of_node(cut: TableCut, node: str) -> list[Tablet]:
    return [tablet for tablet in cut.tablets if tablet.node == node]
