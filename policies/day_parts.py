"""The parts of the day over which load is remembered and planned: six of four hours, working days and weekends apart.

The caller passes local time: the bundle's timezone decides what an hour is. A dimension of a plan that is about one
part of the day has the part in its name, `write_rate@4-4`: `base_of` and `parts_of` take such a name apart.
"""

from datetime import datetime
from typing import Final

HOURS: Final = 4
PARTS: Final = 24 // HOURS
DAY_PARTS: Final = 2 * PARTS
"""All of them: first those of a working day, from midnight on, then those of a day of the weekend."""
PART_SECONDS: Final = HOURS * 3600.0
WORKING: Final = slice(0, PARTS)
WEEKEND: Final = slice(PARTS, DAY_PARTS)
DAYS_A_WEEK: Final = (5, 2)
_SATURDAY: Final = 5
_MARK: Final = "@"


def day_part(local: datetime) -> int:
    """The part of the day in which a moment lies."""
    return PARTS * (local.weekday() >= _SATURDAY) + local.hour // HOURS


def days_a_week(part: int) -> int:
    """On how many days of a week this part comes."""
    return DAYS_A_WEEK[part // PARTS]


def part_text(first: int, last: int | None = None) -> str:
    """`from 16 to 20 h`; `last` is the last of several parts that are taken together."""
    begin, end = first % PARTS, (first if last is None else last) % PARTS
    weekend = " at weekends" if first >= PARTS else ""
    if end - begin == PARTS - 1:
        return "at weekends" if weekend else "on working days"
    return f"from {begin * HOURS} to {(end + 1) * HOURS} h{weekend}"


def part_label(part: int) -> str:
    """The part as a short word: `16-20`, `weekend 16-20`."""
    begin = part % PARTS * HOURS
    return f"{'weekend ' if part >= PARTS else ''}{begin:02d}-{begin + HOURS:02d}"


def named(dimension: str, first: int, last: int) -> str:
    """The name of a dimension that is about these parts of the day."""
    return f"{dimension}{_MARK}{first}-{last}"


def base_of(name: str) -> str:
    """What a dimension is about, whatever the time: `write_rate`."""
    return name.partition(_MARK)[0]


def parts_of(name: str) -> tuple[int, int] | None:
    """The first and the last part of the day that a dimension is about; None: it is about now."""
    _, mark, parts = name.partition(_MARK)
    if not mark:
        return None
    first, _, last = parts.partition("-")
    return int(first), int(last)
