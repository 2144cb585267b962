"""A plan as the directory keeps it: what is proposed, what was held back and why, and everything it was made from.

With its inputs stored, a plan can be explained, questioned (`why-not`) and made again from any host, long after the
load that caused it has gone. Columns are packed; if even that is too large for the directory, the plan is kept without
its inputs and says so.
"""

import base64
import json
import zlib
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from balancer.directory.codec import inflate, read_json, reading_stored
from balancer.policies.bundle_view import (
    Action,
    ActionKind,
    BundleView,
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
from balancer.policies.day_parts import DaySpan
from balancer.policies.day_profile import LOADS
from balancer.policies.hash_leaves import Leaf
from balancer.policies.keys import KeyType
from balancer.policies.options import BundleOptions
from balancer.settings.derive import build, model_of

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
