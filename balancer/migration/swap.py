"""The swap of a split or merge, and what comes after it. Called by the runner.

Old and new partitions are equal in every snapshot that anybody has (`mirroring`; in read-only mode because nobody
writes), and compared. So the swap is one transaction of catalog work alone: it keeps everybody out of roots and old
partitions (both, because whoever uses a partition by its own name takes no lock on its root), for as long as writers
may wait at most; old partitions go out and new ones come in. The directory follows. Between the two the node is right
under both maps: an old tablet stays `owned` there until it is retired.

What SERIALIZABLE transactions have read of the old partitions PostgreSQL does not compare with what others write to the
new ones. If it remembers any such reads, SERIALIZABLE writers that began before the swap are refused by a trigger on
the roots (`refuse_old_snapshot`), which goes when no such snapshot is left.
"""

from collections.abc import Sequence

from psycopg import sql
from psycopg.rows import TupleRow

from balancer.directory.model import MigrationMode
from balancer.errors import Refused
from balancer.migration import guards, mirroring
from balancer.migration.context import Context, partitions_of
from balancer.migration.copy import read_shapes
from balancer.migration.guards import FenceKeeper
from balancer.migration.lock_attempts import LockAttempts
from balancer.migration.machine import Event
from balancer.migration.progress import SNAPSHOTS
from balancer.migration.reshard import compare_all, families, model_of, sources_of
from balancer.migration.retries import Difference, Overrun
from balancer.naming import Name
from balancer.nodes.catalog.shapes import Shape
from balancer.nodes.schema import blockers, install, proof
from balancer.nodes.session.connection import (
    Cursor,
    Statement,
    lock_timeout,
    rows_that_follow,
    run_together,
    statement_timeout,
    translated,
)
from balancer.nodes.tablets import capture, fence, leftovers, mirror, partition, references, reshard
from balancer.nodes.tablets.closed import closed_statement
from balancer.nodes.tablets.leftovers import OlderSnapshots, this_transaction
from balancer.nodes.tablets.mirror import MirrorStanding
from balancer.nodes.tablets.object_names import bound_constraint

LOOK = 0.2
"""Seconds between two looks at the sessions that are waited for."""
READ_ONLY_PATIENCE = 10.0
"""Seconds for which a fence waits for readers with a snapshot from before the copy, while writers wait for it."""


def verifying(ctx: Context) -> Event:
    """Compares both sides in one snapshot: they are equal, the mirror stands, and its log is empty."""
    guards.check_fingerprints(ctx)
    if ctx.record.mode is MigrationMode.READ_ONLY:
        _verify_behind_the_fence(ctx)
        return Event.STEP
    standing: MirrorStanding = ctx.prepared
    if ctx.detail.verified != standing.transaction:
        try:
            compare_all(ctx)
        except Difference:
            mirroring.check(ctx, standing)
            raise
        ctx.note(verified=standing.transaction)
    return Event.STEP


def _verify_behind_the_fence(ctx: Context) -> None:
    """Neither side moves. Who reads by a snapshot from before the copy is waited for as long as writers may be."""
    with FenceKeeper(ctx):
        if not ctx.detail.bulk_verified:
            compare_all(ctx)
            ctx.note(bulk_verified=True)
        node, until = ctx.record.source_node, ctx.clock.monotonic() + READ_ONLY_PATIENCE
        with ctx.source() as cursor:
            older = OlderSnapshots(this_transaction(cursor), but_dumps=True)
        while left := _left(ctx, older):
            if ctx.clock.monotonic() > until:
                raise Overrun(f"waits for {left[0].told} on node {node}, which would not see the new partitions' rows")
            ctx.sleep(mirroring.LOOK)
    ctx.prepared = True


def _left(ctx: Context, older: OlderSnapshots) -> list[blockers.Blocker]:
    node = ctx.record.source_node
    with translated(node):
        return older.left(ctx.links.control(node))


def swapping(ctx: Context) -> Event:
    """Swaps, unless that has happened already. Raises `Overrun` if what it knows does not allow it to proceed."""
    if swapped(ctx):
        return Event.STEP
    if ctx.prepared is None:
        raise Overrun("the swap was interrupted before it happened")
    guards.check_fingerprints(ctx)
    shapes, work = read_shapes(ctx), families(ctx)
    guards.plan_definitions(ctx)
    if ctx.swapping_since is None:
        ctx.swapping_since = ctx.clock.monotonic()
    tables = mirroring.concerned(ctx)
    attempts = LockAttempts(ctx, ctx.record.source_node, tables, blockers.SWAP, since=ctx.swapping_since)
    attempts.run(lambda patience: _swap_once(ctx, shapes, work, patience))
    ctx.fenced_at = None
    return Event.STEP


def _swap_once(ctx: Context, shapes: tuple[Shape, ...], work: list[reshard.Family], patience: float) -> None:
    began = ctx.clock.monotonic()
    with ctx.source() as cursor:
        _swap(ctx, cursor, shapes, work, began + patience)
    # Behind a fence writers have waited since it was raised.
    held = ctx.clock.monotonic() - (ctx.fenced_at or began)
    ctx.note(pause=max(held, 0.0 if ctx.fenced_at else ctx.detail.pause or 0.0))


def retiring(ctx: Context) -> Event:
    """Marks the old tablets as gone; their rows go after a grace."""
    node = ctx.record.source_node
    with ctx.source() as cursor:
        install.write_tablets(
            cursor,
            [
                install.OwnedTablet(
                    tablet.id, tablet.epoch, install.OwnState.MOVED, partitions_of(ctx.table, tablet), moved_to=node
                )
                for tablet in ctx.sources
            ],
        )
    if ctx.detail.switched is not None:
        left = ctx.detail.switched + ctx.settings.retire_grace - ctx.clock.now().timestamp()
        ctx.sleep(max(0.0, min(left, ctx.settings.retire_grace)))
    with ctx.source() as cursor:
        # pg_dump locks what it reads when it begins: it needs no old partition, or the drop below waits for it.
        older = OlderSnapshots(this_transaction(cursor), but_dumps=True)
    while using := _left(ctx, older):
        what = f"{using[0].told} on node {node}, which may still use the old partitions"
        ctx.progress.waiting(what, reason=SNAPSHOTS)
        ctx.sleep(LOOK)
    for root in ctx.roots:
        with ctx.source() as cursor:
            partition.set_lock_timeout(cursor, ctx.settings.lock_timeout)
            reshard.admit_old_snapshots(cursor, root, ctx.id)
    with ctx.source() as cursor:
        going = list(reversed(list(enumerate(ctx.source_places))))
        for number, place in going:
            mirror.drop(cursor, ctx.id, number, place.partition)
            capture.drop_capture(cursor, ctx.id, number, place.partition)
        names, gone = [place.partition for _, place in going], [tablet.id for tablet in ctx.sources]
        kept = leftovers.drop_or_set_aside(cursor, gone, names, ctx.id, ctx.settings.lock_timeout)
    if kept:
        ctx.note(kept=kept)
    return Event.STEP


def swapped(ctx: Context) -> bool:
    """What the node says: all new tablets are its own, or none is."""
    node = ctx.record.source_node
    with translated(node), ctx.links.control(node).cursor() as cursor:
        return _owned(ctx, cursor)


def _owned(ctx: Context, cursor: Cursor) -> bool:
    run_together(cursor, [_states_statement(ctx)])
    return _all_owned(ctx, cursor.fetchall())


def _states_statement(ctx: Context) -> Statement:
    ids = sql.Literal([tablet.id for tablet in ctx.record.targets])
    return sql.SQL("SELECT id, state FROM balancer.tablet WHERE id = ANY ({}::bigint[])").format(ids)


def _all_owned(ctx: Context, rows: Sequence[TupleRow]) -> bool:
    node = ctx.record.source_node
    known = {int(number): str(state) for number, state in rows}
    states = {known.get(tablet.id) for tablet in ctx.record.targets}
    if states == {install.OwnState.OWNED}:
        return True
    if install.OwnState.OWNED in states:
        raise Refused(f"node {node} owns only some of the tablets that migration {ctx.id} makes")
    return False


def _swap(ctx: Context, cursor: Cursor, shapes: tuple[Shape, ...], work: list[reshard.Family], until: float) -> None:
    """Everything in it happens while everybody waits: what needs no answer in between travels together."""
    old = [place.partition for place in ctx.source_places]
    new = [place.partition for place in ctx.target_places_by_root()]
    may_prepare = references.may_prepare(cursor)
    proof.lock_everybody_out(cursor, ctx.roots, old, new, lambda: until - ctx.clock.monotonic())
    remembered = _look(ctx, cursor, old, work)
    if remembered is None:
        return  # a commit whose answer was lost came through after we had asked: the locks had to wait for it
    if ctx.record.mode is MigrationMode.READ_ONLY:
        if ctx.fence is None:
            raise Refused("the fence was raised by a predecessor")
        fence.check_standing(cursor, old, ctx.fence, ctx.settings.lock_timeout)
    _exchange(ctx, cursor, shapes, may_prepare=may_prepare)
    for root in ctx.roots if remembered else ():
        reshard.refuse_old_snapshots(cursor, root, ctx.id, this_transaction(cursor))
    _record(ctx, cursor, old, new)


def _look(ctx: Context, cursor: Cursor, old: list[Name], work: list[reshard.Family]) -> bool | None:
    """Checks under the locks what must be true: definitions, and the mirror whose beginning every snapshot sees, which
    could make every change. Returns whether reads of SERIALIZABLE transactions are remembered; None: it has happened.
    """
    node, mirrored = ctx.record.source_node, ctx.record.mode is MigrationMode.REPLICATE
    # A validation that PostgreSQL insists on (a foreign key between the roots) must not keep everybody out for long.
    limits = [statement_timeout(ctx.settings.write_pause_budget * 4), lock_timeout(ctx.settings.lock_timeout)]
    asked = [_states_statement(ctx), closed_statement(ctx.source_ids), guards.definitions_statement(ctx, node)]
    asked += [reshard.remembered_statement(old)]
    asked += [mirror.find_statement(ctx.id, sources_of(ctx)), reshard.entries_statement(work)] if mirrored else []
    run_together(cursor, [sql.SQL("SELECT 1"), *limits, *asked])
    states, closed, definitions, remembered, *mirror_rows = rows_that_follow(cursor)
    if _all_owned(ctx, states):
        return None
    guards.refuse_closed(ctx, closed)
    guards.compare_definitions(ctx, node, definitions)
    if mirrored:
        _check_mirror(ctx, *mirror_rows)
    return bool(remembered[0][0])


def _check_mirror(ctx: Context, found: Sequence[TupleRow], entries: Sequence[TupleRow]) -> None:
    if mirror.found(found) != ctx.prepared:
        raise Overrun("the node does not have the mirror any more: did it go back in time?")
    if entries[0][0]:
        raise Overrun("a change could not be made in the new partitions: it is replayed")


def _exchange(ctx: Context, cursor: Cursor, shapes: tuple[Shape, ...], *, may_prepare: bool) -> None:
    """Old partitions out, new ones in. From here on nothing follows what somebody may force into the old ones."""
    referring = references.there_are_any(shapes)
    for place in reversed(ctx.source_places_by_root()):  # a referenced root's rows go last, and come first
        mirrored = ctx.record.mode is MigrationMode.REPLICATE
        off = mirror.disable_statements(place.partition) if mirrored else []
        run_together(cursor, [*off, partition.detach_statement(place.root, place.partition)])
        if referring:
            partition.release_references(cursor, place.partition, ctx.settings.lock_timeout)
    if may_prepare and referring:
        run_together(cursor, mirror.wake_statements([place.partition for place in ctx.target_places_by_root()]))
    for place in ctx.target_places_by_root():
        model = model_of(ctx, place, shapes)
        partition.grant(cursor, model, place.partition)
        partition.add_triggers(cursor, model, place.partition)
        to_owner = partition.owner_statement(model, place.partition)
        bound = partition.drop_bound_statement(place.partition, bound_constraint(ctx.id))
        run_together(cursor, [to_owner, partition.attach_statement(place), bound])
        if may_prepare and referring:
            references.wake_references(cursor, place.partition)


def _record(ctx: Context, cursor: Cursor, old: list[Name], new: list[Name]) -> None:
    node = ctx.record.source_node
    gone = fence.Fence(ctx.id, ctx.leadership.epoch, fence.MOVED, 0, ctx.sources[0].id, node, ctx.sources[0].epoch)
    rows = [
        *(
            install.OwnedTablet(tablet.id, tablet.epoch, install.OwnState.OWNED, partitions_of(ctx.table, tablet))
            for tablet in ctx.record.targets
        ),
        # Still the node's own under the old map: a client with that map reaches the rows through the root, and holds
        # them where they are now.
        *(
            install.OwnedTablet(tablet.id, tablet.epoch, install.OwnState.OWNED, tuple(new), ctx.id)
            for tablet in ctx.sources
        ),
    ]
    moved = fence.moved_statements(old, gone, ctx.settings.lock_timeout, ctx.source_ids)
    run_together(cursor, [*moved, *install.tablet_statements(rows)])
