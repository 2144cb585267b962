"""What a tick costs beside its plan in a bundle of a million tablets on a thousand nodes: rates, view, memory of heat.

The polls' answers are made up; everything behind them is the tick's own. Each part beside one pass of numpy over the
same counters, in the same run.
"""

import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from balancer.directory.invariants import TABLET_COUNTER
from balancer.directory.model import Counter, Table, Tablet
from balancer.directory.open import open_directory
from balancer.planner.memory import Memory
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.options import BundleOptions
from balancer.policies.resize.heat import hot_tablets
from balancer.polling.poller import ClusterPoll
from balancer.polling.rates import COUNTERS, CounterSample, advance, first_rates
from balancer.polling.tablet_index import ColumnCache
from balancer.polling.view import KeptColumns, Remembered, build_view
from tests.support.directories import HASHED, frame
from tests.support.tables import show_table

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

TABLETS, NODES = 1 << 20, 1000
NOW = 1_700_000_000.0


def sample(at: float, chance: np.random.Generator) -> CounterSample:
    ids = np.arange(1, TABLETS + 1)
    sizes = chance.lognormal(0, 0.5, TABLETS) * 1e9
    # Some rows per second of each kind, fifty and more of few tablets: a thousand nodes do some ten thousand each.
    counters = np.random.default_rng(7).lognormal(0.0, 1.0, (len(COUNTERS), TABLETS)) * at
    return CounterSample(ids, ids, np.full(TABLETS, at), counters, sizes, sizes / 100)


def timed(work: Callable[[], object]) -> tuple[float, object]:
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


def test_the_rest_of_a_tick(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(NODES)]
    table: Table = HASHED
    tablets = [Tablet(i + 1, table.id, Leaf(TABLETS, i), names[i % NODES]) for i in range(TABLETS)]
    with open_directory(f"sqlite://{tmp_path}/directory.db") as directory:
        leadership = directory.campaign("bench", timeout=10)
        assert leadership is not None
        records = [*frame(names), table, *tablets, Counter(TABLET_COUNTER, TABLETS + 1)]
        directory.restore(records, reason="bench", author="bench", leader_epoch=leadership.epoch)
        snapshot = directory.snapshot()
    del tablets, records
    chance = np.random.default_rng(1)
    known = np.arange(1, TABLETS + 1)
    options, memory = BundleOptions(), Memory()
    rates = advance(first_rates(), sample(10.0, chance), known)
    newest = sample(20.0, chance)
    rows: list[tuple[str, float]] = []

    def part(name: str, work: Callable[[], object]) -> object:
        seconds, found = timed(work)
        rows.append((name, seconds))
        return found

    part("numpy: one sum and one exponential per counter", lambda: np.exp(-newest.counters).sum())
    rates = advance(rates, newest, known)  # the first time pays for memory
    after = (
        part("rates", lambda: advance(rates, sample_later, known)) if (sample_later := sample(30.0, chance)) else None
    )
    poll = ClusterPoll(NOW, snapshot.version, {}, after)  # type: ignore[arg-type]

    kept = KeptColumns(ColumnCache())

    def view() -> object:
        return build_view(snapshot, "shop", poll, options=options, capacities={}, remembered=Remembered(), kept=kept)

    view()
    built = part("view", view)
    hot = part("who is hot", lambda: list(hot_tablets(built, options.heat)))  # type: ignore[arg-type]
    part("memory: rates", lambda: memory.note_rates(built))  # type: ignore[arg-type]
    part("memory: heat", lambda: memory.note_heat(hot))  # type: ignore[arg-type]
    part("memory: history", lambda: memory.history(built, [], options.heat.min_rows_per_second / 2))  # type: ignore[arg-type]
    part("memory: nodes", lambda: memory.note_nodes(built, options))  # type: ignore[arg-type]
    total = sum(seconds for _, seconds in rows[1:])
    rows.append(("all of it, without the plan; goal 2 s", total))
    title = f"{TABLETS:,} tablets on {NODES:,} nodes"
    shown = [(name, seconds, seconds / rows[0][1]) for name, seconds in rows]
    show_table(title, ("part", "CPU s", "times numpy's pass"), shown)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"the process at its largest, with the making of the directory: {peak:.2f} GB")
