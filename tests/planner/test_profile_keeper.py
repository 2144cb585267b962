"""What the day is like outlives the process: in notes, through splits and merges, beside whatever else is there."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from balancer.directory.contract import Directory
from balancer.directory.open import open_directory
from balancer.planner.day_profile import CHUNK, ProfileKeeper, profile_notes, read_profile, topic_of
from balancer.policies.day.book import DayProfileCache
from balancer.policies.day.profile import DayProfile, coarse, levels_of
from balancer.policies.view import SLOTS
from tests.support.bundle_views import bundle

pytestmark = pytest.mark.quick

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as opened:
        yield opened


def live(keeper: ProfileKeeper, hours: int, first_id: int = 1, start: datetime = MONDAY) -> None:
    """Two tablets write 100 and 40 rows a second for so many hours."""
    for minute in range(0, hours * 60 + 1, 20):
        local = start + timedelta(minutes=minute)
        view = bundle([0, 1], 2, now=local.timestamp(), writes=[100.0, 40.0], first_id=first_id)
        keeper.book.note(view, local, {3: ((1,), 2), 4: ((1,), 2)})


def test_another_process_reads_what_the_leader_wrote(directory: Directory) -> None:
    first = ProfileKeeper("shop")
    first.read(directory, leading := object(), {})
    live(first, 24)
    first.write(directory)
    assert first.book.changed == set()
    second = ProfileKeeper("shop")
    second.read(directory, leading, {})
    assert len(second.book.profile.known_hours()) == 24
    assert second.book.profile.rates(9)[0] == pytest.approx([100.0, 40.0], rel=0.05)
    other = ProfileKeeper("warehouse")
    other.read(directory, leading, {})
    assert not len(other.book.profile)


def test_a_new_leader_takes_what_is_newer_than_what_it_saw_itself(directory: Directory) -> None:
    leader, standby = ProfileKeeper("shop"), ProfileKeeper("shop")
    standby.read(directory, None, {})
    live(standby, 3)
    live(leader, 24)
    leader.write(directory)
    standby.read(directory, object(), {})
    assert len(standby.book.profile.known_hours()) == 24


def test_hours_noted_before_a_split_are_noted_again_a_few_with_each_hour(directory: Directory) -> None:
    keeper = ProfileKeeper("shop")
    live(keeper, 24)
    keeper.write(directory)
    live(keeper, 7, first_id=3, start=MONDAY + timedelta(days=1))  # tablets 3 and 4 were made of 1
    keeper.write(directory)
    again = read_profile(directory.published(topic_of("shop")))
    noon, late = (again.rates(slot)[0, again.ids == 3] for slot in (12, 23))
    assert noon == pytest.approx([50.0], rel=0.05)
    assert late == pytest.approx([50.0], rel=0.05)


def test_a_table_that_shrinks_leaves_no_notes_behind(directory: Directory) -> None:
    keeper = ProfileKeeper("shop")
    live(keeper, 2)
    for name in ("0.1", "1.7", "note of somebody else"):
        directory.publish(topic_of("shop"), name, {"day": 1})
    keeper.write(directory)
    assert set(directory.published(topic_of("shop"))) == {"0.0", "1.0", "note of somebody else"}


def test_what_is_no_note_is_left_out() -> None:
    keeper = ProfileKeeper("shop")
    live(keeper, 24)
    notes = dict(profile_notes(keeper.book.profile, 2))
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
    assert np.array_equal(found.hours[2], good.hours[2])  # type: ignore[arg-type]
    assert (found.seen, found.days) == (good.seen, good.days)
    assert not len(read_profile({"2.0": hostile["2.4"]}))


def test_many_tablets_are_read_as_they_were_written() -> None:
    rng = np.random.default_rng(1)
    ids = np.cumsum(rng.integers(1, 50, CHUNK * 2 + 7)).astype(np.int64)
    levels = levels_of(rng.lognormal(2.0, 2.0, (2, len(ids))))
    hours = tuple(levels if slot == 3 else None for slot in range(SLOTS))
    profile = DayProfile(ids, hours, (1.0,) * SLOTS, (739_000,) * SLOTS)
    notes = dict(profile_notes(profile, 3))
    assert len(notes) == 3
    assert max(len(note["data"]) for note in notes.values()) < 64 * 1024
    found = read_profile(notes).hours[3]
    assert found is not None
    assert np.array_equal(coarse(found), coarse(levels))


def test_a_book_that_was_never_shown_anything_has_nothing_to_write(directory: Directory) -> None:
    keeper = ProfileKeeper("shop")
    keeper.write(directory)
    assert directory.published(topic_of("shop")) == {}
    assert isinstance(keeper.book, DayProfileCache)
