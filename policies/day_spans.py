"""Which parts of the day a plan looks at: few, so that a plan costs little more than one for the moment.

Consecutive hours in which the tablets share the load alike are one part: evening out one of them evens out the other.
Then, until there are no more than `MOST`, the parts that differ least for what is done in them are joined. `day_book`
calls this once an hour. Columns only.
"""

from itertools import pairwise

import numpy as np

from balancer.policies.bundle_view import Floats, ProfileColumns
from balancer.policies.day_loads import ALIKE
from balancer.policies.day_parts import DaySpan
from balancer.policies.day_profile import LOADS, DayProfile, Singles

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
