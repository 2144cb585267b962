"""The simulated bundle: nodes, tables, tablets, and what is remembered about them. No decisions are made here.

`simulator` moves it through time: events change it, actions of the real policies are carried out on it, and `view`
shows it to the policies as the daemon would show the real one.

What a simulated table contains: points in its key space, each with bytes and a part of the load.

A tablet's size and rates are sums over the points in its part of the key space, so splits and merges keep everything,
wherever they cut. Keys of hash tables are positions (see `hash_leaves`), halved so that they fit a signed 64 bits.
"""

from bisect import insort
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np

from balancer.policies.budgets import BalancingCredit, affordable, credited, rows_of, waiting_flights
from balancer.policies.day.book import DayProfileCache
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import KeyType, decode_key, encode_key
from balancer.policies.options import BundleOptions, HeatOptions
from balancer.policies.resize.heat import hot_tablets
from balancer.policies.view import (
    Action,
    ActionKind,
    BundleView,
    Floats,
    InFlight,
    Ints,
    KeySamples,
    NodeView,
    SampleSource,
    TabletColumns,
    TabletHistory,
    TableView,
)

POINTS = 2048
STEP = 1000  # distance between a range table's keys
HASH_STEP = (1 << 63) // POINTS
_END = np.iinfo(np.int64).max
_DAY = 86400.0
_BLOCK = 8  # points that have their peak at the same time: a 256th of the keys


@dataclass(slots=True)
class Content:
    """One table's points, in key order."""

    hash: bool
    keys: Ints
    sizes: Floats
    writes: float = 0.0
    reads: float = 0.0
    load: str = "even"
    growth: float = 0.0  # bytes per second
    ranks: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # a fixed shuffle: which is the biggest

    @property
    def gap(self) -> int:
        """How many keys a point stands for."""
        return HASH_STEP if self.hash else STEP

    def weights(self, now: float) -> Floats:
        """Each point's part of the load at a moment; they add up to 1."""
        kind, *numbers = self.load.split(":")
        count = len(self.keys)
        place = np.arange(count) / count
        match kind:
            case "zipf":
                raw = 1.0 / (1.0 + self.ranks[:count]) ** float(numbers[0])
            case "hot":
                raw = _hot(place, float(numbers[0]), float(numbers[1]), float(numbers[2]))
            case "daily":
                raw = _hot(place, float(numbers[0]), float(numbers[1]), (now % _DAY) / _DAY)
            case "peaks":
                raw = _peaks(
                    self.ranks[np.arange(count) // _BLOCK], int(numbers[0]), float(numbers[1]), (now % _DAY) / _DAY
                )
            case "tail":
                raw = np.append(np.full(count - 1, 0.05 / (count - 1)), 0.95)
            case _:
                raw = np.ones(count)
        weights: Floats = raw / raw.sum()
        return weights

    def loads(self, now: float) -> tuple[Floats, Floats]:
        """Rows written and read per second at each point at a moment."""
        weights = self.weights(now)
        return weights * self.writes, weights * self.reads

    def grow(self, seconds: float) -> None:
        """New rows: at the end of a range, everywhere in a hash table."""
        if not self.growth:
            return
        if self.hash:
            self.sizes += self.growth * seconds / len(self.sizes)
        else:
            self.keys = np.append(self.keys, self.keys[-1] + STEP)
            self.sizes = np.append(self.sizes, self.growth * seconds)
            self.ranks = np.append(self.ranks, len(self.ranks))

    def cuts(self, lower: int, upper: int, count: int) -> list[int]:
        """Keys that cut an interval into parts of equal bytes; fewer if there are too few points."""
        first, last = np.searchsorted(self.keys, [lower, upper])
        sums = np.cumsum(self.sizes[first:last])
        wanted = sums[-1] * np.arange(1, count) / count
        at = np.unique(np.clip(np.searchsorted(sums, wanted) + 1, 1, len(sums) - 1))
        return [int(key) for key in self.keys[first + at]]


def make_content(*, hashed: bool, total: float, load: str, data: str, seed: int) -> Content:
    """A table's points. `data`: `even`, or `load` for bytes where the load is."""
    spaced = np.arange(POINTS, dtype=np.int64)
    keys = spaced * (HASH_STEP if hashed else STEP)
    content = Content(hashed, keys, np.full(POINTS, total / POINTS), load=load, ranks=shuffle(POINTS, seed))
    if data == "load":
        content.sizes = content.weights(0.0) * total
    return content


def interval(leaf: Leaf) -> tuple[int, int]:
    """A vbucket's part of the halved positions."""
    start = leaf.start() >> 1
    return start, min(start + (leaf.width() >> 1), _END)


def shuffle(count: int, seed: int) -> Ints:
    """A permutation from a seed, by a small generator of our own: scenarios must replay anywhere."""
    order = list(range(count))
    state = seed & 0xFFFFFFFF
    for at in range(count - 1, 0, -1):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        other = (state >> 8) % (at + 1)
        order[at], order[other] = order[other], order[at]
    return np.array(order, dtype=np.int64)


def _peaks(ranks: Ints, count: int, times: float, at: float) -> Floats:
    """Every point has its peak at one of this many moments of the day; three hours before and after, it is at half."""
    away = np.abs((at - ranks % count / count + 0.5) % 1.0 - 0.5)
    shape: Floats = 1.0 + (times - 1.0) * np.exp2(-((away * 8.0) ** 2))
    return shape


def _hot(place: Floats, share: float, width: float, at: float) -> Floats:
    inside = ((place - at) % 1.0) < width
    count = max(int(inside.sum()), 1)
    rest = max(len(place) - count, 1)
    return np.where(inside, share / count, (1.0 - share) / rest)


LOWEST_KEY, HIGHEST_KEY = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_KEYS = (KeyType.BIGINT,)
_SAMPLES = 300
_REMEMBERED = 300.0  # seconds of rates
MONDAY = datetime(2001, 1, 1, tzinfo=UTC)  # a story begins on a Monday at midnight, no matter which


@dataclass(slots=True, order=True)
class SimTablet:
    """A tablet: the part of the key space from `lower` to the next one's, in the order of the table."""

    lower: int
    id: int = field(compare=False)
    node: str = field(compare=False)
    leaf: Leaf | None = field(compare=False, default=None)


@dataclass(slots=True)
class Flight:
    """A running migration."""

    id: str
    action: Action
    left: float  # bytes


class Promise(NamedTuple):
    """What follows a finished migration: tablets and their targets, one after the other."""

    chain: tuple[tuple[int, str], ...]
    reason: str = "it belongs to a move that is done"
    code: str = "chain"


@dataclass(slots=True)
class WorldFigures:
    """The current figures of one table's tablets."""

    sizes: Floats
    writes: Floats
    reads: Floats


@dataclass(slots=True)
class World:
    """Everything there is."""

    nodes: dict[str, NodeView] = field(default_factory=dict)
    other_bytes: dict[str, float] = field(default_factory=dict)
    contents: dict[str, Content] = field(default_factory=dict)
    tablets: dict[str, list[SimTablet]] = field(default_factory=dict)
    in_memory: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    """Tables without a key."""
    flights: list[Flight] = field(default_factory=list)
    history: dict[int, TabletHistory] = field(default_factory=dict)
    rates: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    promises: list[Promise] = field(default_factory=list)
    overloaded: dict[str, float] = field(default_factory=dict)
    """Nodes that do too much, and since when."""
    pinned: frozenset[int] = frozenset()
    tail: BalancingCredit = field(default_factory=BalancingCredit)
    reshaped_last: bool = False
    began: datetime = MONDAY
    book: DayProfileCache = field(default_factory=DayProfileCache)
    parents: dict[int, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    """Tablets that splits and merges have made: from which, and how many."""
    next_id: int = 1
    next_flight: int = 1

    def add_tablets(self, table: str, lowers: list[tuple[int, Leaf | None]], nodes: list[str]) -> None:
        """Gives a table its first tablets, distributed over the nodes."""
        self.tablets[table] = []
        for at, (lower, leaf) in enumerate(lowers):
            insort(self.tablets[table], SimTablet(lower, self._new_id(), nodes[at % len(nodes)], leaf))

    def figures(self, table: str, now: float) -> WorldFigures:
        """Sizes and rates of a table's tablets, in order."""
        content = self.contents[table]
        edges = np.searchsorted(content.keys, [tablet.lower for tablet in self.tablets[table]])
        # reduceat gives a value, not nothing, for an empty interval
        empty = np.diff(np.append(edges, len(content.keys))) == 0
        columns = (content.sizes, *content.loads(now))
        sums = (np.add.reduceat(np.append(values, 0.0), edges) for values in columns)
        return WorldFigures(*(np.where(empty, 0.0, values) for values in sums))

    def view(self, now: float, heat: HeatOptions, **window: float | None) -> BundleView:
        """What the daemon would show to the policies after a poll."""
        view = self._bare_view(now)
        view = replace(view, profile=self.book.note(view, self.began + timedelta(seconds=now), self.parents))
        self._remember(view, heat)
        hot = [tablet for tablet, history in self.history.items() if history.hot_polls]
        view = replace(view, history=dict(self.history), samples=self._samples(view, hot))
        return replace(view, **window)  # type: ignore[arg-type]

    def start(self, action: Action) -> None:
        """Begins to carry out an action."""
        self.flights.append(Flight(f"m{self.next_flight}", action, max(action.size, 1.0)))
        self.next_flight += 1
        self.reshaped_last = action.kind is not ActionKind.MOVE

    def finish(self, flight: Flight, now: float) -> None:
        """Carries out an action whose bytes have been copied."""
        action = flight.action
        self.flights.remove(flight)
        if action.kind is ActionKind.MOVE:
            for tablet in self._named(action):
                tablet.node = action.target
            made = list(action.tablets)
            self.promises += [Promise(action.then)] if action.then else []
        else:
            made = self._reshard(action)
        heated = now if action.code.startswith("heat") and action.kind is ActionKind.SPLIT else None
        for tablet_id in made:
            known = self.history.get(tablet_id, TabletHistory())
            since = known.split_for_heat_at if heated is None else heated
            whole = action.size if action.kind is ActionKind.SPLIT else known.split_of
            self.history[tablet_id] = TabletHistory(last_migrated=now, split_for_heat_at=since, split_of=whole)

    def fail(self, flight: Flight, now: float) -> None:
        """Ends a migration that broke; its tablets stay as they were."""
        self.flights.remove(flight)
        for tablet in flight.action.tablets:
            known = self.history.get(tablet, TabletHistory())
            self.history[tablet] = replace(known, failures=known.failures + 1, last_failed=now)

    def owed(self, view: BundleView, options: BundleOptions) -> list[Action]:
        """The next moves of exchanges and chains, as far as the budgets allow; the others stay promised."""
        rows = rows_of(view, [promise.chain[0][0] for promise in self.promises])
        known = [promise for promise in self.promises if promise.chain[0][0] in rows]
        wanted = [self._follow_up(view, promise, rows) for promise in known]
        taken = affordable([action for action in wanted if action.source != action.target], view, options)
        started = {action.tablets[0] for action in taken}
        self.promises = [promise for promise in known if promise.chain[0][0] not in started]
        return taken

    def credited(self, view: BundleView, owed: list[Action]) -> BundleView:
        """The view with what is promised."""
        pairs = [pair for promise in self.promises for pair in promise.chain]
        pairs += [pair for action in owed for pair in action.then]
        pairs += [pair for flight in self.flights for pair in flight.action.then]
        return credited(view, owed, waiting_flights(pairs, view))

    def _follow_up(self, view: BundleView, promise: Promise, rows: dict[int, int]) -> Action:
        tablet, target = promise.chain[0]
        row = rows[tablet]
        source = view.nodes[int(view.tablets.node[row])].id
        table = next(table.name for table in view.tables if table.first <= row < table.last)
        then = promise.chain[1:]
        return Action(ActionKind.MOVE, table, (tablet,), promise.reason, promise.code, source, target, then=then)

    def upper(self, table: str, tablet: SimTablet) -> int:
        """Where a tablet's part of the key space ends."""
        mine = self.tablets[table]
        at = mine.index(tablet) + 1
        return mine[at].lower if at < len(mine) else HIGHEST_KEY

    def _named(self, action: Action) -> list[SimTablet]:
        return [tablet for tablet in self.tablets[action.table] if tablet.id in action.tablets]

    def _reshard(self, action: Action) -> list[int]:
        old = self._named(action)
        lower, upper = old[0].lower, self.upper(action.table, old[-1])
        parts = self._parts(action, lower, upper)
        for tablet in old:
            self.tablets[action.table].remove(tablet)
            self.history.pop(tablet.id, None)
        made = [SimTablet(at, self._new_id(), action.source, leaf) for at, leaf, _ in parts]
        for tablet, (_, _, node) in zip(made, parts, strict=True):
            insort(self.tablets[action.table], tablet)
            self.parents[tablet.id] = tuple(one.id for one in old), len(made)
            if node and node != action.source:
                self.promises.append(Promise(((tablet.id, node),), f"a split made it for {node}", "follow-up"))
        return [tablet.id for tablet in made]

    def _parts(self, action: Action, lower: int, upper: int) -> list[tuple[int, Leaf | None, str]]:
        if action.parts and action.parts[0].leaf is not None:
            return [(interval(part.leaf)[0], part.leaf, part.node) for part in action.parts if part.leaf is not None]
        if action.parts:
            keys = [lower, *(int(str(decode_key(_KEYS, part.lower)[0])) for part in action.parts[1:])]
            return [(key, None, part.node) for key, part in zip(keys, action.parts, strict=True)]
        cuts = self.contents[action.table].cuts(lower, upper, action.count) if action.count > 1 else []
        return [(key, None, "") for key in (lower, *cuts)]

    def _new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def _bare_view(self, now: float) -> BundleView:
        index = {node: at for at, node in enumerate(self.nodes)}
        tables, first = [], 0
        everything: list[SimTablet] = []
        figures = []
        for name, tablets in self.tablets.items():
            keys = () if name in self.whole else _KEYS
            tables.append(TableView(name, self.contents[name].hash, keys, first, first + len(tablets)))
            first += len(tablets)
            everything += tablets
            figures.append((name, self.figures(name, now)))
        sizes = _joined([found.sizes for _, found in figures])
        memory = _joined([found.sizes if name in self.in_memory else found.sizes * 0 for name, found in figures])
        columns = TabletColumns(
            ids=np.array([tablet.id for tablet in everything], dtype=np.int64),
            node=np.array([index[tablet.node] for tablet in everything], dtype=np.int64),
            sizes=sizes,
            memory=memory,
            rows=sizes / 1000.0,
            write_rate=_joined([found.writes for _, found in figures]),
            read_rate=_joined([found.reads for _, found in figures]),
            lowers=[_lower_bound(tablet) for tablet in everything],
            moduli=np.array([tablet.leaf.modulus if tablet.leaf else 0 for tablet in everything], dtype=np.int64),
            remainders=np.array([tablet.leaf.remainder if tablet.leaf else 0 for tablet in everything], dtype=np.int64),
        )
        held = np.bincount(columns.node, weights=sizes, minlength=len(index))
        nodes = [replace(node, disk_used=held[at] + self.other_bytes[name]) for at, (name, node) in self._numbered()]
        flying = tuple(
            InFlight(flight.id, flight.action.tablets, flight.action.source, flight.action.target)
            for flight in self.flights
        )
        return BundleView("simulated", now, tuple(nodes), tuple(tables), columns, flying, self.pinned)

    def _numbered(self) -> list[tuple[int, tuple[str, NodeView]]]:
        return list(enumerate(self.nodes.items()))

    def _remember(self, view: BundleView, heat: HeatOptions) -> None:
        """Counts polls over the heat thresholds and keeps the highest rate of the last five minutes."""
        hot = hot_tablets(view, heat)
        rates = view.tablets.write_rate + view.tablets.read_rate
        for tablet, rate in zip(view.tablets.ids.tolist(), rates.tolist(), strict=True):
            kept = [(at, value) for at, value in self.rates.get(tablet, []) if at > view.now - _REMEMBERED]
            self.rates[tablet] = [*kept, (view.now, rate)]
            known = self.history.get(tablet, TabletHistory())
            polls = known.hot_polls + 1 if tablet in hot else 0
            highest = max(value for _, value in self.rates[tablet])
            self.history[tablet] = replace(known, hot_polls=polls, max_rate_5m=highest)

    def _samples(self, view: BundleView, tablets: list[int]) -> dict[int, KeySamples]:
        """Keys in use in these tablets, as clients would report them: more often where the load is."""
        found = {}
        for name, mine in self.tablets.items():
            content = self.contents[name]
            writes, reads = content.loads(view.now)
            for tablet in mine:
                if tablet.id in tablets:
                    first, last = np.searchsorted(content.keys, [tablet.lower, self.upper(name, tablet)])
                    part = slice(int(first), int(last))
                    if last > first:
                        found[tablet.id] = _sample(content, writes[part], reads[part], int(first))
        return found


def _sample(content: Content, writes: Floats, reads: Floats, first: int) -> KeySamples:
    """Keys by their share of the load, each somewhere in the stretch of keys that its point stands for."""
    sums = np.cumsum(writes + reads)
    ticks = (np.arange(_SAMPLES) + 0.5) / _SAMPLES
    at = first + np.minimum(np.searchsorted(sums, ticks * sums[-1]), len(sums) - 1)
    inside = (np.arange(_SAMPLES) * 0.6180339887498949) % 1.0
    keys = np.sort(content.keys[at] + (inside * content.gap).astype(np.int64)).tolist()
    encoded = [(key << 1).to_bytes(8, "big") if content.hash else encode_key(_KEYS, (key,)) for key in keys]
    written = bool(writes.sum() >= reads.sum())
    return KeySamples(SampleSource.CLIENTS, tuple(encoded), (1.0,) * _SAMPLES, writes=(written,) * _SAMPLES)


def _lower_bound(tablet: SimTablet) -> bytes:
    if tablet.leaf is not None or tablet.lower == LOWEST_KEY:
        return b""
    return encode_key(_KEYS, (tablet.lower,))


def _joined(parts: list[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.zeros(0)


def tablets_text(action: Action) -> str:
    """The tablets of an action, as a story names them."""
    return "+".join(str(tablet) for tablet in action.tablets)
