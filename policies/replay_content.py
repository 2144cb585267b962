"""What recorded tables contain: the key space in small stretches, each with what the polls measured for its tablet.

Tablets of different polls, and those that a replay makes, are all sums over the same stretches; inside a recorded
tablet, bytes and load are assumed to be even. Bounds of a range table become numbers in their order: a replay's keys
are places, not keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from balancer.policies.bundle_view import BundleView, Floats, Ints, TableView
from balancer.policies.hash_leaves import Leaf
from balancer.policies.simulator_content import HASH_STEP, POINTS, Content, interval
from balancer.policies.simulator_world import LOWEST_KEY

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
