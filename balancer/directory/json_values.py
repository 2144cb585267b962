"""Values of stored documents, each checked for its type: what comes from a store is hostile until then."""

from collections.abc import Mapping

from balancer.directory.model import Json
from balancer.outside import quoted


def text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{quoted(value)} is not a text")
    return value


def whole(value: Json) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{quoted(value)} is not a whole number")
    return value


def not_negative(value: Json) -> int:
    """A version, an epoch or a number of a page."""
    if whole(value) < 0:
        raise ValueError(f"{value} is negative")
    return int(value)


def number(value: Json) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{quoted(value)} is not a number")
    return float(value)


def flag(value: Json) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{quoted(value)} is not true or false")
    return value


def moment(value: Json) -> float | None:
    return None if value is None else number(value)


def mapping(value: Json) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        raise TypeError(f"{quoted(value)} is not an object")
    return value
