"""The last hour along the key space: bounded, and right when tablets were split in between."""

from dataclasses import replace

import numpy as np
import pytest

from balancer.planner.recorder import BINS, Recorder
from balancer.policies.view import PlanResult
from tests.support.bundle_states import NOON, state_of, view_of

pytestmark = pytest.mark.quick


def test_a_tablet_of_the_past_lies_over_what_it_was_split_into() -> None:
    recorder = Recorder()
    recorder.record(state_of(view_of({"events": [100, 200]}, write_rate=[1, 90, 3])))
    recorder.record(state_of(view_of({"events": [100, 150, 200]}, write_rate=[1, 40, 50, 3]), seconds=10))
    heat = recorder.heat_map("shop", "events", "writes")
    assert heat is not None
    assert heat.values.tolist() == [[1, 90, 90, 3], [1, 40, 50, 3]]
    assert heat.times == (NOON.timestamp(), NOON.timestamp() + 10)


def test_tablets_that_were_merged_show_the_hotter_one() -> None:
    recorder = Recorder()
    recorder.record(state_of(view_of({"events": [100, 150, 200]}, read_rate=[1, 40, 50, 3])))
    recorder.record(state_of(view_of({"events": [100, 200]}, read_rate=[1, 90, 3]), seconds=10))
    heat = recorder.heat_map("shop", "events", "reads")
    assert heat is not None
    assert heat.values.tolist() == [[1, 50, 3], [1, 90, 3]]


def test_vbuckets_are_laid_over_by_their_place_in_the_hash() -> None:
    recorder = Recorder()
    recorder.record(state_of(view_of({"orders": 2}, write_rate=[10, 20])))
    recorder.record(state_of(view_of({"orders": 4}, write_rate=[1, 2, 3, 4]), seconds=10))
    heat = recorder.heat_map("shop", "orders", "writes")
    assert heat is not None
    assert heat.values.tolist() == [[10, 10, 20, 20], [1, 2, 3, 4]]


def test_owners_of_the_past_are_remembered() -> None:
    recorder = Recorder()
    recorder.record(state_of(view_of({"orders": 2}, node=[0, 0])))
    recorder.record(state_of(view_of({"orders": 2}, node=[0, 1]), seconds=10))
    heat = recorder.heat_map("shop", "orders", "writes")
    assert heat is not None
    assert [[heat.nodes[number] for number in row] for row in heat.owners.tolist()] == [
        ["pg-a", "pg-a"],
        ["pg-a", "pg-b"],
    ]


def test_one_hot_tablet_among_thousands_stands_out_and_is_named() -> None:
    count = 1 << 14
    rates = np.ones(count)
    rates[5000] = 700.0
    recorder = Recorder()
    recorder.record(state_of(view_of({"orders": count}, write_rate=rates.tolist())))
    heat = recorder.heat_map("shop", "orders", "writes")
    assert heat is not None
    assert heat.values.shape == (1, BINS)
    hot = int(heat.values[0].argmax())
    assert heat.values[0, hot] == 700
    assert heat.present.busiest[hot] == 5000


def test_memory_is_bounded_in_slots_and_in_tables() -> None:
    recorder = Recorder(slot_seconds=10, span_seconds=50)
    view = view_of({f"t{number}": 64 for number in range(20)})
    for second in range(0, 100, 9):
        recorder.record(state_of(view, PlanResult(score_before=second), seconds=second))
    heat = recorder.heat_map("shop", "t0", "bytes")
    assert heat is not None
    assert heat.values.shape == (5, 64)
    assert [moment.score for moment in recorder.moments("shop")] == [54, 63, 72, 81, 99]


def test_many_tables_share_what_there_is() -> None:
    recorder = Recorder()
    recorder.record(state_of(view_of({f"t{number}": 64 for number in range(550)})))
    heat = recorder.heat_map("shop", "t0", "bytes")
    assert heat is not None
    assert heat.values.shape == (1, 16)


@pytest.mark.parametrize(("tick", "slot"), [(0.1, 2.0), (5.0, 5.0), (60.0, 10.0)])
def test_slots_follow_the_tick_within_reason(tick: float, slot: float) -> None:
    assert Recorder(tick).slot_seconds == slot


def test_within_a_slot_the_greatest_counts() -> None:
    recorder = Recorder()
    recorder.record(state_of(view_of({"events": [100]}, write_rate=[5, 80]), seconds=1))
    recorder.record(state_of(view_of({"events": [100, 200]}, write_rate=[7, 8, 9]), seconds=2))
    heat = recorder.heat_map("shop", "events", "writes")
    assert heat is not None
    assert heat.values.tolist() == [[7, 80, 80]]


def test_tables_and_bundles_that_are_gone_are_forgotten() -> None:
    recorder = Recorder()
    recorder.record(state_of(view_of({"orders": 2, "events": [1]})))
    recorder.record(state_of(view_of({"orders": 2}), seconds=10))
    assert recorder.tables() == [("shop", "orders")]
    recorder.forget("shop")
    assert recorder.tables() == []
    assert recorder.heat_map("shop", "orders", "writes") is None


def test_a_bundle_that_could_not_be_seen_leaves_a_gap_not_an_error() -> None:
    recorder = Recorder()
    recorder.record(replace(state_of(view_of({"orders": 2})), view=None, plan=None))
    assert recorder.tables() == []
    assert [moment.score for moment in recorder.moments("shop")] == [None]
