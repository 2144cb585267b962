"""Splits and merges, up to the swap: new partitions next to the old, filled, caught up, compared. Called by the runner.

Everything is on one node. The rows are copied at one snapshot; from before it a trigger logs the keys of changed rows,
and a round of replay copies these again and compares them, in one transaction with one snapshot. So a comparison needs
no fence: `verifying` checksums both sides in one snapshot and leaves out the keys that are still to be replayed.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from psycopg import sql

from balancer.directory.model import MigrationMode
from balancer.errors import Refused, Unavailable
from balancer.migration import guards
from balancer.migration.comparison import compared
from balancer.migration.context import Context
from balancer.migration.copy import Throttle, create_incoming, pace, read_shapes, start_captures
from balancer.migration.guards import FenceKeeper
from balancer.migration.machine import Event
from balancer.migration.retries import Difference
from balancer.naming import Name
from balancer.nodes.catalog.shapes import Shape
from balancer.nodes.schema import blockers
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.connection import Connection, Cursor, translated
from balancer.nodes.tablets import capture, partition, references, reshard
from balancer.nodes.tablets.checksum import BUCKETS
from balancer.nodes.tablets.object_names import bound_constraint
from balancer.nodes.tablets.reshard import Family
from balancer.settings import MigrationSettings

PAGE = 8192
ROUNDS: Final = 200
"""A round of replay has what changed during the previous one: if this many did not get short, more will not."""


def preparing(ctx: Context) -> Event:
    """Preflight, then the new partitions, empty and detached, and what captures changes."""
    guards.take_fingerprints(ctx)
    shapes = read_shapes(ctx)
    _preflight(ctx, shapes)
    create_incoming(ctx, tuple(model_of(ctx, place, shapes) for place in ctx.target_places))
    if ctx.record.mode is MigrationMode.REPLICATE:
        try:
            with ctx.source() as cursor:
                if not capture.started(cursor, ctx.id, 0):  # else the answer to an earlier attempt was lost
                    start_captures(ctx, cursor, shapes)
        except Unavailable:
            guards.name_blockers(ctx, ctx.record.source_node, [shape.name for shape in shapes], blockers.FENCE)
            raise
    return Event.STEP


def copying(ctx: Context) -> Event:
    """Rows at one snapshot, in pieces; then keys and indexes, the bound's CHECK, statistics."""
    shapes = read_shapes(ctx)
    with ExitStack() as stack:
        if ctx.record.mode is MigrationMode.READ_ONLY:
            stack.enter_context(FenceKeeper(ctx))
        rows = _fill(ctx)
        _complete(ctx, shapes)
    ctx.note(rows=rows)
    return Event.STEP


def catch_up(ctx: Context) -> float:
    """Rounds of replay, each smaller than the one before, until the rest fits under the lock; returns the seconds that
    the last one took."""
    rounds = 0
    while True:
        ctx.checkpoint()
        guards.look_at_source(ctx, ctx.links.control(ctx.record.source_node))
        work = families(ctx)
        began = ctx.clock.monotonic()  # from here on the way the mirror begins, while writers wait
        replayed = 0
        for family in work:
            with replay_transaction(ctx, ctx.links.control(ctx.record.source_node)) as cursor:
                replayed += replay_once(cursor, family)
        took = ctx.clock.monotonic() - began
        rounds += 1
        if replayed <= ctx.settings.verify_keys_in_fence and took < ctx.settings.write_pause_budget / 2:
            return took
        if rounds >= ROUNDS:
            raise Refused(too_much(replayed, took, ctx.settings))
        ctx.progress.waiting(f"the replay of changes: {replayed} keys took {took * 1000:.0f} ms")


def too_much(replayed: int, took: float, settings: MigrationSettings) -> str:
    """Why even the last round of replay was too much to be repeated under the lock."""
    round_ = f"the last of {ROUNDS} rounds of replay had {replayed} changed keys and took {took * 1000:.1f} ms"
    if replayed > settings.verify_keys_in_fence:
        return (
            f"the tablet changes faster than its changes can be replayed: {round_}, where"
            f" {settings.verify_keys_in_fence} keys are allowed (verify_keys_in_fence)"
        )
    allowed = settings.write_pause_budget * 500
    return f"write_pause_budget is too short for this node: {round_}, where half of the budget is {allowed:g} ms"


@contextmanager
def replay_transaction(ctx: Context, connection: Connection) -> Iterator[Cursor]:
    """One snapshot for the whole round, under the leader's epoch. Nothing fires: the application has written once."""
    node = ctx.record.source_node
    with translated(node):
        connection.execute("SET default_transaction_isolation TO 'repeatable read'")
        try:
            with ctx.long_work(connection, node) as cursor:
                references.without_triggers(cursor)
                yield cursor
        finally:
            if not connection.closed:
                connection.execute("SET default_transaction_isolation TO 'read committed'")


def replay_once(cursor: Cursor, family: Family, *, comparing: bool = True) -> int:
    """Replays what is logged. Raises `Difference` if the result is not equal, unless all is compared afterwards."""
    if reshard.truncated(cursor, family):
        raise Refused("a partition was truncated, or got another key, while it was copied")
    replayed, different = reshard.replay(cursor, family, comparing=comparing)
    for source, count in different.items():
        raise Difference(f"{count} rows of {source} differ from their copies after they were replayed")
    return replayed


def families(ctx: Context) -> list[Family]:
    """Root by root: which partitions are replaced by which."""
    shapes = read_shapes(ctx)
    found = []
    for root in ctx.roots:
        node = ctx.record.source_node
        with translated(node), ctx.links.control(node).cursor() as cursor:
            oid = partition.root_oid(cursor, root)
        sources = [(number, place) for number, place in enumerate(ctx.source_places) if place.root == root]
        shape = shapes[sources[0][0]]
        found.append(
            Family(
                migration=ctx.id,
                root_oid=oid,
                sources=tuple((number, place.partition) for number, place in sources),
                targets=tuple(place for place in ctx.target_places if place.root == root),
                compared=compared(shape),
                copied=shape.copied,
                key=shape.key,
            )
        )
    return found


def sources_of(ctx: Context) -> tuple[tuple[int, Name], ...]:
    """Every old partition, with its number."""
    return tuple(enumerate(place.partition for place in ctx.source_places))


def model_of(ctx: Context, place: partition.Place, shapes: tuple[Shape, ...]) -> Shape:
    """What a new partition is modelled on: the first old one of its root."""
    number = next(number for number, source in enumerate(ctx.source_places) if source.root == place.root)
    return shapes[number]


def _preflight(ctx: Context, shapes: tuple[Shape, ...]) -> None:
    refusals = [refusal for shape in shapes for refusal in shape.refusals]
    if refusals:
        raise Refused("these tablets cannot be resharded: " + "; ".join(refusals))
    guards.check_owners_code(ctx)
    guards.check_roots(ctx)
    node = ctx.record.source_node
    with translated(node), ctx.links.control(node).cursor() as cursor:
        size = guards.total_size(cursor, [shape.name for shape in shapes])
    guards.check_disk(ctx, size)
    ctx.note(size=size)


def _fill(ctx: Context) -> int:
    node = ctx.record.source_node
    rows = 0
    with pace(ctx) as rate, ctx.links.data(node) as holder, ctx.links.data(node) as writer:
        throttle = Throttle(ctx.clock, rate)
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        row = holder.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        ctx.progress.expect(ctx.detail.size)
        for family in families(ctx):
            for _, source in family.sources:
                for first, end in chunks(holder, source, ctx.settings.checksum_pages):
                    ctx.checkpoint()
                    guards.look_at_source(ctx, writer)
                    with _at_snapshot(ctx, writer, str(row[0])) as cursor:
                        rows += reshard.fill(cursor, family, source, first, end)
                    size = ctx.settings.checksum_pages * PAGE
                    throttle.spend(size)
                    ctx.progress.done(size)
        holder.execute("COMMIT")
    return rows


@contextmanager
def _at_snapshot(ctx: Context, writer: Connection, snapshot: str) -> Iterator[Cursor]:
    """A transaction under the leader's epoch that sees what the snapshot's maker sees.

    The check uses the newest row of the epoch although the snapshot is older: it locks that row, and PostgreSQL refuses
    to lock a row that has changed since.
    """
    ctx.leadership.check()
    imported = sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot))
    with node_transaction(
        writer, ctx.leadership.epoch, ctx.record.source_node, first=[_ONE_SNAPSHOT, imported]
    ) as cursor:
        references.without_triggers(cursor)
        yield cursor


_ONE_SNAPSHOT = sql.SQL("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def _complete(ctx: Context, shapes: tuple[Shape, ...]) -> None:
    """Indexes, bound and statistics. Triggers come with the swap: nothing of the application's may fire before."""
    node = ctx.record.source_node
    with ctx.links.data(node) as connection:
        for place in ctx.target_places:
            shape = model_of(ctx, place, shapes)
            ctx.progress.waiting(f"indexes of {place.partition}")
            for index in shape.indexes:
                ctx.checkpoint()
                with ctx.long_work(connection, node) as cursor:
                    partition.build_index(cursor, shape, index, place.partition)
                    partition.finish_index(cursor, shape, index, place.partition)
            with ctx.long_work(connection, node) as cursor:
                partition.set_replica_identity(cursor, shape, place.partition)
                partition.add_bound(cursor, place, bound_constraint(ctx.id))
                cursor.execute(partition.analyze(place.partition))
        with connection.cursor() as cursor:
            guards.check_references(ctx, cursor, ctx.settings.write_pause_budget * 4)


def compare_all(ctx: Context) -> None:
    """Checksums every source and target in one snapshot; raises `Difference` with the buckets that disagree."""
    logged = ctx.record.mode is MigrationMode.REPLICATE
    with ctx.links.data(ctx.record.source_node) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for family in families(ctx):
            sources = [source for _, source in family.sources]
            targets = [place.partition for place in family.targets]
            waiting = [number for number, _ in reshard.changed_sources(connection, family)] if logged else []
            sides = [_digest(ctx, connection, family, names, waiting) for names in (sources, targets)]
            if sides[0] != sides[1]:
                wrong = sum(1 for bucket in {**sides[0], **sides[1]} if sides[0].get(bucket) != sides[1].get(bucket))
                raise Difference(
                    f"the copies of {', '.join(map(str, sources))} differ from them in {wrong} of"
                    f" {BUCKETS} buckets of keys"
                )
        connection.execute("COMMIT")


def _digest(
    ctx: Context, connection: Connection, family: Family, names: list[Name], waiting: list[int]
) -> dict[int, tuple[int, int]]:
    total: dict[int, tuple[int, int]] = {}
    for name in names:
        for first, end in chunks(connection, name, ctx.settings.checksum_pages):
            ctx.checkpoint()
            guards.look_at_source(ctx, ctx.links.control(ctx.record.source_node))
            part = reshard.digest_chunk(connection, family, name, first, end, waiting=waiting)
            for bucket, (count, hashed) in part.items():
                before = total.get(bucket, (0, 0))
                total[bucket] = (before[0] + count, before[1] + hashed)
    return total


def chunks(connection: Connection, name: Name, pages: int) -> Iterator[tuple[int, int | None]]:
    """Ranges of pages that cover a partition; the last one has no end."""
    total = reshard.pages_of(connection, name)
    for first in range(0, max(1, total), pages):
        yield first, (first + pages if first + pages < total else None)
