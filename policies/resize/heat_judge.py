"""What is wrong with a hot tablet, judged from its key samples. Called by `heat` for each confirmed hot tablet.

Questions in this order: are there enough samples? Is it one key? Is it the growing end? Would a cut help at all, or do
the requests scan across it? How many parts does the load ask for, and where are the cuts? A vbucket is cut where its
trie says; so only its keys are asked about.

The verdicts on a hot tablet and what they rest on: values that `heat_judge` makes and people read.

Key samples in order: how heavy each key is, and where a cut divides the load best.

Called by `heat_judge`. Keys are bytes that compare: encoded keys of a range table or positions of a hash table.

The key right after a key: where a tablet that holds one key alone ends.

`heat` asks for it when it isolates a hot key. Both bounds must be ones that PostgreSQL can name, so a successor is made
from the key's last column: the next whole number, day, microsecond or UUID, or the text with the smallest character
appended. A numeric has none: between any two there is another.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from itertools import accumulate
from math import ceil, sqrt
from typing import NamedTuple
from uuid import UUID

from balancer.policies.keyspace.hash_leaves import MAX_MODULUS, POSITIONS, Leaf, descendants
from balancer.policies.keyspace.keys import (
    HIGHEST,
    LOWEST,
    KeyType,
    KeyValue,
    decode_key,
    encode_key,
    integer_limits,
    show_value,
)
from balancer.policies.options import HeatOptions
from balancer.policies.reasons import share_text
from balancer.policies.view import KeySamples


class Request(NamedTuple):
    """One sample: the keys from `first` to `last`, both included."""

    first: bytes
    last: bytes
    weight: float
    write: bool


class Cut(NamedTuple):
    """A place to cut, and what each side would carry, as shares of the whole. Keys from `key` on go to the right."""

    key: bytes
    left: float
    right: float
    crossing: float

    @property
    def hotter(self) -> float:
        """Share of the heavier side; a request that crosses the cut costs both sides."""
        return max(self.left, self.right) + self.crossing


class Requests:
    """The samples of one tablet that lie inside it, in the order of their first keys."""

    def __init__(self, samples: KeySamples, lower: bytes, upper: bytes = HIGHEST) -> None:
        lasts = samples.spans or samples.keys
        writes = samples.writes or (True,) * len(samples.keys)
        given = zip(samples.keys, lasts, samples.weights, writes, strict=True)
        self.requests = sorted(
            (
                Request(first, max(first, last), weight, write)
                for first, last, weight, write in given
                if lower <= first < upper and weight > 0
            ),
            key=lambda request: request.first,
        )
        self.lower, self.upper = lower, upper
        self.total = sum(request.weight for request in self.requests)

    def __len__(self) -> int:
        return len(self.requests)

    def key_shares(self) -> dict[bytes, float]:
        """Key → share of the load on that single key. Requests over a range count for no key."""
        weights: dict[bytes, float] = {}
        for request in self.requests:
            if request.first == request.last:
                weights[request.first] = weights.get(request.first, 0.0) + request.weight
        return {key: weight / self.total for key, weight in weights.items()}

    def following(self, key: bytes) -> bytes | None:
        """The next sampled key."""
        return next((request.first for request in self.requests if request.first > key), None)

    def cuts(self) -> list[Cut]:
        """Every place between two sampled keys, in order."""
        starts = sorted({request.first for request in self.requests})
        firsts = _Weights([(request.first, request.weight) for request in self.requests])
        lasts = _Weights(sorted((request.last, request.weight) for request in self.requests))
        found = []
        for key in starts[1:]:
            left, right = lasts.below(key) / self.total, 1.0 - firsts.below(key) / self.total
            found.append(Cut(key, left, right, max(0.0, 1.0 - left - right)))
        return found

    def part_shares(self, cuts: Sequence[bytes]) -> tuple[float, ...]:
        """What each part would carry, as shares of the whole, if all were cut at these keys, in order."""
        shares = [0.0] * (len(cuts) + 1)
        for request in self.requests:
            for part in range(bisect_right(cuts, request.first), bisect_right(cuts, request.last) + 1):
                shares[part] += request.weight / self.total
        return tuple(shares)


def best_cut(cuts: Sequence[Cut]) -> Cut:
    """The cut whose hotter side is coolest; among equals the one with the fewest crossing requests.

    That is the weighted median where every request has one key. A heavy key at the median goes to the side where it
    does less harm, and a cut through many scans must win more by balance than it loses by doubling them.
    """
    return min(cuts, key=lambda cut: (cut.hotter, cut.crossing, cut.key))


def quantile_cuts(cuts: Sequence[Cut], parts: int) -> tuple[bytes, ...]:
    """The keys that cut the load into this many parts of about the same weight; fewer if heavy keys are in the way."""
    middles = [
        (1.0 + cut.left - cut.right) / 2 for cut in cuts
    ]  # ascending: how much lies before, half of what crosses
    found = []
    for quantile in (part / parts for part in range(1, parts)):
        at = bisect_left(middles, quantile)
        near = [place for place in (at - 1, at) if 0 <= place < len(cuts)]
        found.append(cuts[min(near, key=lambda place: abs(middles[place] - quantile))].key)
    return tuple(sorted(set(found)))


class _Weights:
    """Weights of ascending keys, summed up once."""

    def __init__(self, pairs: Sequence[tuple[bytes, float]]) -> None:
        self._keys = [key for key, _ in pairs]
        self._sums = [0.0, *accumulate(weight for _, weight in pairs)]

    def below(self, key: bytes) -> float:
        """The weight of all keys less than this one."""
        return self._sums[bisect_left(self._keys, key)]


class HeatWord(StrEnum):
    """The verdicts."""

    SPLIT = "split at key"
    HOT_KEY = "hot key"
    FRONT = "moving front"
    SCAN = "scan bound"
    TOO_FEW = "too few samples"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a judgement needs to know about a tablet."""

    tablet: int
    key_types: tuple[KeyType, ...]
    lower: bytes = b""
    upper: bytes = HIGHEST
    leaf: Leaf | None = None  # a hash table's; then bounds and types do not matter
    wanted: float = 0.5
    """What one part should carry at most, as a share of the tablet's load."""
    was_front: bool = False
    """Whether heat has cut it off at the end of its table: what is written at its own end now is the same front."""

    def name(self, key: bytes) -> str:
        """A key of this tablet as people write it; of a hashed key only the position is known."""
        if self.leaf is not None:
            return f"position 0x{key.hex()}"
        values = [show_value(value) for value in decode_key(self.key_types, key)]
        return values[0] if len(values) == 1 else "(" + ", ".join(values) + ")"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Figures by name (shares are of the sampled load), where they come from, and how reliable they are."""

    source: str
    samples: int
    confidence: float
    figures: Mapping[str, float] = field(default_factory=dict)

    def text(self) -> str:
        """For people."""
        return f"{self.samples} {self.source}, confidence {share_text(self.confidence)}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A word, what to do about it, and why."""

    word: HeatWord
    reason: str
    evidence: Evidence
    cuts: tuple[bytes, ...] = ()
    """A range tablet is cut at these keys; none: it is left as it is."""
    parts: tuple[Leaf, ...] = ()
    """A vbucket becomes these leaves; none: it is left as it is."""
    shares: tuple[float, ...] = ()
    """What each part would carry, as shares of the sampled load; requests across a cut count on both sides."""
    key: bytes | None = None
    """The hot key: encoded, or a position."""
    front: int | None = None
    """Which part is the growing end: the first (0) or the last (-1)."""


def evidence(samples: KeySamples, requests: Requests, **figures: float) -> Evidence:
    """Few samples say less than many: the error of a share falls with the square root of their number."""
    believed = samples.confidence * (1 - 1 / sqrt(len(requests))) if len(requests) else 0.0
    return Evidence(samples.source.value, len(requests), believed, figures)


USELESS = 0.75
"""A split must leave its hottest part less than this share of the load: otherwise it costs much and saves little."""
SLACK = 1.25
"""How much more than wanted the hottest part of a vbucket may carry before it is split by one more level."""
NAMED = 4
"""Cuts that a reason names one by one."""
EDGE = 0.10
"""How much of a tablet, from either end, counts as its edge."""
WIDER_EDGES = (0.25, 0.5)
"""The same for a tablet that a front was given: it is young, so the writes of the last minutes are a large part of it.
If load lies evenly over such a tablet, half of it is not an edge, and it is cut like any other."""
FRESH = 0.80
"""A moving front writes new keys: of the writes at an edge this share must have different keys. If the same few keys
are written over and over, the edge is merely popular and is cut in its middle."""
MAX_LEVELS = 4
"""A hot vbucket is split by at most this many levels at once."""
MOST_PARTS = 1 << MAX_LEVELS
"""The most parts that a hot tablet becomes at once: writers wait a few milliseconds per part for the swap."""
SAMPLES_PER_PART = 10
"""Samples that each part must rest on: fewer parts if there are not enough."""
UNEVEN = 2.0
"""How much more than an equal part the hottest of many parts may carry; if one would exceed that, one cut must do."""


def judge(facts: Facts, samples: KeySamples | None, options: HeatOptions) -> Verdict:
    """The verdict on one hot tablet."""
    if samples is None:
        text = f"there are no key samples, {options.min_samples} are needed"
        return Verdict(HeatWord.TOO_FEW, text, Evidence("samples", 0, 0.0))
    requests = _inside(facts, samples)
    if len(requests) < options.min_samples:
        text = f"there are {len(requests)} key samples in the tablet, {options.min_samples} are needed"
        return Verdict(HeatWord.TOO_FEW, text, evidence(samples, requests))
    shares = requests.key_shares()
    heaviest = max(shares, key=lambda key: (shares[key], key), default=None)
    hot = heaviest if heaviest is not None and shares[heaviest] >= options.hot_key_share else None
    if facts.leaf is not None:
        return _judge_leaf(facts, facts.leaf, samples, requests, hot)
    if hot is not None:
        return _isolate(facts, samples, requests, hot, shares[hot])
    return _front(facts, samples, requests, options) or _cut(facts, samples, requests)


def _inside(facts: Facts, samples: KeySamples) -> Requests:
    if facts.leaf is None:
        return Requests(samples, facts.lower, facts.upper)
    start, end = facts.leaf.start(), facts.leaf.start() + facts.leaf.width()
    # The end of the last leaf has no position of its own: nine bytes sort after all positions.
    return Requests(samples, start.to_bytes(8, "big"), end.to_bytes(8, "big") if end < POSITIONS else HIGHEST * 9)


def _cut(facts: Facts, samples: KeySamples, requests: Requests) -> Verdict:
    cuts = requests.cuts()
    if not cuts:
        found = evidence(samples, requests, crossing=1.0)
        return Verdict(HeatWord.SCAN, f"all requests start at one key and go on from there ({found.text()})", found)
    cut = best_cut(cuts)
    if cut.hotter >= USELESS:
        middle = min(cuts, key=lambda cut: abs(cut.right - 0.5))
        found = evidence(samples, requests, hotter=cut.hotter, crossing=middle.crossing)
        kept = f"the best cut leaves {share_text(cut.hotter)} of the load on one side"
        text = f"{kept}, and {share_text(middle.crossing)} goes across the middle ({found.text()})"
        return Verdict(HeatWord.SCAN, text, found)
    many = _many(facts, requests, cuts)
    if many is not None:
        shares = requests.part_shares(many)
        found = evidence(samples, requests, parts=float(len(shares)), hottest=max(shares))
        where = f"cut at {', '.join(map(facts.name, many))}" if len(many) <= NAMED else f"from {facts.name(many[0])} on"
        text = f"{len(shares)} parts of {share_text(max(shares))} of the load at most, {where} ({found.text()})"
        return Verdict(HeatWord.SPLIT, text, found, many, shares=shares)
    found = evidence(samples, requests, left=cut.left, right=cut.right, crossing=cut.crossing)
    shares = requests.part_shares((cut.key,))
    return Verdict(HeatWord.SPLIT, f"{_sides(facts, cut)} ({found.text()})", found, (cut.key,), shares=shares)


def _many(facts: Facts, requests: Requests, cuts: Sequence[Cut]) -> tuple[bytes, ...] | None:
    """Cuts into as many parts as the load asks for; None if that is two, or heavy keys and scans forbid it."""
    parts = min(ceil(1 / facts.wanted - 1e-9), MOST_PARTS, len(requests) // SAMPLES_PER_PART)
    if parts <= 2:
        return None
    found = quantile_cuts(cuts, parts)
    return found if len(found) > 1 and max(requests.part_shares(found)) <= UNEVEN / parts else None


def _sides(facts: Facts, cut: Cut) -> str:
    sides = f"{share_text(cut.left)} of the load is before {facts.name(cut.key)}, {share_text(cut.right)} from it on"
    return f"{sides}, {share_text(cut.crossing)} across it" if cut.crossing else sides


def _isolate(facts: Facts, samples: KeySamples, requests: Requests, key: bytes, share: float) -> Verdict:
    """One key alone: it gets a tablet of its own, if it has none."""
    found = evidence(samples, requests, key=share)
    name = f"key {facts.name(key)} has {share_text(share)} of the load"
    after, how = successor(facts.key_types, key), "isolated"
    if after is None:
        after, how = requests.following(key), "cut off before the next sampled key, as its type has no next value"
    inner = tuple(cut for cut in (key, after) if cut is not None and facts.lower < cut < facts.upper)
    if not inner:
        return Verdict(HeatWord.HOT_KEY, f"{name} and a tablet of its own already ({found.text()})", found, key=key)
    shares = requests.part_shares(inner)
    return Verdict(HeatWord.HOT_KEY, f"{name}: it is {how} ({found.text()})", found, inner, shares=shares, key=key)


def _front(facts: Facts, samples: KeySamples, requests: Requests, options: HeatOptions) -> Verdict | None:
    """Nearly all writes at one end: that end gets a tablet of its own, from the edge's first writes on."""
    edges = (EDGE, *WIDER_EDGES) if facts.was_front else (EDGE,)
    return next((found for edge in edges if (found := _front_at(facts, samples, requests, options, edge))), None)


def _front_at(
    facts: Facts, samples: KeySamples, requests: Requests, options: HeatOptions, width: float
) -> Verdict | None:
    total = sum(request.weight for request in requests.requests if request.write)
    low, high = _edges(facts, requests, samples.row_keys, width)
    firsts = [request.first for request in requests.requests]
    edges = ((-1, requests.requests[bisect_left(firsts, high) :]), (0, requests.requests[: bisect_right(firsts, low)]))
    for front, inside in edges:
        edge = [request for request in inside if request.write]
        share = sum(request.weight for request in edge) / total if edge else 0.0
        if share < options.front_share or len({request.first for request in edge}) < FRESH * len(edge):
            continue
        cut = edge[0].first if front else successor(facts.key_types, edge[-1].first)
        if cut is None or not facts.lower < cut < facts.upper:
            continue
        found = evidence(samples, requests, front=share)
        where = f"at the {'upper' if front else 'lower'} end, {'from' if front else 'before'} {facts.name(cut)}"
        text = f"{share_text(share)} of the writes are {where} ({found.text()})"
        return Verdict(HeatWord.FRONT, text, found, (cut,), front=front)
    return None


def _edges(facts: Facts, requests: Requests, row_keys: Sequence[bytes], part: float) -> tuple[bytes, bytes]:
    """Where the lower edge ends and the upper one begins: by rank among the rows, or by value between the ends."""
    if row_keys:
        rank = int(part * len(row_keys))
        return row_keys[min(rank, len(row_keys) - 1)], row_keys[max(-1 - rank, -len(row_keys))]
    first = requests.requests[0].first if facts.lower == LOWEST else facts.lower
    last = requests.requests[-1].first if facts.upper == HIGHEST else facts.upper
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    low, high = (int.from_bytes(key[same : same + 16].ljust(16, b"\0"), "big") for key in (first, last))
    width = int(part * (high - low))
    return first[:same] + (low + width).to_bytes(16, "big"), first[:same] + (high - width).to_bytes(16, "big")


def _judge_leaf(facts: Facts, leaf: Leaf, samples: KeySamples, requests: Requests, hot: bytes | None) -> Verdict:
    """The fewest levels that leave no part with too much; a hot key can only be separated from its neighbours."""
    word = HeatWord.SPLIT if hot is None else HeatWord.HOT_KEY
    name = "" if hot is None else f"{facts.name(hot)} has {share_text(requests.key_shares()[hot])} of the load; "
    chosen: tuple[float, ...] = (1.0,)
    hottest = 1.0
    for shares in _levels(facts, leaf, requests, hot):
        hottest = max(shares)
        if hottest < USELESS * max(chosen):
            chosen = shares
    if len(chosen) == 1:
        found = evidence(samples, requests, hottest=hottest)
        text = f"{name}no split takes enough away from it: {share_text(hottest)} would stay together ({found.text()})"
        return Verdict(HeatWord.HOT_KEY, text, found, key=hot)
    found = evidence(samples, requests, hottest=max(chosen))
    text = f"{name}split into {len(chosen)}, the hottest part keeps {share_text(max(chosen))} ({found.text()})"
    return Verdict(word, text, found, parts=descendants(leaf, len(chosen)), shares=chosen, key=hot)


def _levels(facts: Facts, leaf: Leaf, requests: Requests, hot: bytes | None) -> Iterator[tuple[float, ...]]:
    """What the parts would carry, level by level, until they carry what is wanted; a hot key's first useful level."""
    for levels in range(1, MAX_LEVELS + 1):
        if leaf.modulus << levels > MAX_MODULUS or len(requests) < SAMPLES_PER_PART << levels:
            return
        shares = _part_shares(leaf, requests, levels)
        yield shares
        if max(shares) <= facts.wanted * SLACK or (hot is not None and max(shares) < USELESS):
            return


def _part_shares(leaf: Leaf, requests: Requests, levels: int) -> tuple[float, ...]:
    """What each part would carry if the vbucket were split by this many levels."""
    shares = [0.0] * (1 << levels)
    for request in requests.requests:
        offset = int.from_bytes(request.first, "big") - leaf.start()
        shares[(offset << levels) // leaf.width()] += request.weight / requests.total
    return tuple(shares)


_LAST_UUID = UUID(int=(1 << 128) - 1)
_LAST_TIME = datetime.max.replace(tzinfo=UTC)


def successor(types: Sequence[KeyType], key: bytes) -> bytes | None:
    """The bound that immediately follows this key; None if there is no such bound.

    After the greatest value of the last column comes the end of all keys that begin with the other columns; for a key
    of one column that is the end of the table.
    """
    values = decode_key(types, key)
    kind, last = types[-1], values[-1]
    if isinstance(last, Decimal | float):
        return None
    following = _next_value(kind, last)
    if following is None:
        return encode_key(types, values[:-1], prefix=True) + HIGHEST
    return encode_key(types, (*values[:-1], following))


def _next_value(kind: KeyType, value: KeyValue) -> KeyValue | None:
    """The next value of a column; None after the greatest."""
    if isinstance(value, str):
        return value + "\x01"
    if isinstance(value, UUID):
        return None if value == _LAST_UUID else UUID(int=value.int + 1)
    if isinstance(value, datetime):
        return float("inf") if value == _LAST_TIME else value + timedelta(microseconds=1)
    if isinstance(value, date):
        return float("inf") if value == date.max else value + timedelta(days=1)
    assert isinstance(value, int)
    return None if value == integer_limits(kind)[1] else value + 1
