"""Times as keys: for a range table whose key begins with a time, where periods begin, and when a key's time has passed.

A table with `every` has a tablet for each period: a day, a week, an hour. Periods are counted from midnight UTC of
Monday, 5 January 1970, so weeks begin on Mondays. Times are seconds since 1970, always passed in.
"""

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final

from balancer.policies.keys import KeyMismatch, KeyType, KeyValue, decode_bound, encode_key

DAY: Final = 86400.0
UNITS: Final = {"s": 1, "ms": 1000, "us": 1_000_000}
"""What a bigint key may count since 1970, and how many make a second."""
LAST_ZONE: Final = 43200.0
"""A date ends last twelve hours west of Greenwich: only then is the day over everywhere."""
_MONDAY = 4 * DAY
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_time(types: Sequence[KeyType], unit: str) -> bool:
    """Whether the first part of such a key is a time: a date, a timestamptz, or a bigint whose unit is known."""
    return types[0] in (KeyType.DATE, KeyType.TIMESTAMPTZ) or (types[0] is KeyType.BIGINT and unit in UNITS)


def key_at(types: Sequence[KeyType], unit: str, moment: float) -> bytes | None:
    """The bound below every key of this moment or later; None: it is out of the type's range."""
    try:
        value: KeyValue
        if types[0] is KeyType.BIGINT:
            value = round(moment * UNITS[unit])
        else:
            time = _EPOCH + timedelta(seconds=moment)
            value = time.date() if types[0] is KeyType.DATE else time
        return encode_key(types, (value,), prefix=True)
    except (KeyMismatch, OverflowError):
        return None


def start_of_bound(types: Sequence[KeyType], unit: str, bound: bytes) -> float | None:
    """The moment at which the keys from this bound on begin; None: it names none."""
    values, _ = decode_bound(types, bound)
    return _moment(types[0], unit, values[0]) if values else None


def end_of_bound(types: Sequence[KeyType], unit: str, bound: bytes) -> float | None:
    """The moment from which every key below this bound lies in the past; None: it names none, or infinity.

    A bound that continues after the time, (day, 500), has keys of that very day below it.
    """
    values, highest = decode_bound(types, bound)
    if not values:
        return None
    moment = _moment(types[0], unit, values[0])
    if moment is None:
        return None
    if len(values) > 1 or highest:
        moment += {KeyType.DATE: DAY, KeyType.TIMESTAMPTZ: 1e-6}.get(types[0], 1 / UNITS.get(unit, 1))
    return moment + LAST_ZONE if types[0] is KeyType.DATE else moment


def next_period(moment: float, every: float) -> float:
    """The first beginning of a period after this moment."""
    return (math.floor((moment - _MONDAY) / every) + 1) * every + _MONDAY


def cuts(start: float | None, now: float, every: float, ahead: float, most: int) -> list[float]:
    """Where to cut a last tablet that begins at `start` so that the new last one begins `ahead` of now, or later.

    Without a start nothing is known about the past: only the future is cut. At most the newest `most` cuts.
    """
    first = next_period(now if start is None else start, every)
    last = next_period(now + ahead, every)
    number = round((last - first) / every) + 1
    return [last - every * place for place in reversed(range(min(number, most)))] if number > 0 else []


def in_words(moment: float) -> str:
    """A moment for people, as short as possible."""
    try:
        time = _EPOCH + timedelta(seconds=moment)
    except OverflowError:
        return "the beginning" if moment < 0 else "the end"
    return f"{time:%Y-%m-%d}" if moment % DAY == 0 else f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _moment(kind: KeyType, unit: str, value: KeyValue) -> float | None:
    if isinstance(value, float):
        return None if value > 0 else -math.inf
    if isinstance(value, int):
        return value / UNITS[unit]
    if kind is KeyType.DATE and isinstance(value, date):
        return (value - _EPOCH.date()).days * DAY
    return (value - _EPOCH).total_seconds() if isinstance(value, datetime) else None
