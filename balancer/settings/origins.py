"""Where each effective value of a bundle came from: for `balancer config show`."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from balancer.policies.options import AUTO
from balancer.settings.load import BundleSettings, Settings, env_prefix

_DAEMON_DEFAULTS = ("mode", "timezone")


@dataclass(frozen=True, slots=True)
class Effective:
    """One value and its origin. Secrets are asterisks already."""

    key: str
    value: Any
    origin: str


def effective(settings: Settings, name: str) -> Iterator[Effective]:
    """Every value that holds for a bundle, in the order of its file."""
    bundle = settings.bundle(name)
    for key, value in _values(bundle):
        chosen = "auto" if key in _MAY_BE_AUTO and value == AUTO else value
        yield Effective(key, chosen, _origin(settings, bundle, key))


_MAY_BE_AUTO = ("migration.throttle", "migration.moves_total")


def _values(bundle: BundleSettings) -> Iterator[tuple[str, Any]]:
    yield "mode", str(bundle.mode)
    yield "timezone", bundle.timezone
    options = bundle.options
    yield from _flat("tablet_balancer_config", options.balancer, leave_out=("parameterized",))
    yield from _flat("heat", options.heat)
    yield from _flat("placement", options.placement)
    yield from _flat("migration", bundle.migration)
    yield from _flat("migration", options.budgets)
    yield from _flat("checks", bundle.checks)
    for name, node in bundle.nodes.items():
        yield from _flat(f"nodes.{name}", node, leave_out=("id",))
    for name, table in bundle.tables.items():
        yield from _flat(f"tables.{name}", table, leave_out=("name",))
        yield from _flat(f"tables.{name}", options.table(name))


def _flat(prefix: str, value: Any, leave_out: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            if field.name not in leave_out:
                yield from _flat(f"{prefix}.{field.name}", getattr(value, field.name), leave_out)
    elif isinstance(value, Mapping) and value:
        for key, member in value.items():
            yield from _flat(f"{prefix}.{key}", member, leave_out)
    else:
        yield prefix, value if isinstance(value, int | float | bool | None) else _printable(value)


def _printable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else {} if isinstance(value, Mapping) else str(value)


def _origin(settings: Settings, bundle: BundleSettings, key: str) -> str:
    variable = f"{env_prefix(bundle.name)}__{key.replace('.', '__')}".upper()
    if variable in os.environ:
        return f"environment {variable}"
    if _is_given(bundle.given, key) or _is_given(bundle.given, _as_yt_writes(key)):
        return str(bundle.file)
    if key in _DAEMON_DEFAULTS:
        daemon_variable = f"BALANCER_{key.upper()}"
        if daemon_variable in os.environ:
            return f"environment {daemon_variable}"
        if key in settings.given:
            return str(settings.file)
    return "default"


def _as_yt_writes(key: str) -> str:
    """Where a group's key may stand in the file instead: inside of `parameterized`."""
    place, _, name = key.rpartition(".")
    inside = {"reshard_by_metric": "enable_reshard", "enable_reshard": "another"}.get(name, name)
    return f"{place}.parameterized.{inside}"


def _is_given(given: Mapping[str, Any], key: str) -> bool:
    at: Any = given
    for part in key.split("."):
        if not isinstance(at, Mapping) or part not in at:
            return False
        at = at[part]
    return True
