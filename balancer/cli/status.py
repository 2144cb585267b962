"""`balancer status` and `balancer hot`: what the leader last said about each bundle, and what the directory says now.

The leader leaves a note at each tick. A note may be old: then it says so before anything else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.handover_record import handover_of
from balancer.directory.model import NodeState
from balancer.directory.notes import INSTANCES, InstanceNote, read_instances
from balancer.directory.snapshot import NotFound, Snapshot
from balancer.planner import orders
from balancer.planner.bundle_state import STATUS_TOPIC
from balancer.planner.verbs import tablets_on
from balancer.settings.units import format_duration, format_size
from balancer.terminal.live import WatchOption, shown
from balancer.terminal.options import ConfigOption, DirectoryOption, directory_of
from balancer.terminal.output import Output, OutputOption, bounds_text, say, say_sentence, show_json, show_rows

OLD = 60.0  # seconds after which a note is no longer trusted: several ticks have left none
NODE_COLUMNS = ("node", "state", "tablets", "size", "writes_per_s", "reads_per_s", "remark")
HOT_COLUMNS = ("tablet", "table", "part", "node", "writes_per_s", "reads_per_s", "size")

_NO_DAY = "no hour of the day has been seen yet: the first is known when it ends"

BundleArgument = Annotated[str | None, typer.Argument(help="a bundle; default: all")]


@dataclass(frozen=True, slots=True)
class Seen:
    """One reading of the directory."""

    snapshot: Snapshot
    notes: dict[str, Any]
    leader: str | None
    now: datetime
    instances: tuple[InstanceNote, ...] = ()
    """What instances say about themselves, if leadership is spread over them."""
    exposures: tuple[str, ...] = ()
    """Who may read or change the directory but should not."""


def status(
    bundle: BundleArgument = None,
    watch: WatchOption = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    check: Annotated[
        bool, typer.Option("--check", help="exit with 1 if a bundle is blocked or its state is unknown")
    ] = False,
) -> None:
    """Shows the state of each bundle: balanced, working, waiting for the schedule, or blocked and by what."""
    troubled = False
    with directory_of(directory, config) as opened:

        def view() -> bool:
            nonlocal troubled
            seen = read(opened)
            documents = list(status_documents(seen, bundle))
            troubled = not documents or any(one.get("word") == "blocked" or one["warning"] for one in documents)
            for one in seen.exposures if output is Output.TEXT else ():
                say(f"WARNING: {one}: see `balancer directory secure`")
            if output is Output.JSON:
                show_json(documents)
            elif not documents:
                say("this directory has no bundles: create or adopt a table, if its address is the right one")
            for document in documents if output is Output.TEXT else ():
                _show(document)
            return True

        shown(view, watch)
    if check and troubled:
        raise typer.Exit(1)


def hot(
    bundle: BundleArgument = None,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    profile: Annotated[
        bool, typer.Option("--profile", help="by their busiest hour of the day, not the current load")
    ] = False,
) -> None:
    """Shows the tablets with the most rows read and written per second, as the leader last saw them."""
    seen = _read_once(directory, config)
    rows = []
    for name in _bundles(seen.snapshot, bundle):
        rows += (seen.notes.get(name) or {}).get("hot_by_day" if profile else "hot", [])
    rows.sort(key=lambda row: -(row["write_rate"] + row["read_rate"]))
    columns = (*HOT_COLUMNS[:4], "busiest", *HOT_COLUMNS[4:]) if profile else HOT_COLUMNS
    empty = _NO_DAY if profile and seen.notes else _cold(seen)
    show_rows([_hot_row(seen.snapshot, row, output) for row in rows], columns, output, empty=empty)


def read(directory: Directory) -> Seen:
    """What there is to know at this moment."""
    notes = dict(directory.published(STATUS_TOPIC))
    exposures = tuple(directory.exposures())
    instances = tuple(read_instances(directory.published(INSTANCES)))
    return Seen(directory.snapshot(), notes, directory.leader(), SystemClock().now(), instances, exposures)


def status_documents(seen: Seen, bundle: str | None = None) -> Iterator[dict[str, Any]]:
    """One document per bundle: the note, its age, and what the directory says now."""
    for name in _bundles(seen.snapshot, bundle):
        note = dict(seen.notes.get(name) or {})
        note.pop("hot", None)
        note.pop("hot_by_day", None)
        age = _age(note.get("at"), seen.now)
        handover = handover_of(seen.snapshot, name)
        gone = "" if handover is None else handover.sentence(name)
        if gone:
            note, age = {"word": "handed over", "sentence": gone}, None
        yield {
            "bundle": name,
            **note,
            "leader": seen.leader,
            **_spread(seen),
            "age_seconds": age,
            "warning": "" if gone else _warning(seen.leader, age),
            "handed_over": gone,
            "directory_open_to": list(seen.exposures),
            "orders": [orders.progress(order, seen.snapshot) for order in orders.open_orders(seen.snapshot, name)],
            "nodes": _nodes(seen.snapshot, name, note.get("nodes", [])),
        }


def _spread(seen: Seen) -> dict[str, Any]:
    """Who should lead, by the leader's own note, and who is there. Nothing if leadership is not spread."""
    own = next((note for note in seen.instances if note.name == seen.leader), None)
    now = seen.now.timestamp()
    return {
        "leader_wanted": None if own is None else own.wanted,
        "leader_waits_for": "" if own is None else own.waits_for,
        "instances": [
            {
                "name": note.name,
                "weight": note.weight,
                "unfit": note.unfit,
                "age_seconds": max(0.0, round(now - note.at, 1)),
            }
            for note in sorted(seen.instances, key=lambda note: note.name)
        ],
    }


def _read_once(address: str | None, config: Path | None) -> Seen:
    with directory_of(address, config) as opened:
        return read(opened)


def _bundles(snapshot: Snapshot, wanted: str | None) -> list[str]:
    known = sorted(snapshot.bundles)
    if wanted is not None and wanted not in known:
        raise NotFound(f"there is no bundle {wanted!r} in the directory; there are: {', '.join(known) or 'none'}")
    return [wanted] if wanted is not None else known


def _age(at: str | None, now: datetime) -> float | None:
    """Seconds since a note was left; the clocks of two hosts may differ a little."""
    return None if at is None else max(0.0, round((now - datetime.fromisoformat(at)).total_seconds(), 1))


def _warning(leader: str | None, age: float | None) -> str:
    """What is wrong with the note; empty: it can be trusted."""
    running = "" if leader else "no instance leads: nothing is being done; start `balancer run`"
    if age is None:
        return running or "the leader has not reported on this bundle yet; is it in its configuration?"
    if age <= OLD:
        return running
    old = f"the last report is {format_duration(age)} old"
    return f"{running}; {old}" if running else f"{old}, although {leader} leads"


def _nodes(snapshot: Snapshot, bundle: str, noted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """State and tablets are the directory's: they may have changed since the note."""
    known = {row["node"]: row for row in noted}
    rows = []
    for node in sorted((node for node in snapshot.nodes.values() if node.bundle == bundle), key=lambda node: node.id):
        left = tablets_on(snapshot, node.id)
        row = {**known.get(node.id, {"node": node.id}), "state": node.state, "reason": node.reason, "tablets": left}
        if node.state is NodeState.DRAINING:
            row["safe_to_take_away"] = not left and not _involved(snapshot, node.id)
        rows.append(row)
    return rows


def _involved(snapshot: Snapshot, node: str) -> bool:
    """Whether a migration still needs the node: a source that has given its rows away is cleaned last."""
    return any(
        node in (record.source_node, record.target_node)
        for record in snapshot.migrations.values()
        if not record.finished
    )


def _show(document: dict[str, Any]) -> None:
    word = document.get("word", "unknown")
    told = f" - {document['sentence']}" if document.get("sentence") else ""
    was = "was " if (document["age_seconds"] or 0.0) > OLD else ""
    say_sentence(f"bundle {document['bundle']}: {was}{word}{told}")
    if document["warning"]:
        say_sentence(f"WARNING: {document['warning']}", 2)
    for line in _facts(document):
        say_sentence(line, 2)
    for order in document["orders"]:
        say_sentence(f"order {order['id']}: {order['sentence']}", 2)
    show_rows([_node_row(row) for row in document["nodes"]], NODE_COLUMNS, Output.TEXT, empty="  no nodes")


def _facts(document: dict[str, Any]) -> Iterator[str]:
    if document["age_seconds"] is None:
        return
    yield f"reported {format_duration(document['age_seconds'])} ago; leader: {document['leader'] or 'none'}"
    wanted, waits_for = document.get("leader_wanted"), document.get("leader_waits_for")
    if wanted not in (None, document["leader"]):
        yield f"leads: {document['leader']}; wanted: {wanted}" + (f", hands over when {waits_for}" if waits_for else "")
    paused = document.get("paused_until")
    ending = f" until {paused}" if paused else ""
    yield f"mode {document['mode']}" + (f", paused{ending}" if document["paused"] else "")
    if document["score"] is not None:
        yield (
            f"balance {document['score']} of 100; {document['actions']} actions may start"
            f" ({document['score_after']} after them), {document['pending_moves']} more wait for the budgets;"
            f" at best {document['bound']}"
        )
    yield _schedule(document["schedule"])
    if document["schedule"].get("too_short"):
        yield f"warning: {document['schedule']['too_short']}"


def _schedule(schedule: dict[str, Any]) -> str:
    if not schedule["formula"]:
        return "schedule: always open"
    ending = f" until {_minute(schedule['closes_at'])}" if schedule["closes_at"] else ""
    opens = f"closed until {_minute(schedule['next_open'])}" if schedule["next_open"] else "closed for ever"
    state = f"open{ending}" if schedule["open"] else opens
    return f"schedule: {state} ({schedule['formula']}, of {schedule['level']}, {schedule['timezone']})"


def _minute(at: str) -> str:
    """A time of a schedule, which knows minutes."""
    return _time(at, "%Y-%m-%d %H:%M %Z")


def _time(at: str, shape: str) -> str:
    """A time from a note; anything else is shown as it is."""
    try:
        return datetime.fromisoformat(at).strftime(shape).strip()
    except ValueError:
        return at


def _node_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "node": row["node"],
        "state": "down" if row.get("reachable") is False and row["state"] != NodeState.LOST else row["state"],
        "tablets": row["tablets"],
        "size": None if row.get("bytes") is None else format_size(row["bytes"]),
        "writes_per_s": row.get("write_rate"),
        "reads_per_s": row.get("read_rate"),
        "remark": _remark(row),
    }


def _remark(row: dict[str, Any]) -> str | None:
    if "safe_to_take_away" in row:
        if row["safe_to_take_away"]:
            return "safe to remove"
        return f"{row['tablets']} tablets left to move" if row["tablets"] else "its last migration is being finished"
    if row.get("reachable") is False:
        return _silence(row)
    found = (row.get("rewound"), next(iter(row.get("disagreements", ())), None), row.get("in_the_way"), row["reason"])
    return next(filter(None, found), None)


def _silence(row: dict[str, Any]) -> str:
    """Since when a node does not answer, and why."""
    since = row.get("unreachable_since")
    at = f"since {_time(since, '%H:%M:%S %Z')}" if since else ""
    why = f"({row['error']})" if row.get("error") else ""
    return f"{at} {why}".strip() or "it does not answer"


def _hot_row(snapshot: Snapshot, row: dict[str, Any], output: Output) -> dict[str, Any]:
    tablet = snapshot.find_tablet(row["tablet"])
    return {
        "tablet": row["tablet"],
        "table": row["table"],
        "part": None if tablet is None else bounds_text(snapshot.tables[tablet.table], tablet),
        "node": row["node"],
        **({"busiest": row["busiest"]} if "busiest" in row else {}),
        "writes_per_s": row["write_rate"],
        "reads_per_s": row["read_rate"],
        "size": row["bytes"] if output is Output.JSON else format_size(row["bytes"]),
    }


def _cold(seen: Seen) -> str:
    if not seen.notes:
        return "no instance has reported yet: start `balancer run`"
    return "nothing is read or written"
