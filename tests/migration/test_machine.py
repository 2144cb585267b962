"""The transition table: what follows what, what is refused, and what a successor does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.migration.machine import (
    TRANSITIONS,
    Event,
    IllegalEvent,
    Recovery,
    State,
    Track,
    after,
    is_final,
    path,
    traits,
)
from balancer.migration.recovery import decision

pytestmark = pytest.mark.quick

TRACKS = st.sampled_from(list(Track))
EVENTS = st.lists(st.sampled_from(list(Event)), max_size=60)


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
        if (state, event) in TRANSITIONS[track]:
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
            if (state, event) in TRANSITIONS[track]:
                state = after(track, state, event)
        assert state in committed


@pytest.mark.parametrize("track", list(Track))
def test_nothing_can_be_cancelled_into_being_committed(track: Track) -> None:
    reached = {State.CANCELLING}
    while True:
        more = {target for (state, _), target in TRANSITIONS[track].items() if state in reached} - reached
        if not more:
            break
        reached |= more
    assert reached == {State.CANCELLING, State.CANCELLED, State.FAILED}


@pytest.mark.parametrize("track", list(Track))
def test_what_is_begun_anew_goes_through_all_of_it_or_is_cancelled(track: Track) -> None:
    following = {target for (state, _), target in TRANSITIONS[track].items() if state is State.RESTARTING}
    assert following == {State.PLANNED, State.CANCELLING}
    before = {state for (state, _), target in TRANSITIONS[track].items() if target is State.RESTARTING}
    assert State.COPYING in before
    assert all(path(track).index(state) <= path(track).index(State.COMMITTING) for state in before)


@pytest.mark.parametrize("track", list(Track))
def test_every_state_that_a_successor_may_find_has_a_way_to_an_end(track: Track) -> None:
    for state in (*path(track), State.CANCELLING):
        if is_final(state) or not traits(track, state).journaled:
            continue
        going_on = decision(track, state) or state
        reached = {going_on}
        for _ in range(30):
            reached |= {target for (here, _), target in TRANSITIONS[track].items() if here in reached}
        assert any(is_final(end) for end in reached)


@pytest.mark.parametrize("track", [Track.MOVE_REPLICATE, Track.MOVE_READ_ONLY])
def test_a_successor_undoes_or_resumes_before_the_commit_and_goes_forward_after_it(track: Track) -> None:
    states = path(track)
    for state in states:
        rule = traits(track, state).recovery
        if states.index(state) > states.index(State.COMMITTING) and not is_final(state):
            assert rule is Recovery.ROLL_FORWARD
        elif not is_final(state):
            assert rule in (Recovery.ROLL_BACK, Recovery.RESUME)


def test_what_a_successor_would_do_differently_is_journaled() -> None:
    for track in Track:
        known = None
        for state in path(track):
            facts = traits(track, state)
            if facts.journaled:
                known = decision(track, state)
            elif state is not State.COMMITTING or track in (Track.MOVE_REPLICATE, Track.MOVE_READ_ONLY):
                assert decision(track, state) == known, (track, state)
