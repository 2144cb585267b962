"""The application's own invariants: SQL that must find nothing on any tablet, and sums over all of them.

A sum over tablets that are read one after the other would count money in transit twice. So if such a sum is not what it
must be, it is taken again at a cut (`consistent_cut`), at which nothing is in transit, before anybody is told. A
statement runs with the rights of the role that `[checks]` names, see `features.checker.invariants`.

One moment for all tablets of a table: a snapshot on each node, none of which sees half of what spans two of them.

There is no snapshot over several PostgreSQL servers. But there is a moment without half-done transactions: while every
partition of the table, on every node, is locked against writers. A lock waits for writers in flight, and for prepared
transactions, which keep their locks until they are ended on this node. So once all locks are held, whatever was
committed on one node is committed on all. At that moment each node's snapshot is taken; then the locks are released,
and the rows are read at leisure. Writers wait for milliseconds, as for a fence: within the bundle's `lock_timeout` per
node, and all locks are released at once if one is not granted.

Every owner has proven its tablets (`balancer.hold`) under both the lock and the snapshot, so the tablets are exactly
those of one version of the map.

The application's own statements for the consistency checker: one at a time, read-only, with a role's rights.

A statement runs inside a function that the role has defined for this transaction, as in `features/ddl/statements`: what
it calls then has that role's rights, and cannot take ours back as it could after SET ROLE. The transaction is made
read-only after that, which cannot be undone within it, and is always rolled back; the driver then has the server forget
what was prepared."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from decimal import Decimal

import psycopg
from psycopg import sql

from balancer.client.shard_steps import Shard
from balancer.directory.model import Table, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Refused, Unavailable
from balancer.features.checker.evidence import ATTEMPTS, PAUSE, CheckScope, NotHeld, held_transaction
from balancer.features.checker.rows import tablet_ids
from balancer.migration.context import partitions_of
from balancer.naming import Name, parse_name
from balancer.nodes.catalog.other_roles import owner_of
from balancer.nodes.session.connection import (
    Connection,
    Cursor,
    Statement,
    Timeouts,
    connect,
    lock_timeout,
    run_together,
    statement_timeout,
    translated,
)
from balancer.policies.check_options import CheckKind, Invariant
from balancer.policies.checking import Anomaly, CheckResult, CheckUnit

CUT_ATTEMPTS = 20
LOCKED = 2.0
"""Seconds after which a server lets writers continue if this process hangs."""
READ = 600.0
"""Seconds for which the last node's snapshot may wait for the others to be read."""
_LOCKING = sql.SQL("BEGIN ISOLATION LEVEL READ COMMITTED")
_READING = sql.SQL("BEGIN ISOLATION LEVEL REPEATABLE READ")


@dataclass(frozen=True, slots=True)
class TableCut:
    """The tablets, and a transaction on each of their nodes whose snapshot is of that one moment."""

    tablets: tuple[Tablet, ...]
    readers: Mapping[str, Cursor]


@contextmanager
def consistent_cut(ground: CheckScope, table: Table) -> Iterator[TableCut]:
    """Raises `Unavailable` if the table's writers do not pause for as long as it takes."""
    with ExitStack() as stack:
        yield _taken(ground, table, stack)


def _taken(ground: CheckScope, table: Table, stack: ExitStack) -> TableCut:
    pause = ground.bundle.migration.retry_back_off
    for _ in range(CUT_ATTEMPTS):
        mine = ExitStack()
        try:
            cut = _try(ground, table, mine)
        except Unavailable as error:
            mine.close()
            last = error
        else:
            stack.push(mine)
            return cut
        ground.clock.sleep(min(pause, ground.bundle.migration.retry_back_off_limit))
        pause *= 1.5
    raise Unavailable(f"no moment without writers was found in {CUT_ATTEMPTS} attempts: {last}") from last


def _try(ground: CheckScope, table: Table, stack: ExitStack) -> TableCut:
    tablets = tuple(ground.snapshot().tablets(table.id))
    by_node: dict[str, list[Tablet]] = {}
    for tablet in tablets:
        by_node.setdefault(tablet.node, []).append(tablet)
    with ExitStack() as locks:
        # Connections first: opening one takes longer than all the rest.
        lockers = {node: locks.enter_context(_connected(ground, node, LOCKED)) for node in by_node}
        readers = {node: stack.enter_context(_connected(ground, node, READ)) for node in by_node}
        for node, connection in lockers.items():
            cursor = locks.enter_context(_held(node, connection, by_node[node], _LOCKING))
            with translated(node):
                run_together(cursor, _locks(ground, table, by_node[node]))
        cursors = {
            node: stack.enter_context(_held(node, connection, by_node[node], _READING))
            for node, connection in readers.items()
        }
        return TableCut(tablets, cursors)


def _locks(ground: CheckScope, table: Table, tablets: Sequence[Tablet]) -> list[Statement]:
    lock = sql.SQL("LOCK TABLE ONLY {} IN SHARE MODE")
    leaves = [lock.format(leaf.identifier) for tablet in tablets for leaf in partitions_of(table, tablet)]
    return [lock_timeout(ground.bundle.migration.lock_timeout), *leaves]


def _held(
    node: str, connection: Connection, tablets: Sequence[Tablet], begin: sql.SQL
) -> AbstractContextManager[Cursor]:
    return _translated(node, held_transaction(connection, [(one.id, one.epoch) for one in tablets], begin))


@contextmanager
def _translated(node: str, inner: AbstractContextManager[Cursor]) -> Iterator[Cursor]:
    with translated(node), inner as cursor:
        yield cursor


@contextmanager
def _connected(ground: CheckScope, node: str, idle: float) -> Iterator[Connection]:
    patience = ground.bundle.checks.statement_timeout
    timeouts = Timeouts(statement=patience, network=patience + 10.0, idle_in_transaction=idle)
    with connect(ground.links.address(node), purpose="check", timeouts=timeouts) as connection:
        yield connection


_BEGIN = sql.SQL("BEGIN ISOLATION LEVEL REPEATABLE READ")


def tablets_with_invariants(ground: CheckScope, snapshot: Snapshot) -> Sequence[int]:
    """The tablets of tables about which the application has promised something."""
    named = {one.table for one in ground.bundle.checks.invariants if one.sql}
    return tablet_ids(ground, snapshot, [table for table in snapshot.tables.values() if table.name in named])


def look_at_invariants(ground: CheckScope, unit: CheckUnit) -> CheckResult:
    """One statement on one tablet."""
    for _ in range(ATTEMPTS):
        snapshot = ground.snapshot()
        tablet = snapshot.find_tablet(unit.subject)
        if tablet is None:
            return CheckResult()
        table = snapshot.tables[tablet.table]
        mine = [one for one in ground.bundle.checks.invariants if one.sql and one.table == table.name]
        if unit.item >= len(mine):
            return CheckResult()
        try:
            return _look(ground, table, tablet, mine[unit.item], more=unit.item + 1 < len(mine))
        except NotHeld:
            ground.clock.sleep(PAUSE)
        except BalancerError as error:
            return CheckResult(
                unchecked=f"{mine[unit.item].name!r} on tablet {tablet.id}: {error}", more=unit.item + 1 < len(mine)
            )
    return CheckResult(unchecked=f"tablet {unit.subject}: it was moving each time it was checked")


def _look(ground: CheckScope, table: Table, tablet: Tablet, invariant: Invariant, *, more: bool) -> CheckResult:
    with _reader(ground, table, tablet) as cursor:
        count, examples = found_rows(cursor, statement_for(table, tablet, invariant.sql))
    if not count:
        return CheckResult(more=more)
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
    return CheckResult((anomaly,), more=more)


def statement_for(table: Table, tablet: Tablet, statement: str) -> str:
    """A statement over the partitions of one tablet."""
    names: dict[str, Name] = {}
    for root, leaf in zip(table.roots, partitions_of(table, tablet), strict=True):
        names |= {root: leaf, parse_name(root).name: leaf}
    return Shard(tablet.id, tablet.node, names).format(statement).as_string(None)


@contextmanager
def _reader(ground: CheckScope, table: Table, tablet: Tablet) -> Iterator[Cursor]:
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


def sums_of_bundle(ground: CheckScope, snapshot: Snapshot) -> Sequence[int]:
    """The sums that the bundle's file declares, by their place in it."""
    known = {table.name for table in snapshot.tables.values() if ground.wanted(table)}
    if ground.tablets is not None:
        return ()  # single tablets have no sum over all
    return [n for n, one in enumerate(ground.bundle.checks.invariants) if one.sum and one.table in known]


def look_at_sum(ground: CheckScope, unit: CheckUnit) -> CheckResult:
    """One sum over all tablets of its table."""
    invariant = ground.bundle.checks.invariants[unit.subject]
    table = ground.snapshot().table(invariant.table)
    name = sum_key(invariant)
    wanted = str(invariant.equals) if invariant.equals is not None else ground.sums.get(name)
    try:
        if wanted is not None and _loose_sum(ground, table, invariant) == Decimal(wanted):
            return CheckResult()
        found = _exact_sum(ground, table, invariant)
    except BalancerError as error:
        return CheckResult(unchecked=f"{invariant.name!r}: {error}")
    if wanted is None:
        return CheckResult(sums={name: str(found)})
    if found == Decimal(wanted):
        return CheckResult()
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
    return CheckResult((anomaly,))


def sum_key(invariant: Invariant) -> str:
    """The name under which the first value of a sum is kept: another statement is another sum."""
    return f"{invariant.table} {invariant.name} {zlib.crc32(invariant.sum.encode()):08x}"


def _loose_sum(ground: CheckScope, table: Table, invariant: Invariant) -> Decimal | None:
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


def _exact_sum(ground: CheckScope, table: Table, invariant: Invariant) -> Decimal:
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


_ROWS = r"""
    CREATE FUNCTION pg_temp.balancer_check(statement text) RETURNS TABLE (n bigint, examples text[])
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $run$
    BEGIN
        RETURN QUERY EXECUTE 'WITH found AS MATERIALIZED (' || statement || E'\n) SELECT (SELECT count(*) FROM found),'
            ' ARRAY(SELECT left(found::text, 100) FROM found LIMIT 3)';
    END $run$
"""
_NUMBER = r"""
    CREATE FUNCTION pg_temp.balancer_sum(statement text) RETURNS numeric
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $run$
    DECLARE
        result numeric;
    BEGIN
        EXECUTE 'WITH found AS MATERIALIZED (' || statement || E'\n) SELECT * FROM found' INTO STRICT result;
        RETURN coalesce(result, 0);
    END $run$
"""


def become_reader(cursor: Cursor, role: str, table: Name, seconds: float, *, trusted: bool) -> None:
    """Prepares the transaction for statements with the rights of a role; empty: of the table's owner.

    Raises `Refused` for a role that may do more than the application should: a superuser, or our own.
    """
    role = role or owner_of(cursor, table)
    row = cursor.execute(
        "SELECT rolsuper, rolname = session_user FROM pg_catalog.pg_roles WHERE rolname = %s", (role,)
    ).fetchone()
    if row is None:
        raise Refused(f"there is no role {role}, with whose rights the application's checks are to run")
    if (row[0] or row[1]) and not trusted:
        what = "a superuser" if row[0] else "the balancer's own role"
        raise Refused(
            f"the application's checks would run with the rights of {role}, which is {what}: name another as role under"
            " [checks], or say trust_table_owners = true under [migration]"
        )
    try:
        cursor.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
    except psycopg.errors.InsufficientPrivilege as error:
        raise Refused(f"the balancer may not act as {role}: GRANT {role} TO the balancer's role") from error
    cursor.execute(_ROWS)
    cursor.execute(_NUMBER)
    cursor.execute("RESET ROLE")
    cursor.execute("SET TRANSACTION READ ONLY")
    cursor.execute("SELECT set_config('row_security', 'off', true)")  # an error, instead of rows that stay unseen
    run_together(cursor, [statement_timeout(seconds)])


def found_rows(cursor: Cursor, statement: str) -> tuple[int, tuple[str, ...]]:
    """How many rows a statement returns, and some of them as text."""
    query = "SELECT n, examples FROM pg_temp.balancer_check(%s)"
    row = cursor.execute(query, (statement,), prepare=False).fetchone()
    assert row is not None, "the function returns one row"
    return int(row[0]), tuple(row[1])


def number_of(cursor: Cursor, statement: str) -> str:
    """The one number that a statement returns, as text; nothing is 0."""
    # Nothing that an earlier statement has set or prepared affects this one.
    row = cursor.execute("SELECT pg_temp.balancer_sum(%s)::pg_catalog.text", (statement,), prepare=False).fetchone()
    assert row is not None, "the function returns one row"
    return str(row[0])
