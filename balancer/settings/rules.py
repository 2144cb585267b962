"""Rules between several keys of a bundle's file: what a type alone cannot say."""

from collections.abc import Iterator, Mapping
from typing import Any

from balancer.policies.metric import MetricError, parse_metric
from balancer.policies.options import (
    DEFAULT_GROUP,
    BalancerOptions,
    GroupOptions,
    HeatOptions,
    PlacementOptions,
    TableOptions,
)
from balancer.policies.periods import UNITS
from balancer.settings.migration import MigrationSettings

SHORTEST_PERIOD = 60.0
SMALLEST_CHUNK = 8192
MOST_AHEAD = 100
"""Empty partitions that a table may have ahead: PostgreSQL plans over each of them."""
_DIMENSIONS = ("bytes", "memory", "write_rate", "read_rate", "tablets")


def check_balancer(options: BalancerOptions) -> Iterator[tuple[str, str]]:
    """Of `[tablet_balancer_config]`."""
    if not options.min_tablet_size <= options.desired_tablet_size <= options.max_tablet_size:
        yield "desired_tablet_size", "must be between min_tablet_size and max_tablet_size"
    sizes = (
        options.min_in_memory_tablet_size,
        options.desired_in_memory_tablet_size,
        options.max_in_memory_tablet_size,
    )
    if not sizes[0] < sizes[1] < sizes[2]:
        yield (
            "desired_in_memory_tablet_size",
            "must be between min_in_memory_tablet_size and max_in_memory_tablet_size and differ from both",
        )
    if options.soft_in_memory_cell_balance_threshold > options.hard_in_memory_cell_balance_threshold:
        yield (
            "soft_in_memory_cell_balance_threshold",
            "must not exceed hard_in_memory_cell_balance_threshold: moves would stop before they start",
        )
    if options.tablet_to_cell_ratio <= 0:
        yield "tablet_to_cell_ratio", "must be greater than 0"
    if not 0 < options.safe_used_tablet_static_ratio <= 1:
        yield "safe_used_tablet_static_ratio", "must be greater than 0 and at most 1"
    if options.default_in_memory_group and options.default_in_memory_group not in options.groups:
        yield "default_in_memory_group", _no_group(options.default_in_memory_group, options.groups)
    for name, group in options.groups.items():
        for key, message in _check_group(group):
            yield f"groups.{name}.{key}", message


def _check_group(group: GroupOptions) -> Iterator[tuple[str, str]]:
    for key, value in group.parameterized.given().items():
        if getattr(group, key) not in (value, getattr(GroupOptions(), key)):
            yield key, "has a different value in parameterized: set it only once"
    flat = group.flat()
    if flat.metric:
        try:
            parse_metric(flat.metric)
        except MetricError as error:
            yield "parameterized.metric" if group.parameterized.metric else "metric", str(error)
    if flat.max_action_count < 1:
        yield "max_action_count", "must be 1 or more"
    for key in ("node_deviation_threshold", "cell_deviation_threshold", "min_relative_metric_improvement"):
        if not getattr(flat, key) >= 0:
            yield key, "must be zero or more"


def _no_group(name: str, groups: Mapping[str, GroupOptions]) -> str:
    return f"there is no group {name!r}; there are: {', '.join(sorted({DEFAULT_GROUP, *groups}))}"


def check_placement(options: PlacementOptions) -> Iterator[tuple[str, str]]:
    """Of `[placement]`."""
    for name, weight in options.dimensions.items():
        if name not in _DIMENSIONS:
            yield f"dimensions.{name}", f"unknown dimension; allowed: {', '.join(_DIMENSIONS)}"
        elif weight < 0:
            yield f"dimensions.{name}", "must be zero or more"
    if options.stop_threshold > options.start_threshold:
        yield "stop_threshold", "must not exceed start_threshold: moves would stop before they start"
    if options.reopen_at_load > options.close_at_load:
        yield "reopen_at_load", "must not exceed close_at_load: a node would close and open at once"
    if options.reopen_at_disk_share > options.close_at_disk_share:
        yield "reopen_at_disk_share", "must not exceed close_at_disk_share: a node would close and open at once"


def check_heat(options: HeatOptions) -> Iterator[tuple[str, str]]:
    """Of `[heat]`."""
    if not 0 <= options.min_confidence <= 1:
        yield "min_confidence", "must lie between 0 and 1"


def check_migration(settings: MigrationSettings) -> Iterator[tuple[str, str]]:
    """Of `[migration]`."""
    if settings.lock_timeout > settings.write_pause_budget:
        yield "lock_timeout", "must not exceed write_pause_budget: waiting for a lock alone would use it up"
    if not settings.throttle_share > 0:
        yield "throttle_share", "must be greater than 0"
    if settings.chunk_size < SMALLEST_CHUNK:
        yield "chunk_size", "must be 8KB or more: a page is the smallest unit that is copied"
    for name in ("chunks_at_once", "indexes_at_once"):
        if getattr(settings, name) < 1:
            yield name, "must be 1 or more"
    if settings.fence_deadline <= settings.write_pause_budget:
        yield "fence_deadline", "must be longer than write_pause_budget, or fences expire before it is used up"


def check_periods(options: TableOptions, layout: str) -> Iterator[tuple[str, str]]:
    """Of `[tables.NAME]`: what keeps a time-range table."""
    given = [name for name in ("every", "premake", "expire_after", "key_unit") if getattr(options, name)]
    if not given:
        return
    if layout != "range":
        yield given[0], f'only works with layout = "range" and a key that begins with a time, not with "{layout}"'
    every, premake, expire = options.every, options.premake, options.expire_after
    if premake is not None and every is None:
        yield "premake", 'needs every, the period that each tablet covers, as in every = "1d"'
    if every is not None and (every < SHORTEST_PERIOD or every % 1):
        yield "every", "must be whole seconds, a minute or more"
    elif every is not None and premake is not None and premake / every > MOST_AHEAD:
        yield "premake", f"would make {premake / every:.0f} tablets ahead; at most {MOST_AHEAD} are allowed"
    if expire is not None and expire < max(every or 0.0, SHORTEST_PERIOD):
        yield "expire_after", "must be a minute or more, and not less than every"
    if options.key_unit and options.key_unit not in UNITS:
        yield "key_unit", f"must be one of {', '.join(UNITS)}"
    for name in ("desired_tablet_count", "desired_tablet_metric"):
        if every is not None and getattr(options, name) is not None:
            yield name, "cannot be combined with every: each tablet covers a period of time"


def check_table(options: TableOptions, groups: Mapping[str, GroupOptions]) -> Iterator[tuple[str, str]]:
    """Of `[tables.NAME]`."""
    for name in ("desired_tablet_count", "min_tablet_count"):
        count: Any = getattr(options, name)
        if count is not None and count < 1:
            yield name, "must be 1 or more"
    desired, least = options.desired_tablet_count, options.min_tablet_count
    if desired is not None and least is not None and least > desired:
        yield "min_tablet_count", f"must not exceed desired_tablet_count ({desired})"
    if options.desired_tablet_metric is not None and not options.desired_tablet_metric > 0:
        yield "desired_tablet_metric", "must be greater than 0"
    if options.group != DEFAULT_GROUP and options.group not in groups:
        yield "group", _no_group(options.group, groups)
