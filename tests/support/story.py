"""A cluster with an hour behind it: a hot range at the end of a table, its split, its moves. For the screenshot."""

import math
import random
from dataclasses import replace
from datetime import datetime, timedelta

from balancer.directory.model import Change, Migration, MigrationKind, Put, RangeBounds, Remove, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.planner.state import ScheduleReport, Word
from policies.keys import HIGHEST
from policies.model import Action, ActionKind, BundleView, PlanResult, Rejection
from policies.options import MigrationMode
from tests.support.directories import HASHED, RANGED, fill, frame, key, leaves, moved, ranges, transaction
from tests.support.instance import Instance
from tests.support.made_states import view_of_snapshot
from tests.support.states import state_of

SEED = 5
SLOTS = 180
SPLIT_AT = 90
FIRST_CHILD = 2001


def tell(instance: Instance) -> None:
    """Lives through an hour and a half of ticks, ten seconds each in the recorder's eyes."""
    fill(instance.directory(), [*frame(), HASHED, *leaves(64), RANGED, *ranges(range(1000, 40000, 1000))])
    instance.follower().wait(0, 5)
    chance = random.Random(SEED)
    start = instance.clock.now() - timedelta(seconds=10 * SLOTS)
    for slot in range(SLOTS):
        if slot >= SPLIT_AT and slot % 15 == 0:
            _split_and_move(instance, (slot - SPLIT_AT) // 15)
        _tick(instance, start + timedelta(seconds=10 * slot), slot, chance)
    _begin(instance)
    instance.follower().wait(instance.directory().snapshot().version - 1, 5)
    _tick(instance, instance.clock.now(), SLOTS, chance)


def _split_and_move(instance: Instance, step: int) -> None:
    """The last tablet becomes two, and the lower half of it goes to another node."""
    snapshot = instance.directory().snapshot()
    last = snapshot.tablets(RANGED.id)[-1]
    assert isinstance(last.bounds, RangeBounds)
    cut = key(40000 + 500 * (step + 1))
    children = [
        replace(last, id=FIRST_CHILD + 2 * step, bounds=RangeBounds(last.bounds.lower, cut)),
        replace(last, id=FIRST_CHILD + 2 * step + 1, bounds=RangeBounds(cut, HIGHEST)),
    ]
    target = ("pg-b", "pg-a")[step % 2]
    changes: list[Change] = [Remove(last.kind, last.key), Put(children[0]), Put(moved(children[1], target))]
    reason = f"tablet {last.id} was hot: 900 of 1500 rows/s of its node"
    version = instance.directory().commit(transaction(changes, snapshot.version, reason=reason))
    done = _move(children[0], target, step, instance.clock.now().timestamp() - 900 + 150 * step)
    instance.directory().commit(transaction([Put(done)], version, reason="the migration has ended"))
    instance.follower().wait(version, 5)


def _move(tablet: Tablet, target: str, step: int, at: float) -> Migration:
    return Migration(
        f"m{step}",
        "shop",
        tablet.table,
        MigrationKind.MOVE,
        MigrationMode.REPLICATE,
        (tablet.id,),
        (),
        "pg-c",
        target,
        "done",
        finished=True,
        reason=f"pg-c carries 38 % more than its share, {target} 20 % less",
        created=at - 40,
        updated=at,
        detail={"size": 734_003_200 + 31_000_000 * step, "pause": 0.017 + 0.003 * step, "bulk_verified": True},
    )


def _begin(instance: Instance) -> None:
    """One move is running."""
    snapshot = instance.directory().snapshot()
    tablet = snapshot.tablet(7)
    running = Migration(
        "running",
        "shop",
        tablet.table,
        MigrationKind.MOVE,
        MigrationMode.REPLICATE,
        (tablet.id,),
        (moved(tablet, "pg-b"),),
        tablet.node,
        "pg-b",
        "copying",
        reason="pg-a carries 14 % more than its share, pg-b 9 % less",
        created=instance.clock.now().timestamp() - 21,
    )
    instance.directory().commit(transaction([Put(running)], snapshot.version, reason="move of tablet 7"))
    note = {"state": "copying", "bytes_done": 412e6, "bytes_total": 734e6, "rate": 46e6, "eta": 7.0, "waiting_for": ""}
    instance.directory().publish("progress", running.id, note)


def _tick(instance: Instance, at: datetime, slot: int, chance: random.Random) -> None:
    snapshot = instance.follower().snapshot
    rates = _rates(snapshot, slot, chance)
    view: BundleView = view_of_snapshot(snapshot, writes=lambda tablet: rates[tablet.id])
    sizes = [4e8 + 3e8 * chance.random() for _ in rates]
    view = replace(view, nodes=tuple(replace(node, disk_capacity=4e10) for node in view.nodes))
    view = replace(view, tablets=replace(view.tablets, sizes=view.tablets.sizes * 0 + sizes))
    score = 62 + 33 * (1 - math.exp(-max(0, slot - SPLIT_AT) / 30)) + chance.random()
    state = state_of(
        view, _plan(score), word=Word.WORKING, sentence="working: 1 move, about 7 s to go; 2 more wait", plan_id="p17"
    )
    zone = ScheduleReport("hours < 6 || hours >= 20", "bundle shop", "UTC", True, at + timedelta(hours=2), at)
    instance.report(replace(state, at=at, schedule=zone))


def _rates(snapshot: Snapshot, slot: int, chance: random.Random) -> dict[int, float]:
    rates = {tablet.id: 4 + 6 * chance.random() for tablet in snapshot.tablets(HASHED.id)}
    tablets = snapshot.tablets(RANGED.id)
    for place, tablet in enumerate(tablets):
        rates[tablet.id] = 2 + 10 * chance.random() * (1 + math.sin(place / 4 + slot / 40)) ** 2
    fresh = [tablet for tablet in tablets if tablet.id >= FIRST_CHILD] or [tablets[-1]]
    for tablet in fresh[-6:]:
        rates[tablet.id] = (880 + 90 * chance.random()) / len(fresh[-6:]) * min(1.0, 0.1 + slot / 60)
    return rates


def _plan(score: float) -> PlanResult:
    moves = tuple(
        Action(
            ActionKind.MOVE,
            "orders",
            (tablet,),
            f"pg-a carries {share} % more than its share, pg-b 9 % less",
            "load",
            "pg-a",
            "pg-b",
            size=7e8,
        )
        for tablet, share in ((7, 14), (22, 11), (40, 8))
    )
    left = (
        Rejection(ActionKind.MOVE, (12,), "pinned", "ann pinned tablet 12 until tomorrow", "pg-b"),
        Rejection(ActionKind.MOVE, (19,), "cooling-down", "tablet 19 was moved 3 minutes ago and rests for 10", "pg-c"),
    )
    return PlanResult(
        moves, left, {"pinned": 1, "cooling-down": 6, "no-gain": 57}, (), 2, 1.4e9, score, min(97.0, score + 4), 97.5
    )
