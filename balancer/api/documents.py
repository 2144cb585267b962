"""What every document of `/v1` has in common: closed fields, times as RFC 3339 writes them, lists in one envelope.

A list is cut at a cursor: the place of its last entry in the list's order, so that entries that come and go between two
requests neither hide nor repeat others. Clients pass the cursor on and do not read it.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from json import JSONDecodeError, dumps, loads
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from balancer.errors import UserError

T = TypeVar("T")
Place = tuple[int | float | str, ...]
"""An entry's place in the order of its list."""

_LONGEST_CURSOR = 2000
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


class Document(BaseModel):
    """What every document is: closed and immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Listing(Document, Generic[T]):
    """Some entries of a list."""

    items: list[T]
    next: str | None = Field(None, description="pass it as `cursor` to get the next entries; null: these were the last")


def instant(seconds: float) -> datetime:
    """Seconds since 1970 as a time in documents, to the millisecond. Records may have any number."""
    try:
        return datetime.fromtimestamp(round(seconds, 3), UTC)
    except (OverflowError, ValueError, OSError):
        return _LATEST if seconds > 0 else _EARLIEST


def instant_or_none(seconds: float | None) -> datetime | None:
    """The same where there may be no time."""
    return None if seconds is None else instant(seconds)


def cut_at(found: Sequence[T], place: Callable[[T], Place], limit: int, cursor: str) -> tuple[Sequence[T], str | None]:
    """Up to `limit` entries after a cursor, and the cursor for the rest. `found` is in the order of its places."""
    after = read_cursor(cursor)
    try:
        left = found if after is None else [one for one in found if place(one) > after]
    except TypeError:
        raise foreign(cursor) from None
    return left[:limit], write_cursor(place(left[limit - 1])) if len(left) > limit else None


def write_cursor(place: Place) -> str:
    """A place as clients pass it on."""
    return base64.urlsafe_b64encode(dumps(place).encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> Place | None:
    """The place that a cursor stands for; None: the beginning."""
    if not cursor:
        return None
    try:
        if len(cursor) > _LONGEST_CURSOR:
            raise foreign(cursor[:40])
        place = loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True))
    except (binascii.Error, JSONDecodeError, UnicodeError, RecursionError, ValueError):
        raise foreign(cursor) from None
    if not isinstance(place, list) or not all(isinstance(one, int | float | str) for one in place):
        raise foreign(cursor)
    return tuple(place)


def foreign(cursor: str) -> UserError:
    """What is said about a cursor that does not belong to this list."""
    return UserError(f"{cursor!r} is not a cursor: pass the `next` of the previous answer")
