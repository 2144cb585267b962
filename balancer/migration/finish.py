"""After the commit of a move: opening the target, retiring the source. Called by the runner until it succeeds.

The owner has changed, so there is no way back from here and none is needed: every step may be repeated.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress

from psycopg import sql

from balancer.errors import BalancerError, Refused, Unavailable
from balancer.migration.concurrency import Background
from balancer.migration.context import Context, partitions_of
from balancer.migration.machine import Event, Track
from balancer.migration.progress import SNAPSHOTS
from balancer.naming import Name
from balancer.nodes.catalog import sequences
from balancer.nodes.schema import install
from balancer.nodes.session.connection import (
    Address,
    Connection,
    Cursor,
    Statement,
    Target,
    Timeouts,
    connect,
    run_together,
    translated,
)
from balancer.nodes.tablets import capture, copy, fence, leftovers, partition, references, replication
from balancer.nodes.tablets.leftovers import OlderSnapshots, this_transaction
from balancer.nodes.tablets.object_names import bound_constraint

_LAZILY = sql.SQL("SET LOCAL synchronous_commit TO off")
_ROUNDS = 25
"""Looks at the standbys, 0.2 s apart, before it is asked again which server leads."""
_SHORT = Timeouts(connect=2.0, statement=5.0, network=5.0)
CLOSED_LOOK = 1.0
"""Seconds after which a former owner's fence is checked again, and closed again if somebody has switched it off."""


def opening(ctx: Context) -> Event:
    """Opens the new owner and informs the former one; no proven read there may miss a write here."""
    # Straight from the switch both nodes have everything ready, and writers wait. Only once: the next attempt, or a
    # successor, first checks what has been done.
    opened, ctx.opened, ctx.fence = ctx.opened, None, None
    if opened is None:
        _open_after_looking(ctx)
    else:
        tell_source(ctx)
        opened.commit()
    if ctx.fenced_at is not None:
        ctx.note(pause=ctx.clock.monotonic() - ctx.fenced_at)
        ctx.fenced_at = None
    if opened is not None:
        _make_durable(ctx)
    return Event.STEP


def tell_source(ctx: Context) -> None:
    """Commits where the tablet went, which the switch has left ready. A former owner that is out of reach is not waited
    for longer than writers may wait: it is told in `retiring`."""
    closed, ctx.closed = ctx.closed, None
    if closed is not None:
        with suppress(BalancerError):
            closed.commit_within(ctx.settings.write_pause_budget)


def _make_durable(ctx: Context) -> None:
    """Straight from the switch neither commit has waited for its disk. The new owner's is made durable here.

    If it is lost before that, the target is closed as before, which this transaction sees, and nothing was acknowledged
    there: any acknowledged write has taken the opening to disk with it. The former owner's word is written again in
    `retiring`; its seal is durable.
    """
    with ctx.target([sql.SQL("SELECT pg_current_xact_id()")]) as cursor:
        _check_opened_there(ctx, cursor)


def opening_statements(ctx: Context) -> list[Statement]:
    """In one transaction on the target, straight from the switch: guard removed, `owned`, its sequences ahead of its
    rows. Its commit does not wait for the disk (see `_make_durable`)."""
    return [_LAZILY, *_open_statements(ctx)]


def _open_statements(ctx: Context) -> list[Statement]:
    names = partitions_of(ctx.table, ctx.moved)
    owned = install.OwnedTablet(ctx.moved.id, ctx.moved.epoch, install.OwnState.OWNED, names)
    return [
        *fence.lift_statements(names, ctx.settings.lock_timeout, [ctx.moved.id]),
        *sequences.raise_statements(ctx.detail.sequences),
        *install.tablet_statements([owned]),
    ]


def _open_after_looking(ctx: Context) -> None:
    """What was attached before the commit was durable. A node that no longer has it, or has what an earlier switch of
    this migration had attached, has lost acknowledged work."""
    ctx.reopen()
    names = partitions_of(ctx.table, ctx.moved)
    # That thread has the source's connection to itself: this one talks only to the target.
    with Background(lambda _: mark_moved(ctx), "mark-moved") as marking, ctx.target() as cursor:
        attached = partition.attachments(cursor, names)
        missing = [str(name) for name in names if attached.get(name) is None]
        if missing:
            raise _lost(ctx, f"had attached {', '.join(missing)} and has not any more")
        check_ready(ctx, cursor)
        run_together(cursor, _open_statements(ctx))
        marking.wait(ctx.settings.write_pause_budget)


def check_ready(ctx: Context, cursor: Cursor) -> None:
    """Raises `Refused` unless the target has all that this very switch has brought there.

    A record of a former version does not say which switch it was: then the marker behind the last write must be there.
    """
    if ctx.detail.switch:
        ready = replication.switch_here(cursor, ctx.id) == ctx.detail.switch
    elif ctx.track is Track.MOVE_REPLICATE and not ctx.table.everywhere:
        ready = replication.newest_marker(cursor, ctx.id) >= ctx.detail.marker
    else:
        ready = True
    if not ready:
        raise _lost(ctx, "does not have what the switch had brought there")


def check_still_ready(ctx: Context) -> None:
    """The same before the commit, on any session: raises `Unavailable`, and the switch is tried again."""
    node = ctx.record.target_node
    with translated(node), ctx.links.control(node).cursor() as cursor:
        try:
            check_ready(ctx, cursor)
        except Refused as error:
            raise Unavailable(str(error)) from error


def _lost(ctx: Context, what: str) -> Refused:
    return Refused(
        f"node {ctx.moved.node} {what}: was it replaced by a standby that lagged behind, or restored from an older"
        f" copy? The rows are still on node {ctx.record.source_node}, closed: see `balancer tablet lost`"
    )


def retiring(ctx: Context) -> Event:
    """Tells former clients where the tablet went; removes the stream and, when nobody needs them any more, the rows.

    Until then they stay attached behind their fence: a former client's UPDATE is refused instead of finding 0 rows.
    """
    mark_moved(ctx)
    _remove_stream(ctx)
    _remove_guard(ctx)
    _wait_for_grace(ctx)
    _wait_for_standbys(ctx)
    _wait_for_snapshots(ctx)
    _check_opened(ctx)
    _untie(ctx)
    for place in reversed(ctx.source_places):  # a referenced root's rows go last
        with ctx.source_command() as connection:
            connection.execute("SELECT set_config('lock_timeout', '10s', false)")
            partition.detach(connection, place.root, place.partition)
        with ctx.source() as cursor:
            partition.release_references(cursor, place.partition, ctx.settings.lock_timeout)
    _check_opened(ctx)
    _drop_rows(ctx)
    return Event.STEP


def _remove_guard(ctx: Context) -> None:
    """Removes what ATTACH needed and the opening only switched off: removing it waits for readers of the partition."""
    for place in ctx.target_places:
        with ctx.target() as cursor:
            fence.drop_fence(cursor, [place.partition], ctx.settings.lock_timeout)
            partition.drop_bound(cursor, place.partition, bound_constraint(ctx.id))


def _wait_for_standbys(ctx: Context) -> None:
    """Were the rows gone, a failover to a standby that has not replayed the switch would leave the tablet nowhere.

    None connected is not none to wait for: a standby that the node had may have been promoted while this server still
    takes our writes, and will be rewound. So one must be there that has replayed the switch, and in the end the address
    is asked again, host by host, which server leads."""
    while True:
        with ctx.target() as cursor:
            wanted, server = leftovers.position(cursor), leftovers.server_of(cursor.connection)
        _check_opened(ctx)
        if not _stays_behind(ctx, wanted) and _leads_alone(ctx, server):
            return


def _stays_behind(ctx: Context, wanted: str) -> bool:
    """Waits for the standbys to have replayed this; after a while the caller looks again who leads."""
    known = ctx.known_standbys()
    for _ in range(_ROUNDS):
        node = ctx.record.target_node
        with translated(node):
            why = missing_standby(ctx.links.control(node), ctx.links.address(node), known, wanted)
        if not why:
            return False
        ctx.progress.waiting(f"{why}: until then the former owner keeps its rows")
        ctx.sleep(0.2)
    return True


def missing_standby(connection: Connection, address: Address, known: Sequence[str], wanted: str) -> str:
    """Which standby of a node has not replayed its log up to this position, in words; empty: none must be waited for.

    `known`: those that the node was ever seen to have."""
    behind = leftovers.not_replayed(connection, wanted)
    if behind:
        return f"{behind[0]} on node {address.node}"
    expected = bool(known) if address.has_standbys is None else address.has_standbys
    if not expected or leftovers.follows(connection, wanted):
        return ""
    had = f", and had {', '.join(map(repr, known))}" if known else ""
    return (
        f"node {address.node} has no standby connected{had}: one of them must follow, because another may have been"
        f" promoted (if there is none any more, say has_standbys = false under [nodes.{address.node}])"
    )


def _leads_alone(ctx: Context, server: leftovers.Server) -> bool:
    """Whether the hosts of the target's address, each asked now, agree that this server leads."""
    address = ctx.links.address(ctx.record.target_node)
    leading = leading_hosts(address)
    if set(leading.values()) == {server}:
        return True
    ctx.links.close()
    ctx.progress.waiting(f"{split_words(address, leading)}: until one leads the former owner keeps its rows")
    ctx.sleep(1.0)
    return False


def leading_hosts(address: Address) -> dict[str, leftovers.Server]:
    """The hosts of an address that take writes now, with the server behind each. Those out of reach are left out."""
    found = {}
    for one in address.each_host():
        with suppress(Unavailable), translated(one.node), closing(_visit(one)) as connection:
            server = leftovers.server_of(connection)
            if server.leads:
                found[one.host_and_port()] = server
    return found


def _visit(address: Address) -> Connection:
    return connect(address, purpose="who leads", timeouts=_SHORT, target=Target.ANY)


def split_words(address: Address, leading: Mapping[str, leftovers.Server]) -> str:
    """Why it cannot be said which server is the node."""
    if len(set(leading.values())) > 1:
        return f"{' and '.join(leading)} both take writes as node {address.node}"
    return f"another server than before answers for node {address.node}"


def _check_opened(ctx: Context) -> None:
    """Raises `Refused` if the new owner no longer has the tablet: then these rows are all that is left.

    Checked before each step that removes some: between the steps it may wait for readers for hours.
    """
    with ctx.target() as cursor:
        _check_opened_there(ctx, cursor)


def _check_opened_there(ctx: Context, cursor: Cursor) -> None:
    node = ctx.record.target_node
    row = cursor.execute("SELECT state, epoch FROM balancer.tablet WHERE id = %s", (ctx.moved.id,)).fetchone()
    if row is None or row[0] not in ("owned", "fenced") or row[1] != ctx.moved.epoch:
        raise Refused(f"node {node} has opened tablet {ctx.moved.id} and no longer says so: did it go back in time?")


def _wait_for_snapshots(ctx: Context) -> None:
    """Readers whose snapshot is older than the switch would miss the rows that leave, without a word."""
    with ctx.source() as cursor:
        older = OlderSnapshots(this_transaction(cursor))
    while True:
        with ctx.source() as cursor:
            left = older.left(cursor)
        if not left:
            return
        what = f"{left[0].told} on node {ctx.record.source_node}, which may still read what has moved"
        ctx.progress.waiting(what, reason=SNAPSHOTS)
        ctx.sleep(0.2)


def mark_moved(ctx: Context) -> None:
    """Makes the former owner say where the tablet went, whatever of it has been done."""
    names = partitions_of(ctx.table, ctx.sources[0])
    with ctx.source() as cursor:
        row = cursor.execute("SELECT epoch FROM balancer.tablet WHERE id = %s FOR UPDATE", (ctx.moved.id,)).fetchone()
        if row is not None and row[0] > ctx.moved.epoch:
            raise Refused(f"node {ctx.record.source_node} has tablet {ctx.moved.id} again, with epoch {row[0]}")
        # A partition whose detach has begun was marked before that, and cannot be altered until the detach is finished.
        there = [name for name, pending in partition.attachments(cursor, names).items() if not pending]
        # Under the lock: a session that has switched the fence off but not yet committed would be overlooked, and then
        # hidden by the next statements.
        fence.lock_partitions(cursor, there, ctx.settings.lock_timeout * 5)
        leftovers.switched_off(cursor, [ctx.moved.id], there)
        opened = leftovers.was_open(cursor, [ctx.moved.id])
        run_together(cursor, _moved_statements(ctx, there))
        if opened:
            leftovers.note_open(cursor, [ctx.moved.id])


def told_moved(ctx: Context, names: Sequence[Name]) -> list[Statement]:
    """What the switch leaves ready on the source, to be committed after the directory: `tell_source`."""
    return [_LAZILY, *_moved_statements(ctx, names)]


def _moved_statements(ctx: Context, there: Sequence[Name]) -> list[Statement]:
    moved = ctx.moved
    gone = fence.Fence(ctx.id, ctx.leadership.epoch, fence.MOVED, 0, moved.id, moved.node, moved.epoch)
    names = partitions_of(ctx.table, ctx.sources[0])
    told = install.OwnedTablet(moved.id, moved.epoch, install.OwnState.MOVED, names, moved_to=moved.node)
    return [
        *fence.moved_statements(there, gone, ctx.settings.lock_timeout * 5, ctx.source_ids),
        *install.tablet_statements([told]),
    ]


def _remove_stream(ctx: Context) -> None:
    with ctx.target() as cursor:
        replication.drop_subscription(cursor, ctx.id)
        replication.delete_markers(cursor, ctx.id)
        replication.forget_switch(cursor, ctx.id)
        copy.drop_notes(cursor, ctx.id)
    with ctx.source() as cursor:
        replication.drop_slot(cursor, ctx.id)
    with ctx.source() as cursor:
        replication.drop_publication(cursor, ctx.id)
        replication.delete_markers(cursor, ctx.id)


def _wait_for_grace(ctx: Context) -> None:
    switched = ctx.detail.switched
    if switched is not None:
        until = min(switched, ctx.clock.now().timestamp()) + ctx.settings.retire_grace
        ctx.progress.waiting("readers of the former owner")
        while (left := until - ctx.clock.now().timestamp()) > 0:
            ctx.sleep(min(left, CLOSED_LOOK))
            _keep_closed(ctx)


def _keep_closed(ctx: Context) -> None:
    with ctx.source() as cursor:
        names = partitions_of(ctx.table, ctx.sources[0])
        there = [name for name, pending in partition.attachments(cursor, names).items() if not pending]
        opened = leftovers.switched_off(cursor, [ctx.moved.id], there)
    if opened:
        mark_moved(ctx)


def _untie(ctx: Context) -> None:
    """Rows that point to each other could not be detached: they are deleted first, behind their fence."""
    names = partitions_of(ctx.table, ctx.sources[0])
    with ctx.source() as cursor:
        there = [name for name, pending in partition.attachments(cursor, names).items() if pending is False]
        if not there or not references.tied(cursor, ctx.roots):
            return
        fence.lock_partitions(cursor, there, ctx.settings.lock_timeout)
        if leftovers.was_switched_off(cursor, [ctx.moved.id], there):
            raise Refused(
                f"somebody has switched the fence of {there[0]} on node {ctx.record.source_node} off, and its rows,"
                " which point to each other, can neither be dropped nor set aside: look at them and delete them"
            )
        references.empty_partitions(cursor, there)
        run_together(cursor, _moved_statements(ctx, there))


def _drop_rows(ctx: Context) -> None:
    """Drops only what is detached and `moved` under the epoch that this migration gave the tablet."""
    node = ctx.record.source_node
    with ctx.source() as cursor:
        row = cursor.execute(
            "SELECT state, epoch FROM balancer.tablet WHERE id = %s FOR UPDATE", (ctx.moved.id,)
        ).fetchone()
        if row != (str(install.OwnState.MOVED), ctx.moved.epoch):
            raise Refused(f"node {node} does not say that tablet {ctx.moved.id} has moved: its rows are kept")
        going = list(reversed(list(enumerate(ctx.source_places))))
        for index, place in going:
            capture.drop_capture(cursor, ctx.id, index, place.partition)
        names = [place.partition for _, place in going]
        kept = leftovers.drop_or_set_aside(cursor, [ctx.moved.id], names, ctx.id, ctx.settings.lock_timeout)
    if kept:
        ctx.note(kept=kept)
