"""The transition table: what follows what, what is refused, and what a successor does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.migration.machine import (
    ROWS,
    Event,
    IllegalEvent,
    Recovery,
    State,
    Track,
    after,
    follows,
    is_final,
    path,
    row_of,
)
from balancer.migration.runner import decision

pytestmark = pytest.mark.quick

TRACKS = st.sampled_from(list(Track))
EVENTS = st.lists(st.sampled_from(list(Event)), max_size=60)


def edges(track: Track) -> set[tuple[State, State]]:
    pairs = {(state, follows(track, state, event)) for state in ROWS[track] for event in Event}
    return {(state, target) for state, target in pairs if target is not None}


@pytest.mark.parametrize("track", list(Track))
def test_each_table_has_the_states_of_its_way_and_those_beside_it(track: Track) -> None:
    copied = () if track is Track.EXPIRE else (State.RESTARTING,)  # an expiry makes nothing that could be lost
    beside = (*copied, State.CANCELLING, State.CANCELLED, State.FAILED)
    assert tuple(ROWS[track]) == (*path(track), *beside)
    assert {row.cancel for row in ROWS[track].values()} == {"operator", "error", ""}


def test_an_operator_cannot_cancel_what_may_have_happened() -> None:
    for track in Track:
        for row in ROWS[track].values():
            too_late = (State.SWAPPING, State.COMMITTING, State.OPENING, State.RETIRING, State.CANCELLING)
            assert row.cancellable == (row.state not in too_late and not is_final(row.state)), (track, row.state)


def test_a_state_that_a_successor_never_finds_is_not_journaled() -> None:
    for track in Track:
        for row in ROWS[track].values():
            assert row.journaled == (row.successor is not Recovery.NEVER_FOUND), (track, row.state)


@pytest.mark.parametrize("track", list(Track))
def test_steps_alone_lead_from_planned_to_done(track: Track) -> None:
    state = State.PLANNED
    seen = [state]
    while not is_final(state):
        state = after(track, state, Event.STEP)
        seen.append(state)
    assert tuple(seen) == path(track)


@given(TRACKS, EVENTS)
def test_an_illegal_event_raises_and_every_legal_one_leads_to_a_known_state(track: Track, events: list[Event]) -> None:
    state = State.PLANNED
    for event in events:
        if follows(track, state, event) is not None:
            state = after(track, state, event)
            assert state in (*path(track), State.RESTARTING, State.CANCELLING, State.CANCELLED, State.FAILED)
        else:
            with pytest.raises(IllegalEvent):
                after(track, state, event)


@given(TRACKS, EVENTS)
def test_after_the_owner_has_changed_nothing_leads_back(track: Track, events: list[Event]) -> None:
    states = path(track)
    committed = states[states.index(State.COMMITTING) + 1 :]
    for start in committed:
        state = start
        for event in events:
            if follows(track, state, event) is not None:
                state = after(track, state, event)
        assert state in committed


@pytest.mark.parametrize("track", list(Track))
def test_nothing_can_be_cancelled_into_being_committed(track: Track) -> None:
    reached = {State.CANCELLING}
    while True:
        more = {target for state, target in edges(track) if state in reached} - reached
        if not more:
            break
        reached |= more
    assert reached == {State.CANCELLING, State.CANCELLED, State.FAILED}


@pytest.mark.parametrize("track", [track for track in Track if track is not Track.EXPIRE])
def test_what_is_begun_anew_goes_through_all_of_it_or_is_cancelled(track: Track) -> None:
    following = {target for state, target in edges(track) if state is State.RESTARTING}
    assert following == {State.PLANNED, State.CANCELLING}
    before = {state for state, target in edges(track) if target is State.RESTARTING}
    assert State.COPYING in before
    assert all(path(track).index(state) <= path(track).index(State.COMMITTING) for state in before)


@pytest.mark.parametrize("track", list(Track))
def test_every_state_that_a_successor_may_find_has_a_way_to_an_end(track: Track) -> None:
    for state in (*path(track), State.CANCELLING):
        if is_final(state) or not row_of(track, state).journaled:
            continue
        going_on = decision(track, state) or state
        reached = {going_on}
        for _ in range(30):
            reached |= {target for here, target in edges(track) if here in reached}
        assert any(is_final(end) for end in reached)


@pytest.mark.parametrize("track", [Track.MOVE_REPLICATE, Track.MOVE_READ_ONLY])
def test_a_successor_undoes_or_resumes_before_the_commit_and_goes_forward_after_it(track: Track) -> None:
    states = path(track)
    for state in states[1:]:
        rule = row_of(track, state).successor
        if states.index(state) > states.index(State.COMMITTING):
            assert rule is Recovery.GO_ON
        elif (track, state) == (Track.MOVE_REPLICATE, State.COPYING):
            assert rule is Recovery.GO_ON  # writers are not held back, and what was copied is kept
        else:
            assert rule in (Recovery.ROLL_BACK, Recovery.RESUME, Recovery.NEVER_FOUND)
