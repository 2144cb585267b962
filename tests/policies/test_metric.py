"""Metrics: arithmetic over a tablet's statistics, and nothing else."""

from dataclasses import replace

import numpy as np
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
        ("-write_rate + 25", [15.0, 5.0]),
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
        ("(" * 900 + "1" + ")" * 900, "nested more than 50"),
        ("-" * 900 + "1", "nested more than 50"),
        ("1" * 3000, "3000 characters"),
    ],
)
def test_what_is_wrong_is_said(text: str, part: str) -> None:
    with pytest.raises(MetricError, match="metric") as caught:
        parse_metric(text)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("15 - write_rate", "is -5 for tablet 2: it must be zero or more"),
        ("-bytes", "for tablet 1, and for 1 more"),
        ("write_rate * 1e308 * 100", "is inf for tablet 1"),
    ],
)
def test_a_value_that_is_no_load_is_an_error(text: str, part: str) -> None:
    with pytest.raises(MetricError) as caught:
        parse_metric(text).evaluate(COLUMNS)
    assert part in str(caught.value)


def test_a_rate_is_over_ten_minutes_or_over_an_hour() -> None:
    columns = replace(COLUMNS, write_rate_1h=np.array([1.0, 2.0]), read_rate_1h=np.array([30.0, 40.0]))
    assert parse_metric("write_rate_10m + read_rate_10m").evaluate(columns).tolist() == [13.0, 20.0]
    assert parse_metric("write_rate_1h + read_rate_1h").evaluate(columns).tolist() == [31.0, 42.0]
    assert parse_metric("read_rate_1h").uses_rates


def test_whether_it_follows_the_load_is_known() -> None:
    assert parse_metric("bytes + write_rate").uses_rates
    assert not parse_metric("bytes * 2").uses_rates
