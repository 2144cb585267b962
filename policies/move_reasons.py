"""Why a tablet should move, in one sentence with its numbers. Called while a plan's actions are put together."""

from collections.abc import Sequence

import numpy as np

from balancer.policies.bundle_view import BundleView
from balancer.policies.day_loads import dimension_text, tablet_rate
from balancer.policies.day_parts import base_of
from balancer.policies.figures import bytes_text, rate_text, share_text
from balancer.policies.options import BundleOptions
from balancer.policies.placement_candidates import group_of
from balancer.policies.placement_loads import LoadState, Problem, excess
from balancer.policies.reasons import Taken
from balancer.policies.rule_splits import rule_against
from balancer.policies.wanted_moves import Moves


def reason_for(moves: Moves, row: int, options: BundleOptions) -> str:
    """The sentence of one move."""
    problem = moves.problem
    source, target = (problem.nodes[int(state.owner[row])].id for state in (moves.before, moves.after))
    size = bytes_text(float(problem.sizes[row]))
    table = problem.view.tables[int(problem.tables[row])].name
    match moves.code(row):
        case Taken.DRAIN:
            text = f"{source} is draining: this tablet's {figures_of(problem, row)} go to {target}, which has room"
        case Taken.DISK_FULL:
            text = f"{_disk_text(moves, source, options)}: {size} go to {target}"
        case Taken.RULE:
            text = f"{_rule_text(moves, row, options)}: {size} go to {target}"
        case Taken.CAPACITY:
            text = f"{_capacity_text(problem, moves.before, row)}: {target} can take it"
        case Taken.SPREAD:
            text = f"{source} has more tablets of {table} than table_spread allows: {size} go to {target}"
        case Taken.FUNCTION:
            text = f"{table} is placed by {options.table(table).placement}, which puts this tablet ({size}) on {target}"
        case Taken.IN_MEMORY:
            text = f"in-memory tables fill {source} more than {target}: this tablet's {size} even them out"
        case Taken.COUNT:
            text = f"{source} has more tablets of {table} than its even number, {target} has fewer"
        case Taken.METRIC:
            group, settings = group_of(options, table)
            text = f"group {group} is spread by {settings.metric}: {source} has more of it than {target}"
        case _:
            text = _relief(moves, row)
    return text


def joint_code(moves: Moves, rows: Sequence[int]) -> Taken:
    """Two tablets that change places are an exchange; everything else that helps only together is a chain."""
    before, after = moves.before.owner, moves.after.owner
    crossed = len(rows) == 2 and after[rows[0]] == before[rows[1]] and after[rows[1]] == before[rows[0]]
    return Taken.SWAP if crossed else Taken.CHAIN


def joint_text(moves: Moves, row: int, now: Sequence[int], then: Sequence[int]) -> str:
    """What a move goes together with, and that it would not help alone."""
    together = [_route(moves, other) for other in now if other != row]
    after = [_route(moves, other) for other in then]
    parts = [f"together with {' and '.join(together)}"] if together else []
    parts += [f"followed by {', then '.join(after)}"] if after else []
    return f", {' and '.join(parts)}: they help only together"


def _route(moves: Moves, row: int) -> str:
    problem = moves.problem
    source, target = (problem.nodes[int(state.owner[row])].id for state in (moves.before, moves.after))
    return f"tablet {int(problem.ids[row])} from {source} to {target}"


def figures_of(problem: Problem, row: int) -> str:
    """A tablet's size and, if it has one, its load."""
    columns, at = problem.view.tablets, int(problem.rows[row])
    rate = float(columns.write_rate[at] + columns.read_rate[at])
    return bytes_text(float(columns.sizes[at])) + (f" and {rate_text(rate)}" if rate else "")


def tightest(problem: Problem, state: LoadState, node: int) -> tuple[str, float]:
    """The dimension in which a node is tightest, and how far it is above its due share there."""
    over = excess(problem, state.held)[node]
    at = int((over * problem.weights).argmax())
    return problem.dimensions[at], float(over[at])


def bar_text(problem: Problem, dimension: str, threshold: float) -> str:
    """A threshold as a share of this dimension: one that weighs half may be twice as uneven."""
    weight = float(problem.weights[problem.dimensions.index(dimension)])
    return share_text(threshold / weight if weight else threshold)


def level_text(over: float) -> str:
    """`12 % above its share`."""
    if abs(over) < 0.005:
        return "at its share"
    return f"{share_text(abs(over))} {'above' if over > 0 else 'below'} its share"


def value_text(view: BundleView, row: int, dimension: str) -> str:
    """A tablet's load in one dimension, with its unit."""
    match base_of(dimension):
        case "write_rate":
            return f"{rate_text(tablet_rate(view, row, dimension))} written"
        case "read_rate":
            return f"{rate_text(tablet_rate(view, row, dimension))} read"
        case "memory":
            return f"{bytes_text(float(view.tablets.memory[row]))} of memory"
        case _:
            return bytes_text(float(view.tablets.sizes[row]))


def _relief(moves: Moves, row: int) -> str:
    """Where source and target stand in the dimension that this is about, and what the tablet carries."""
    problem, state = moves.problem, moves.before
    source, target = int(state.owner[row]), int(moves.after.owner[row])
    at = _relieved(problem, state, row)
    dimension, levels = problem.dimensions[at], excess(problem, state.held)[:, at]
    over, there = float(levels[source]), float(levels[target])
    at = int(problem.rows[row])
    carried = value_text(problem.view, at, dimension)
    cost = "" if dimension in ("bytes", "tablets") else f" for {bytes_text(float(problem.sizes[row]))} to copy"
    return (
        f"{problem.nodes[source].id} is {level_text(over)} of {dimension_text(dimension)} and "
        f"{problem.nodes[target].id} is {level_text(there)}: this tablet takes {carried} there{cost}"
    )


def _relieved(problem: Problem, state: LoadState, row: int) -> int:
    """The dimension in which the tablet takes most of its node's surplus: not always the tightest one."""
    source = int(state.owner[row])
    surplus = state.held[source] - problem.due[source]
    part = 1.0 - np.abs(surplus - problem.loads[row]) / np.where(surplus > 0, surplus, 1.0)
    return int(np.where(surplus > 0, part * problem.weights, -np.inf).argmax())


def _rule_text(moves: Moves, row: int, options: BundleOptions) -> str:
    """Which rule a tablet's place violates."""
    problem = moves.problem
    node, view = problem.nodes[int(moves.before.owner[row])], problem.view
    zones = options.table(view.tables[int(problem.tables[row])].name).zones
    if zones and node.zone not in zones:
        return f"{node.id} is in zone {node.zone or '(none)'} and the table lives in {', '.join(zones)}"
    return rule_against(view, options, int(problem.ids[row]), node.id) or f"a rule wants it off {node.id}"


def overfull_text(problem: Problem, state: LoadState, node: int) -> str:
    """By how much a node is over a capacity, and whether all nodes together could manage within theirs."""
    worst = _most_over(problem, state, node)
    limit, known = problem.limits[worst], problem.nodes[node]
    capacity = limit.capacity(known)
    over = share_text(-float(state.limit_room[node, worst]) / max(capacity, 1e-300))
    total = float(problem.limited[:, worst].sum())
    all_of_them = float(
        sum(limit.capacity(one) for one, able in zip(problem.nodes, problem.receiving, strict=True) if able)
    )
    why = "no placement was found in which every node keeps to its capacities"
    if total > all_of_them:
        why = f"all tablets do {rate_text(total)} of them and all nodes can do {rate_text(all_of_them)}"
    return f"{known.id} stays {over} over its capacity for {limit.text} ({rate_text(capacity)}): {why}"


def _capacity_text(problem: Problem, state: LoadState, row: int) -> str:
    node = int(state.owner[row])
    worst = _most_over(problem, state, node)
    limit, known, room = problem.limits[worst], problem.nodes[node], float(state.limit_room[node, worst])
    carried = f"this tablet does {rate_text(float(problem.limited[row, worst]))} of them"
    if room >= 0:
        return f"{known.id} makes room, so that no node is over its capacity for {limit.text}; {carried}"
    held, capacity = rate_text(limit.capacity(known) - room), rate_text(limit.capacity(known))
    return f"{known.id} does {held} of {limit.text}, and its capacity is {capacity}; {carried}"


def _most_over(problem: Problem, state: LoadState, node: int) -> int:
    capacities = np.array([limit.capacity(problem.nodes[node]) for limit in problem.limits])
    return int((state.limit_room[node] / np.maximum(capacities, 1e-300)).argmin())


def _disk_text(moves: Moves, source: str, options: BundleOptions) -> str:
    problem = moves.problem
    at = problem.index(source)
    used = float(problem.disk_used[at]) / (problem.nodes[at].disk_capacity or 1.0)
    settings = options.placement
    if used <= settings.close_at_disk_share:
        limit = share_text(settings.reopen_at_disk_share)
        return f"{source} was closed, and its disk is {share_text(used)} full, not yet below {limit}"
    return (
        f"the disk of {source} is {share_text(used)} full, over the {share_text(settings.close_at_disk_share)} allowed"
    )
