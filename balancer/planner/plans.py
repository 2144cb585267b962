"""Plans in the directory: proposed by a tick, approved by an operator, done or superseded. Only a leader writes them.

A plan is written when its proposals differ from the last one's, not at every tick. Some older ones are kept, so that
yesterday's decision can still be explained. While an approved plan waits to be started, nothing new is proposed: the
operator has decided.

A plan as the directory keeps it: what is proposed, what was held back and why, and everything it was made from.

With its inputs stored, a plan can be explained, questioned (`why-not`) and made again from any host, long after the
load that caused it has gone. Columns are packed; if even that is too large for the directory, the plan is kept without
its inputs and says so.
"""

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any
from uuid import uuid4

import numpy as np
from pydantic import TypeAdapter

from balancer.directory.model import Change, Plan, Put, RecordKind, Remove
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.codec import inflate, read_json, reading_stored
from balancer.planner.orders import ended_orders, is_order
from balancer.policies.day.profile import LOADS
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import KeyType
from balancer.policies.options import BundleOptions
from balancer.policies.view import (
    Action,
    ActionKind,
    BundleView,
    DaySpan,
    InFlight,
    KeySamples,
    NodeView,
    Part,
    PlanResult,
    ProfileColumns,
    TabletColumns,
    TabletHistory,
    TableView,
)
from balancer.settings import Mode
from balancer.settings.from_options import build, model_of

PROPOSED, APPROVED, DONE, SUPERSEDED = "proposed", "approved", "done", "superseded"
KEPT = 10  # finished plans per bundle


def of_bundle(snapshot: Snapshot, bundle: str) -> list[Plan]:
    """A bundle's plans, oldest first; operators' orders are not among them."""
    mine = (plan for plan in snapshot.plans.values() if plan.bundle == bundle and not is_order(plan))
    return sorted(mine, key=lambda plan: plan.created)


def in_state(snapshot: Snapshot, bundle: str, state: str) -> Plan | None:
    """The newest plan of a bundle in this state."""
    found = [plan for plan in of_bundle(snapshot, bundle) if plan.state == state]
    return found[-1] if found else None


def actions_of(plan: Plan) -> tuple[Action, ...]:
    """What a plan proposes."""
    return read_actions(plan.document)


def propose(
    snapshot: Snapshot,
    result: PlanResult,
    view: BundleView,
    options: BundleOptions,
    mode: Mode,
    *,
    asked: bool = False,
) -> tuple[str, tuple[Change, ...]]:
    """The id of the plan that stands for this result, and the changes that record it: none if it is already recorded.

    A plan that was asked for is always recorded, with its inputs: even one that proposes nothing, or that comes while
    an approved one stands, can be explained.
    """
    known = of_bundle(snapshot, view.bundle)
    waiting = [plan for plan in known if plan.state == APPROVED] if mode is Mode.APPROVE else []
    if waiting and not asked:
        return waiting[-1].id, _superseded(known, (PROPOSED,))
    last = known[-1] if known else None
    if not asked and last is not None and last.state == PROPOSED and same(actions_of(last), result.actions):
        return last.id, ()
    # Approved in a mode that asked for approval, which has changed since: nobody will start it.
    stale = _superseded(known, (PROPOSED,) if waiting else (PROPOSED, APPROVED))
    if not result.actions and not asked:
        return "", stale
    state = SUPERSEDED if waiting else PROPOSED if result.actions else DONE
    plan = Plan(uuid4().hex[:8], view.bundle, view.now, state, plan_document(result, view, options))
    standing = waiting[-1].id if waiting else plan.id if result.actions else ""
    return standing, (Put(plan), *stale, *_forgotten(known, {change.record.key for change in stale}))


def settle(plan: Plan, handled: Sequence[Action], failures: Sequence[str]) -> Put:
    """A plan whose actions have been started, or could not be; an approved one keeps what waits for its window."""
    document = {**plan.document, "not_started": [*plan.document.get("not_started", ()), *failures]}
    pairs = zip(plan.document["actions"], actions_of(plan), strict=True)
    left = [written for written, action in pairs if action not in handled]
    if plan.state == APPROVED and left:
        return Put(replace(plan, document={**document, "actions": left}))
    return Put(replace(plan, state=DONE, document=document))


def same(left: Sequence[Action], right: Sequence[Action]) -> bool:
    """Whether two plans propose the same, whatever figures they give for it."""
    return [_essence(action) for action in left] == [_essence(action) for action in right]


def _essence(action: Action) -> tuple[object, ...]:
    return action.kind, action.tablets, action.target, action.count, action.parts, action.then


def _superseded(known: Sequence[Plan], states: Sequence[str]) -> tuple[Put, ...]:
    return tuple(Put(replace(plan, state=SUPERSEDED)) for plan in known if plan.state in states)


def forgotten_orders(snapshot: Snapshot, bundle: str) -> tuple[Remove, ...]:
    """Orders that ended so long ago that others have replaced them; a table's newest one is still respected."""
    ended = ended_orders(snapshot, bundle)
    newest = {plan.document["table"]: plan.id for plan in ended if plan.state == DONE}
    old = [plan for plan in ended if plan.id not in newest.values()]
    return tuple(Remove(RecordKind.PLAN, plan.id) for plan in old[: max(0, len(old) - KEPT)])


def _forgotten(known: Sequence[Plan], changed: set[str]) -> tuple[Remove, ...]:
    finished = [plan for plan in known if plan.state not in (PROPOSED, APPROVED) and plan.id not in changed]
    return tuple(Remove(RecordKind.PLAN, plan.id) for plan in finished[: max(0, len(finished) - KEPT)])


LARGEST_INPUT = 256 * 1024  # packed bytes: with the plan itself well below what the directory accepts in one commit

_ARRAYS = tuple(field.name for field in fields(TabletColumns) if field.name != "lowers")
_nodes = TypeAdapter(tuple[NodeView, ...])
_in_flight = TypeAdapter(tuple[InFlight, ...])
_history = TypeAdapter(dict[int, TabletHistory])
_samples = TypeAdapter(KeySamples)
_KEYS = ("keys", "spans", "row_keys")  # of samples: bytes, which JSON does not know


def plan_document(result: PlanResult, view: BundleView, options: BundleOptions) -> dict[str, Any]:
    """The whole plan for the directory."""
    packed = pack_input(view, options)
    return {
        "actions": [_action(action) for action in result.actions],
        "rejections": [asdict(rejection) for rejection in result.rejections],
        "counts": dict(result.counts),
        "node_changes": [asdict(change) for change in result.node_changes],
        "score_before": result.score_before,
        "score_after": result.score_after,
        "bound": result.bound,
        "limit": result.limit,
        "pending_moves": result.pending_moves,
        "pending_bytes": result.pending_bytes,
        "notes": list(result.notes),
        "input": packed if len(packed) <= LARGEST_INPUT else None,
    }


def read_actions(document: dict[str, Any]) -> tuple[Action, ...]:
    """The actions of a stored plan."""
    with reading_stored():
        return tuple(_read_action(action) for action in document["actions"])


def pack_input(view: BundleView, options: BundleOptions) -> str:
    """View and options as one compressed text."""
    columns = view.tablets
    document = {
        "options": asdict(options),
        "bundle": view.bundle,
        "now": view.now,
        "nodes": [asdict(node) for node in view.nodes],
        "tables": [asdict(table) for table in view.tables],
        "tablets": {name: _pack_array(getattr(columns, name)) for name in _ARRAYS},
        "lowers": [lower.hex() for lower in columns.lowers],
        "in_flight": [asdict(migration) for migration in view.in_flight],
        "pinned": sorted(view.pinned),
        "quarantined": sorted(view.quarantined),
        "expired": sorted(view.expired),
        "expiry_held": view.expiry_held,
        "history": {str(number): asdict(history) for number, history in view.history.items()},
        "samples": {str(number): _pack_samples(samples) for number, samples in view.samples.items()},
        "window_seconds_left": view.window_seconds_left,
        "bytes_moved_in_window": view.bytes_moved_in_window,
        "measured_bytes_per_second": view.measured_bytes_per_second,
        "balancing": view.balancing,
        "overloaded_since": dict(view.overloaded_since),
        "reshaped_last": view.reshaped_last,
        "profile": _pack_profile(view.profile),
    }
    return base64.b64encode(zlib.compress(json.dumps(document, sort_keys=True).encode(), 6)).decode()


def unpack_input(packed: str) -> tuple[BundleView, BundleOptions]:
    """The view and the options that a plan was made from."""
    with reading_stored():
        return _read_input(read_json(inflate(base64.b64decode(packed))))


def _read_input(document: Any) -> tuple[BundleView, BundleOptions]:
    arrays: dict[str, Any] = {name: _unpack_array(array) for name, array in document["tablets"].items()}
    view = BundleView(
        bundle=document["bundle"],
        now=document["now"],
        nodes=_nodes.validate_python(document["nodes"]),
        tables=tuple(_read_table(table) for table in document["tables"]),
        tablets=TabletColumns(**arrays, lowers=[bytes.fromhex(text) for text in document["lowers"]]),
        in_flight=_in_flight.validate_python(document["in_flight"]),
        pinned=frozenset(document["pinned"]),
        quarantined=frozenset(document["quarantined"]),
        expired=frozenset(document.get("expired", ())),
        expiry_held=document.get("expiry_held", False),
        history=_history.validate_python(document["history"]),
        samples={int(number): _unpack_samples(samples) for number, samples in document["samples"].items()},
        window_seconds_left=document["window_seconds_left"],
        bytes_moved_in_window=document["bytes_moved_in_window"],
        measured_bytes_per_second=document["measured_bytes_per_second"],
        balancing=document.get("balancing", 0.0),
        overloaded_since={str(node): float(at) for node, at in document.get("overloaded_since", {}).items()},
        reshaped_last=document.get("reshaped_last", False),
        profile=_unpack_profile(document.get("profile"), len(arrays["ids"])),
    )
    options: BundleOptions = build(BundleOptions, model_of(BundleOptions).model_validate(document["options"]))
    return view, options


def _action(action: Action) -> dict[str, Any]:
    parts = [{"lower": part.lower.hex(), "leaf": part.leaf, "node": part.node} for part in action.parts]
    return {**asdict(action), "parts": parts}


def _read_action(document: dict[str, Any]) -> Action:
    parts = tuple(
        Part(bytes.fromhex(part["lower"]), Leaf(*part["leaf"]) if part["leaf"] else None, part["node"])
        for part in document["parts"]
    )
    then = tuple((int(tablet), str(node)) for tablet, node in document.get("then", ()))
    plain = {**document, "kind": ActionKind(document["kind"]), "tablets": tuple(document["tablets"])}
    return Action(**{**plain, "parts": parts, "then": then})


def _pack_array(array: Any) -> list[str] | None:
    if array is None:  # a column that was not measured
        return None
    return [str(array.dtype), base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()]


def _unpack_array(packed: list[str] | None) -> Any:
    if packed is None:
        return None
    return np.frombuffer(base64.b64decode(packed[1]), dtype=packed[0]).copy()


def _pack_profile(profile: ProfileColumns | None) -> Any:
    return None if profile is None else [[list(span) for span in profile.spans], _pack_array(profile.rates)]


def _unpack_profile(packed: Any, tablets: int) -> ProfileColumns | None:
    if packed is None:
        return None
    spans = tuple(DaySpan(int(first), int(last)) for first, last in packed[0])
    return ProfileColumns(spans, _unpack_array(packed[1]).reshape(len(LOADS), tablets, len(spans)))


def _pack_samples(samples: KeySamples) -> dict[str, Any]:
    return {**asdict(samples), **{name: [key.hex() for key in getattr(samples, name)] for name in _KEYS}}


def _unpack_samples(document: dict[str, Any]) -> KeySamples:
    read = _samples.validate_python({**document, **dict.fromkeys(_KEYS, ())})
    keys: dict[str, Any] = {name: tuple(map(bytes.fromhex, document.get(name, ()))) for name in _KEYS}
    return replace(read, **keys)


def _read_table(document: dict[str, Any]) -> TableView:
    return TableView(**{**document, "key_types": tuple(KeyType(name) for name in document["key_types"])})
