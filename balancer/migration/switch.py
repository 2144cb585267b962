"""The switch of a move: catching up, fence, drain, the last comparison, seal and ATTACH. Called by the runner.

From `fencing` on writers are held back, and every millisecond counts: connections are open, nothing is journaled, and
each step checks the budget (`Context.checkpoint`). The commit itself is the runner's.

The messages of a switch, composed before anybody waits for them. Called by `switch`, in this order.

Those that are known before the fence are composed right before it (`compose`); the others when first asked for. The
next fence discards them all.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from psycopg import sql
from psycopg.rows import TupleRow

from balancer.directory.model import MigrationMode, Tablet
from balancer.errors import BalancerError, Refused, Unavailable
from balancer.migration import comparison, guards, retries, stream
from balancer.migration.concurrency import Background
from balancer.migration.context import Context, OpenTransaction, partitions_of
from balancer.migration.copy import read_shapes
from balancer.migration.finish import opening_statements, told_moved
from balancer.migration.machine import Event, Track
from balancer.migration.retries import Overrun
from balancer.migration.stream import LagGauge, await_marker, next_marker
from balancer.naming import Name
from balancer.nodes.catalog import sequences
from balancer.nodes.catalog.shapes import Shape
from balancer.nodes.schema import blockers, install
from balancer.nodes.session.connection import (
    Cursor,
    Statement,
    last_rows,
    lock_timeout,
    next_rows,
    rows_that_follow,
    run_together,
    statement_timeout,
    translated,
)
from balancer.nodes.tablets import capture, checksum, fence, mirror, partition, references, replication
from balancer.nodes.tablets.checksum import Rows
from balancer.nodes.tablets.closed import closed_statement

PING_INTERVAL = 0.1
FIXED_COST = 0.02  # seconds: fence, seal, attach, commit and open are six commits on three servers
PING_PATIENCE = 30.0

Rest = tuple[tuple[Rows, comparison.Changed], ...]
"""For each partition, the changed rows that have not been compared, as the source has them."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a switch would cost the writers now."""

    trip: float  # seconds a marker takes through the stream
    keys: int  # changed keys left to compare
    attach: float = 0.0  # seconds in which the target checks foreign keys

    @property
    def pause(self) -> float:
        """In seconds: one and a half times the last trip, plus some microseconds for each key."""
        return 1.5 * self.trip + FIXED_COST + self.keys * 10e-6 + self.attach


def catching_up(ctx: Context) -> Event:
    """Lets writers continue if they were held back; then waits until a switch would fit into the budget."""
    let_writers_on(ctx)
    take_back(ctx)
    back_off(ctx)
    watch = LagGauge(ctx)
    shapes = read_shapes(ctx)
    while True:
        ctx.checkpoint()
        guards.check_fingerprints(ctx)
        watch.check()
        forecast = _round(ctx, shapes, watch)
        fits = forecast.pause <= ctx.settings.write_pause_budget
        if fits and forecast.keys <= ctx.settings.verify_keys_in_fence:
            ctx.note(predicted_pause=forecast.pause)
            return Event.STEP
        ctx.progress.waiting(
            f"the stream: a switch would take {forecast.pause * 1000:.0f} ms of"
            f" {ctx.settings.write_pause_budget * 1000:.0f} allowed, {forecast.keys} rows to compare;"
            f" {watch.trend.words()}"
        )
        ctx.sleep(PING_INTERVAL)


def fencing(ctx: Context) -> Event:
    """Holds writers back, with a deadline; the marker follows their last write through the stream."""
    names = [place.partition for place in ctx.source_places]
    replicated = ctx.record.mode is MigrationMode.REPLICATE
    ctx.note(fences=ctx.detail.fences + 1, switch=secrets.randbits(62))
    guards.clear_the_way(ctx, ctx.record.source_node, names, blockers.FENCE)
    if ctx.record.target_node != ctx.record.source_node:
        guards.clear_the_way(ctx, ctx.record.target_node, ctx.roots, blockers.ATTACH)
    _find_sequences(ctx)
    stream.find(ctx)
    guards.plan_definitions(ctx)
    if ctx.track is Track.MOVE_REPLICATE and not ctx.table.everywhere:
        ctx.opened = ctx.open_target([])  # ready before anybody waits for it
    seconds = ctx.settings.fence_deadline if replicated else ctx.settings.read_only_fence_deadline
    try:
        _raise_fence(ctx, names, seconds)
    except Unavailable:
        guards.name_blockers(ctx, ctx.record.source_node, names, blockers.FENCE)
        raise
    return Event.STEP


def _raise_fence(ctx: Context, names: list[Name], seconds: float) -> None:
    """What writers need not wait for (the transaction, the leader's epoch, the deadline) comes before the lock."""
    wanted = fence.Fence(ctx.id, ctx.leadership.epoch, "", 0, ctx.sources[0].id)
    raising = ctx.open_source([fence.deadline_statement(seconds)])
    try:
        ctx.fence = fence.announced(last_rows(raising.cursor)[0], wanted)
        statements = fence_statements(ctx, names, ctx.fence)
        if ctx.track is Track.MOVE_REPLICATE:
            statements += [raising.keep_out_writers(ctx.source_ids), *replication.marker_statements(ctx.stream)]
        compose(ctx, names, statements)
        ctx.fenced_at = ctx.clock.monotonic()
        _fence_locked(ctx, raising.cursor)
        if ctx.track is not Track.MOVE_REPLICATE:
            raising.commit()  # a copy behind the fence takes long, and the fence must be renewed meanwhile
        elif ctx.table.everywhere:
            close_source(ctx, raising)
        else:
            # The source stands still behind its fence: what has to be compared comes in the same message.
            close_source(ctx, raising, [ctx.messages["rest"]])
            ctx.prepared = _read_rest(ctx, rows_that_follow(raising.cursor))
    except BaseException:
        ctx.fence = ctx.closed = None
        raising.roll_back()
        raise


def _fence_locked(ctx: Context, cursor: Cursor) -> None:
    """The message that fences also checks what must be true under the lock; if it is not, the caller rolls back."""
    node = ctx.record.source_node
    with translated(node):
        run_together(cursor, [ctx.messages["fence"]])
        found = rows_that_follow(cursor)
    _, closed, definitions = found[:3]
    guards.refuse_closed(ctx, closed)
    guards.compare_definitions(ctx, node, definitions)
    if ctx.track is Track.MOVE_REPLICATE:
        ctx.note(marker=found[-1][0][0])


def draining(ctx: Context) -> Event:
    """Waits until the target has applied everything up to the fence. The source's answer arrives meanwhile."""
    read_sequences(ctx)
    marks = stream.send(ctx)
    missing = await_marker(ctx, ctx.detail.marker, ctx.settings.write_pause_budget * 2)
    stream.await_all(ctx, marks)
    if missing:
        # What was compared is not compared again: a target that has lost some of it has also lost its marker.
        node = ctx.record.target_node
        raise Refused(f"node {node} has lost changes that it had applied: did it go back in time?")
    return Event.STEP


def _read_rest(ctx: Context, answers: Sequence[Sequence[TupleRow]]) -> Rest:
    rest = []
    for rows, answer in zip(map(comparison.rows_of, read_shapes(ctx)), answers, strict=True):
        if len(answer) >= most_rest(ctx):
            raise Overrun(f"{rows.partition} changes faster than it can be compared")
        rest.append((rows, comparison.gather(rows, answer)))
    return tuple(rest)


def verifying(ctx: Context) -> Event:
    """Compares the changed rows that have not been compared yet; both sides stand still."""
    if ctx.record.mode is MigrationMode.READ_ONLY:
        read_sequences(ctx)
        stream.await_all(ctx, stream.send(ctx))
        return Event.STEP  # the copy was made, and compared, behind the fence
    ctx.checkpoint()
    node = ctx.record.target_node
    with translated(node), ctx.links.control(node).cursor() as cursor:
        for rows, found in ctx.prepared:
            comparison.compare_rest(cursor, rows, found)
    return Event.STEP


def sealing(ctx: Context) -> Event:
    """Makes the fence permanent, if it has let nothing through: from here on only a leader's act ends it.

    In parallel the target's partitions are attached, behind their guard, and made durable. Neither needs the other; the
    commit needs both. What follows the commit is sent to both nodes before it, and only committed afterwards: where the
    tablet went, and what opens the target. Until then nobody sees it, and it is gone if its session ends.
    """
    shapes = read_shapes(ctx)
    return seal(ctx, lambda: _attach(ctx, shapes))


def seal(ctx: Context, prepare: Callable[[], None]) -> Event:
    """The same, with any function that makes the target ready."""
    if ctx.fence is None:
        raise Overrun("the fence was raised by a predecessor")
    ctx.checkpoint()
    names = [place.partition for place in ctx.source_places]
    # That thread has the target's connection to itself: this one talks only to the source.
    with Background(lambda _: prepare(), "attach") as attaching:
        closed = ctx.closed or close_source(ctx)
        try:
            _seal_locked(ctx, closed.cursor, names)
        except BalancerError:
            ctx.closed = None  # what is open on the target belongs to the thread for as long as it runs
            closed.roll_back()
            raise
        close_source(ctx, closed, [moved(ctx, names)])
        attaching.result()
    return Event.STEP


def _seal_locked(ctx: Context, cursor: Cursor, names: list[Name]) -> None:
    """The message that seals also checks what must be true for a seal; if it is not, the caller rolls back."""
    assert ctx.fence is not None
    node = ctx.record.source_node
    with translated(node):
        run_together(cursor, [seal_message(ctx, names)])
        guards.compare_definitions(ctx, node, cursor.fetchall())
        *_, looked = rows_that_follow(cursor)
    ctx.fence = fence.sealed_by(ctx.fence, fence.check_looked(looked, ctx.fence))


def close_source(ctx: Context, made: OpenTransaction | None = None, then: Sequence[Statement] = ()) -> OpenTransaction:
    """Locks the source's partitions until the tablet's new owner is known; only the seal's own commit briefly lets go.

    Writers wait for the lock instead of being refused at once, so that those that retry in a loop need few tries. And
    nobody gets close enough to the fence to switch it off. If this process hangs, the server ends the transaction. What
    was `made` is committed first; what is done `then` stays open, as the lock does.
    """
    assert ctx.fence is not None
    names = [place.partition for place in ctx.source_places]
    together = [hold(ctx, names), *then]
    if made is None:
        ctx.closed = ctx.open_source(together)
    else:
        ctx.closed = made
        made.commit_and_begin(together)
    next_rows(ctx.closed.cursor)  # of the lock
    fence.check_looked(next_rows(ctx.closed.cursor) or (), ctx.fence)
    return ctx.closed


def _attach(ctx: Context, shapes: tuple[Shape, ...]) -> None:
    """One transaction on the target: the stream ends, the partitions are part of their roots, and refuse every write.

    From its commit on, DDL reaches them through the root; until then none gets past the lock. Replication applies
    without waiting for the disk; this commit waits, which makes everything applied durable too.
    """
    node = ctx.record.target_node
    names = [place.partition for place in ctx.target_places]
    try:
        attaching = ctx.opened or ctx.open_target([])
        try:
            with translated(node):
                run_together(attaching.cursor, [close(ctx)])
                _attach_locked(ctx, shapes, names, attaching.cursor)
            attaching.commit_and_begin([open_(ctx)])
        except BaseException:
            ctx.opened = None
            attaching.roll_back()
            raise
    except Unavailable:
        guards.name_blockers(ctx, node, ctx.roots, blockers.ATTACH)
        raise
    ctx.opened = attaching


def _attach_locked(ctx: Context, shapes: tuple[Shape, ...], names: list[Name], cursor: Cursor) -> None:
    node = ctx.record.target_node
    *_, arrived, incoming, definitions = rows_that_follow(cursor)
    check_arrived(ctx, arrived)
    if not incoming:
        raise Refused(f"node {node} does not know of the incoming tablet {ctx.moved.id}")
    guards.compare_definitions(ctx, node, definitions)
    for shape, name in zip(shapes, names, strict=True):
        partition.add_triggers(cursor, shape, name)
    run_together(cursor, [attach(ctx, shapes)])
    for name in names if references.there_are_any(shapes) and references.may_prepare(cursor) else ():
        references.wake_references(cursor, name)


def take_back(ctx: Context) -> None:
    """The journal says that the previous switch can no longer commit: what was attached on the target is detached."""
    if ctx.record.target_node == ctx.record.source_node:
        return
    with ctx.target() as cursor:
        if detach_incoming(ctx, cursor, undone=False):
            for place, shape in zip(ctx.target_places, read_shapes(ctx), strict=True):
                partition.drop_triggers(cursor, shape, place.partition)
                fence.guard_incoming(cursor, place.partition, ctx.guard)
                if references.may_prepare(cursor):
                    references.silence_references(cursor, place.partition)
                else:
                    partition.release_references(cursor, place.partition, ctx.settings.lock_timeout)
        replication.enable_subscription(cursor, ctx.id)


def detach_incoming(ctx: Context, cursor: Cursor, *, undone: bool) -> bool:
    """Detaches what is `incoming` under this very migration, if it is attached; returns whether it was.

    `undone`: the rows are no longer needed.
    """
    row = cursor.execute(
        "SELECT state, migration FROM balancer.tablet WHERE id = %s FOR UPDATE", (ctx.moved.id,)
    ).fetchone()
    if row != (str(install.OwnState.INCOMING), ctx.id):
        return False
    names = [place.partition for place in ctx.target_places]
    attached = [name for name, pending in partition.attachments(cursor, names).items() if pending is not None]
    if attached:
        # Readers of the root may hold it; later sessions wait behind this.
        partition.set_lock_timeout(cursor, ctx.settings.lock_timeout)
        for root in ctx.roots:
            cursor.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE").format(root.identifier))
    if attached and references.tied(cursor, ctx.roots):
        if not undone:
            raise Refused(f"the switch failed, and rows of {ctx.roots[0]} point to each other: they are copied again")
        references.empty_partitions(cursor, attached)
    for place in reversed(ctx.target_places):
        if place.partition in attached:
            partition.detach_locked(cursor, place.root, place.partition)
    return bool(attached)


def _find_sequences(ctx: Context) -> None:
    """Finding out which ones there are takes longer than how far they are: that is asked before anybody waits."""
    node = ctx.record.source_node
    with translated(node), ctx.links.control(node).cursor() as cursor:
        ctx.sequences = sequences.find_sequences(cursor, ctx.roots)


def read_sequences(ctx: Context) -> None:
    node = ctx.record.source_node
    with translated(node), ctx.links.control(node).cursor() as cursor:
        ctx.note(sequences=sequences.read_sequences(cursor, ctx.sequences))


def let_writers_on(ctx: Context, *, capturing: bool = True) -> None:
    """The journal says that the previous switch or swap can no longer commit: its fence may go.

    Not `capturing`: nothing will be switched at all, and what writers change is no longer recorded. What the leader's
    guard has closed stays closed.
    """
    ctx.reopen()
    with ctx.source() as cursor:
        for tablet in ctx.sources:
            names = partitions_of(ctx.table, tablet)
            owned = install.OwnedTablet(tablet.id, tablet.epoch, install.OwnState.OWNED, names)
            if fence.lift_fence(cursor, names, ctx.settings.lock_timeout * 5):
                install.write_tablets(cursor, [owned])
        for place in () if capturing else ctx.source_places:
            mirror.disable(cursor, place.partition, ctx.settings.lock_timeout * 5)
            capture.disable_capture(cursor, place.partition, ctx.settings.lock_timeout * 5)
    ctx.fence, ctx.fenced_at = None, None


def back_off(ctx: Context) -> None:
    if ctx.detail.fences == 0:
        return
    if ctx.detail.fences >= ctx.settings.fence_attempts:
        raise Refused(f"given up after {ctx.detail.fences} fences: {ctx.detail.retreat or 'interrupted'}")
    pause = retries.back_off(ctx.detail.fences, ctx.settings)
    ctx.progress.waiting(f"the next fence, in {pause:.1f} s: {ctx.detail.retreat}", at_once=True)
    ctx.sleep(pause)


def _round(ctx: Context, shapes: tuple[Shape, ...], watch: LagGauge) -> Forecast:
    """Sends a marker behind what is compared, waits for it, compares; `comparison` says why this is sound."""
    node = ctx.record.source_node
    changed = []
    with ctx.source() as cursor:
        for index, shape in enumerate(shapes):
            rows = comparison.rows_of(shape)
            changed.append((rows, comparison.read_changed(cursor, rows, ctx.id, index)))
        number = next_marker(ctx, cursor)
    sent = ctx.clock.monotonic()
    await_marker(ctx, number, PING_PATIENCE, watch)
    trip = ctx.clock.monotonic() - sent
    for index, (rows, found) in enumerate(changed):
        with translated(ctx.record.target_node), ctx.links.control(ctx.record.target_node).cursor() as cursor:
            equal = comparison.equal_keys(cursor, rows, found)
        comparison.forget(ctx, index, found, equal)
    with translated(node), ctx.links.control(node).cursor() as cursor:
        left = sum(capture.pending(cursor, ctx.id, index, 100_000) for index in range(len(shapes)))
    return Forecast(trip, left, ctx.detail.attach)


def compose(ctx: Context, names: list[Name], fencing: list[Statement]) -> None:
    """What will be sent while writers wait, as far as it is known beforehand."""
    source = ctx.record.source_node
    ctx.messages.clear()
    ctx.message("fence", source, lambda: fencing)
    if ctx.track is not Track.MOVE_REPLICATE:
        return  # writers wait for a whole copy
    hold(ctx, names)
    seal_message(ctx, names)
    moved(ctx, names)
    if not ctx.table.everywhere:
        shapes = read_shapes(ctx)
        ctx.message("rest", source, lambda: _rest_statements(ctx))
        close(ctx)
        attach(ctx, shapes)
        if not ctx.sequences:
            open_(ctx)


def fence_statements(ctx: Context, names: list[Name], standing: fence.Fence) -> list[Statement]:
    """What raises the fence, and what has to be true under its lock."""
    locks, triggers = fence.raise_statements(names, standing, ctx.settings.lock_timeout, ctx.source_ids)
    looks = closed_statement(ctx.source_ids), guards.definitions_statement(ctx, ctx.record.source_node)
    tablets = install.tablet_statements([_fenced(ctx, tablet, standing) for tablet in ctx.sources])
    return [*locks, *looks, *triggers, *tablets]


def _fenced(ctx: Context, tablet: Tablet, standing: fence.Fence) -> install.OwnedTablet:
    names = partitions_of(ctx.table, tablet)
    deadline = fence.deadline_of(standing)
    return install.OwnedTablet(tablet.id, tablet.epoch, install.OwnState.FENCED, names, ctx.id, deadline)


def hold(ctx: Context, names: list[Name]) -> Statement:
    """Takes the partitions' lock for as long as the transaction lasts, and checks the fence under it."""

    def make() -> list[Statement]:
        limit = sql.SQL("SET LOCAL idle_in_transaction_session_timeout TO {}").format(
            sql.Literal(f"{round(ctx.settings.fence_deadline * 1000)}ms")
        )
        return [limit, *fence.look_statements(names, ctx.settings.lock_timeout, ctx.source_ids)]

    return ctx.message("hold", ctx.record.source_node, make)


def _rest_statements(ctx: Context) -> list[Statement]:
    """Asks for each partition's changed rows that have not been compared."""
    rows = map(comparison.rows_of, read_shapes(ctx))
    return [checksum.changed_statement(one, ctx.id, index, most_rest(ctx)) for index, one in enumerate(rows)]


def seal_message(ctx: Context, names: list[Name]) -> Statement:
    """Seals the fence, with what must be true for it."""

    def make() -> list[Statement]:
        assert ctx.fence is not None
        look = fence.look_statements(names, ctx.settings.lock_timeout, ctx.source_ids)
        sealing = fence.seal_statements(names, ctx.fence, ctx.source_ids)
        return [guards.definitions_statement(ctx, ctx.record.source_node), *look, *sealing]

    return ctx.message("seal", ctx.record.source_node, make)


def moved(ctx: Context, names: list[Name]) -> Statement:
    """What says where the tablet went."""
    return ctx.message("moved", ctx.record.source_node, lambda: told_moved(ctx, names))


def close(ctx: Context) -> Statement:
    """What precedes ATTACH on the target."""
    node, names = ctx.record.target_node, [place.partition for place in ctx.target_places]
    return ctx.message(
        "close", node, lambda: [*_closing_statements(ctx, names), guards.definitions_statement(ctx, node)]
    )


def _closing_statements(ctx: Context, names: list[Name]) -> list[Statement]:
    """What precedes ATTACH: locks that keep DDL out, the end of the stream, the guard against everybody's writes."""
    lock = sql.SQL("LOCK TABLE ONLY {} IN SHARE UPDATE EXCLUSIVE MODE")
    return [
        lock_timeout(ctx.settings.lock_timeout),
        # What PostgreSQL insists on (a foreign key that must be checked) may take long, but not forever.
        statement_timeout(ctx.settings.write_pause_budget * 4 if ctx.track is Track.MOVE_REPLICATE else 0),
        *(lock.format(root.identifier) for root in ctx.roots),
        *([replication.disable_statement(ctx.id)] if ctx.track is Track.MOVE_REPLICATE else []),
        *fence.trigger_statements(names, ctx.guard, [ctx.moved.id]),
        *made_ready(ctx),
        install.touch_statement(ctx.moved.id),
    ]


def made_ready(ctx: Context) -> list[Statement]:
    """What the target's transaction needs that makes it ready: the switch's number, and whether all that it relies on
    is here. That is looked at in this very transaction, whatever has become of the session that saw it arrive: the last
    marker of the stream, or, in read-only mode, the number that was written behind the copied rows."""
    if ctx.track is not Track.MOVE_REPLICATE:
        return [replication.switch_here_statement(ctx.id)]
    return [*replication.switch_statements(ctx.id, ctx.detail.switch), replication.arrived_statement(ctx.stream)]


def check_arrived(ctx: Context, rows: Sequence[TupleRow]) -> None:
    """Raises an error if the target has lost what had arrived there before the switch, by the last of `made_ready`."""
    node = ctx.record.target_node
    if ctx.track is not Track.MOVE_REPLICATE:
        if rows[0][0] != ctx.detail.switch:
            raise Overrun(f"node {node} has lost rows that were copied there: they will be copied again")
        return
    newest, missing = rows[0]
    if newest < ctx.detail.marker:
        raise Overrun(f"node {node} has lost changes that it had applied: they will be streamed again")
    if missing and not ctx.table.everywhere:  # the stream of a reference table forgets its old markers
        raise Refused(f"node {node} has lost changes that it had applied: did it go back in time?")


def attach(ctx: Context, shapes: tuple[Shape, ...]) -> Statement:
    """Makes the target's partitions parts of their roots."""
    return ctx.message("attach", ctx.record.target_node, lambda: _attaching_statements(ctx, shapes))


def _attaching_statements(ctx: Context, shapes: tuple[Shape, ...]) -> list[Statement]:
    found: list[Statement] = []
    for place, shape in zip(ctx.target_places, shapes, strict=True):  # referenced roots come first
        found += [partition.owner_statement(shape, place.partition), partition.attach_statement(place)]
    return found


def open_(ctx: Context) -> Statement:
    """What opens the target."""
    return ctx.message("open", ctx.record.target_node, lambda: opening_statements(ctx))


def most_rest(ctx: Context) -> int:
    """How many entries of the log of changes are read behind the fence at most, and one more."""
    return ctx.settings.verify_keys_in_fence * 4 + 1
