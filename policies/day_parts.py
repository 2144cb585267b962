"""The hours over which load is remembered, and the parts of the day that are planned for: spans of such hours.

A slot is one hour of a working day (0 to 23) or of a weekend day (24 to 47). The caller passes local time: the bundle's
timezone decides what an hour is. A dimension of a plan that is about one part of the day has the part in its name,
`write_rate@18-20`: `base_of` and `span_of` take such a name apart.
"""

from datetime import datetime
from typing import Final, NamedTuple

HOURS: Final = 24
SLOTS: Final = 2 * HOURS
"""All hours that are remembered: first those of a working day, from midnight on, then those of a weekend day."""
SLOT_SECONDS: Final = 3600.0
DAYS_A_WEEK: Final = (5, 2)
_SATURDAY: Final = 5
_MARK: Final = "@"


class DaySpan(NamedTuple):
    """A part of the day: its first and its last hour, both of a working day or both of the weekend."""

    first: int
    last: int

    @property
    def weekend(self) -> bool:
        return self.first >= HOURS

    @property
    def slots(self) -> range:
        return range(self.first, self.last + 1)


def hour_slot(local: datetime) -> int:
    """The slot in which a moment lies."""
    return HOURS * (local.weekday() >= _SATURDAY) + local.hour


def days_a_week(slot: int) -> int:
    """On how many days of a week this hour comes."""
    return DAYS_A_WEEK[slot // HOURS]


def span_text(span: DaySpan) -> str:
    """`from 18 to 21 h`, `from 18 to 21 h at weekends`, or `at weekends` if it is the whole day."""
    kind = "at weekends" if span.weekend else "on working days"
    if len(span.slots) == HOURS:
        return kind
    hours = f"from {span.first % HOURS} to {span.last % HOURS + 1} h"
    return f"{hours} {kind}" if span.weekend else hours


def named(dimension: str, span: DaySpan) -> str:
    """The name of a dimension that is about this part of the day."""
    return f"{dimension}{_MARK}{span.first}-{span.last}"


def base_of(name: str) -> str:
    """What a dimension is about, whatever the time: `write_rate`."""
    return name.partition(_MARK)[0]


def span_of(name: str) -> DaySpan | None:
    """The part of the day that a dimension is about; None: it is about now."""
    _, mark, span = name.partition(_MARK)
    if not mark:
        return None
    first, _, last = span.partition("-")
    return DaySpan(int(first), int(last))
