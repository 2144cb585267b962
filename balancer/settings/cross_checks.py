"""Rules between several keys of a bundle's file: what a type alone cannot say.

Rules between the keys of `[checks]` and the tables of the bundle: what a type alone cannot say.

`[[rules]]` of a bundle's file: what contradicts itself, the other rules, or the nodes that there are. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from string import Formatter
from typing import Any, Protocol

from balancer.policies.check_options import CheckOptions, Invariant, OrphanRule
from balancer.policies.metric import MetricError, parse_metric
from balancer.policies.options import (
    DEFAULT_GROUP,
    Apart,
    BalancerOptions,
    BundleOptions,
    GroupOptions,
    HeatOptions,
    PlacementOptions,
    PlacementRule,
    TableOptions,
)
from balancer.policies.placement.rules import MOST_RULES, permits
from balancer.policies.resize.time_ranges import UNITS
from balancer.policies.view import NodeView
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


MOST_POINTS = 10_000
"""Of a node on the ring."""


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
    if not 1 <= options.virtual_nodes <= MOST_POINTS:
        yield "virtual_nodes", f"must be between 1 and {MOST_POINTS}"
    if options.group != DEFAULT_GROUP and options.group not in groups:
        yield "group", _no_group(options.group, groups)


class _Table(Protocol):
    @property
    def roots(self) -> tuple[str, ...]: ...

    @property
    def layout(self) -> str: ...


def check_checks(options: CheckOptions, tables: Mapping[str, _Table]) -> Iterator[tuple[str, str]]:
    """Everything that is wrong, with the key."""
    if not 0 < options.share <= 1:
        yield "share", "must be greater than 0 and at most 1"
    for name in ("every", "statement_timeout", "message_age"):
        if getattr(options, name) <= 0:
            yield name, "must be longer than 0s"
    names: set[str] = set()
    for number, invariant in enumerate(options.invariants):
        for key, message in _invariant(invariant, tables):
            yield f"invariants.{number}.{key}", message
        if invariant.name in names:
            yield f"invariants.{number}.name", f"{invariant.name!r} is the name of another invariant too"
        names.add(invariant.name)
    for number, rule in enumerate(options.orphans):
        for key, message in _orphans(rule, tables):
            yield f"orphans.{number}.{key}", message
    for number, ids in enumerate(options.ids):
        if ids.table not in tables or tables[ids.table].layout == "everywhere":
            yield f"ids.{number}.table", _no_table(ids.table, tables)
        elif ids.root and _full(ids.root) not in tables[ids.table].roots:
            yield f"ids.{number}.root", f"table {ids.table} has no root {ids.root}"


def _invariant(invariant: Invariant, tables: Mapping[str, _Table]) -> Iterator[tuple[str, str]]:
    if not invariant.name.strip():
        yield "name", "must say what is promised, in a few words"
    if bool(invariant.sql.strip()) == bool(invariant.sum.strip()):
        yield "sql", "give either sql, which must return no rows, or sum, which returns one number per tablet"
    if invariant.equals is not None and not invariant.sum.strip():
        yield "equals", "only works with sum"
    table = tables.get(invariant.table)
    if table is None or table.layout == "everywhere":
        yield "table", _no_table(invariant.table, tables)
        return
    known = {*table.roots, *(root.rpartition(".")[2] for root in table.roots)}
    key = "sum" if invariant.sum.strip() else "sql"
    try:
        named = {name for _, name, _, _ in Formatter().parse(invariant.sum or invariant.sql) if name is not None}
    except ValueError as error:
        yield key, f"{error}: write literal braces twice"
        return
    if not named or not named <= known:
        allowed = " or ".join(f"{{{root}}}" for root in sorted(known))
        yield key, f"must name the tablet's partitions: write {allowed} in place of the table's name"


def _orphans(rule: OrphanRule, tables: Mapping[str, _Table]) -> Iterator[tuple[str, str]]:
    child, parent = _full(rule.child), _full(rule.parent)
    roots = [(table.roots, table.layout) for table in tables.values()]
    mine = [own for own, layout in roots if child in own and layout != "everywhere"]
    if not mine:
        yield "child", f"no sharded table of the bundle has the root {rule.child}"
    elif not any(parent in own and (own is mine[0] or layout == "everywhere") for own, layout in roots):
        yield "parent", f"{rule.parent} is neither colocated with {rule.child} nor a reference table"
    if not rule.columns:
        yield "columns", "must name at least one column"
    elif rule.references and len(rule.references) != len(rule.columns):
        yield "references", f"has {len(rule.references)} columns, and columns has {len(rule.columns)}"


def _full(root: str) -> str:
    return root if "." in root else f"public.{root}"


def _no_table(name: str, tables: Mapping[str, _Table]) -> str:
    known = ", ".join(sorted(name for name, table in tables.items() if table.layout != "everywhere")) or "none"
    return f"there is no sharded table {name!r} in the bundle; there are: {known}"


def check_rules(
    options: BundleOptions, nodes: Sequence[NodeView], layouts: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Key and sentence of each mistake. `layouts` are those of the file's tables, by name."""
    if len(options.rules) > MOST_RULES:
        yield "rules", f"there are {len(options.rules)}; at most {MOST_RULES} are allowed"
        return
    sound = []
    for number, rule in enumerate(options.rules):
        found = [*_name(options.rules, number), *_names(rule, nodes, layouts), *_itself(rule), *_keys(rule, layouts)]
        for part, message in found or _somewhere([rule], options, nodes):
            yield f"rules.{rule.name or number}.{part}".rstrip("."), message
        if not found and not any(_somewhere([rule], options, nodes)):
            sound.append(rule)
    for one, other in combinations(sound, 2):
        yield from _both(one, other, options, nodes)


def _name(rules: Sequence[PlacementRule], number: int) -> Iterator[tuple[str, str]]:
    if not rules[number].name:
        yield "name", "every rule needs a name: explanations use it"
    elif rules[number].name in [rule.name for rule in rules[:number]]:
        yield "name", "another rule has this name too"


def _names(rule: PlacementRule, nodes: Sequence[NodeView], layouts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    known = {node.id for node in nodes}
    zones = {node.zone for node in nodes if node.zone}
    if not rule.tables:
        yield "tables", "must name at least one table"
    for part, used, there in (
        ("tables", rule.tables, set(layouts)),
        ("nodes", rule.nodes, known),
        ("not_nodes", rule.not_nodes, known),
        ("zones", rule.zones, zones),
        ("not_zones", rule.not_zones, zones),
    ):
        for name in used:
            if name not in there:
                yield (
                    part,
                    f"there is no {part.removeprefix('not_')[:-1]} {name!r} in this file; there are: {_all(there)}",
                )


def _itself(rule: PlacementRule) -> Iterator[tuple[str, str]]:
    places = (rule.zones, rule.nodes, rule.not_zones, rule.not_nodes)
    if not any(places) and rule.spread is None and not rule.together:
        yield "", "the rule does nothing; give it zones, nodes, not_zones, not_nodes, spread or together"
    for word in ("zones", "nodes"):
        both = sorted(set(getattr(rule, word)) & set(getattr(rule, f"not_{word}")))
        if both:
            yield word, f"{_all(both)} is in not_{word}, too"
    if rule.spread is not None and rule.together:
        yield "spread", "contradicts together: its tablets cannot be apart and on one node"
    if rule.spread is Apart.TABLES and len(rule.tables) < 2:
        yield "spread", 'with "tables" the rule must name two tables or more'


def _keys(rule: PlacementRule, layouts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if not rule.has_keys:
        return
    if rule.key and (rule.keys_from or rule.keys_to):
        yield "key", "cannot be combined with keys_from and keys_to: use one or the other"
    part = "key" if rule.key else "keys_from" if rule.keys_from else "keys_to"
    for table in rule.tables:
        if layouts.get(table) == "hash":
            yield (
                part,
                f"{table} is a hash table, which has no ranges of keys: leave the keys out, or make it a range table",
            )


def _somewhere(
    rules: Sequence[PlacementRule], options: BundleOptions, nodes: Sequence[NodeView]
) -> Iterator[tuple[str, str]]:
    """The first table of all these rules that has no node left."""
    able = [node for node in nodes if all(permits(rule, node) for rule in rules)]
    for table in sorted(set(rules[0].tables).intersection(*(rule.tables for rule in rules))) if nodes else ():
        zones = options.table(table).zones
        if not able:
            beside = f" together with rule {rules[1].name}" if len(rules) > 1 else ""
            yield "", f"leaves no node for table {table}{beside}"
            return
        if zones and not any(node.zone in zones for node in able):
            yield "", f"leaves no node for table {table}, which lives in the zones {', '.join(zones)}"
            return


def _both(
    one: PlacementRule, other: PlacementRule, options: BundleOptions, nodes: Sequence[NodeView]
) -> Iterator[tuple[str, str]]:
    """Two rules that cannot both be kept. Keys are compared as written: only the nodes know their types."""
    shared = set(one.tables) & set(other.tables)
    keys = [(rule.key, rule.keys_from, rule.keys_to) for rule in (one, other)]
    if not shared or not (keys[0] == keys[1] or not (one.has_keys and other.has_keys)):
        return
    for _, message in _somewhere([other, one], options, nodes):
        yield f"rules.{other.name}", message
    for apart, joined in ((one, other), (other, one)):
        if apart.spread is not None and joined.together and (apart.spread is Apart.TABLETS or len(shared) > 1):
            what = f"their tablets of {_all(shared)} cannot be apart and on one node"
            yield f"rules.{apart.name}.spread", f"contradicts rule {joined.name}, which keeps them together: {what}"


def _all(names: Sequence[str] | set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
