"""Replays recorded polls with the real policies: what would have happened under other settings.

`balancer simulate --from` calls `replay`. The load comes from the polls, the placement from the simulation: tablets
begin where the first poll saw them, and from then on only the replay's own moves, splits and merges count. Pure.

What recorded tables contain: the key space in small stretches, each with what the polls measured for its tablet.

Tablets of different polls, and those that a replay makes, are all sums over the same stretches; inside a recorded
tablet, bytes and load are assumed to be even. Bounds of a range table become numbers in their order: a replay's keys
are places, not keys.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np

from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.options import BundleOptions, InMemoryMode
from balancer.policies.simulator.report import HIGH, minutes_above, moved_back
from balancer.policies.simulator.scenario import MOST_TICKS, Scenario
from balancer.policies.simulator.simulator import Simulation, peak_load
from balancer.policies.simulator.world import HASH_STEP, LOWEST_KEY, POINTS, Content, SimTablet, interval
from balancer.policies.view import ActionKind, BundleView, Floats, Ints, NodeCondition, NodeView, TableView

STRETCHES = 16  # that each piece between two bounds is cut into
WIDTH = 1 << 24  # numbers between two bounds of a range table
MOST_STRETCHES = 1 << 22


class ReplayError(ValueError):
    """A record that cannot be replayed: what is wrong with it."""


@dataclass(slots=True)
class RecordedContent(Content):
    """The stretches of one table, with the figures of one poll after the other."""

    written: Floats = field(default_factory=lambda: np.zeros(0))
    read: Floats = field(default_factory=lambda: np.zeros(0))
    width: int = WIDTH // STRETCHES

    @property
    def gap(self) -> int:
        """How many keys a stretch stands for."""
        return self.width

    def loads(self, now: float) -> tuple[Floats, Floats]:
        """What the last poll measured; `measure` sets the time."""
        return self.written, self.read


@dataclass(frozen=True, slots=True)
class Places:
    """Where the bounds of one table lie, over all polls."""

    hash: bool
    keys: Ints
    """Where each stretch begins."""
    bounds: dict[bytes, int]
    """Of a range table: where each bound lies."""

    def empty(self) -> RecordedContent:
        """A content that `measure` fills."""
        width = int(self.keys[1] - self.keys[0]) if len(self.keys) > 1 else WIDTH // STRETCHES
        return RecordedContent(self.hash, self.keys, np.zeros(len(self.keys)), width=width)

    def lower(self, view: BundleView, table: TableView, row: int) -> tuple[int, Leaf | None]:
        """Where a tablet begins; the first one has all keys before it too."""
        if self.hash:
            leaf = view.tablets.leaf(row)
            return interval(leaf)[0], leaf
        return (LOWEST_KEY if row == table.first else self.bounds[view.tablets.lowers[row]]), None

    def measure(self, content: RecordedContent, view: BundleView, table: TableView) -> None:
        """Gives the stretches what a poll has measured for their tablets."""
        starts = [self.lower(view, table, row)[0] for row in range(table.first, table.last)]
        edges = np.append(np.searchsorted(self.keys, np.maximum(starts, 0)), len(self.keys))
        counts, part = np.diff(edges), slice(table.first, table.last)
        columns = (view.tablets.sizes, view.tablets.write_rate, view.tablets.read_rate)
        content.sizes, content.written, content.read = (np.repeat(one[part] / counts, counts) for one in columns)


def places_of(views: Sequence[BundleView]) -> dict[str, Places]:
    """For each table of any poll, by name."""
    layouts: dict[str, bool] = {}
    moduli: dict[str, int] = {}
    bounds: dict[str, set[bytes]] = {}
    for view in views:
        for table in view.tables:
            if layouts.setdefault(table.name, table.hash) != table.hash:
                raise ReplayError(
                    f"table {table.name!r:.200} is a hash table in some polls and a range table in others"
                )
            part = slice(table.first, table.last)
            bounds.setdefault(table.name, set()).update(view.tablets.lowers[part])
            moduli[table.name] = max(moduli.get(table.name, 1), int(view.tablets.moduli[part].max()))
    return {name: _hashed(moduli[name]) if layouts[name] else _ranged(bounds[name]) for name in layouts}


def _hashed(modulus: int) -> Places:
    count = max(POINTS, modulus * STRETCHES)
    _check_count(count)
    return Places(True, np.arange(count, dtype=np.int64) * (HASH_STEP * POINTS // count), {})


def _ranged(bounds: set[bytes]) -> Places:
    ordered = sorted(bounds | {b""})
    _check_count(len(ordered) * STRETCHES)
    keys = np.arange(len(ordered) * STRETCHES, dtype=np.int64) * (WIDTH // STRETCHES)
    return Places(False, keys, {bound: at * WIDTH for at, bound in enumerate(ordered)})


def _check_count(count: int) -> None:
    if count > MOST_STRETCHES:
        raise ReplayError(f"a table has too many bounds: {MOST_STRETCHES // STRETCHES} are the most")


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)  # hours of the day are in UTC: a record does not say where it was made


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """What one run did."""

    moves: int
    splits: int
    merges: int
    moved_bytes: float
    minutes_above: float
    """Minutes in which some node did more than 1.2 times its share."""
    moved_back: int | None
    """Tablets that were sent back within an hour; None: unknown."""
    score_worst: float | None
    score_end: float | None


def replay(
    views: Sequence[BundleView], options: BundleOptions, is_open: Callable[[int], bool] | None = None
) -> ReplayFigures:
    """Runs the polls under these options. `is_open` takes a minute since midnight before the first poll."""
    story = _Replay(views, options, is_open).run()
    kinds = [action.kind for _, action in story.started]
    scores = [sample.score for sample in story.samples]
    return ReplayFigures(
        moves=kinds.count(ActionKind.MOVE),
        splits=kinds.count(ActionKind.SPLIT),
        merges=kinds.count(ActionKind.MERGE) + kinds.count(ActionKind.RESHARD),
        moved_bytes=story.moved_bytes,
        minutes_above=minutes_above(story),
        moved_back=moved_back(story),
        score_worst=min(scores),
        score_end=scores[-1],
    )


def recorded(views: Sequence[BundleView]) -> ReplayFigures:
    """What really happened between the polls, as far as they show it."""
    moves, moved, splits, merges, above = 0, 0.0, 0, 0, 0.0
    for before, after in pairwise(views):
        _, old, new = np.intersect1d(before.tablets.ids, after.tablets.ids, return_indices=True)
        names = [np.array([node.id for node in view.nodes])[view.tablets.node] for view in (before, after)]
        went = names[0][old] != names[1][new]
        moves, moved = moves + int(went.sum()), moved + float(before.tablets.sizes[old][went].sum())
        gone, made = len(before.tablets) - len(old), len(after.tablets) - len(new)
        splits, merges = splits + (made > gone), merges + (gone > made)
        above += (peak_load(after) > HIGH) * (after.now - before.now) / 60
    return ReplayFigures(moves, splits, merges, moved, above, None, None, None)


def check_polls(views: Sequence[BundleView]) -> None:
    """Refuses anything that is not a series of polls of one bundle; `ReplayError` says what is wrong."""
    if len(views) < 2:
        raise ReplayError("it has fewer than two polls")
    if len(views) > MOST_TICKS:
        raise ReplayError(f"it has more than {MOST_TICKS} polls")
    if len({view.bundle for view in views}) > 1:
        raise ReplayError("it has polls of several bundles")
    for before, after in pairwise(views):
        if not after.now > before.now:
            raise ReplayError("its polls are not in the order of time")
    for number, view in enumerate(views, start=1):
        wrong = _wrong(view)
        if wrong:
            raise ReplayError(f"poll {number} {wrong}")


def _wrong(view: BundleView) -> str:
    """What is wrong with a poll, as half a sentence; empty: nothing."""
    columns, count = view.tablets, len(view.tablets.ids)
    arrays = (columns.node, columns.sizes, columns.memory, columns.write_rate, columns.read_rate, columns.moduli)
    if any(len(one) != count for one in (*arrays, columns.remainders, columns.lowers)):
        return "has columns of different lengths"
    figures = (columns.sizes, columns.memory, columns.write_rate, columns.read_rate)
    if not np.isfinite(view.now) or any(not (np.isfinite(one).all() and (one >= 0).all()) for one in figures):
        return "has a figure that is negative or no number"
    if not view.nodes or not count or not ((columns.node >= 0) & (columns.node < len(view.nodes))).all():
        return "has a tablet without a node, or none at all"
    if len(set(columns.ids.tolist())) != count or len({node.id for node in view.nodes}) != len(view.nodes):
        return "names a tablet or a node twice"
    edges = [0, *(table.last for table in view.tables)]
    ordered = all(table.first == edge < table.last for table, edge in zip(view.tables, edges, strict=False))
    if not ordered or edges[-1] != count or len({table.name for table in view.tables}) != len(view.tables):
        return "has tables that do not fit its tablets"
    return next((found for table in view.tables if (found := _wrong_keys(view, table))), "")


def _wrong_keys(view: BundleView, table: TableView) -> str:
    rows = range(table.first, table.last)
    if not table.hash:
        lowers = [view.tablets.lowers[row] for row in rows]
        in_order = all(low < high for low, high in pairwise(lowers))
        return "" if in_order else f"has bounds of table {table.name!r:.200} that are not in order"
    moduli, remainders = (getattr(view.tablets, name)[table.first : table.last] for name in ("moduli", "remainders"))
    valid = (moduli > 0) & (moduli & (moduli - 1) == 0) & (remainders >= 0) & (remainders < moduli)
    if not valid.all() or int(moduli.max()) > 1 << 31:
        return f"has vbuckets of table {table.name!r:.200} that there are not"
    starts = [view.tablets.leaf(row).start() for row in rows]
    ends = [start + view.tablets.leaf(row).width() for row, start in zip(rows, starts, strict=True)]
    whole = starts[0] == 0 and ends[:-1] == starts[1:] and ends[-1] == 1 << 64
    return "" if whole else f"has vbuckets of table {table.name!r:.200} that overlap or leave keys out"


class _Replay(Simulation):
    """One run over the polls; a tick is the mean time between two of them."""

    def __init__(
        self, views: Sequence[BundleView], options: BundleOptions, is_open: Callable[[int], bool] | None
    ) -> None:
        self.views, self.places = list(views), places_of(views)
        self.start = views[0].now
        seconds = views[-1].now - self.start
        rate = views[-1].measured_bytes_per_second or options.budgets.expected_bytes_per_second
        tick = seconds / (len(views) - 1)
        super().__init__(Scenario("replay", seconds, tick, rate=rate, options=options), is_open)
        self.world.began = EPOCH + timedelta(seconds=self.start)
        self.world.next_id = 1 + max(int(view.tablets.ids.max()) for view in views)
        self.options, self.next, self.held = options, 0, dict[str, RecordedContent]()

    def happen(self, now: float) -> None:
        """Takes over the newest poll: its nodes, and what was measured for every stretch of keys."""
        # Rounding must not leave the last poll out.
        while self.next < len(self.views) and self.views[self.next].now - self.start <= now + 1e-6:
            view = self.views[self.next]
            self.next += 1
            self._take_nodes(view, now)
            self._take_tables(view)
            self.world.pinned = view.pinned | view.quarantined

    def _take_nodes(self, view: BundleView, now: float) -> None:
        held = np.bincount(view.tablets.node, weights=view.tablets.sizes, minlength=len(view.nodes))
        for at, node in enumerate(view.nodes):
            self.world.nodes[node.id] = _merged(node, self.world.nodes.get(node.id))
            used = float(held[at]) if node.disk_used is None else node.disk_used
            self.world.other_bytes[node.id] = max(0.0, used - float(held[at]))
        present = {node.id for node in view.nodes}
        for name in self.world.nodes.keys() - present:  # it was removed: what the replay has on it must leave
            self.world.nodes[name] = replace(self.world.nodes[name], condition=NodeCondition.DRAINING)
        down = {name for name, node in self.world.nodes.items() if node.condition is NodeCondition.DOWN}
        for flight in [one for one in self.world.flights if down & {one.action.source, one.action.target}]:
            self.world.fail(flight, now)

    def _take_tables(self, view: BundleView) -> None:
        world = self.world
        for table in view.tables:
            places = self.places[table.name]
            if table.name not in world.contents:
                self.held[table.name] = world.contents[table.name] = places.empty()
                world.tablets[table.name] = _tablets(view, table, places)
                if self.options.table(table.name).in_memory_mode is not InMemoryMode.NONE:
                    world.in_memory.add(table.name)
                if table.whole:
                    world.whole.add(table.name)
            places.measure(self.held[table.name], view, table)
        for name in world.contents.keys() - {table.name for table in view.tables}:
            gone = {tablet.id for tablet in world.tablets.pop(name)}
            del world.contents[name]
            world.flights = [flight for flight in world.flights if gone.isdisjoint(flight.action.tablets)]


def _tablets(view: BundleView, table: TableView, places: Places) -> list[SimTablet]:
    made = []
    for row in range(table.first, table.last):
        lower, leaf = places.lower(view, table, row)
        made.append(SimTablet(lower, int(view.tablets.ids[row]), view.nodes[int(view.tablets.node[row])].id, leaf))
    return made


def _merged(node: NodeView, own: NodeView | None) -> NodeView:
    """A node as polled, except that closing by the daemon, then and in the replay, is the replay's own decision."""
    if node.closed_by_daemon:
        node = replace(node, condition=NodeCondition.ACTIVE, closed_by_daemon=False)
    if own is not None and own.closed_by_daemon and node.condition is NodeCondition.ACTIVE:
        node = replace(node, condition=NodeCondition.CLOSED, closed_by_daemon=True)
    return node
