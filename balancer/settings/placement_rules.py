"""`[[rules]]` of a bundle's file: what contradicts itself, the other rules, or the nodes that there are. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from balancer.policies.bundle_view import NodeView
from balancer.policies.options import Apart, BundleOptions, PlacementRule
from balancer.policies.tablet_kinds import MOST_RULES, permits


def check_rules(
    options: BundleOptions, nodes: Sequence[NodeView], layouts: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Key and sentence of each mistake. `layouts` are those of the file's tables, by name."""
    if len(options.rules) > MOST_RULES:
        yield "rules", f"there are {len(options.rules)}; {MOST_RULES} are allowed"
        return
    names = [rule.name for rule in options.rules]
    for number, rule in enumerate(options.rules):
        key = f"rules.{rule.name or number + 1}"
        if not rule.name:
            yield f"{key}.name", "every rule needs a name: explanations speak of it"
        elif rule.name in names[:number]:
            yield f"{key}.name", "another rule has this name too"
        for part, message in (*_names(rule, nodes, layouts), *_itself(rule), *_keys(rule, layouts)):
            yield f"{key}.{part}" if part else key, message
        if rule.zones or rule.nodes or rule.not_zones or rule.not_nodes:
            yield from _somewhere(key, [rule], options, nodes)
    for one, other in combinations(options.rules, 2):
        yield from _together(one, other, options, nodes)


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
        yield "", "it says nothing; give it zones, nodes, not_zones, not_nodes, spread or together"
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
        yield "key", "cannot be beside keys_from and keys_to: say one of them"
    part = "key" if rule.key else "keys_from" if rule.keys_from else "keys_to"
    for table in rule.tables:
        if layouts.get(table) == "hash":
            yield (
                part,
                f"{table} is a hash table, which has no ranges of keys: leave the keys out, or make it a range table",
            )


def _somewhere(
    key: str, rules: Sequence[PlacementRule], options: BundleOptions, nodes: Sequence[NodeView]
) -> Iterator[tuple[str, str]]:
    """Whether the tables of all these rules have a node left."""
    tables = set(rules[0].tables).intersection(*(rule.tables for rule in rules))
    for table in sorted(tables):
        zones = options.table(table).zones
        able = [node for node in nodes if all(permits(rule, node) for rule in rules)]
        if nodes and not able:
            beside = f" beside rule {rules[1].name}" if len(rules) > 1 else ""
            yield key, f"leaves no node for table {table}{beside}"
        elif nodes and zones and not any(node.zone in zones for node in able):
            yield key, f"leaves no node for table {table}, which lives in the zones {', '.join(zones)}"
        else:
            continue
        return


def _together(
    one: PlacementRule, other: PlacementRule, options: BundleOptions, nodes: Sequence[NodeView]
) -> Iterator[tuple[str, str]]:
    """Two rules that cannot both be kept. Keys are compared as written: only the nodes know their types."""
    shared = set(one.tables) & set(other.tables)
    keys = [(rule.key, rule.keys_from, rule.keys_to) for rule in (one, other)]
    same = keys[0] == keys[1] or not (one.has_keys and other.has_keys)
    if not shared or not same:
        return
    alone = [list(_somewhere("", [rule], options, nodes)) for rule in (one, other)]
    if not any(alone):
        yield from _somewhere(f"rules.{other.name}", [other, one], options, nodes)
    for apart, joined in ((one, other), (other, one)):
        if apart.spread is not None and joined.together and (apart.spread is Apart.TABLETS or len(shared) > 1):
            what = f"their tablets of {_all(shared)} cannot be apart and on one node"
            yield f"rules.{apart.name}.spread", f"contradicts rule {joined.name}, which keeps them together: {what}"


def _all(names: Sequence[str] | set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
