"""Settings of a bundle's file that are right by themselves and change nothing, or not what was meant: `config check`
names them.

They are no mistakes: an operator may prepare a group before the first table joins it. Pure, except for the time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from balancer.policies.options import DEFAULT_GROUP, TableOptions
from balancer.settings.load import BundleSettings, Settings
from balancer.settings.windows import too_short

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
    """Of all bundles, in the order of their files."""
    return [
        one
        for bundle in settings.bundles.values()
        for one in (*_without_effect(bundle), *_doubtful(settings, bundle, at))
    ]


def _without_effect(bundle: BundleSettings) -> Iterator[Ineffective]:
    for key, message in (*_groups(bundle), *_tables(bundle)):
        yield Ineffective(str(bundle.file), key, message)


def _doubtful(settings: Settings, bundle: BundleSettings, at: datetime) -> Iterator[Ineffective]:
    """What is followed to the letter and leads to nothing."""
    short = too_short(settings, bundle, at)
    if short:
        yield Ineffective(str(bundle.file), "migration.finish_by", short, no_effect=False)


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
