"""The parts of the day as dimensions of a plan: what each tablet does in each of them, and how much each counts.

`policies/placement/problem` asks here for reads and writes. A node has the same processors at noon and at night, so a
quiet part of the day counts less than the busiest, and one that does next to nothing does not count.

Which parts of the day a plan looks at: few, so that a plan costs little more than one for the moment.

Consecutive hours in which the tablets share the load alike are one part: evening out one of them evens out the other.
Then, until there are no more than `MOST`, the parts that differ least for what is done in them are joined. `book`
calls this once an hour. Columns only.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from balancer.policies.day.profile import LOADS, DayProfile, Singles
from balancer.policies.options import BundleOptions, PlannedLoad
from balancer.policies.view import BundleView, DaySpan, Floats, ProfileColumns, base_of, named, span_of, span_text

ALIKE = 0.05
"""Of a node's share: loads that differ by less on nodes with randomly placed tablets are one."""
_QUIET = 1 / 16  # of the busiest part's load: less does not count
FRONT_SHARE = 0.5
"""Of a range table's writes, in its first or its last tablet: then its load follows its newest keys."""
FEWEST = 3
"""Tablets of a table that has a front: with fewer, an end is most of the table anyway."""
NAMES = {
    "bytes": "bytes",
    "memory": "memory",
    "write_rate": "writes",
    "read_rate": "reads",
    "tablets": "tablets",
}


@dataclass(frozen=True, slots=True)
class DimensionColumn:
    """One dimension: each tablet's load, and how the dimension counts next to the others."""

    name: str
    load: Floats  # one entry per tablet of the view
    weight: float = 1.0
    """How much an excess counts, as a part of what it would count for now."""
    portion: float = 1.0
    """How much it adds to sums over dimensions: the many parts of a day must not outvote the bytes."""
    floor: float = 1.0
    """How much its load adds to the least gain of a move."""


def plans_by_profile(view: BundleView, options: BundleOptions) -> bool:
    """Whether a plan is made for the day: wanted, and a day is known."""
    return options.placement.load is PlannedLoad.PROFILE and view.profile is not None


def day_columns(view: BundleView, rate: str) -> list[DimensionColumn]:
    """Reads or writes by part of the day."""
    profile = view.profile
    assert profile is not None
    fronts = behind_fronts(view)
    loads = [day_rates(view, rate, at, fronts) for at in range(len(profile.spans))]
    totals = np.array([load.sum() for load in loads])
    busiest = float(totals.max(initial=0.0))
    kept = np.flatnonzero(totals > busiest * _QUIET).tolist()
    return [
        DimensionColumn(
            named(rate, profile.spans[at]),
            loads[at],
            weight=float(np.sqrt(totals[at] / busiest)),
            portion=len(kept) ** -0.5,
            floor=len(kept) ** -1.5,
        )
        for at in kept
    ]


def without_doubles(columns: list[DimensionColumn], nodes: int) -> list[DimensionColumn]:
    """Without reads of a part of the day that lie like its writes, or vice versa: what counts more stays."""
    kept: list[DimensionColumn] = []
    for column in columns:
        span = span_of(column.name)
        rival = next((one for one in kept if span is not None and span_of(one.name) == span), None)
        if rival is None or nodes * float(((rival.load - column.load) ** 2).sum()) > ALIKE**2:
            kept.append(column)
        elif column.weight > rival.weight:
            kept = [column if one is rival else one for one in kept]
    return kept


def dimension_text(name: str) -> str:
    """A dimension as sentences name it: `writes`, or `writes from 18 to 21 h`."""
    span = span_of(name)
    text = NAMES[base_of(name)]
    return text if span is None else f"{text} {span_text(span)}"


def tablet_rate(view: BundleView, row: int, name: str) -> float:
    """What a tablet reads or writes per second in the part of the day that a dimension is about, or now."""
    base, span = base_of(name), span_of(name)
    now = (view.tablets.write_rate if base == "write_rate" else view.tablets.read_rate)[row]
    if span is None or view.profile is None:
        return float(now)
    return float(day_rates(view, base, view.profile.spans.index(span))[row])


def day_rates(view: BundleView, rate: str, at: int, fronts: npt.NDArray[np.bool_] | None = None) -> Floats:
    """T: one load in one part of the day. A tablet that was not seen in it counts with what it does now, and so does
    one behind a front (`fronts`: which these are, if the caller knows)."""
    assert view.profile is not None
    found = view.profile.rates[LOADS.index(rate), :, at]
    now = view.tablets.write_rate if rate == "write_rate" else view.tablets.read_rate
    return np.where(np.isnan(found) | (behind_fronts(view) if fronts is None else fronts), now, found)


def behind_fronts(view: BundleView) -> npt.NDArray[np.bool_]:
    """T: tablets of range tables most of whose writes go to one end, where the keys grow.

    Each was the front once, in some hours of one day, and will not be again: what they do now is what they will do.
    """
    rates = view.tablets.write_rate
    shapes = [
        (table.first, table.last) for table in view.tables if not table.hash and table.last - table.first >= FEWEST
    ]
    found = np.zeros(len(rates), dtype=np.bool_)
    if not shapes:
        return found
    first, last = np.array(shapes, dtype=np.int64).T
    sums = np.concatenate([[0.0], np.cumsum(rates)])
    ends = np.maximum(rates[first], rates[last - 1])
    fronts = (ends > 0) & (ends >= FRONT_SHARE * (sums[last] - sums[first]))
    for low, high in zip(first[fronts].tolist(), last[fronts].tolist(), strict=True):
        found[low:high] = True
    return found


MOST = 6
"""Parts of the day in one plan. More: closer to each hour, and slower."""
_SAMPLE = 20_000  # number of tablets by which hours are compared


def profile_columns(profile: DayProfile, nodes: int) -> ProfileColumns | None:
    """What plans see of a profile, in the order of its tablets; None: no day is known yet."""
    slots = profile.known_hours()
    if not slots:
        return None
    spans = _Hours(profile, slots, nodes).spans()
    return ProfileColumns(tuple(spans), np.stack([_mean(profile, span, slots) for span in spans], axis=2))


def _mean(profile: DayProfile, span: DaySpan, slots: list[int]) -> Singles:
    """LOADS × tablets: the mean over the known hours of a part; NaN if a tablet was seen in none."""
    total = np.zeros((len(LOADS), len(profile)), np.float32)
    count = np.zeros((len(LOADS), len(profile)), np.float32)
    for slot in span.slots:
        if slot in slots:
            rates = profile.rates(slot)
            known = ~np.isnan(rates)
            count += known
            np.add(total, rates, out=total, where=known)
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


class _Hours:
    """The hours of one profile, compared with one another: by the inner products of what tablets do in them."""

    def __init__(self, profile: DayProfile, slots: list[int], nodes: int) -> None:
        self.slots = slots
        step = max(1, len(profile) // _SAMPLE)
        sample = [np.nan_to_num(profile.rates(slot)[:, ::step].astype(np.float64)) for slot in slots]
        self.products: list[Floats] = []
        self.totals: list[Floats] = []
        for load in range(len(LOADS)):
            rates = np.stack([hour[load] for hour in sample])
            self.products.append(rates @ rates.T)
            self.totals.append(rates.sum(axis=1))
        self.work = np.sum([total / max(float(total.max(initial=0.0)), 1e-300) for total in self.totals], axis=0)
        # How far nodes differ from one hour to the next if tablets are placed at random: of one load, squared.
        self.alike = ALIKE**2 / max(nodes, 1)

    def spans(self) -> list[DaySpan]:
        """The parts, in the order of the day."""
        parts = [DaySpan(slot, slot) for slot in self.slots]
        while True:
            distances, work = self._distances(parts)
            kept = self._different(distances, work / [len(part.slots) for part in parts])
            pairs = [at for at, (one, other) in enumerate(pairwise(parts)) if one.weekend == other.weekend]
            costs = np.array([distances[at, at + 1] for at in pairs])
            if not pairs or (costs.min() > self.alike and len(kept) <= MOST):
                return [parts[at] for at in kept]
            if costs.min() > self.alike:
                # A part in which little is done may be joined with a different one.
                costs *= [work[at] * work[at + 1] / max(work[at] + work[at + 1], 1e-300) for at in pairs]
            at = pairs[int(costs.argmin())]
            parts[at : at + 2] = [DaySpan(parts[at].first, parts[at + 1].last)]

    def _distances(self, parts: list[DaySpan]) -> tuple[Floats, Floats]:
        """Parts × parts: how differently tablets share the load, in the load where that is most; parts: work."""
        member = np.array([[slot in part.slots for slot in self.slots] for part in parts], dtype=np.float64)
        worst = np.zeros((len(parts), len(parts)))
        for products, totals in zip(self.products, self.totals, strict=True):
            total = member @ totals
            shape = np.divide(member, total[:, None], out=np.zeros_like(member), where=total[:, None] > 0)
            inner = shape @ products @ shape.T
            own = np.diag(inner)
            both = (total > 0)[:, None] & (total > 0)[None, :]
            worst = np.maximum(worst, np.where(both, own[:, None] + own[None, :] - 2.0 * inner, 0.0))
        return worst, member @ self.work

    def _different(self, distances: Floats, work: Floats) -> list[int]:
        """Without those that resemble a busier one: a weekend is often like a working day."""
        kept: list[int] = []
        for at in np.argsort(-work, kind="stable").tolist():
            if not kept or distances[at, kept].min() > self.alike:
                kept.append(at)
        return sorted(kept)
