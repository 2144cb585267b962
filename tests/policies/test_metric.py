"""Metrics: arithmetic over a tablet's statistics, and nothing else."""

import pytest

from balancer.policies.metric import MetricError, parse_metric
from tests.support.bundle_views import GB, bundle

pytestmark = pytest.mark.quick

COLUMNS = bundle([0, 0], 1, sizes=[2 * GB, 4 * GB], writes=[10.0, 20.0], reads=[3.0, 0.0]).tablets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("write_rate", [10.0, 20.0]),
        ("write_rate + 2 * read_rate", [16.0, 20.0]),
        ("(write_rate + 2) * 10", [120.0, 220.0]),
        ("100 - write_rate - 20", [70.0, 60.0]),
        ("-write_rate + 15", [5.0, 0.0]),
        ("write_rate / read_rate", [10.0 / 3.0, 0.0]),
        ("bytes / 1073741824", [2.0, 4.0]),
        ("1e1 * .5 * tablets", [5.0, 5.0]),
        ("rows", [1000.0, 1000.0]),
    ],
)
def test_values(text: str, expected: list[float]) -> None:
    assert parse_metric(text).evaluate(COLUMNS).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "ends where"),
        ("1 +", "ends where"),
        ("(1", "never closed"),
        ("1 2", "'2' at position 3"),
        ("1 ** 2", "'*' at position 4"),
        ("__import__", "known are"),
        ("cpu", "known are"),
        ("1)", "')' at position 2"),
    ],
)
def test_what_is_wrong_is_said(text: str, part: str) -> None:
    with pytest.raises(MetricError, match="metric") as caught:
        parse_metric(text)
    assert part in str(caught.value)


def test_whether_it_follows_the_load_is_known() -> None:
    assert parse_metric("bytes + write_rate").uses_rates
    assert not parse_metric("bytes * 2").uses_rates
