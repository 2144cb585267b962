"""Orders: an operator's wish that takes many migrations, such as doubling all vbuckets of a table.

An order is kept in the directory as a plan in state `ordered`, with the tablets that the table had when it was given
and nothing about how far it is: ids are never reused, so what no longer exists has been done. Every tick asks `due`
what is left and starts as much of it as the budgets allow; a new leader continues where the last one stopped.
`policies.resize.sizes` decides; nothing here acts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from balancer.directory.model import Migration, Plan, Put, Table
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused
from balancer.policies.budgets import Admission
from balancer.policies.keyspace.hash_leaves import MAX_MODULUS, Leaf
from balancer.policies.options import BundleOptions
from balancer.policies.placement.candidates import history_standing
from balancer.policies.reasons import MEANINGS, Left
from balancer.policies.resize.scope import MAX_TABLETS
from balancer.policies.resize.sizes import double, halve
from balancer.policies.view import Action, ActionKind, BundleView, Rejection, TabletHistory

ORDERED, DONE, WITHDRAWN = "ordered", "done", "withdrawn"
DOUBLE, HALVE = "double", "halve"

_WORDS = {DOUBLE: "doubling the vbuckets of", HALVE: "halving the vbuckets of"}
_FUNCTIONS = {DOUBLE: double, HALVE: halve}
_CODES = frozenset({DOUBLE, HALVE, "gather"})
"""Codes of the actions that an order results in."""
_PASSING = frozenset({"in-flight", "source-down", "gathering"})
"""Codes of obstacles that go away without an operator."""


@dataclass(frozen=True, slots=True)
class Due:
    """What is left of an order."""

    order: Plan
    actions: tuple[Action, ...] = ()
    """What may be started, budgets aside."""
    waiting: int = 0
    """What waits for a running migration, a rest after a failure, or a node that is down."""
    impossible: tuple[Rejection, ...] = ()
    """What cannot be done at all, and why."""

    @property
    def finished(self) -> bool:
        return not self.actions and not self.waiting

    @property
    def at_once(self) -> bool:
        """Whether it does not wait for the schedule."""
        return bool(self.order.document["at_once"])


def place(snapshot: Snapshot, table: Table, what: str, now: float, *, at_once: bool, author: str) -> Plan:
    """A new order for the directory. Raises `Refused` if the table cannot be doubled or halved."""
    tablets = concerned(snapshot, table, what)
    for running in open_orders(snapshot, table.bundle):
        if running.document["table"] == table.name:
            raise Refused(f"order {running.id} comes first: {sentence(running, snapshot)}; `balancer cancel` ends it")
    document = {"order": what, "table": table.name, "tablets": tablets, "at_once": at_once, "author": author}
    return Plan(uuid4().hex[:8], table.bundle, now, ORDERED, {**document, "actions": []})


def concerned(snapshot: Snapshot, table: Table, what: str) -> list[int]:
    """The tablets that an order would replace. Raises `Refused` if there can be none."""
    if table.whole:
        raise Refused(f"table {table.name} is whole: it is neither split nor merged")
    if not table.hashed:
        raise Refused(f"{table.name} is a range table: only the vbuckets of a hash table are doubled and halved")
    leaves = {tablet.bounds: tablet.id for tablet in snapshot.tablets(table.id) if isinstance(tablet.bounds, Leaf)}
    if what == HALVE:
        found = [number for leaf, number in leaves.items() if leaf.sibling() in leaves]
        if not found:
            raise Refused(f"no two vbuckets of {table.name} are siblings: there is nothing to halve")
        return sorted(found)
    if 2 * len(leaves) >= MAX_TABLETS:
        raise Refused(f"{table.name} has {len(leaves)} vbuckets and would reach the limit of {MAX_TABLETS} tablets")
    if 2 * max(leaf.modulus for leaf in leaves) > MAX_MODULUS:
        raise Refused(f"{table.name} has a vbucket of modulus {MAX_MODULUS}: none can be larger")
    return sorted(leaves.values())


def is_order(plan: Plan) -> bool:
    """Whether a plan of the directory is an operator's order."""
    return "order" in plan.document


def open_orders(snapshot: Snapshot, bundle: str) -> list[Plan]:
    """The orders of a bundle in progress, oldest first."""
    found = (plan for plan in snapshot.plans.values() if plan.bundle == bundle and plan.state == ORDERED)
    return sorted(found, key=lambda plan: (plan.created, plan.id))


def unscheduled(snapshot: Snapshot, record: Migration) -> bool:
    """Whether a migration belongs to an order that does not wait for the schedule."""
    return record.detail.get("code") in _CODES and any(
        is_order(plan) and plan.document["at_once"] and set(record.sources).issubset(plan.document["tablets"])
        for plan in snapshot.plans.values()
    )


def due(order: Plan, view: BundleView, options: BundleOptions) -> Due:
    """What is left of an order: only tablets that were there when it was given are touched."""
    document = order.document
    table = next((one for one in view.tables if one.name == document["table"]), None)
    if table is None:
        return Due(order)
    mine = frozenset(document["tablets"])
    found = _FUNCTIONS[document["order"]](view, options, table, mine)
    actions: list[Action] = []
    waiting, impossible = 0, []
    for action in found.actions:
        standing = _failed_lately(action, view, options)
        if not mine.issuperset(action.tablets):
            continue
        if standing is None:
            actions.append(action)
        elif standing is Left.BACKING_OFF:
            waiting += 1
        else:
            impossible.append(Rejection(action.kind, action.tablets, str(standing), MEANINGS[standing]))
    for rejection in found.rejections:
        if rejection.code in _PASSING:
            waiting += 1
        else:
            impossible.append(rejection)
    return Due(order, tuple(actions), waiting, tuple(impossible))


def startable(dues: Iterable[Due], admission: Admission, *, schedule_open: bool) -> list[Action]:
    """What may be started now, within the budgets; what is admitted is counted in `admission`."""
    found = []
    for one in dues:
        if schedule_open or one.at_once:
            found += take(one.actions, admission)
    return found


def take(actions: Iterable[Action], admission: Admission) -> list[Action]:
    """Those actions for which the budgets have room, in their order."""
    found = []
    for action in actions:
        if admission.obstacle(action) is None:
            admission.admit(action)
            found.append(action)
    return found


def beside(actions: Iterable[Action], dues: Sequence[Due]) -> list[Action]:
    """A plan's own actions without those that would work against an order: it alone reshapes its table."""
    tables = {one.order.document["table"] for one in dues}
    return [action for action in actions if action.kind is ActionKind.MOVE or action.table not in tables]


def settled(dues: Iterable[Due], view: BundleView) -> tuple[Put, ...]:
    """The orders that have ended, with the number of tablets that they have led to."""
    counts = {table.name: table.last - table.first for table in view.tables}
    return tuple(
        Put(
            replace(
                one.order,
                state=DONE,
                document={
                    **one.order.document,
                    "not_started": [found.reason for found in one.impossible],
                    "result": counts.get(one.order.document["table"]),
                },
            )
        )
        for one in dues
        if one.finished
    )


def ended_orders(snapshot: Snapshot, bundle: str) -> list[Plan]:
    """The orders of a bundle that are no longer in progress, oldest first."""
    found = (plan for plan in snapshot.plans.values() if plan.bundle == bundle and is_order(plan))
    return sorted((plan for plan in found if plan.state != ORDERED), key=lambda plan: (plan.created, plan.id))


def respected(options: BundleOptions, snapshot: Snapshot, bundle: str) -> BundleOptions:
    """The options with which an operator's doubling is not undone: its result is the least number of tablets.

    A later halving ends that, and so does a `desired_tablet_count` in the bundle's file.
    """
    newest = {plan.document["table"]: plan for plan in ended_orders(snapshot, bundle) if plan.state == DONE}
    tables = dict(options.tables)
    for name, plan in newest.items():
        table, least = options.table(name), plan.document.get("result")
        if plan.document["order"] == DOUBLE and least and table.desired_tablet_count is None:
            tables[name] = replace(table, min_tablet_count=max(least, table.min_tablet_count or 1))
    return replace(options, tables=tables)


def progress(order: Plan, snapshot: Snapshot) -> dict[str, Any]:
    """How far an order is, as plain data."""
    tablets = order.document["tablets"]
    done = sum(1 for number in tablets if snapshot.find_tablet(number) is None)
    return {
        "id": order.id,
        "order": order.document["order"],
        "table": order.document["table"],
        "state": order.state,
        "done": done,
        "running": sum(1 for number in tablets if snapshot.migration_of(number) is not None),
        "total": len(tablets),
        "not_started": order.document.get("not_started", []),
        "sentence": sentence(order, snapshot),
    }


def sentence(order: Plan, snapshot: Snapshot) -> str:
    """How far an order is, for people."""
    tablets = order.document["tablets"]
    done = sum(1 for number in tablets if snapshot.find_tablet(number) is None)
    return f"{_WORDS[order.document['order']]} {order.document['table']}: {done} of {len(tablets)} vbuckets done"


def _failed_lately(action: Action, view: BundleView, options: BundleOptions) -> Left | None:
    """What failures of a tablet's last migrations forbid; a rest after a success does not hold an order back."""
    for tablet in action.tablets:
        standing = history_standing(view, options, view.history.get(tablet, TabletHistory()))
        if standing in (Left.QUARANTINED, Left.BACKING_OFF):
            return standing
    return None
