"""What the day is like outlives the process: in notes, through splits and merges, beside whatever else is there."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from balancer.directory.contract import Directory
from balancer.directory.open import open_directory
from balancer.directory.profile_note import CHUNK, profile_notes, read_profile, topic_of
from balancer.planner.profile_keeper import ProfileKeeper
from balancer.policies.day_book import DayBook
from balancer.policies.day_parts import DAY_PARTS, day_part
from balancer.policies.day_profile import DayProfile, align, coarse, is_known, levels_of, rates_of
from tests.support.bundles import Tablets, bundle, leaves

pytestmark = pytest.mark.quick

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as opened:
        yield opened


def lived(book: DayBook, hours: int, start: datetime = MONDAY) -> DayBook:
    """A book that saw so many hours: tablet 1 writes 100 rows a second from 8 to 12, and 10 at other times."""
    for minute in range(0, hours * 60 + 1, 10):
        local = start + timedelta(minutes=minute)
        writes = [100.0 if 8 <= local.hour < 12 else 10.0, 40.0]
        view = bundle({"orders": Tablets([1.0, 1.0], leaves(2), writes=writes)}, now=local.timestamp())
        book.note(view, local, {})
    return book


def writes_at(profile: DayProfile, tablet: int, hour: int) -> float:
    row = int(np.searchsorted(profile.ids, tablet))
    return float(rates_of(profile.levels[row, 0, day_part(MONDAY.replace(hour=hour))]))


def test_a_day_is_known_once_all_of_it_was_seen() -> None:
    assert not is_known(lived(DayBook(), 20).profile.seen)
    profile = lived(DayBook(), 24).profile
    assert is_known(profile.seen)
    assert writes_at(profile, 1, 9) == pytest.approx(100.0, rel=0.06)
    assert writes_at(profile, 1, 15) == pytest.approx(10.0, rel=0.06)


def test_a_split_gives_shares_and_a_merge_adds_over_generations_that_nobody_saw() -> None:
    profile = lived(DayBook(), 24).profile
    parents = {3: ((1,), 2), 4: ((1,), 2), 5: ((4,), 2), 6: ((3, 2), 1)}
    after = align(profile, np.array([5, 6]), parents)
    assert writes_at(after, 5, 9) == pytest.approx(25.0, rel=0.06)
    assert writes_at(after, 6, 9) == pytest.approx(90.0, rel=0.06)


def test_another_process_reads_what_the_leader_wrote(directory: Directory) -> None:
    first = ProfileKeeper("shop")
    first.read(directory, leading := object())
    first._book = lived(DayBook(), 24)
    first.write(directory)
    second = ProfileKeeper("shop")
    second.read(directory, leading)
    assert is_known(second._book.profile.seen)
    assert writes_at(second._book.profile, 1, 9) == pytest.approx(100.0, rel=0.1)


def test_what_is_no_note_is_left_out() -> None:
    notes = dict(profile_notes(lived(DayBook(), 24).profile, 2))
    good = read_profile(notes)
    hostile = {
        "2.1": {**notes["2.0"], "seen": float("nan")},
        "2.5": {**notes["2.0"], "seen": -1.0},
        "2.2": {"day": 1, "seen": 1.0, "data": "?"},
        "2.3": None,
        "99.0": notes["2.0"],
        "x": 1,
        "2.4": {**notes["2.0"], "day": 10**9},
    }
    found = read_profile({**notes, **hostile})
    assert np.array_equal(found.levels, good.levels)
    assert np.array_equal(found.seen, good.seen)
    assert not len(read_profile({"2.0": hostile["2.4"]}))


def test_many_tablets_are_read_as_they_were_written() -> None:
    rng = np.random.default_rng(1)
    ids = np.cumsum(rng.integers(1, 50, CHUNK * 2 + 7)).astype(np.int64)
    levels = levels_of(rng.lognormal(2.0, 2.0, (len(ids), 2, DAY_PARTS)))
    profile = DayProfile(ids, levels, np.ones(DAY_PARTS), np.full(DAY_PARTS, 739_000))
    notes = dict(profile_notes(profile, 3))
    assert len(notes) == 3
    assert np.array_equal(coarse(read_profile(notes).levels[:, :, 3]), coarse(levels[:, :, 3]))


def test_topics_of_bundles_differ() -> None:
    assert topic_of("a") != topic_of("b")
