"""Where each effective value of a bundle came from: for `balancer config show`.

Settings of a bundle's file that are right by themselves and change nothing, or not what was meant: `config check`
names them.

They are no mistakes: an operator may prepare a group before the first table joins it. Pure, except for the time.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any

from balancer.policies.options import AUTO, DEFAULT_GROUP, TableOptions
from balancer.policies.reasons import duration_text
from balancer.policies.resize.scope import wished_count
from balancer.settings.load import BundleSettings, Settings, env_prefix
from balancer.settings.schedules import too_short
from balancer.settings.yt_spellings import NESTED, successors

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
    """Where a group's key may stand in the file instead: inside of `parameterized`; and a table's: nested likewise."""
    place, _, name = key.rpartition(".")
    if place.startswith("tables."):
        return f"{place}.{NESTED}.{name}"
    inside = {"reshard_by_metric": "enable_reshard", "enable_reshard": "another"}.get(name, name)
    return f"{place}.parameterized.{inside}"


def _is_given(given: Mapping[str, Any], key: str) -> bool:
    at: Any = given
    for part in key.split("."):
        if not isinstance(at, Mapping) or part not in at:
            return False
        at = at[part]
    return True


_SIZES = ("min_tablet_size", "desired_tablet_size", "max_tablet_size")


@dataclass(frozen=True, slots=True)
class Ineffective:
    """One setting without effect, or one that does less than it seems to, and why."""

    file: str
    key: str
    message: str
    no_effect: bool = True

    def __str__(self) -> str:
        return f"{self.file}: {self.key}{' has no effect' if self.no_effect else ''}: {self.message}"


def ineffective(settings: Settings, at: datetime) -> list[Ineffective]:
    """Of the instance's file, then of all bundles, in the order of their files."""
    return [*_slow(settings)] + [
        one
        for bundle in settings.bundles.values()
        for one in (*_without_effect(bundle), *_doubtful(settings, bundle, at))
    ]


LONGEST_TICK = 60.0
"""Beyond this, heat stays where it is for long: with ticks of five minutes a flash crowd keeps a node above 1.2 times
its share for 55 minutes of an hour, with ticks of one for 14."""


def _slow(settings: Settings) -> Iterator[Ineffective]:
    tick = settings.daemon.tick
    if tick > LONGEST_TICK:
        message = f"heat is looked at once in {duration_text(tick)}: a flash crowd may pass before it is spread; use 1m"
        yield Ineffective(str(settings.file), "tick", message, no_effect=False)


def _without_effect(bundle: BundleSettings) -> Iterator[Ineffective]:
    for key, message in (*_groups(bundle), *_tables(bundle)):
        yield Ineffective(str(bundle.file), key, message)


def _doubtful(settings: Settings, bundle: BundleSettings, at: datetime) -> Iterator[Ineffective]:
    """What is followed to the letter and leads to nothing."""
    short = too_short(settings, bundle, at)
    if short:
        yield Ineffective(str(bundle.file), "migration.finish_by", short, no_effect=False)
    for key, message in _counts(bundle):
        yield Ineffective(str(bundle.file), key, message, no_effect=False)
    for name, section in bundle.given.get("tables", {}).items():
        for key, message in successors(section):
            yield Ineffective(str(bundle.file), f"tables.{name}.{key}", message, no_effect=False)


def _counts(bundle: BundleSettings) -> Iterator[tuple[str, str]]:
    """Numbers of tablets that become others, or leave nodes without any."""
    nodes = len(bundle.nodes)
    for name, table in bundle.tables.items():
        options = bundle.options.table(name)
        count = wished_count(options, hashed=table.layout == "hash")
        if count is not None and table.layout == "hash" and count != options.desired_tablet_count:
            asked = options.desired_tablet_count
            yield f"tables.{name}.desired_tablet_count", f"{asked} becomes {count}: a hash table has a power of two"
        if table.layout == "hash" and table.tablets < nodes:
            yield (
                f"tables.{name}.tablets",
                f"{table.tablets} on {nodes} nodes: {nodes - table.tablets} of them get no tablet of it before splits",
            )


def _groups(bundle: BundleSettings) -> Iterator[tuple[str, str]]:
    options = bundle.options
    used = {options.group_name(table) for table in options.tables} | {DEFAULT_GROUP}
    for name, group in options.balancer.groups.items():
        if name not in used:
            yield f"tablet_balancer_config.groups.{name}", "no table of the bundle is in the group"
        elif not group.metric and (group.reshard_by_metric or group.per_table_uniform):
            which = "reshard_by_metric" if group.reshard_by_metric else "per_table_uniform"
            yield f"tablet_balancer_config.groups.{name}.{which}", "the group has no metric"


def _tables(bundle: BundleSettings) -> Iterator[tuple[str, str]]:
    for name in bundle.tables:
        table = bundle.options.table(name)
        for key, message in _table(table):
            yield f"tables.{name}.{key}", message
        if table.enable_parameterized and not bundle.options.metric(name):
            group = bundle.options.group_name(name)
            yield f"tables.{name}.enable_parameterized", f"the group {group} has no metric"


def _table(table: TableOptions) -> Iterator[tuple[str, str]]:
    sizes = {name: getattr(table, name) for name in _SIZES}
    given = [name for name, size in sizes.items() if size is not None]
    low, desired, high = sizes.values()
    if given and (len(given) < len(sizes) or not low < desired < high):
        yield given[0], f"{', '.join(sizes)} count only if all are set and strictly increase: the bundle's sizes apply"
    if table.desired_tablet_count is None:
        return
    if table.desired_tablet_metric is not None:
        yield (
            "desired_tablet_metric",
            "desired_tablet_count overrides it; the metric is divided among that many tablets",
        )
    if table.desired_tablet_size is not None:
        yield "desired_tablet_size", "desired_tablet_count overrides the table's sizes"
