"""How expired tablets leave: closed, counted, archived, swapped for an empty one, and dropped. Called by the runner.

`machine` has the argument. Tablets are closed on their own nodes; the swap happens on the node of those that leave. The
empty tablet below them, left by an earlier expiry, may be on another node: it is already closed for good, and is
removed there like a former owner's rows.

The operator's archive command: run for each expired tablet before its rows go, and judged by its exit code alone.

It runs without a shell, and anything derived from a table's name follows `--word=`, so that no name becomes an option.
Our own secrets are not in its environment. It may run again for the same tablet (after a crash, or when something else
failed), so it must be able to start from the beginning.
"""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from balancer.directory.model import RangeBounds, Tablet
from balancer.errors import Refused, Unavailable
from balancer.migration import guards
from balancer.migration.context import Context, partitions_of, places
from balancer.migration.lock_attempts import LockAttempts
from balancer.migration.machine import Event
from balancer.migration.retries import Overrun
from balancer.migration.swap import swapped
from balancer.migration.switch import back_off
from balancer.nodes.catalog.bounds import KeyColumn, KeyRange, show_part
from balancer.nodes.catalog.owners_code import check_extendable, check_readable
from balancer.nodes.catalog.roots import read_root
from balancer.nodes.schema import blockers, install, proof
from balancer.nodes.schema.leader_transaction import node_command
from balancer.nodes.session.connection import Cursor, lock_timeout, run_together, statement_timeout, translated
from balancer.nodes.tablets import fence, leftovers, partition
from balancer.nodes.tablets.closed import (
    bound_of,
    clock_of,
    close_expired,
    closed_by,
    count_expired,
    drop_expired_triggers,
    open_expired,
    refuse_rows,
    suspect,
)
from balancer.nodes.tablets.partition import create_partition
from balancer.policies.reasons import duration_text
from balancer.policies.resize.time_ranges import end_of_bound, in_words, start_of_bound
from balancer.settings.units import Dsn


def planned(ctx: Context) -> Event:
    """Nothing has been made yet."""
    for node in {tablet.node for tablet in ctx.sources}:
        with ctx.node(node) as cursor:
            install.upgrade_schema(cursor)
    return Event.STEP


def fencing(ctx: Context) -> Event:
    """Closes the tablets that this migration has not closed already: readers continue, writers are refused."""
    back_off(ctx)
    for tablet in ctx.sources:
        ctx.checkpoint()
        names = partitions_of(ctx.table, tablet)
        try:
            with ctx.node(tablet.node) as cursor:
                _judge(ctx, cursor, tablet)
                by = closed_by(cursor, names)
                if by is None or (by != _known(ctx, "closed", tablet) and not _is_floor(ctx, tablet)):
                    by = close_expired(cursor, names, _sentence(ctx, tablet), ctx.settings.lock_timeout)
        except Unavailable:
            guards.name_blockers(ctx, tablet.node, list(names), blockers.FENCE)
            raise
        if by != _known(ctx, "closed", tablet):
            _remember(ctx, closed={str(tablet.id): by}, rows={str(tablet.id): None}, archived={str(tablet.id): False})
    return Event.STEP


def verifying(ctx: Context) -> Event:
    """Counts what is in them, for the history; a row that the bounds do not allow stops everything."""
    for tablet in ctx.sources:
        if _known(ctx, "rows", tablet) is not None:
            continue
        rows = 0
        with ctx.links.data(tablet.node) as connection, translated(tablet.node):
            for place in places(ctx.table, tablet):
                ctx.checkpoint()
                with ctx.long_work(connection, tablet.node) as cursor:
                    check_readable(cursor, [place.partition], trusted=ctx.settings.trust_table_owners)
                    count = count_expired(connection, place)
                if count.outside:
                    raise Refused(
                        f"{count.outside} rows of {place.partition} are outside its bounds: nothing of it is dropped"
                    )
                rows += count.rows
        _remember(ctx, rows={str(tablet.id): rows})
    return Event.STEP


def copying(ctx: Context) -> Event:
    """Hands each tablet with rows to the archive command, if there is one."""
    for tablet in ctx.sources:
        rows = _known(ctx, "rows", tablet)
        if not ctx.settings.archive_command or not rows or _known(ctx, "archived", tablet):
            continue
        ctx.progress.waiting(f"the archive command, for tablet {tablet.id}")
        run_archive(ctx.settings.archive_command, _facts(ctx, tablet, rows), ctx.sleep)
        _remember(ctx, archived={str(tablet.id): True})
    return Event.STEP


def swapping(ctx: Context) -> Event:
    """Swaps, unless that has happened already."""
    if swapped(ctx):
        return Event.STEP
    ctx.note(fences=ctx.detail.fences + 1)
    for tablet in ctx.sources:
        if tablet.node != ctx.record.source_node:
            with ctx.node(tablet.node) as cursor:
                _check_closed(ctx, cursor, tablet)
    mine = _here(ctx)
    concerned = [*ctx.roots, *(name for tablet in mine for name in partitions_of(ctx.table, tablet))]
    LockAttempts(ctx, ctx.record.source_node, concerned, blockers.SWAP).run(
        lambda patience: _swap_once(ctx, mine, patience)
    )
    return Event.STEP


def _swap_once(ctx: Context, mine: Sequence[Tablet], patience: float) -> None:
    began = ctx.clock.monotonic()
    with ctx.source() as cursor:
        _swap(ctx, cursor, mine, began + patience)
    ctx.note(pause=ctx.clock.monotonic() - began)


def retiring(ctx: Context) -> Event:
    """Marks the old tablets as gone; their rows go after the grace."""
    node = ctx.record.source_node
    with ctx.source() as cursor:
        install.write_tablets(cursor, [_moved(ctx, tablet) for tablet in _here(ctx)])
    others = [tablet for tablet in ctx.sources if tablet.node != node]
    for tablet in others:
        _tell(ctx, tablet)
    if ctx.detail.switched is not None:
        left = ctx.detail.switched + ctx.settings.retire_grace - ctx.clock.now().timestamp()
        ctx.sleep(max(0.0, min(left, ctx.settings.retire_grace)))
    kept = [_drop(ctx, node, _here(ctx)), *(_drop_elsewhere(ctx, tablet) for tablet in others)]
    if any(kept):
        ctx.note(kept="; ".join(filter(None, kept)))
    return Event.STEP


def cancelling(ctx: Context) -> Event:
    """Opens the tablets again; the empty one of an earlier expiry stays closed."""
    going = [tablet for tablet in ctx.sources if not _is_floor(ctx, tablet)]
    for tablet in going:
        with ctx.node(tablet.node) as cursor:
            open_expired(cursor, partitions_of(ctx.table, tablet), ctx.settings.lock_timeout)
    for tablet in going:
        for name in partitions_of(ctx.table, tablet):
            with ctx.node(tablet.node) as cursor:
                drop_expired_triggers(cursor, name, ctx.settings.lock_timeout)
    return Event.BROKEN if ctx.detail.failed else Event.CLEANED


def last_count(ctx: Context) -> str:
    """How many rows have left with which tablets, for the history; empty: this is not an expiry."""
    rows: Mapping[str, Any] = ctx.detail.expiry.get("rows", {})
    going = [tablet for tablet in ctx.sources if ctx.detail.expiry and not _is_floor(ctx, tablet)]
    counted = ", ".join(f"{rows.get(str(tablet.id)) or 0} rows of tablet {tablet.id}" for tablet in going)
    return f"{counted} of {ctx.table.name} have expired" if counted else ""


def _swap(ctx: Context, cursor: Cursor, mine: Sequence[Tablet], until: float) -> None:
    old = [name for tablet in mine for name in partitions_of(ctx.table, tablet)]
    proof.lock_everybody_out(cursor, ctx.roots, old, (), lambda: until - ctx.clock.monotonic())
    run_together(
        cursor, [statement_timeout(ctx.settings.write_pause_budget * 4), lock_timeout(ctx.settings.lock_timeout)]
    )
    made = ctx.record.targets[0]
    if any(row.id == made.id for row in install.read_tablets(cursor)):
        return  # a commit whose answer was lost came through after we had asked: the locks had to wait for it
    for tablet in mine:
        _check_closed(ctx, cursor, tablet)
        _judge(ctx, cursor, tablet)
    check_extendable(cursor, ctx.roots, trusted=ctx.settings.trust_table_owners)
    leaving = [place for tablet in mine for place in places(ctx.table, tablet)]
    for place in sorted(leaving, key=lambda place: -ctx.roots.index(place.root)):  # a referenced root's rows go last
        partition.detach_locked(cursor, place.root, place.partition)
        partition.release_references(cursor, place.partition, ctx.settings.lock_timeout)
    for place in ctx.target_places_by_root():
        create_partition(cursor, read_root(cursor, place.root), place.partition, place.part)
        refuse_rows(cursor, place.partition, _sentence(ctx, made))
    for tablet in mine:
        names = partitions_of(ctx.table, tablet)
        gone = fence.Fence(
            ctx.id, ctx.leadership.epoch, fence.MOVED, 0, tablet.id, ctx.record.source_node, tablet.epoch
        )
        fence.mark_moved(cursor, names, gone, ctx.settings.lock_timeout)
    new = partitions_of(ctx.table, made)
    rows = [install.OwnedTablet(made.id, made.epoch, install.OwnState.OWNED, new)]
    # Still the node's own under the old map: a client with that map reaches the same root, and the same refusal.
    rows += [install.OwnedTablet(one.id, one.epoch, install.OwnState.OWNED, new, ctx.id) for one in mine]
    install.write_tablets(cursor, rows)


def _judge(ctx: Context, cursor: Cursor, tablet: Tablet) -> None:
    """Bounds as the catalog has them, and the node's own clock: a daemon that is an hour ahead deletes nothing."""
    bounds = tablet.bounds
    assert isinstance(bounds, RangeBounds), "a range, or it would not have begun"
    for name in partitions_of(ctx.table, tablet):
        if bound_of(cursor, name, ctx.table.key_types) != KeyRange(bounds.lower, bounds.upper):
            raise Refused(f"{name} on node {tablet.node} has other bounds than the directory says: it is not dropped")
    end = end_of_bound(ctx.table.key_types, ctx.detail.expiry["unit"], bounds.upper)
    after = float(ctx.detail.expiry["after"])
    now = clock_of(cursor)
    if end is None or end + after > now:
        raise Refused(
            f"tablet {tablet.id} has not expired by the clock of node {tablet.node}, where it is {in_words(now // 1)}"
        )


def _check_closed(ctx: Context, cursor: Cursor, tablet: Tablet) -> None:
    if closed_by(cursor, partitions_of(ctx.table, tablet)) != _known(ctx, "closed", tablet):
        raise Overrun(f"somebody has switched the trigger of tablet {tablet.id} off: it is closed and counted again")


def _sentence(ctx: Context, tablet: Tablet) -> str:
    bounds = tablet.bounds
    assert isinstance(bounds, RangeBounds), "a range, or it would not have begun"
    upper = start_of_bound(ctx.table.key_types, ctx.detail.expiry["unit"], bounds.upper)
    assert upper is not None, "it has an end, or it would not have begun"
    after = duration_text(float(ctx.detail.expiry["after"]))
    return (
        f"{ctx.table.name} takes and changes no rows from before {in_words(upper)} any more: they have expired"
        f" (expire_after = {after})"
    )


def _tell(ctx: Context, tablet: Tablet) -> None:
    """On another node: the empty tablet says where its keys are now. Rows that somebody has forced in are kept."""
    names = partitions_of(ctx.table, tablet)
    moved = fence.Fence(
        ctx.id, ctx.leadership.epoch, fence.MOVED, 0, tablet.id, ctx.record.source_node, tablet.epoch + 1
    )
    with ctx.node(tablet.node) as cursor:
        there = [name for name, pending in partition.attachments(cursor, names).items() if not pending]
        # Under the lock: a session that has switched the trigger off but not yet committed would be overlooked.
        fence.lock_partitions(cursor, there, ctx.settings.lock_timeout * 5)
        by = closed_by(cursor, there) if there else None
        fence.mark_moved(cursor, there, moved, ctx.settings.lock_timeout * 5)
        install.write_tablets(cursor, [_moved(ctx, tablet)])
        if there and by != _known(ctx, "closed", tablet):
            suspect(cursor, [tablet.id])


def _drop_elsewhere(ctx: Context, tablet: Tablet) -> str:
    for place in reversed(places(ctx.table, tablet)):
        ctx.check()
        with node_command(ctx.links.control(tablet.node), ctx.leadership.epoch, tablet.node) as connection:
            connection.execute("SELECT set_config('lock_timeout', '10s', false)")
            partition.detach(connection, place.root, place.partition)
        with ctx.node(tablet.node) as cursor:
            partition.release_references(cursor, place.partition, ctx.settings.lock_timeout)
    return _drop(ctx, tablet.node, [tablet])


def _drop(ctx: Context, node: str, tablets: Sequence[Tablet]) -> str:
    """Drops only what is detached and `moved`; returns in words what was set aside instead, or ''."""
    ids = [tablet.id for tablet in tablets]
    with ctx.node(node) as cursor:
        rows = {row.id: row.state for row in install.read_tablets(cursor)}
        for tablet in tablets:
            if rows.get(tablet.id) is not install.OwnState.MOVED:
                raise Refused(f"node {node} does not say that tablet {tablet.id} has gone: its rows are kept")
        names = [name for tablet in tablets for name in reversed(partitions_of(ctx.table, tablet))]
        return leftovers.drop_or_set_aside(cursor, ids, names, ctx.id, ctx.settings.lock_timeout)


def _moved(ctx: Context, tablet: Tablet) -> install.OwnedTablet:
    names = partitions_of(ctx.table, tablet)
    return install.OwnedTablet(tablet.id, tablet.epoch, install.OwnState.MOVED, names, moved_to=ctx.record.source_node)


def _here(ctx: Context) -> list[Tablet]:
    return [tablet for tablet in ctx.sources if tablet.node == ctx.record.source_node]


def _is_floor(ctx: Context, tablet: Tablet) -> bool:
    return bool(ctx.detail.expiry.get("floor") == tablet.id)


def _facts(ctx: Context, tablet: Tablet, rows: int) -> list[tuple[str, str]]:
    """What the archive command is told about a tablet."""
    columns = [KeyColumn(column.name, column.type) for column in ctx.table.columns]
    bounds = tablet.bounds
    assert isinstance(bounds, RangeBounds), "a range, or it would not have begun"
    return [
        ("table", ctx.table.name),
        ("tablet", str(tablet.id)),
        ("node", tablet.node),
        ("dsn", Dsn.parse(ctx.links.address(tablet.node).dsn).text),
        *(("partition", str(name)) for name in partitions_of(ctx.table, tablet)),
        ("bounds", show_part(columns, KeyRange(bounds.lower, bounds.upper))),
        ("rows", str(rows)),
        ("migration", ctx.id),
    ]


def _known(ctx: Context, what: str, tablet: Tablet) -> Any:
    return ctx.detail.expiry.get(what, {}).get(str(tablet.id))


def _remember(ctx: Context, **changes: Mapping[str, Any]) -> None:
    """Saved with the next journaled state."""
    known = ctx.detail.expiry
    ctx.note(expiry={**known, **{what: {**known.get(what, {}), **new} for what, new in changes.items()}})


LOOK: Final = 0.1  # seconds between two checks for a cancel
_OURS = "BALANCER_"


def run_archive(command: Sequence[str], facts: Sequence[tuple[str, str]], pause: Callable[[float], None]) -> None:
    """Runs it to completion. Raises `Refused` unless it exits with 0; whatever `pause` raises ends it first."""
    arguments = [*command, *(f"--{word}={value}" for word, value in facts)]
    try:
        child = subprocess.Popen(  # noqa: S603 - the operator's own command, from the configuration, without a shell
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=_environment(os.environ)
        )
    except (OSError, ValueError) as error:
        raise Refused(f"the archive command {command[0]!r} cannot be run: {error}") from error
    try:
        while child.poll() is None:
            pause(LOOK)
    finally:
        if child.returncode is None:
            child.kill()
            child.wait()
    if child.returncode != 0:
        how = f"exit code {child.returncode}" if child.returncode > 0 else f"signal {-child.returncode}"
        raise Refused(f"the archive command {command[0]!r} ended with {how}: the tablet stays")


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if not name.startswith(_OURS)}
