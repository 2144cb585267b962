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
