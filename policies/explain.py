"""What a tired operator asks: how is this tablet, how is this node, why this action. Plain sentences with numbers.

The commands and the API call these with the view and the options a plan was made from; nothing is decided here.
"""

from dataclasses import dataclass

import numpy as np

from balancer.policies.bundle_view import Action, ActionKind, BundleView, NodeCondition, PlanResult
from balancer.policies.closing import disk_share
from balancer.policies.day_loads import dimension_text
from balancer.policies.figures import bytes_text, rate_text, share_text
from balancer.policies.move_reasons import level_text, reason_for
from balancer.policies.options import BundleOptions
from balancer.policies.placement_candidates import STANDINGS, decider
from balancer.policies.placement_loads import Problem, build_problem, excess
from balancer.policies.reasons import MEANINGS
from balancer.policies.wanted_moves import Moves, plan_moves
from balancer.policies.why_not import find_node, find_row

__all__ = ["Explanation", "explain_action", "explain_node", "explain_tablet"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Sentences, the most important first."""

    subject: str
    sentences: tuple[str, ...]


def explain_tablet(view: BundleView, options: BundleOptions, tablet: int) -> Explanation:
    """Where it is, what it carries, what decides about it, and what the plan does with it."""
    problem = build_problem(view, options)
    row = find_row(problem, tablet)
    moves = plan_moves(problem, options)
    table = view.tables[int(problem.tables[row])]
    node = problem.nodes[int(problem.home[row])].id
    sentences = [
        f"tablet {tablet} of table {table.name} is on {node}: {_figures(problem, row)}",
        _part_of_node(problem, moves, row),
        _future(problem, moves, row, options),
        f"its place is decided by the {decider(options, table)} mover",
    ]
    return Explanation(f"tablet {tablet}", tuple(sentences))


def explain_node(view: BundleView, options: BundleOptions, node: str) -> Explanation:
    """How full it is in every dimension, and what the plan takes from it and gives to it."""
    problem = build_problem(view, options)
    at = find_node(problem, node)
    moves = plan_moves(problem, options)
    known = problem.nodes[at]
    count = int((problem.home == at).sum())
    sentences = [f"node {node} is {known.condition} and holds {count} tablets, {_held(problem, at)}"]
    full = disk_share(problem, at)
    if full is not None:
        limits = options.placement
        sentences.append(
            f"its disk is {share_text(full)} full: it closes at {share_text(limits.close_at_disk_share)} and reopens "
            f"below {share_text(limits.reopen_at_disk_share)}"
        )
    else:
        sentences.append(
            "its disk usage is unknown: PostgreSQL does not report it, and the bundle's file sets no `disk`"
        )
    if known.condition in (NodeCondition.ACTIVE, NodeCondition.CLOSED):
        sentences += _levels(problem, moves, at)
    sentences.append(_traffic(problem, moves, at))
    return Explanation(f"node {node}", tuple(sentences))


def explain_action(plan: PlanResult, action: Action) -> Explanation:
    """Why it is proposed, what it costs, and where it stands in the plan."""
    place = plan.actions.index(action) + 1
    tablets = ", ".join(str(tablet) for tablet in action.tablets)
    verb = f"{action.kind} of tablet{'s' if len(action.tablets) > 1 else ''} {tablets}"
    where = f" from {action.source} to {action.target}" if action.kind is ActionKind.MOVE else f" on {action.source}"
    verbs = {ActionKind.MOVE: "copied", ActionKind.EXPIRE: "rewritten: the rows go"}
    cost = f"{bytes_text(action.size)} are {verbs.get(action.kind, 'rewritten')}"
    return Explanation(
        f"action {place}",
        (
            f"{verb}{where}: {action.reason}",
            f"{cost}; it is action {place} of {len(plan.actions)} that may start now",
            f"the plan takes the balance from {plan.score_before:.1f} to {plan.score_after:.1f} of 100",
            f"no plan within these budgets reaches more than {plan.bound:.1f}",
        ),
    )


def _figures(problem: Problem, row: int) -> str:
    columns, at = problem.view.tablets, int(problem.rows[row])
    memory = f", {bytes_text(float(columns.memory[at]))} of memory" if columns.memory[at] else ""
    written, read = rate_text(float(columns.write_rate[at])), rate_text(float(columns.read_rate[at]))
    return f"{bytes_text(float(columns.sizes[at]))}{memory}, {written} written, {read} read"


def _part_of_node(problem: Problem, moves: Moves, row: int) -> str:
    """The tablet's share of its node's load, in the dimension where that is largest."""
    node = int(problem.home[row])
    held = moves.before.held[node]
    parts = np.divide(problem.loads[row], held, out=np.zeros_like(held), where=held > 0)
    if not parts.size:
        return "the bundle carries no load yet"
    at = int(parts.argmax())
    return f"it is {share_text(float(parts[at]))} of its node's {dimension_text(problem.dimensions[at])}"


def _future(problem: Problem, moves: Moves, row: int, options: BundleOptions) -> str:
    target = int(moves.after.owner[row])
    if target != int(problem.home[row]):
        return f"it should move to {problem.nodes[target].id}: {reason_for(moves, row, options)}"
    code = STANDINGS[int(moves.standing[row])]
    if code is not None:
        return f"it stays: {MEANINGS[code]}"
    if not moves.started:
        return f"it stays: no node is {share_text(options.placement.start_threshold)} above its share"
    return "it stays: moving it would not help, or other tablets relieve its node for fewer bytes"


def _held(problem: Problem, at: int) -> str:
    mine, columns = problem.home == at, problem.view.tablets
    rows = problem.rows[mine]
    written, read = float(columns.write_rate[rows].sum()), float(columns.read_rate[rows].sum())
    return f"{bytes_text(float(columns.sizes[rows].sum()))}, {rate_text(written)} written, {rate_text(read)} read"


def _levels(problem: Problem, moves: Moves, at: int) -> list[str]:
    over = excess(problem, moves.before.held)[at]
    order = np.argsort(-over * problem.weights, kind="stable").tolist()
    parts = [f"{level_text(float(over[d]))} of {dimension_text(problem.dimensions[d])}" for d in order]
    return [f"it is {', '.join(parts)}"] if parts else []


def _traffic(problem: Problem, moves: Moves, at: int) -> str:
    out = (moves.before.owner == at) & (moves.after.owner != at)
    into = (moves.before.owner != at) & (moves.after.owner == at)
    given, taken = bytes_text(float(problem.sizes[out].sum())), bytes_text(float(problem.sizes[into].sum()))
    if not out.any() and not into.any():
        return "the plan leaves it as it is"
    return (
        f"in the end the plan takes {int(out.sum())} tablets ({given}) from it and gives it {int(into.sum())} ({taken})"
    )
