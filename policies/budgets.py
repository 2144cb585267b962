"""How much of a plan starts now: migrations at once, bytes per window, and what still fits into the window.

`plan` asks in the order in which it would like to start things; every answer is None or the code of the budget that
is in the way. Nothing is admitted beyond a budget, whatever its reason.

Moves that others have asked for: the second half of an exchange, the rest of a chain, the parts of a split.

Running migrations carry them along (`Action.then`), so that they survive a restart; they are started before anything
that a new plan proposes, and credited to their targets from the moment they are promised: no plan undoes half of a
step. The tick and the simulator call these.

Balancing that has begun continues below the start threshold, to the stop threshold, and ends there.

Moves off nodes that are over the start threshold earn bytes, which later pay for moves off nodes between the two
thresholds. So the tail of a bundle's balancing is never longer than what it finishes, and where load only wanders,
moves start at the start threshold as before. The tick and the simulator keep it from plan to plan.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from balancer.policies.options import AUTO, MB, BundleOptions
from balancer.policies.reasons import Left, Taken, bytes_text
from balancer.policies.view import Action, ActionKind, BundleView, InFlight, PlanResult

CARRIED = 400.0 * MB
"""Bytes per second that one process carries from node to node: two seconds of a core's time per gigabyte, measured."""


@dataclass(slots=True)
class Admission:
    """What is running and what has been admitted so far."""

    view: BundleView
    options: BundleOptions
    running: int = field(init=False)
    per_node: dict[str, int] = field(init=False)
    bytes_moved: float = field(init=False)
    reserved: frozenset[str] = frozenset()
    """Nodes that are kept free for what is next in turn and waits for them."""

    def __post_init__(self) -> None:
        self.running = sum(not migration.waits for migration in self.view.in_flight)
        self.per_node = {}
        self.bytes_moved = self.view.bytes_moved_in_window
        for migration in self.view.in_flight:
            self._count(migration.source, migration.target)

    @property
    def free_total(self) -> int:
        """Migrations that may still be started."""
        return max(0, moves_at_once(self.view, self.options) - self.running)

    @property
    def exhausted(self) -> bool:
        """Whether nothing more can be admitted, whatever it is."""
        return not self.free_total

    def free_slots(self, node: str) -> int:
        """Migrations that may still be started on a node."""
        if node in self.reserved:
            return 0
        return max(0, self.options.budgets.moves_per_node - self.per_node.get(node, 0))

    @property
    def busy(self) -> frozenset[str]:
        """Nodes on which nothing more may be started."""
        return self.reserved | {node for node in self.per_node if not self.free_slots(node)}

    def obstacle(self, action: Action) -> Left | None:
        """The budget that is in the way of this action now."""
        if self.exhausted:
            return Left.MOVES_TOTAL
        if not (self.free_slots(action.source) and self.free_slots(action.target)):
            return Left.MOVES_PER_NODE
        if action.size > self.bytes_that_fit:
            return Left.WINDOW_TOO_SHORT
        if action.kind is ActionKind.MOVE and action.size > self.bytes_left:
            return Left.BYTES_PER_WINDOW
        return None

    @property
    def bytes_left(self) -> float:
        """Bytes that `bytes_per_window` still allows to be moved."""
        limit = self.options.budgets.bytes_per_window
        return float("inf") if limit is None else limit - self.bytes_moved

    @property
    def bytes_that_fit(self) -> float:
        """The largest tablet that can be copied before the window closes."""
        return self.seconds_left * bytes_per_second(self.view, self.options)

    @property
    def seconds_left(self) -> float:
        """Until the window closes."""
        left = self.view.window_seconds_left
        return float("inf") if left is None else left

    def admit(self, action: Action) -> None:
        """Counts an action as started."""
        self.running += 1
        self._count(action.source, action.target)
        if action.kind is ActionKind.MOVE:
            self.bytes_moved += action.size

    def promise(self, size: float) -> None:
        """Counts bytes that must be moved later because of what is started now."""
        self.bytes_moved += size

    def explain(self, action: Action, code: Left) -> str:
        """One sentence with the numbers of the budget that is in the way."""
        budgets = self.options.budgets
        if code is Left.MOVES_TOTAL:
            limit = moves_at_once(self.view, self.options)
            chosen = " (auto)" if budgets.moves_total == AUTO else ""
            return f"{self.running} migrations run or start, and moves_total is {limit}{chosen}"
        if code is Left.MOVES_PER_NODE:
            busy = action.target if self.free_slots(action.source) else action.source
            if busy in self.reserved:
                return f"{busy} is kept free for a migration that has waited for it longer"
            here = self.per_node.get(busy, 0)
            return f"{busy} takes part in {_migrations(here)}, and moves_per_node is {budgets.moves_per_node}"
        if code is Left.WINDOW_TOO_SHORT:
            needed = action.size / bytes_per_second(self.view, self.options)
            return (
                f"{bytes_text(action.size)} take {needed:.0f} s at the rate "
                f"{'seen' if self.view.measured_bytes_per_second else 'expected'}, the window leaves "
                f"{self.seconds_left:.0f} s"
            )
        allowed = float(budgets.bytes_per_window or 0)
        return (
            f"{bytes_text(self.bytes_moved)} of the {bytes_text(allowed)} of bytes_per_window are spent, this would "
            f"add {bytes_text(action.size)}"
        )

    def _count(self, *nodes: str) -> None:
        for node in {node for node in nodes if node}:
            self.per_node[node] = self.per_node.get(node, 0) + 1


def moves_at_once(view: BundleView, options: BundleOptions) -> int:
    """Migrations of the bundle that may run at once.

    `auto`: each needs two nodes, of which each takes part in `moves_per_node`; and all their rows go through one
    process, whose throughput is limited, however many there are.
    """
    wanted = options.budgets.moves_total
    if wanted != AUTO:
        return wanted
    pairs = len(view.nodes) * options.budgets.moves_per_node // 2
    carried = int(CARRIED // max(1.0, bytes_per_second(view, options)))
    return max(1, min(pairs, carried))


def bytes_per_second(view: BundleView, options: BundleOptions) -> float:
    """How fast a tablet is copied: as measured, otherwise as expected."""
    return view.measured_bytes_per_second or options.budgets.expected_bytes_per_second


def _migrations(count: int) -> str:
    return "1 migration" if count == 1 else f"{count} migrations"


def affordable(owed: Iterable[Action], view: BundleView, options: BundleOptions) -> list[Action]:
    """Those that the budgets and the window have room for, with their sizes."""
    running = tuple(migration for migration in view.in_flight if not migration.waits)
    admission, taken = Admission(replace(view, in_flight=running), options), []
    owed = list(owed)
    rows = rows_of(view, [action.tablets[0] for action in owed])
    for action in owed:
        row = rows.get(action.tablets[0])
        sized = replace(action, size=0.0 if row is None else float(view.tablets.sizes[row]))
        if admission.obstacle(sized) is None:
            admission.admit(sized)
            taken.append(sized)
    return taken


def credited(view: BundleView, started: Iterable[Action], waiting: Iterable[InFlight] = ()) -> BundleView:
    """The view as if these were already in flight: the plan gives their room to nobody else."""
    flights = tuple(InFlight(f"owed-{at}", one.tablets, one.source, one.target) for at, one in enumerate(started))
    flights += tuple(waiting)
    return replace(view, in_flight=(*view.in_flight, *flights)) if flights else view


def waiting_flights(pairs: Iterable[tuple[int, str]], view: BundleView) -> list[InFlight]:
    """Tablets and where they go later, as flights that wait; what is already on its node, or gone, is left out."""
    pairs = list(pairs)
    rows = rows_of(view, [tablet for tablet, _ in pairs])
    found = []
    for tablet, target in pairs:
        source = view.nodes[int(view.tablets.node[rows[tablet]])].id if tablet in rows else ""
        if source and source != target:
            found.append(InFlight(f"promised-{tablet}", (tablet,), source, target, waits=True))
    return found


def rows_of(view: BundleView, tablets: Sequence[int]) -> dict[int, int]:
    """The rows of these tablets, as far as they exist."""
    if not tablets:
        return {}
    rows = np.flatnonzero(np.isin(view.tablets.ids, np.array(tablets, dtype=np.int64)))
    return {int(view.tablets.ids[row]): int(row) for row in rows}


FOR_BALANCE = (Taken.LOAD, Taken.SWAP, Taken.CHAIN)
_TAIL = 0.25  # bytes that each byte moved off a node over the start threshold earns for the tail


@dataclass(frozen=True, slots=True)
class BalancingCredit:
    """What is left to do of what has begun."""

    bytes: float = 0.0  # that moves off nodes between the thresholds may still copy
    nodes: frozenset[str] = frozenset()  # over the start threshold at the last plan

    def after(self, plan: PlanResult, started: Iterable[Action]) -> "BalancingCredit":
        """How it stands after a plan of which these actions were started."""
        if not plan.unfinished:
            return NOTHING_BEGUN
        moves = [action for action in started if action.code in FOR_BALANCE]
        main = sum(action.size for action in moves if action.source in plan.overloaded)
        rest = sum(action.size for action in moves) - main
        # A node that was not over the threshold before is a new story, of changing load: nothing is earned for it.
        earned = self.bytes if plan.overloaded <= self.nodes else 0.0
        return BalancingCredit(max(0.0, earned + _TAIL * main - rest), plan.overloaded)


NOTHING_BEGUN = BalancingCredit()
