"""Who leads changes when it should, to whom it should, and never to and fro."""

from collections import Counter

import pytest

from balancer.daemon.leadership import group_of
from balancer.directory.notes import note_name
from balancer.policies.leader_choice import Contender, wanted_leader
from tests.support.hall import Hall

pytestmark = pytest.mark.quick

HOUR, DAY = 3600.0, 86_400.0
SLOW = 120.0  # seconds of a session, for stories of hours
SETTLED = 300.0  # seconds after which everything that was going to happen has


def order(group: str, names: str = "abc") -> list[str]:
    """The names by their scores for a group, the wanted one first."""
    left, found = set(names), []
    while left:
        found.append(str(wanted_leader(group, [Contender(name) for name in left])))
        left.remove(found[-1])
    return found


FIRST, SECOND, THIRD = order("shop")


def begun_by(name: str, session: float = 10.0) -> Hall:
    """The others come when this one has led for a while."""
    hall = Hall(name, session=session)
    hall.run(20.0)
    for other in sorted({"a", "b", "c"} - {name}):
        hall.files[other] = hall._file(other)
        hall.begin(other)
    return hall


@pytest.mark.parametrize("seed", range(3))
def test_the_wanted_one_leads_whoever_began(seed: int) -> None:
    hall = Hall("abc", seed)
    hall.run(SETTLED)
    assert hall.board.name == FIRST
    hall.run(2 * SETTLED)
    assert len(hall.history) <= 2, "one handover at most, and then nothing"


def test_a_leader_hands_over_straight_to_the_wanted_one_and_not_before_its_time() -> None:
    hall = begun_by(THIRD)
    hall.run(95.0)
    assert hall.terms() == [THIRD], "it has led for less than two minutes"
    hall.run(30.0)
    assert hall.terms() == [THIRD, FIRST], "nobody else in between"


def test_one_that_comes_and_goes_changes_no_leader() -> None:
    hall = Hall("".join(sorted((SECOND, THIRD))))
    hall.run(SETTLED)
    assert hall.board.name == SECOND
    terms = len(hall.history)
    hall.files[FIRST] = hall._file(FIRST)
    for _ in range(20):
        hall.begin(FIRST)
        hall.run(25.0)
        hall.kill(FIRST)
        hall.run(25.0)
    assert len(hall.history) == terms
    hall.begin(FIRST)
    hall.run(SETTLED)
    assert hall.board.name == FIRST, "it stays, so it leads"


def test_nothing_that_is_under_way_is_interrupted() -> None:
    hall = begun_by(SECOND)
    hall.members[SECOND].under_way = "move m1"
    hall.run(HOUR)
    assert hall.terms() == [SECOND]
    for member in hall.members.values():
        spread = member.spreader.spread
        assert spread is not None
        assert (spread.wanted, spread.waits_for) == (FIRST, "move m1 has ended")
    hall.members[SECOND].under_way = ""
    hall.run(5.0)
    assert hall.terms() == [SECOND, FIRST]


def test_after_a_kill_the_next_one_leads_and_the_killed_one_gets_it_back() -> None:
    hall = Hall("abc")
    hall.run(SETTLED + 1500.0)  # it has lasted
    hall.kill(FIRST)
    hall.run(2.0)
    assert hall.board.name == SECOND, "at once, and no third one"
    hall.run(SETTLED)
    hall.begin(FIRST)
    hall.run(SETTLED)
    assert hall.board.name == FIRST


def test_one_that_leaves_takes_its_note_along_so_that_nobody_waits() -> None:
    hall = Hall("abc")
    hall.run(SETTLED)
    gone = hall.members.pop(FIRST)
    hall.board.name = None
    gone.spreader.leave()
    hall.run(1.0)
    assert hall.board.name == SECOND


def test_a_wanted_one_that_does_not_stand_is_waited_for_half_a_session() -> None:
    hall = begun_by(SECOND, session=SLOW)
    hall.members[FIRST].never_stands = True
    hall.run(DAY)
    assert set(hall.terms()) <= {SECOND, THIRD}
    assert 5 < len(hall.history) <= 24 + 20, "twice as long each time, up to an hour"
    assert hall.board.name is not None


@pytest.mark.parametrize("seed", range(2))
def test_one_that_cannot_lead_does_not_make_leadership_bounce(seed: int) -> None:
    hall = Hall("abc", seed, session=SLOW)
    hall.members[FIRST].cannot_lead = True
    hall.run(DAY)
    tried = hall.terms().count(FIRST)
    assert 5 < tried < 24 + 10, "seven times in the first hours, then once in an hour"
    assert len(hall.history) < 3 * tried
    led = Counter(hall.terms())
    assert led[SECOND] >= led[THIRD], "meanwhile the next one leads"
    hall.members[FIRST].cannot_lead = False
    hall.run(3 * HOUR)
    assert hall.board.name == FIRST, "it is given another chance"


@pytest.mark.parametrize("lives", [0.0, 1800.0])
def test_one_that_dies_of_leading_remembers_it_and_rests(lives: float) -> None:
    hall = Hall("abc", session=SLOW)
    hall.members[FIRST].dies_after = lives
    hall.run(DAY)
    assert 5 < hall.terms().count(FIRST) < 24 + 10
    assert hall.board.notes[note_name(FIRST)]["failures"] > 5


def test_an_instance_that_cannot_reach_its_nodes_is_not_handed_anything() -> None:
    hall = begun_by(SECOND)
    hall.members[FIRST].unfit = "it reaches 0 of 3 nodes"
    hall.run(HOUR)
    assert hall.terms() == [SECOND]
    hall.members[FIRST].unfit = ""
    hall.run(SETTLED)
    assert hall.board.name == FIRST


def test_a_leader_that_is_cut_off_from_its_nodes_hands_over_once_and_an_outage_for_all_changes_nothing() -> None:
    hall = Hall("abc")
    hall.run(SETTLED)
    terms = len(hall.history)
    for name in (FIRST, SECOND, THIRD):  # each notices at another moment
        hall.members[name].unfit = "it reaches 0 of 3 nodes"
        hall.run(10.0)
    hall.run(HOUR)
    assert len(hall.history) == terms
    for name in (SECOND, THIRD):
        hall.members[name].unfit = ""
    hall.run(SETTLED)
    assert hall.terms()[terms:] == [SECOND]


def test_who_has_no_weight_leads_only_if_nobody_else_can() -> None:
    hall = Hall("abc")
    hall.change(FIRST, weight=0.0)
    hall.run(SETTLED)
    assert hall.board.name == SECOND
    hall.kill(SECOND)
    hall.kill(THIRD)
    hall.run(SETTLED)
    assert hall.board.name == FIRST


def test_who_does_not_spread_keeps_what_it_has_and_is_handed_nothing() -> None:
    hall = Hall("abc", spread=False)
    hall.run(SETTLED)
    began = hall.board.name
    assert (len(hall.history), hall.board.notes) == (1, {})
    for name in "abc":
        if name != FIRST:
            hall.change(name, spread=True)
    hall.run(SETTLED)
    assert hall.board.name == (FIRST if began == FIRST else SECOND), "it is the wanted one of those that take part"
    for name in "abc":
        hall.change(name, spread=False)
    hall.run(10.0)
    assert hall.board.notes == {}, "nobody is waited for"


def test_two_processes_of_one_name_do_no_harm() -> None:
    hall = Hall("ab")
    hall.files["b"] = hall.files["a"]
    hall.begin("b")
    hall.run(HOUR)
    assert len(hall.history) == 1


def test_notes_that_are_none_are_passed_over_and_old_ones_go() -> None:
    hall = Hall("abc")
    good = dict(hall_note(hall))
    hall.board.notes |= {
        "x": None,
        "y": {"name": "y"},
        "z": [1],
        note_name("w"): {**good, "name": "w", "weight": float("nan")},
        note_name("v"): {**good, "name": "v", "beat": float("inf")},
        note_name("u"): {**good, "name": "not u"},
        note_name("old"): {**good, "name": "old"},
    }
    hall.run(SETTLED)
    assert hall.board.name == FIRST
    spread = hall.members[FIRST].spreader.spread
    assert spread is not None
    assert [one.name for one in spread.instances] == ["a", "b", "c"], "what does not change is not present"
    hall.clock.advance(DAY)
    hall.run(30.0)
    assert note_name("old") not in hall.board.notes


def hall_note(hall: Hall) -> dict[str, object]:
    other = Hall("q")
    other.run(5.0)
    (note,) = other.board.notes.values()
    return dict(note)


def test_the_group_is_the_directorys_path_whatever_servers_are_named() -> None:
    assert group_of("zk://a:2181,b:2181/tablets/shop/") == group_of("zks://b:2281/tablets/shop") == "tablets/shop"
