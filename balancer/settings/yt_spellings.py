"""A table's options as YT's users write them: nested under `tablet_balancer_config`, and by names that YT gave up.

`files` calls `as_written_here` before a table's section is read; `report` names what is better written otherwise.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from balancer.untrusted import quoted

NESTED = "tablet_balancer_config"
NESTED_NAMES = (
    "enable_auto_reshard",
    "enable_auto_tablet_move",
    "enable_parameterized",
    "min_tablet_size",
    "desired_tablet_size",
    "max_tablet_size",
    "desired_tablet_count",
    "min_tablet_count",
    "desired_tablet_metric",
    "group",
)
"""What YT has inside of a table's `tablet_balancer_config`."""
DEPRECATED = {"enable_tablet_balancer": "enable_auto_reshard", "disable_tablet_balancer": "enable_auto_reshard"}
"""Name → successor. The second says the opposite of its successor."""
_OPPOSITE = "disable_tablet_balancer"


def as_written_here(section: Any) -> Any:
    """The same section with our own keys only. `ValueError` for a key that is given twice with different values."""
    if not isinstance(section, Mapping):
        return section
    flat = {name: value for name, value in section.items() if name != NESTED and name not in DEPRECATED}
    for name, value in _spelled_otherwise(section):
        ours = DEPRECATED.get(name, name)
        said = not _truth(name, value) if name == _OPPOSITE else value
        if ours in flat and flat[ours] != said:
            raise ValueError(f"{name} and {ours} contradict each other: set only {ours}")
        flat[ours] = said
    return flat


def successors(section: Any) -> Iterator[tuple[str, str]]:
    """The names in a file's section that YT gave up, and what to write instead."""
    if isinstance(section, Mapping):
        for name, _ in _spelled_otherwise(section, check=False):
            if name in DEPRECATED:
                opposite = " with the opposite value" if name == _OPPOSITE else ""
                yield name, f"YT gave this name up: write {DEPRECATED[name]}{opposite}"


def _spelled_otherwise(section: Mapping[str, Any], *, check: bool = True) -> Iterator[tuple[str, Any]]:
    yield from ((name, section[name]) for name in DEPRECATED if name in section)
    nested = section.get(NESTED, {})
    if not isinstance(nested, Mapping):
        if check:
            raise ValueError(f'{NESTED} must be a table, as in {NESTED} = {{ group = "default" }}')
        return
    for name, value in nested.items():
        if check and name not in NESTED_NAMES and name not in DEPRECATED:
            raise ValueError(f"{NESTED}.{quoted(name)}: unknown key; allowed here: {', '.join(NESTED_NAMES)}")
        yield name, value


def _truth(name: str, value: Any) -> bool:
    try:
        return TypeAdapter(bool).validate_python(value)
    except ValidationError:
        raise ValueError(f"{name} must be true or false") from None
