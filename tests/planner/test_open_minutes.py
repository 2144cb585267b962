"""A tick falls into every open minute, however the ticks lie; what was missed, or could not start, is said."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from balancer.directory.open import open_directory
from balancer.planner.bundle_state import STATUS_TOPIC, StateWord
from balancer.planner.verdict import PastWindow
from balancer.planner.windows import LookBook, Openings, read_look, report
from balancer.policies.options import BundleOptions
from balancer.schedules import Applicable, Formula, Level, applicable
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.quick

FORMULAS = (
    "minutes % 20 == 0",
    "hours % 2 == 0 && minutes == 30",
    "(hours * 60 + minutes) % 40 == 10",
    "hours < 6 && minutes % 20 == 0",
    "hours in 1, 3, 5",
)
MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)
DAY = 86400
LOOK_BACK = 900.0


def found(formula: str) -> Applicable:
    return applicable(Level("bundle shop", formula))


def openings(formula: str, at: datetime, since: datetime | None) -> Openings:
    one = report(found(formula), "UTC", at, since, LOOK_BACK)
    return Openings(one, one, {}, BundleOptions())


@pytest.mark.parametrize("tick", [10, 60, 300])
@pytest.mark.parametrize("formula", FORMULAS)
def test_every_open_minute_of_a_day_gets_a_start(formula: str, tick: int) -> None:
    """Also those in which the daemon was busy, or restarted, for up to a quarter of an hour: it is, now and then."""
    clock, since = ManualClock(MIDNIGHT + timedelta(seconds=7)), None
    starts: list[tuple[datetime, datetime]] = []
    for number in range(DAY // tick):
        now = clock.now()
        if report(found(formula), "UTC", now, since, LOOK_BACK).open:
            starts.append((since or MIDNIGHT, now))
        since = now
        clock.advance(tick + (number * 37 % 600 if number % 23 == 22 else 0))
    parsed = Formula(formula)
    opened = [minute for minute in range(1440) if parsed.evaluate(hours=minute // 60, minutes=minute % 60)]
    moments = [MIDNIGHT + timedelta(minutes=minute) for minute in opened]
    assert moments
    for moment in moments:
        assert any(before < moment + timedelta(minutes=1) and moment <= now for before, now in starts), moment


def test_a_new_leader_looks_back_to_the_last_tick_of_the_one_before(tmp_path: Path) -> None:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as directory:
        book = LookBook("shop")
        assert book.read(directory, None) is None
        assert directory.campaign("first", 10.0) is not None
        directory.publish(STATUS_TOPIC, "shop", {"looked": "2026-03-01T11:59:40+00:00"})
        assert book.read(directory, None) is None, "a standby starts nothing: nobody asks it"
        assert book.read(directory, "leading") == datetime(2026, 3, 1, 11, 59, 40, tzinfo=UTC)
        directory.publish(STATUS_TOPIC, "shop", {"looked": "2026-03-01T12:30:00+00:00"})
        assert book.read(directory, "leading") == datetime(2026, 3, 1, 11, 59, 40, tzinfo=UTC), "it knows by itself"


@pytest.mark.parametrize("note", [None, 7, {}, {"looked": None}, {"looked": "noon"}, {"looked": "0001-01-01"}])
def test_a_note_that_is_none_means_that_nobody_has_looked(note: object) -> None:
    assert read_look(note) is None
    assert read_look({"looked": "0001-01-01T00:00:00+00:00"}) is None


def test_a_window_that_opened_too_long_ago_is_said_to_be_missed() -> None:
    formula, since = "minutes == 0", MIDNIGHT.replace(hour=11, minute=59)
    late = openings(formula, MIDNIGHT.replace(hour=12, minute=31), since)
    assert not late.any
    past = PastWindow().looked(late, since)
    _, word, sentence = past.judged(late, StateWord.WAITING, "2 actions wait", began_some=False)
    assert (word, sentence) == (
        StateWord.WAITING,
        "2 actions wait; the window of 2026-03-01 12:00 UTC was missed: the tick before was at 11:59:00",
    )
    following = openings(formula, MIDNIGHT.replace(hour=13), MIDNIGHT.replace(hour=12, minute=59))
    assert past.looked(following, since) == PastWindow()


def test_what_hindered_the_last_window_is_said_until_the_next_one() -> None:
    opened = openings("minutes == 0", MIDNIGHT, None)
    closed = openings("minutes == 0", MIDNIGHT.replace(minute=5), MIDNIGHT.replace(minute=4))
    past, word, _ = PastWindow().judged(opened, StateWord.BLOCKED, "no room", began_some=False)
    assert word is StateWord.BLOCKED
    past, word, sentence = past.judged(closed, StateWord.WAITING, "2 actions wait", began_some=False)
    assert (word, sentence) == (StateWord.BLOCKED, "nothing could start in the last window: no room")
    past, word, _ = past.judged(closed, StateWord.BALANCED, "nothing to do", began_some=False)
    assert (past, word) == (PastWindow(), StateWord.BALANCED)
    past, _, _ = past.judged(opened, StateWord.BLOCKED, "one could not", began_some=True)
    assert past.judged(closed, StateWord.WAITING, "waits", began_some=False)[1] is StateWord.WAITING
