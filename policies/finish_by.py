"""When work that a schedule has started must be done: never mind, with the window, or by a time of day. Pure.

Settings and scenarios read `finish_by` with `parse_finish_by`; the planner and the simulator ask here what it means.
"""

import re
from typing import Final

ANY: Final = "any"
"""The schedule says when to start, and nothing more."""
WINDOW: Final = "window"
"""Only what is expected to finish in the window is started; what runs over may finish."""
PARK: Final = "park"
"""Likewise, and what runs over is held at a safe point until the next window."""

_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


def parse_finish_by(text: str) -> str:
    """One of the three words, or a time of day as HH:MM."""
    if text in (ANY, WINDOW, PARK):
        return text
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f'must be "{ANY}", "{WINDOW}", "{PARK}" or a time of day such as "06:00"')
    return f"{int(found[1]):02}:{found[2]}"


def time_of_day(finish_by: str) -> int | None:
    """Its minute of the day; None: it is one of the words."""
    found = _TIME.fullmatch(finish_by)
    return None if found is None else int(found[1]) * 60 + int(found[2])
