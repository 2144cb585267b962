"""What rules mean for splits and merges: a tablet that lies across a rule's bound is cut there, and never merged again.

`plan` asks for the cuts, and lets `kept_to_rules` look over what sizes and heat propose. `rule_against` says which rule
keeps a tablet off a node, for explanations and for operators' moves.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from balancer.policies.keyspace.keys import KeyMismatch
from balancer.policies.options import Apart, BundleOptions, PlacementRule
from balancer.policies.placement.rules import named_by, permits, rule_bounds
from balancer.policies.reasons import Left, Taken
from balancer.policies.view import Action, ActionKind, BundleView, NodeCondition, NodeView, Part, Rejection, TableView


def rule_cuts(view: BundleView, options: BundleOptions) -> tuple[list[Action], list[Rejection]]:
    """Splits of tablets that lie across the bounds of rules, and what cannot be cut or read."""
    cuts: dict[int, dict[bytes, str]] = {}
    rejections = []
    for rule in options.rules:
        rejections += _broken(view, rule)
        for part in named_by(view, rule):
            for row, bound in part.straddling:
                cuts.setdefault(row, {})[bound] = rule.name
    flying = {tablet for migration in view.in_flight for tablet in migration.tablets}
    actions = []
    for row, bounds in sorted(cuts.items()):
        action = _cut(view, row, bounds)
        obstacle = _obstacle(view, row, flying)
        if obstacle:
            text = f"{action.reason}; but {obstacle}"
            rejections.append(Rejection(action.kind, action.tablets, str(Left.ACROSS_A_RULE), text))
        else:
            actions.append(action)
    return actions, rejections


def kept_to_rules(
    view: BundleView, options: BundleOptions, actions: Iterable[Action]
) -> tuple[list[Action], list[Rejection]]:
    """The actions that no rule forbids: no merge over a bound, no move and no part to a node that may not have it."""
    if not options.rules:
        return list(actions), []
    masks = names_of(view, options)
    nodes = {node.id: node for node in view.nodes}
    kept, rejections = [], []
    for action in actions:
        rules = [rule for rule in options.rules if rule.name in masks.get(action.tablets[0], ())]
        if len({masks.get(tablet, frozenset()) for tablet in action.tablets}) > 1:
            why = "a rule ends between these tablets, and they must stay apart"
            rejections.append(_left(action, Left.RULE_BETWEEN, why))
        elif action.target and (rule := _against(rules, nodes[action.target])):
            rejections.append(_left(action, Left.AGAINST_RULE, f"rule {rule.name} keeps it from {action.target}"))
        else:
            parts = tuple(
                replace(part, node="") if part.node and _against(rules, nodes[part.node]) else part
                for part in action.parts
            )
            kept.append(replace(action, parts=parts) if parts != action.parts else action)
    return kept, rejections


def rule_against(view: BundleView, options: BundleOptions, tablet: int, node: str) -> str:
    """The sentence of the rule that keeps a tablet off a node; empty: none does."""
    there = next(known for known in view.nodes if known.id == node)
    at = view.nodes.index(there)
    row = int(np.flatnonzero(view.tablets.ids == tablet)[0])
    for rule in [one for one in options.rules if any(part.first <= row < part.last for part in named_by(view, one))]:
        if not permits(rule, there):
            place = f", and {_place(there)}" if rule.zones or rule.not_zones else ""
            return f"rule {rule.name}: {permitted_text(rule)}{place}"
        if rule.spread is None and not rule.together:
            continue
        mine, on_node = _tablets_of(view, rule), set(view.tablets.ids[view.tablets.node == at].tolist())
        beside = sorted(one for one in mine.keys() & on_node if one != tablet and _rival(rule, mine[one], mine[tablet]))
        if beside:
            return f"rule {rule.name} keeps its {rule.spread} on different nodes, and {node} has tablet {beside[0]}"
        if rule.together and mine.keys() - on_node - {tablet}:
            return f"rule {rule.name} keeps its tablets together, and not all the others are on {node}"
    return ""


def permitted_text(rule: PlacementRule) -> str:
    """Where a rule lets its tablets live."""
    parts = [
        f"{word} {', '.join(names)}"
        for word, names in (
            ("they live in zone", rule.zones),
            ("they live on", rule.nodes),
            ("they stay out of zone", rule.not_zones),
            ("they stay off", rule.not_nodes),
        )
        if names
    ]
    return " and ".join(parts)


def _place(node: NodeView) -> str:
    return f"{node.id} is in zone {node.zone}" if node.zone else f"{node.id} is in no zone"


def _rival(rule: PlacementRule, one: str, other: str) -> bool:
    return rule.spread is Apart.TABLETS or (rule.spread is Apart.TABLES and one != other)


def _against(rules: list[PlacementRule], node: NodeView) -> PlacementRule | None:
    return next((rule for rule in rules if not permits(rule, node)), None)


def names_of(view: BundleView, options: BundleOptions) -> dict[int, frozenset[str]]:
    """Tablet → the names of the rules that name it."""
    found: dict[int, frozenset[str]] = {}
    for rule in options.rules:
        for tablet in _tablets_of(view, rule):
            found[tablet] = found.get(tablet, frozenset()) | {rule.name}
    return found


def _tablets_of(view: BundleView, rule: PlacementRule) -> dict[int, str]:
    """The tablets that a rule names, with their tables."""
    tables = {table.first: table.name for table in view.tables}
    found: dict[int, str] = {}
    for part in named_by(view, rule):
        table = tables[max(first for first in tables if first <= part.first)]
        found |= dict.fromkeys(view.tablets.ids[part.first : part.last].tolist(), table)
    return found


def _cut(view: BundleView, row: int, bounds: dict[bytes, str]) -> Action:
    columns, table = view.tablets, next(table for table in view.tables if table.first <= row < table.last)
    parts = tuple(Part(lower=lower) for lower in (columns.lowers[row], *sorted(bounds)))
    names = ", ".join(sorted(set(bounds.values())))
    reason = f"rule {names} ends in the middle of it: it is cut there, so that each part can live where it must"
    size = float(columns.sizes[row])
    source = view.nodes[int(columns.node[row])].id
    tablet = (int(columns.ids[row]),)
    return Action(
        ActionKind.SPLIT, table.name, tablet, reason, str(Taken.RULE), source, parts=parts, count=len(parts), size=size
    )


def _obstacle(view: BundleView, row: int, flying: set[int]) -> str:
    """Why a tablet cannot be cut now; empty: it can."""
    tablet = int(view.tablets.ids[row])
    if tablet in view.quarantined:
        return "the tablet is in quarantine"
    if tablet in flying:
        return "a migration of it is running"
    if view.nodes[int(view.tablets.node[row])].condition is NodeCondition.DOWN:
        return "its node is down"
    return ""


def _broken(view: BundleView, rule: PlacementRule) -> list[Rejection]:
    """The tables whose keys a rule does not fit."""
    found = []
    for table in view.tables if rule.has_keys else ():
        if table.name in rule.tables and (why := _misfit(rule, table)):
            text = f"rule {rule.name} has no effect on table {table.name}: {why}"
            found.append(Rejection(ActionKind.MOVE, (), str(Left.BROKEN_RULE), text))
    return found


def _misfit(rule: PlacementRule, table: TableView) -> str:
    if table.hash:
        return "it is a hash table, which has no ranges of keys"
    try:
        lower, upper = rule_bounds(rule, table)
    except KeyMismatch as error:
        return str(error)
    return "" if lower < upper else "keys_from is not below keys_to"


def _left(action: Action, code: Left, why: str) -> Rejection:
    return Rejection(action.kind, action.tablets, str(code), f"{action.reason}; but {why}", action.target)
