"""The mirror of a split or merge, up to the swap: from here on old and new partitions are equal in every snapshot.

Called by the runner. One short transaction, T1, keeps the writers of the old partitions out (nobody else, and nobody
from the roots), replays the rest of the log, and replaces what logs changes by what makes them in the new partitions
too (`nodes.tablets.mirror`). Sessions with a snapshot from before T1 would not see the last rows: they are waited for,
by name, and nobody is held back. `machine` has the argument."""

from collections.abc import Sequence

from psycopg import sql

from balancer.migration import guards
from balancer.migration.context import Context
from balancer.migration.copy import read_shapes
from balancer.migration.lock_attempts import WORK, LockAttempts
from balancer.migration.machine import Event
from balancer.migration.progress import LOCKS, SNAPSHOTS
from balancer.migration.reshard import catch_up, families, replay_once, sources_of
from balancer.migration.retries import Overrun
from balancer.migration.switch import back_off, let_writers_on
from balancer.naming import Name
from balancer.nodes.schema import blockers, proof
from balancer.nodes.session.connection import rows_that_follow, run_together, statement_timeout, translated
from balancer.nodes.tablets import mirror, references, reshard
from balancer.nodes.tablets.leftovers import OlderSnapshots, this_transaction
from balancer.nodes.tablets.mirror import Mirror, MirrorStanding

LOOK = 0.05
"""Seconds between two looks at the sessions that are waited for."""
LONG = 10.0
"""Seconds: a session with a snapshot that old may have it for much longer."""
LASTING = 10.0
"""Seconds: a transaction that old, with a lock on the table, is waited for by name before the swap asks for its own."""


def catching_up(ctx: Context) -> Event:
    """Changes are logged, by now or again; replays until little is left, and nobody has had a snapshot for long."""
    stop(ctx)
    let_writers_on(ctx)
    back_off(ctx)
    catch_up(ctx)
    _outlive_long_ones(ctx)
    return Event.STEP


def _outlive_long_ones(ctx: Context) -> None:
    """The mirror will wait for whoever has an older snapshot, and costs writers more than the log: so it does not begin
    while pg_dump runs, or a report. Those that are there now; later ones do not keep it from beginning."""
    node = ctx.record.source_node
    with ctx.source() as cursor:
        older = OlderSnapshots(this_transaction(cursor), but_dumps=True)
    while True:
        with translated(node):
            left = [one for one in older.left(ctx.links.control(node)) if one.age > LONG]
        if not left:
            return
        what = f"{left[0].told} on node {node}, which would not see the new partitions' rows"
        ctx.progress.waiting(what, reason=SNAPSHOTS)
        ctx.sleep(LOOK * 4)
        catch_up(ctx)


def mirroring(ctx: Context) -> Event:
    """Starts the mirror, unless it stands; waits until every snapshot sees that."""
    standing = find(ctx)
    if standing is None:
        took = catch_up(ctx)
        ctx.note(fences=ctx.detail.fences + 1)
        standing = _start(ctx, took)
    _outlive(ctx, standing)
    _wait_for_lasting(ctx)
    ctx.prepared = standing
    return Event.STEP


def find(ctx: Context) -> MirrorStanding | None:
    """What the node says: the mirror is at work on all old partitions, or the log is on all of them."""
    node = ctx.record.source_node
    with translated(node):
        return mirror.find(ctx.links.control(node), ctx.id, sources_of(ctx))


def check(ctx: Context, standing: MirrorStanding) -> None:
    """Raises `Overrun` if it is not that one any more (a failover lost it), or if it has noted something in the log."""
    if find(ctx) != standing:
        raise Overrun("the node does not have the mirror any more: did it go back in time?")
    node = ctx.record.source_node
    for family in families(ctx):
        with translated(node):
            if reshard.changed_sources(ctx.links.control(node), family):
                raise Overrun("a change could not be made in the new partitions: it is replayed")


def _start(ctx: Context, took: float) -> MirrorStanding:
    mirrors = _compose(ctx)
    guards.plan_definitions(ctx)
    node, names = ctx.record.source_node, [place.partition for place in ctx.source_places]
    attempts = LockAttempts(ctx, node, names, blockers.FENCE, work=max(WORK, 2 * took))
    return attempts.run(lambda patience: _start_once(ctx, mirrors, names, patience))


def _compose(ctx: Context) -> list[Mirror]:
    shapes, node = read_shapes(ctx), ctx.record.source_node
    with translated(node), ctx.links.control(node).cursor() as cursor:
        return [
            mirror.compose(cursor, family, number, shapes[number])
            for family in families(ctx)
            for number, _ in family.sources
        ]


def _start_once(ctx: Context, mirrors: Sequence[Mirror], names: Sequence[Name], patience: float) -> MirrorStanding:
    """T1. Everything in it happens while writers wait."""
    work, node = families(ctx), ctx.record.source_node
    with ctx.source() as cursor:
        silence = references.may_prepare(cursor)
        until = ctx.clock.monotonic() + patience
        proof.lock_writers_out(cursor, names, lambda: until - ctx.clock.monotonic())
        ctx.fenced_at = began = ctx.clock.monotonic()
        try:
            settings = [statement_timeout(ctx.settings.write_pause_budget * 4), *references.silence_statements(silence)]
            asked = [guards.definitions_statement(ctx, node), reshard.entries_statement(work)]
            run_together(cursor, [sql.SQL("SELECT 1"), *settings, *asked])
            definitions, entries = rows_that_follow(cursor)
            guards.compare_definitions(ctx, node, definitions)
            for family in work if entries[0][0] else ():
                replay_once(cursor, family, comparing=False)  # everything is compared under the mirror
            standing = MirrorStanding(this_transaction(cursor))
            mirror.start(cursor, mirrors, standing.transaction, may_silence=silence)
        finally:
            ctx.fenced_at = None
    ctx.note(pause=ctx.clock.monotonic() - began)
    return standing


def _outlive(ctx: Context, standing: MirrorStanding) -> None:
    """Waits for the sessions whose snapshot may be older than T1: they would miss rows of the new partitions."""
    node = ctx.record.source_node
    older = OlderSnapshots(standing.transaction, but_dumps=True)
    while True:
        check(ctx, standing)
        with translated(node):
            left = older.left(ctx.links.control(node))
        if not left:
            return
        what = f"{left[0].told} on node {node}, which would not see the new partitions' rows"
        ctx.progress.waiting(what, reason=SNAPSHOTS)
        ctx.sleep(LOOK)


def _wait_for_lasting(ctx: Context) -> None:
    """Waits for who has held a lock on the table for long (pg_dump, a report): an attempt would be in vain."""
    node = ctx.record.source_node
    while found := guards.lasting_blocker(ctx, node, concerned(ctx), blockers.SWAP, LASTING):
        what = f"{found.told} on node {node}, which uses the table"
        ctx.progress.waiting(what, reason=LOCKS)
        ctx.sleep(LOOK * 4)


def concerned(ctx: Context) -> list[Name]:
    """Everything that the swap locks, in this order."""
    places = (*ctx.source_places, *ctx.target_places)
    return [*ctx.roots, *(place.partition for place in places)]


def stop(ctx: Context) -> None:
    """The journal says that nothing is swapped for now: changes are logged again, and nothing else follows them."""
    if find_quietly(ctx) is False:
        return
    node = ctx.record.source_node
    names = [place.partition for place in ctx.source_places]
    shapes = read_shapes(ctx)

    def once(patience: float) -> None:
        with ctx.source() as cursor:
            until = ctx.clock.monotonic() + patience
            proof.lock_writers_out(cursor, names, lambda: until - ctx.clock.monotonic())
            mirror.stop(cursor, ctx.id, sources_of(ctx), lambda number: shapes[number].key)

    LockAttempts(ctx, node, names, blockers.FENCE).run(once)


def find_quietly(ctx: Context) -> bool:
    """Whether there may be a mirror on any of the old partitions, meddled with or not."""
    node = ctx.record.source_node
    with translated(node), ctx.links.control(node).cursor() as cursor:
        return any(mirror.is_there(cursor, ctx.id, number, source) for number, source in sources_of(ctx))
