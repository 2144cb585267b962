"""What is remembered about tablets from tick to tick: lasting heat, the highest rate in five minutes, past migrations.

The tick writes it and hands it to the policies as `TabletHistory`. Heat is forgotten with the process, which only means
that it must be confirmed again; what must not be forgotten (failures, times of migrations) is read from the directory.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from balancer.directory.model import Migration, MigrationKind
from balancer.policies.bundle_view import BundleView, Floats, Ints, TabletHistory
from balancer.policies.closing import overloaded_since
from balancer.policies.options import BundleOptions

MINUTES = 5
FAILED = "failed"
DONE = "done"
FORGIVEN = "forgiven"
"""In the detail of a failed migration: an operator has released its tablets, and it no longer counts."""
HEAT = "heat-"  # how the codes of actions for heat begin


class Memory:
    """One per bundle; belongs to its tick."""

    def __init__(self) -> None:
        self._hot: dict[int, int] = {}
        self._minutes: deque[Minute] = deque()
        self._overloaded: dict[str, float] = {}

    def note_nodes(self, view: BundleView, options: BundleOptions) -> Mapping[str, float]:
        """Nodes that are overloaded, and since when."""
        self._overloaded = overloaded_since(view, options, self._overloaded)
        return self._overloaded

    def note_rates(self, view: BundleView) -> None:
        """Remembers the rates of this tick, and forgets what is older than five minutes."""
        ids, rates = by_id(view)
        minute = int(view.now // 60)
        if self._minutes and self._minutes[-1].number == minute:
            rates = np.maximum(rates, self._minutes.pop().rates_of(ids))
        self._minutes.append(Minute(minute, ids, rates))
        while self._minutes[0].number < minute - MINUTES:
            self._minutes.popleft()

    def note_heat(self, hot: Iterable[int]) -> None:
        """These tablets are over a heat threshold in this poll; the others' counts start from zero."""
        self._hot = {tablet: self._hot.get(tablet, 0) + 1 for tablet in hot}

    def history(self, view: BundleView, migrations: Iterable[Migration], warm: float) -> Mapping[int, TabletHistory]:
        """What the policies are told, by tablet; only for those migrated, hot, or once warmer than `warm`."""
        found = past(migrations)
        for tablet, polls in self._hot.items():
            found[tablet] = replace(found.get(tablet, TabletHistory()), hot_polls=polls)
        for tablet, greatest in self._greatest(view, warm).items():
            found[tablet] = replace(found.get(tablet, TabletHistory()), max_rate_5m=greatest)
        if not self._minutes or self._minutes[0].number > int(view.now // 60) - MINUTES:
            # Not watched for long enough: what was split for heat must not be merged after a moment's calm.
            for tablet, history in found.items():
                if history.split_for_heat_at is not None:
                    found[tablet] = replace(history, max_rate_5m=math.inf)
        return found

    def _greatest(self, view: BundleView, warm: float) -> dict[int, float]:
        ids, rates = by_id(view)
        for minute in self._minutes:
            rates = np.maximum(rates, minute.rates_of(ids))
        rows = np.flatnonzero(rates >= warm)
        return dict(zip(ids[rows].tolist(), rates[rows].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Minute:
    """The highest rates of one minute."""

    number: int  # minutes since 1970
    ids: Ints  # increasing
    rates: Floats

    def rates_of(self, ids: Ints) -> Floats:
        """The rates of these tablets (ids increasing); 0 for those it did not see."""
        if ids is self.ids or np.array_equal(ids, self.ids):
            return self.rates
        if not len(self.ids):
            return np.zeros(len(ids))
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[places] == ids, self.rates[places], 0.0)


def by_id(view: BundleView) -> tuple[Ints, Floats]:
    """All tablets' ids, increasing, and the rows that each reads and writes per second."""
    ids, rates = view.tablets.ids, view.tablets.read_rate + view.tablets.write_rate
    if bool((ids[1:] > ids[:-1]).all()):
        return ids, rates  # as they were made, one after the other: nothing is copied
    order = np.argsort(ids, kind="stable")
    return ids[order], rates[order]


def failures_of(migrations: Iterable[Migration], tablet: int) -> list[Migration]:
    """The migrations of a tablet that failed in a row, up to now; what `past` counts."""
    failed: list[Migration] = []
    for migration in sorted(migrations, key=lambda migration: migration.updated):
        if migration.state == DONE and any(target.id == tablet for target in migration.targets):
            failed = []
        elif migration.state == FAILED and tablet in migration.sources and not migration.detail.get(FORGIVEN):
            failed.append(migration)
    return failed


def past(migrations: Iterable[Migration]) -> dict[int, TabletHistory]:
    """What finished migrations say about tablets: when they were last migrated, how often that failed in a row."""
    found: dict[int, TabletHistory] = {}
    for migration in sorted(migrations, key=lambda migration: migration.updated):
        if not migration.finished:
            continue
        if migration.state == FAILED and not migration.detail.get(FORGIVEN):
            for tablet in migration.sources:
                before = found.get(tablet, TabletHistory())
                found[tablet] = replace(before, failures=before.failures + 1, last_failed=migration.updated)
        elif migration.state == DONE:
            code = str(migration.detail.get("code", ""))
            heat = migration.operation is MigrationKind.SPLIT and code.startswith(HEAT)
            for target in migration.targets:
                before = found.get(target.id, TabletHistory())
                split = migration.updated if heat else before.split_for_heat_at
                found[target.id] = replace(
                    before,
                    last_migrated=migration.updated,
                    failures=0,
                    last_failed=None,
                    split_for_heat_at=split,
                    split_of=_split_of(migration) or before.split_of,
                )
    return found


def _split_of(migration: Migration) -> float | None:
    """The bytes of the tablet that a finished migration has split; None: it was no split, or nobody knows."""
    size = migration.detail.get("size")
    if migration.operation is not MigrationKind.SPLIT or not isinstance(size, int | float):
        return None
    return float(size) if size > 0 else None
