"""The declared metrics: all of them, each once, none that grows with the tablets."""

import pytest
from prometheus_client import generate_latest

from balancer.instruments import Instruments, declared

pytestmark = pytest.mark.quick

FEW = {
    *("bundle", "node", "dimension", "state", "mode", "statistic", "operation", "kind", "reason", "verb", "result"),
    *("phase", "outcome", "route", "status", "version"),
}


def test_every_metric_has_our_prefix_a_sentence_and_a_bound() -> None:
    for metric in declared():
        assert metric.name.startswith("balancer_")
        assert metric.meaning.endswith("."), metric.name
        assert metric.bound, metric.name


def test_names_are_unique_and_units_are_base_units() -> None:
    names = [metric.name for metric in declared()]
    assert len(names) == len(set(names))
    assert not [name for name in names if name.endswith(("_ms", "_milliseconds", "_kb", "_mb"))]


def test_no_label_grows_with_the_tablets_or_with_time() -> None:
    assert {label for metric in declared() for label in metric.labels} <= FEW


def test_what_is_declared_is_what_is_served() -> None:
    instruments = Instruments()
    served = {
        line.split()[2]
        for line in generate_latest(instruments.registry).decode().splitlines()
        if line.startswith("# TYPE")
    }
    assert {name for name in served if not name.endswith("_created")} == {m.name for m in instruments.declarations}
