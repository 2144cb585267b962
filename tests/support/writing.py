"""A process that commits at full speed: run as `python -m tests.support.writing URL SEED`, until it is ended.

Tablets i, i + third and i + two thirds are moved together, so that they always have the same epoch; the counter
`moves` says how often that was done. In between, a tablet becomes 600 and those become one again, so that pages split
and merge all the time.
"""

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from balancer.directory.model import Change, Counter, Put, RangeBounds, RecordKind, Remove, Tablet
from balancer.directory.open import open_directory
from balancer.directory.snapshot import Snapshot
from tests.support.directories import NODES, RANGED, moved, transaction

PARTS = 600


def move(view: Snapshot, third: int, rng: random.Random) -> list[Change]:
    first = rng.randrange(1, third + 1)
    node = rng.choice(NODES)
    tablets = [view.tablet(first + third * part) for part in range(3)]
    return [
        *(Put(moved(tablet, node)) for tablet in tablets),
        Put(replace(view.counters["moves"], next=view.counters["moves"].next + 1)),
    ]


def shatter(view: Snapshot, victim: int, fresh: int) -> list[Change]:
    """The victim keeps its id and its start; the rest of it becomes other tablets."""
    tablet = view.tablet(victim)
    assert isinstance(tablet.bounds, RangeBounds)
    cuts = [tablet.bounds.lower + bytes((2, number // 200, number % 200, 1)) for number in range(PARTS)]
    edges = [*cuts, tablet.bounds.upper]
    first = replace(tablet, bounds=RangeBounds(tablet.bounds.lower, cuts[0]))
    rest = [Tablet(fresh + i, RANGED.id, RangeBounds(edges[i], edges[i + 1]), tablet.node) for i in range(PARTS)]
    return [Put(first), *map(Put, rest), Put(Counter("tablet", fresh + PARTS))]


def gather(view: Snapshot, victim: int, fresh: int) -> list[Change]:
    tablet = view.tablet(victim)
    last = view.tablet(fresh + PARTS - 1)
    assert isinstance(tablet.bounds, RangeBounds)
    assert isinstance(last.bounds, RangeBounds)
    whole = replace(tablet, bounds=RangeBounds(tablet.bounds.lower, last.bounds.upper))
    return [Put(whole), *(Remove(RecordKind.TABLET, str(fresh + i)) for i in range(PARTS))]


def rounds(view: Snapshot, rng: random.Random) -> Iterator[Callable[[Snapshot], list[Change]]]:
    """Endless steps, each given the newest view."""
    third = view.tablet_count() // 3
    fresh = view.counters["tablet"].next
    while True:
        victim = rng.randrange(1, third + 1)
        for _ in range(5):
            yield partial(move, third=third, rng=rng)
        yield partial(shatter, victim=victim, fresh=fresh)
        for _ in range(5):
            yield partial(move, third=third, rng=rng)
        yield partial(gather, victim=victim, fresh=fresh)
        fresh += PARTS


def main(url: str, seed: int) -> None:
    with open_directory(url) as directory:
        view = directory.snapshot()
        for step in rounds(view, random.Random(seed)):
            directory.commit(transaction(step(view), view.version))
            view = directory.snapshot()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
