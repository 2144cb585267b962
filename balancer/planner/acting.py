"""What a tick starts: what migrations promised, what operators ordered, and the plan's own actions.

`tick` calls `plan_and_act` with everything it knows. Mode, pause and schedules say what may start; a starter starts it,
and only a leader has one. What could not be started is reported and stops nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from balancer.directory.model import Command, Migration, Plan
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Fenced
from balancer.nodes.session.connection import Address
from balancer.planner import orders
from balancer.planner.bundle_state import in_words
from balancer.planner.windows import Openings
from balancer.policies.budgets import NOTHING_BEGUN, Admission, BalancingCredit
from balancer.policies.plan.plan import make_plan
from balancer.policies.view import Action, BundleView, NodeChange, PlanResult
from balancer.polling.poller import ClusterPoll
from balancer.settings import BundleSettings, Mode, Settings


class Starter(Protocol):
    """Carries out what was admitted. Only a leader has one."""

    def start(self, action: Action, bundle: BundleSettings) -> Migration:
        """Journals a migration and sets it to work; raises one of our errors if that is not possible."""

    def change_node(self, change: NodeChange) -> None:
        """Closes a node to new data, or opens it again."""

    def guard(self, poll: ClusterPoll, snapshot: Snapshot) -> Mapping[str, str]:
        """Keeps nodes that have gone back in time from doing harm; in every mode. Returns why it could not, by node."""

    def quarantine(self, tablets: Sequence[int], failures: int) -> None:
        """Quarantines tablets whose migrations failed this often in a row, until an operator releases them."""

    def propose(self, plan: PlanResult, view: BundleView, bundle: BundleSettings, *, asked: bool = False) -> str:
        """Records a plan that is new or was asked for; returns the id of the one that stands, empty: there is none."""

    def settle(self, plan: str, handled: Sequence[Action], failures: Sequence[str]) -> None:
        """Records which of a plan's actions have been handled, and why some could not be started."""

    def settle_orders(self, bundle: str, dues: Sequence[orders.Due], view: BundleView) -> None:
        """Records which of the operators' orders have ended, and forgets old ones."""

    def answer_rounds(self, rounds: Sequence[Command], started: Sequence[Migration], refused: Sequence[str]) -> None:
        """Records what was started because operators asked for a round."""

    def park(self, bundle: str, overrunning: frozenset[str]) -> None:
        """Holds these migrations of a bundle at a safe point, and resumes those it held before."""


@dataclass(frozen=True, slots=True)
class TickInput:
    """What a tick is given: the moment's settings, the directory's newest snapshot, and who leads."""

    bundle: BundleSettings
    settings: Settings
    snapshot: Snapshot
    addresses: Mapping[str, Address]
    leader: str | None
    starter: Starter | None = None
    approved: tuple[Action, ...] = ()
    """In mode `approve`: the actions of an approved plan that have not been started yet."""
    plan: str = ""
    """The plan that stands: the approved one, or else the proposed one."""
    asked: bool = False
    """Whether an operator asked for this plan: then it is recorded whatever it proposes."""
    orders: tuple[Plan, ...] = ()
    """Operators' orders in progress, in whatever mode."""
    tail: BalancingCredit = NOTHING_BEGUN
    """How far the balancing in progress has come."""
    rounds: tuple[Command, ...] = ()
    """Operators' commands to act now, whatever the schedule."""
    looked: datetime | None = None
    """When a leader's tick last looked at the schedules; None: as far as is known, none has."""

    @property
    def pause_until(self) -> datetime | None:
        """When an operator's pause ends; None: never by itself, or there is no pause."""
        pause = self.snapshot.pauses.get(self.bundle.name)
        return None if pause is None or pause.until is None else datetime.fromtimestamp(pause.until, UTC)

    def paused(self, now: datetime) -> bool:
        """Whether an operator has paused the bundle."""
        pause = self.snapshot.pauses.get(self.bundle.name)
        return pause is not None and (pause.until is None or pause.until > now.timestamp())


@dataclass(frozen=True, slots=True)
class TickFacts:
    """What one tick knows when it acts."""

    occasion: TickInput
    now: datetime
    openings: Openings
    view: BundleView
    owed: Sequence[Action]
    plan: PlanResult
    dues: Sequence[orders.Due]
    """What is left of the operators' orders."""

    def scheduled(self, due: orders.Due) -> bool:
        """Whether the window of an order's table is open."""
        document = due.order.document
        return self.openings.window(document["table"], document["order"]).open


@dataclass(frozen=True, slots=True)
class TickActions:
    """What a tick has done: migrations begun, and why others could not begin."""

    started: tuple[Migration, ...] = ()
    refused: tuple[str, ...] = ()
    handled: tuple[Action, ...] = ()
    """The plan's own actions that the tick got to."""
    failures: tuple[str, ...] = ()
    """Those of the refusals that belong to them."""
    begun: tuple[Action, ...] = ()
    """The plan's own actions, if any of them was started."""

    @property
    def words(self) -> tuple[str, ...]:
        """What was started, for people."""
        return tuple(map(in_words, self.started))


def plan_and_act(moment: TickFacts) -> tuple[str, TickActions]:
    """Records the plan, acts, and records what became of plan and orders; returns the plan that stands."""
    occasion, starter = moment.occasion, moment.occasion.starter
    if starter is None:
        return occasion.plan, TickActions()
    limit = occasion.bundle.options.budgets.quarantine_after
    starter.quarantine(_failing(moment.view, limit), limit)
    plan_id = starter.propose(moment.plan, moment.view, occasion.bundle, asked=occasion.asked)
    acts = _act(moment, starter)
    if plan_id and acts.handled:
        starter.settle(plan_id, acts.handled, acts.failures)
    starter.settle_orders(occasion.bundle.name, moment.dues, moment.view)
    if occasion.rounds:
        starter.answer_rounds(occasion.rounds, acts.started, acts.refused)
    return plan_id, acts


def _failing(view: BundleView, limit: int) -> list[int]:
    """Tablets whose migrations have failed this often in a row and that are not quarantined yet."""
    failing = {tablet for tablet, history in view.history.items() if history.failures >= limit}
    return sorted(failing - view.quarantined)


def _act(moment: TickFacts, starter: Starter) -> TickActions:
    """Parks what runs beyond its window, and starts what may start now."""
    occasion, openings, bundle = moment.occasion, moment.openings, moment.occasion.bundle
    starter.park(bundle.name, openings.overrunning(occasion.snapshot, bundle))
    if occasion.paused(moment.now):
        return TickActions()
    admission = Admission(moment.view, bundle.options)
    ordered = _ordered(moment, admission)
    started, refused = _start(starter, (*moment.owed, *ordered), bundle)
    if not openings.any:
        return TickActions(tuple(started), tuple(refused))
    if bundle.mode is Mode.AUTONOMOUS:
        refused += _change_nodes(starter, moment.plan.node_changes)
    own = _beside_orders(moment, ordered, admission)
    begun, failures = _start(starter, own, bundle)
    balancing = tuple(own) if begun else ()
    return TickActions((*started, *begun), (*refused, *failures), tuple(own), tuple(failures), balancing)


def _ordered(moment: TickFacts, admission: Admission) -> list[Action]:
    """What operators' orders may start now, within the budgets."""
    found: list[Action] = []
    for due in moment.dues:
        found += orders.startable([due], admission, schedule_open=moment.scheduled(due))
    return found


def _beside_orders(moment: TickFacts, ordered: Sequence[Action], admission: Admission) -> Sequence[Action]:
    """The plan's own actions that may start now, in addition to what the orders have started."""
    own = _due(moment)
    if moment.occasion.bundle.mode is not Mode.AUTONOMOUS or not moment.dues:
        return own
    # The plan was made without the orders: the tablets and budgets that they have taken are not available to it.
    taken = {tablet for action in ordered for tablet in action.tablets}
    free = [action for action in orders.beside(own, moment.dues) if taken.isdisjoint(action.tablets)]
    return orders.take(free, admission)


def _start(starter: Starter, actions: Sequence[Action], bundle: BundleSettings) -> tuple[list[Migration], list[str]]:
    """What was started, and why others could not start."""
    started: list[Migration] = []
    refused: list[str] = []
    for action in actions:
        try:
            started.append(starter.start(action, bundle))
        except Fenced:
            raise
        except BalancerError as error:
            refused.append(f"{action.kind} of tablet {action.tablets[0]} cannot be started: {error}")
    return started, refused


def _due(moment: TickFacts) -> Sequence[Action]:
    """The actions that mode and schedules allow at this moment."""
    openings, plan = moment.openings, moment.plan
    match moment.occasion.bundle.mode:
        case Mode.OBSERVE:
            return ()
        case Mode.APPROVE:
            return [action for action in moment.occasion.approved if openings.allows(action)]
        case Mode.AUTONOMOUS:
            if openings.all or not plan.actions:
                return plan.actions
            # Planned again without what must wait: the room in the budgets is for what may start now.
            due = make_plan(moment.view, openings.narrowed()).actions
            return [action for action in due if openings.allows(action)]


def _change_nodes(starter: Starter, changes: Sequence[NodeChange]) -> list[str]:
    refused = []
    for change in changes:
        try:
            starter.change_node(change)
        except Fenced:
            raise
        except BalancerError as error:
            refused.append(f"node {change.node} cannot be made {change.condition}: {error}")
    return refused
