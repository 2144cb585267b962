"""The profile of the day: what it remembers, what it forgets, and which parts of the day a plan looks at."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from balancer.policies.day.book import DayProfileCache, day_report
from balancer.policies.day.dimensions import behind_fronts, day_rates, dimension_text
from balancer.policies.day.profile import DayProfile, align, coarse, completed, fine, levels_of
from balancer.policies.options import BalancerOptions, BundleOptions, PlacementOptions, PlannedLoad
from balancer.policies.placement.problem import build_problem
from balancer.policies.plan.plan import make_plan
from balancer.policies.view import SLOTS, BundleView, DaySpan, NodeCondition, ProfileColumns, hour_slot
from tests.support.bundle_views import bundle

pytestmark = pytest.mark.quick

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
CELLS = BalancerOptions(enable_cell_balancer=True)


def busy(local: datetime, tablets: int = 2) -> list[float]:
    """Tablet 1 writes 100 rows a second from 8 to 12 and 10 at other times; the others 40 all day."""
    return [100.0 if 8 <= local.hour < 12 else 10.0, *[40.0] * (tablets - 1)]


def lived(book: DayProfileCache, hours: int, start: datetime = MONDAY, tablets: int = 2) -> DayProfileCache:
    """A book that saw so many hours."""
    for minute in range(0, hours * 60 + 1, 10):
        local = start + timedelta(minutes=minute)
        book.note(view_at(local, busy(local, tablets)), local, {})
    return book


def view_at(local: datetime, writes: list[float]) -> BundleView:
    return bundle([at % 2 for at in range(len(writes))], 2, now=local.timestamp(), writes=writes)


def writes_at(profile: DayProfile, tablet: int, slot: int) -> float:
    return float(profile.rates(slot)[0, int(np.searchsorted(profile.ids, tablet))])


def test_a_day_is_known_once_nearly_all_of_it_was_seen() -> None:
    assert not lived(DayProfileCache(), 20).profile.known_hours()
    profile = lived(DayProfileCache(), 24).profile
    assert profile.known_hours() == list(range(24))
    assert [round(writes_at(profile, 1, slot)) for slot in (7, 8, 11, 12)] == [10, 100, 100, 10]


def test_working_days_and_weekends_are_remembered_apart() -> None:
    profile = lived(DayProfileCache(), 24, start=datetime(2026, 3, 7, tzinfo=UTC)).profile
    assert np.isnan(writes_at(profile, 1, 9))
    assert writes_at(profile, 1, 24 + 9) == pytest.approx(100.0, rel=0.01)
    assert hour_slot(datetime(2026, 3, 8, 23, 59, tzinfo=UTC)) == SLOTS - 1
    assert not profile.known_hours()  # a plan waits for a working day


def test_the_past_counts_less_with_every_day() -> None:
    book = lived(DayProfileCache(), 24)
    for day in range(1, 4):
        for minute in range(0, 24 * 60 + 1, 20):
            local = MONDAY + timedelta(days=day, minutes=minute)
            book.note(view_at(local, [500.0, 40.0]), local, {})
    assert 420.0 < writes_at(book.profile, 1, 9) < 480.0  # 400, were all days alike


def test_what_a_node_that_is_down_did_last_is_no_measurement() -> None:
    book = DayProfileCache()
    for minute in range(0, 61, 10):
        local = MONDAY + timedelta(minutes=minute)
        view = view_at(local, [100.0, 40.0])
        down = replace(view.nodes[0], condition=NodeCondition.DOWN)
        book.note(replace(view, nodes=(down, view.nodes[1])), local, {})
    assert np.isnan(writes_at(book.profile, 1, 0))
    assert writes_at(book.profile, 2, 0) == pytest.approx(40.0, rel=0.01)


def test_a_split_gives_shares_and_a_merge_adds_over_generations_that_nobody_saw() -> None:
    profile = lived(DayProfileCache(), 24).profile
    parents = {3: ((1,), 2), 4: ((1,), 2), 5: ((4,), 2), 6: ((3, 2), 1), 7: ((7,), 1)}
    after = align(profile, np.array([5, 6, 7]), parents)
    assert writes_at(after, 5, 9) == pytest.approx(25.0, rel=0.01)
    assert writes_at(after, 6, 9) == pytest.approx(90.0, rel=0.01)
    assert np.isnan(writes_at(after, 7, 9))


def test_hours_noted_before_a_split_are_inherited_beside_those_noted_after_it() -> None:
    """The notes of nine o'clock know tablet 1, those of ten its part 3, those of eleven that part's part 4."""

    def hour(tablet: int, rate: float) -> np.ndarray:
        rates = np.full((2, 3), np.nan)
        rates[:, [1, 3, 4].index(tablet)] = rate
        return levels_of(rates)

    hours: list[np.ndarray | None] = [None] * SLOTS
    hours[9], hours[10], hours[11] = hour(1, 80.0), hour(3, 40.0), hour(4, 20.0)
    seen = tuple(1.0 if slot in (9, 10, 11) else 0.0 for slot in range(SLOTS))
    profile = DayProfile(np.array([1, 3, 4]), tuple(hours), seen, (739_000,) * SLOTS)
    book = DayProfileCache()
    book.take(profile, parents := {3: ((1,), 2), 4: ((3,), 2)})
    found = align(book.profile, np.array([4]), parents)
    assert [writes_at(found, 4, slot) for slot in (9, 10, 11)] == pytest.approx([20.0] * 3, rel=0.01)
    assert completed(profile, {}) is profile


def test_a_level_of_one_byte_is_near_and_the_unknown_stays_unknown() -> None:
    rates = np.array([[0.0, 0.5, 17.0, 1e6, np.nan]])
    back = DayProfile(np.arange(5), (fine(coarse(levels_of(rates))),) + (None,) * (SLOTS - 1)).rates(0)
    assert back[0, :4] == pytest.approx(rates[0, :4], rel=0.05, abs=0.02)
    assert np.isnan(back[0, 4])


def test_hours_that_are_alike_are_one_part_of_the_day() -> None:
    book = lived(DayProfileCache(), 24)
    found = book.note(view_at(MONDAY + timedelta(days=1), [10.0, 40.0]), MONDAY + timedelta(days=1), {})
    assert found is not None
    assert DaySpan(8, 11) in found.spans
    assert len(found.spans) == 2  # from 8 to 12 h, and the rest, of which one part stands for both


def test_there_are_six_parts_at_most_however_much_the_hours_differ() -> None:
    book, chance = DayProfileCache(), np.random.default_rng(1)
    shapes = chance.lognormal(3.0, 1.5, (24, 40))
    for minute in range(0, 24 * 60 + 1, 20):
        local = MONDAY + timedelta(minutes=minute)
        found = book.note(view_at(local, shapes[local.hour].tolist()), local, {})
    assert found is not None
    assert 4 <= len(found.spans) <= 6
    assert found.rates.shape == (2, 40, len(found.spans))


def day_and_night() -> BundleView:
    """Even at night; by day the tablets of n0 do five times as much."""
    view = bundle([0] * 4 + [1] * 4, 2, writes=[50.0] * 8)
    rates = np.full((2, 8, 2), 50.0, np.float32)
    rates[:, :4, 1] = 250.0
    return replace(view, profile=ProfileColumns((DaySpan(0, 7), DaySpan(8, 23)), rates))


def test_a_plan_evens_out_the_day_and_says_so() -> None:
    view = day_and_night()
    plan = make_plan(view, BundleOptions(balancer=CELLS))
    assert plan.actions
    assert "above its share of writes from 8 to 24 h" in plan.actions[0].reason
    now = BundleOptions(balancer=CELLS, placement=PlacementOptions(load=PlannedLoad.NOW))
    assert not make_plan(view, now).actions


def test_reads_that_lie_as_the_writes_do_are_no_dimension_of_their_own() -> None:
    names = build_problem(day_and_night(), BundleOptions(balancer=CELLS)).dimensions
    assert [name for name in names if "rate" in name] == ["write_rate@0-7", "write_rate@8-23"]
    assert dimension_text("read_rate@42-44") == "reads from 18 to 21 h at weekends"


def test_urgent_moves_go_by_now() -> None:
    """n0 is drained: by the day n1 has more room, at this moment n2 has."""
    view = bundle([0, 1, 1, 2, 2], 3, writes=[100.0, 100.0, 100.0, 1.0, 1.0])
    rates = np.full((2, 5, 1), 1.0, np.float32)
    rates[0, 3:, 0] = 100.0
    draining = replace(view.nodes[0], condition=NodeCondition.DRAINING)
    view = replace(view, nodes=(draining, *view.nodes[1:]), profile=ProfileColumns((DaySpan(0, 23),), rates))
    options = BundleOptions(placement=PlacementOptions(dimensions={"write_rate": 1.0}))
    assert [action.target for action in make_plan(view, options).actions] == ["n2"]


def test_the_report_names_the_busiest_hours() -> None:
    book = lived(DayProfileCache(), 24, tablets=4)
    report = day_report(book.profile, view_at(MONDAY, busy(MONDAY, 4)))
    assert report is not None
    assert report.peaks[0][:4] == (1, "t", "n0", 8)
    assert report.relative[9].tolist() == pytest.approx([140.0 / 110.0, 80.0 / 110.0], rel=0.01)
    assert np.isnan(report.relative[24]).all()


def test_a_peak_that_the_next_day_did_not_repeat_is_forgotten() -> None:
    book = lived(DayProfileCache(), 24)
    assert writes_at(book.profile, 1, 9) == pytest.approx(100.0, rel=0.01)
    for minute in range(0, 24 * 60 + 1, 20):
        local = MONDAY + timedelta(days=1, minutes=minute)
        book.note(view_at(local, [10.0, 40.0]), local, {})
    assert writes_at(book.profile, 1, 9) == pytest.approx(10.0, rel=0.01)


def test_a_table_whose_keys_grow_at_one_end_is_planned_by_what_it_does_now() -> None:
    """Its tablets were the front in some hour of yesterday each, and will not be again."""
    view = bundle([0, 1, 0, 1], 2, writes=[1.0, 1.0, 1.0, 97.0])
    table = replace(view.tables[0], hash=False)
    assert behind_fronts(replace(view, tables=(table,))).all()
    assert not behind_fronts(view).any(), "the keys of a hash table do not grow"
    even = bundle([0, 1, 0, 1], 2, writes=[25.0, 25.0, 25.0, 25.0])
    assert not behind_fronts(replace(even, tables=(table,))).any()
    yesterday = np.full((2, 4, 1), 50.0, np.float32)
    known = replace(view, tables=(table,), profile=ProfileColumns((DaySpan(0, 23),), yesterday))
    assert day_rates(known, "write_rate", 0).tolist() == [1.0, 1.0, 1.0, 97.0]
    assert day_rates(replace(known, tables=view.tables), "write_rate", 0).tolist() == [50.0] * 4
