"""The rate of a copy under `throttle = "auto"` follows what commits take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.policies.pacing import FIRST, LEAST, MOST, adjusted

pytestmark = pytest.mark.quick

SECONDS = st.lists(st.floats(0.0001, 2.0), max_size=5)
QUIET = [0.002, 0.003, 0.002]


def test_it_grows_while_commits_take_no_longer() -> None:
    assert adjusted(FIRST, QUIET, [0.0022, 0.0024, 0.050], 0.2) > FIRST


def test_it_shrinks_when_commits_take_longer_than_allowed() -> None:
    assert adjusted(FIRST, QUIET, [0.004, 0.005, 0.001], 0.2) < FIRST
    assert adjusted(FIRST, QUIET, [0.004, 0.005, 0.001], 2.0) > FIRST


def test_a_rate_that_is_always_too_high_ends_at_the_least() -> None:
    rate = FIRST
    for _ in range(100):
        rate = adjusted(rate, QUIET, [1.0], 0.2)
    assert rate == LEAST


@given(st.floats(LEAST, MOST), SECONDS, SECONDS, st.floats(0.01, 10.0))
def test_it_stays_within_its_bounds(rate: float, quiet: list[float], busy: list[float], share: float) -> None:
    assert LEAST <= adjusted(rate, quiet, busy, share) <= MOST


@given(st.floats(LEAST, MOST), SECONDS, st.floats(0.01, 10.0))
def test_longer_commits_never_make_it_faster(rate: float, busy: list[float], share: float) -> None:
    longer = [seconds * 2 for seconds in busy]
    assert adjusted(rate, QUIET, longer, share) <= adjusted(rate, QUIET, busy, share)
