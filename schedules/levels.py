"""Which formula applies: the group's, else the bundle's, else the cluster's. The planner and the views ask here."""

from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Final

from balancer.schedules.formula import Formula
from balancer.schedules.schedule import Schedule

ALWAYS: Final = Formula("%true")
"""Applies if no level says anything: nobody asked for a restriction."""


@dataclass(frozen=True, slots=True)
class Level:
    """What a group, a bundle or the cluster says."""

    name: str
    """For people: `group hot`, `bundle shop`, `the cluster`."""
    formula: str = ""
    """Empty, or nothing but spaces: unset."""
    enable: bool = True


@dataclass(frozen=True, slots=True)
class Applicable:
    """The formula that applies, and whose it is."""

    formula: Formula
    level: str
    """The name of the level that says so; empty: none does, and every minute is open."""
    disabled_by: str = ""
    """The name of the first level that is switched off; empty: all are on."""

    @property
    def enabled(self) -> bool:
        """Whether to ask the formula at all; a switch turned off at any level turns off everything below it."""
        return not self.disabled_by

    def schedule(self, zone: tzinfo = UTC) -> Schedule:
        """The formula on a zone's wall clock."""
        return Schedule(self.formula, zone)


def applicable(*levels: Level) -> Applicable:
    """The formula of the first level that has one; most specific first. Raises a FormulaSyntaxError if it is wrong."""
    disabled_by = next((level.name for level in levels if not level.enable), "")
    for level in levels:
        if level.formula.strip():
            return Applicable(Formula(level.formula), level.name, disabled_by)
    return Applicable(ALWAYS, "", disabled_by)
