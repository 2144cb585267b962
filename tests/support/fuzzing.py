"""Explores a target with generated cases for a while: how many, what failed, the longest, and the seed."""

import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisDeprecationWarning, HypothesisWarning

ROUND = 25
SHOWN = 400


@dataclass(frozen=True)
class FuzzTarget:
    """Something that takes input from outside. `check` says what is wrong with its answer; empty: nothing."""

    name: str
    cases: st.SearchStrategy[Any]
    check: Callable[[Any], str]


@dataclass
class FuzzReport:
    """The result."""

    target: str
    seed: int
    cases: int = 0
    longest: float = 0.0
    longest_case: str = ""
    failures: list[str] = field(default_factory=list)

    def row(self) -> str:
        return (
            f"{self.target:<14} {self.cases:>7} {len(self.failures):>8} {self.longest * 1000:>9.0f} ms {self.seed:>12}"
        )


HEAD = f"{'target':<14} {'cases':>7} {'failures':>8} {'longest case':>12} {'seed':>12}"


def explore(target: FuzzTarget, first_seed: int, *, seconds: float, most: int = 10**9) -> FuzzReport:
    """Cases in rounds, each with the next seed, until the time or the number is used up."""
    report = FuzzReport(target.name, first_seed)
    deadline = monotonic() + seconds
    for number in count():
        if (monotonic() >= deadline and report.cases) or report.cases >= most:
            return report
        _round(target, first_seed + number, deadline, report)
    raise AssertionError("unreachable")


def _round(target: FuzzTarget, number: int, deadline: float, report: FuzzReport) -> None:
    @seed(number)
    @settings(
        max_examples=ROUND,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(target.cases)
    def once(case: Any) -> None:
        if monotonic() >= deadline and report.cases:
            return
        began = monotonic()
        wrong = _judged(target, case)
        lasted = monotonic() - began
        report.cases += 1
        if lasted > report.longest:
            report.longest, report.longest_case = lasted, repr(case)[:SHOWN]
        if wrong:
            report.failures.append(f"seed {number}: {wrong}\n    case: {case!r:.{SHOWN}}")

    with warnings.catch_warnings():  # clients' threads draw random numbers, which hypothesis takes for ours
        warnings.simplefilter("ignore", HypothesisDeprecationWarning)
        warnings.simplefilter("ignore", HypothesisWarning)  # to say so it prints the whole strategy, which is large
        once()


def _judged(target: FuzzTarget, case: Any) -> str:
    try:
        return target.check(case)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {place.filename.rpartition('/')[2]}:{place.lineno}: {str(error)[:200]!r}"
