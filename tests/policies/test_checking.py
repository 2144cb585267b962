"""What the consistency checker does next and what its looks mean: rounds, resumption, what stands and what is gone."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.nodes.catalog.sequences import NumberSeries, common_number
from balancer.policies.check_options import CheckKind, CheckOptions
from balancer.policies.checking import (
    Anomaly,
    CheckResult,
    CheckRounds,
    CheckUnit,
    after_look,
    begin_round,
    confirmed,
    due_at,
    end_kind,
    next_unit,
    of_kinds,
    overdue,
    rest_after,
)

pytestmark = pytest.mark.quick

KINDS = (CheckKind.MAP, CheckKind.BOUNDS)
BAD = Anomaly(CheckKind.BOUNDS, "3 rows", "orders", 7, "a", "public.orders", 3)


def at_bounds(book: CheckRounds | None = None, now: float = 10.0) -> CheckRounds:
    """A round whose map is done."""
    begun = begin_round(book or CheckRounds(), KINDS, now)
    return end_kind(begun, KINDS, now)[0]


def units(book: CheckRounds, subjects: list[int], looks: dict[CheckUnit, CheckResult] | None = None) -> list[CheckUnit]:
    """All that follow, each looked at."""
    found = []
    while (unit := next_unit(book.running, subjects)) is not None:  # type: ignore[arg-type]
        found.append(unit)
        book, _ = after_look(book, unit, (looks or {}).get(unit, CheckResult()), 11.0, 0.1)
    return found


def test_a_round_goes_over_the_kinds_in_their_order_and_over_subjects_by_number() -> None:
    book = begin_round(CheckRounds(), (CheckKind.BOUNDS, CheckKind.MAP), 10.0)
    assert book.running is not None
    assert book.running.kind is CheckKind.MAP
    assert units(at_bounds(), [2, 3, 9]) == [CheckUnit(CheckKind.BOUNDS, number) for number in (2, 3, 9)]


def test_a_unit_with_pages_and_items_goes_on_where_it_was() -> None:
    first = CheckUnit(CheckKind.BOUNDS, 2)
    looks = {
        first: CheckResult(next_page=64, epoch=5, more=True),
        CheckUnit(CheckKind.BOUNDS, 2, 0, 64, 5): CheckResult(more=True),
    }
    assert units(at_bounds(), [2, 3], looks) == [
        first,
        CheckUnit(CheckKind.BOUNDS, 2, 0, 64, 5),
        CheckUnit(CheckKind.BOUNDS, 2, 1),
        CheckUnit(CheckKind.BOUNDS, 3),
    ]


@given(st.sets(st.integers(1, 60)), st.sets(st.integers(61, 90)), st.integers(0, 60))
def test_tablets_that_are_made_meanwhile_are_met_and_none_is_met_twice(
    before: set[int], made: set[int], when: int
) -> None:
    """After so many looks a split takes half of the tablets away and puts new ones, with higher ids, in their place."""
    book, met, subjects = at_bounds(), [], sorted(before)
    while (unit := next_unit(book.running, subjects)) is not None:  # type: ignore[arg-type]
        met.append(unit.subject)
        book, _ = after_look(book, unit, CheckResult(), 11.0, 0.1)
        if len(met) == when:
            subjects = sorted({*subjects[::2], *made})
    assert len(met) == len(set(met))
    assert set(subjects) <= set(met) | ({*before} - {*subjects})


def test_a_finding_stands_until_a_whole_round_does_not_find_it() -> None:
    book, appeared = after_look(at_bounds(), CheckUnit(CheckKind.BOUNDS, 7), CheckResult((BAD,)), 11.0, 0.1)
    assert appeared == (BAD,)
    book, gone = end_kind(book, KINDS, 12.0)
    assert gone == ()
    assert book.running is None
    assert [past.anomalies for past in book.past] == [1]
    book, appeared = after_look(at_bounds(book, 20.0), CheckUnit(CheckKind.BOUNDS, 7), CheckResult((BAD,)), 21.0, 0.1)
    assert appeared == (), "it is known"
    assert book.standing[BAD.key].first == 11.0
    book, _ = end_kind(book, KINDS, 22.0)
    book, gone = end_kind(at_bounds(book, 30.0), KINDS, 31.0)
    assert gone == (BAD,)
    assert not book.standing


def test_what_could_not_be_looked_at_is_not_taken_to_be_gone() -> None:
    book, _ = after_look(at_bounds(), CheckUnit(CheckKind.BOUNDS, 7), CheckResult((BAD,)), 11.0, 0.1)
    book, _ = end_kind(book, KINDS, 12.0)
    silent = CheckUnit(CheckKind.BOUNDS, 7)
    book, _ = after_look(at_bounds(book, 20.0), silent, CheckResult(unchecked="no answer"), 21.0, 0.1)
    book, gone = end_kind(book, KINDS, 22.0)
    assert gone == ()
    assert BAD.key in book.standing


def test_counts_of_the_pages_of_one_unit_are_added_up_and_those_of_rounds_are_not() -> None:
    book, _ = after_look(at_bounds(), CheckUnit(CheckKind.BOUNDS, 7), CheckResult((BAD,), next_page=9), 11.0, 0.1)
    book, _ = after_look(book, CheckUnit(CheckKind.BOUNDS, 7, 0, 9), CheckResult((replace(BAD, count=2),)), 11.0, 0.1)
    assert book.standing[BAD.key].anomaly.count == 5
    book, _ = end_kind(book, KINDS, 12.0)
    book, _ = after_look(at_bounds(book, 20.0), CheckUnit(CheckKind.BOUNDS, 7), CheckResult((BAD,)), 21.0, 0.1)
    assert book.standing[BAD.key].anomaly.count == 3


def test_only_what_two_looks_find_is_told() -> None:
    other = replace(BAD, tablet=8)
    assert confirmed(CheckResult((BAD, other)), CheckResult((replace(BAD, count=9),))).anomalies == (
        replace(BAD, count=9),
    )
    assert confirmed(CheckResult((BAD,)), CheckResult(unchecked="gone")).anomalies == ()


def test_a_tablet_that_moves_takes_its_finding_along() -> None:
    assert replace(BAD, node="b").key == BAD.key
    claim = Anomaly(CheckKind.MAP, "claimed", "orders", 7, "a")
    assert replace(claim, node="b").key != claim.key


def test_a_kind_that_is_switched_off_takes_its_findings_with_it() -> None:
    book, _ = after_look(at_bounds(), CheckUnit(CheckKind.BOUNDS, 7), CheckResult((BAD,)), 11.0, 0.1)
    book, gone = of_kinds(book, (CheckKind.MAP,))
    assert (gone, dict(book.standing)) == ((BAD,), {})


def test_rounds_begin_once_per_period_and_are_late_after_two() -> None:
    options = CheckOptions(every=100.0)
    assert due_at(CheckRounds(), options) == 0.0
    running = at_bounds(now=1000.0)
    assert due_at(running, options) == 0.0, "what was begun goes on"
    done, _ = end_kind(running, KINDS, 1010.0)
    assert due_at(done, options) == 1100.0
    assert overdue(done, options, 1200.0) == 0.0
    assert overdue(done, options, 1230.0) == 30.0


def test_the_rest_after_work_keeps_the_share() -> None:
    assert rest_after(1.0, 0.05) == pytest.approx(19.0)
    assert rest_after(5.0, 1.0) == 0.0


SERIES = st.builds(
    lambda next_, step, least, length, cycles: NumberSeries(next_, step, least, least + length, cycles),
    st.integers(-10, 40),
    st.sampled_from([1, 2, 3, 4, 6, -1, -2]),
    st.integers(-5, 5),
    st.integers(0, 40),
    st.booleans(),
)


@given(SERIES, SERIES)
def test_two_sequences_meet_where_counting_says_so(one: NumberSeries, other: NumberSeries) -> None:
    def numbers(series: NumberSeries) -> set[int]:
        low, high = series.span()
        return {number for number in range(low, high + 1) if (number - series.next) % abs(series.step) == 0}

    assert common_number(one, other) == min(numbers(one) & numbers(other), default=None)
