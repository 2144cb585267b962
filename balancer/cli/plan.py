"""`balancer plan`: what the planner wants and why, what it left and why not, as the directory keeps it."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from balancer.cli.operate import give
from balancer.cli.output import Output, OutputOption, say_sentence, show_json, show_rows
from balancer.cli.places import ConfigOption, DirectoryOption, directory_of
from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import Plan
from balancer.directory.snapshot import NotFound, Snapshot
from balancer.errors import Refused, Unavailable, UserError
from balancer.planner import plans
from balancer.planner.orders import is_order
from balancer.policies.reasons import MEANINGS
from balancer.settings.units import format_duration, format_size

ACTION_COLUMNS = ("number", "what", "tablets", "from", "to", "size", "code", "why")
REJECTION_COLUMNS = ("what", "tablets", "to", "code", "why_not")
REPLAN_PATIENCE = 30.0

BundleArgument = Annotated[str | None, typer.Argument(help="a bundle; needed if there are several")]
IdOption = Annotated[str | None, typer.Option("--id", help="an older plan, by its id")]


def plan(
    bundle: BundleArgument = None,
    id_: IdOption = None,
    replan: Annotated[bool, typer.Option("--replan", help="let the leader make a new plan first")] = False,
    limit: Annotated[int, typer.Option(min=1, help="show at most this many actions and rejections")] = 50,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Shows the newest plan: its actions and why, what it rejected and why, and how balanced it would make the
    bundle."""
    with directory_of(directory, config) as opened:
        if replan:
            planned_again(opened, only_bundle(opened.snapshot(), bundle))
        found = chosen_plan(opened.snapshot(), bundle, id_)
    if output is Output.JSON:
        show_json(document_of(found))
    else:
        show_plan(found, limit)


def chosen_plan(snapshot: Snapshot, bundle: str | None, plan_id: str | None) -> Plan:
    """The plan with this id, or the bundle's newest. Raises an error that says what there is."""
    if plan_id is not None:
        found = snapshot.plans.get(plan_id)
        if found is None or is_order(found):
            known = ", ".join(one.id for one in snapshot.plans.values() if not is_order(one)) or "none"
            raise NotFound(f"there is no plan {plan_id!r} in the directory; there are: {known}")
        return found
    name = only_bundle(snapshot, bundle)
    stored = plans.of_bundle(snapshot, name)
    if not stored:
        raise Refused(
            f"no plan of bundle {name} is stored: there has been nothing to do so far; `balancer plan {name} --replan`"
            " lets the leader make one now"
        )
    return stored[-1]


def only_bundle(snapshot: Snapshot, bundle: str | None) -> str:
    """The bundle that is meant: the named one, or the only one."""
    known = sorted(snapshot.bundles)
    if bundle is None:
        if len(known) == 1:
            return known[0]
        raise UserError(f"name one of the bundles: {', '.join(known)}" if known else "the directory has no bundles yet")
    if bundle not in known:
        raise NotFound(f"there is no bundle {bundle!r} in the directory; there are: {', '.join(known) or 'none'}")
    return bundle


def planned_again(directory: Directory, bundle: str) -> None:
    """Has the leader plan, and waits until the plan is in the directory."""
    clock = SystemClock()
    known = {one.id for one in plans.of_bundle(directory.snapshot(), bundle)}
    give(directory, "plan", {"bundle": bundle})
    deadline = clock.monotonic() + REPLAN_PATIENCE
    while all(one.id in known for one in plans.of_bundle(directory.snapshot(), bundle)):
        if clock.monotonic() > deadline:
            raise Unavailable(
                f"the leader has made no plan of {bundle} within {REPLAN_PATIENCE:.0f} s; see `balancer status`"
            )
        clock.sleep(0.2)


def document_of(found: Plan) -> dict[str, Any]:
    """A plan for programs: everything except its packed inputs."""
    kept = {name: value for name, value in found.document.items() if name != "input"}
    explainable = found.document.get("input") is not None
    return {"id": found.id, "bundle": found.bundle, "created": found.created, "state": found.state, **kept} | {
        "explainable": explainable
    }


def age_text(found: Plan) -> str:
    """When a plan was made, for people."""
    age = max(0.0, SystemClock().now().timestamp() - found.created)
    return f"made {format_duration(age)} ago ({datetime.fromtimestamp(found.created, UTC):%Y-%m-%d %H:%M:%S} UTC)"


def show_plan(found: Plan, limit: int) -> None:
    """A plan for people."""
    document = found.document
    say_sentence(f"plan {found.id} of bundle {found.bundle}, {found.state}, {age_text(found)}")
    say_sentence(
        f"balance {document['score_before']:.1f} of 100 now, {document['score_after']:.1f} after these actions;"
        f" no plan within these budgets reaches more than {document['bound']:.1f}"
    )
    actions = plans.actions_of(found)
    rows = [
        {
            "number": number,
            "what": action.kind,
            "tablets": ", ".join(map(str, action.tablets)),
            "from": action.source or None,
            "to": action.target if action.target != action.source else None,
            "size": format_size(action.size),
            "code": action.code,
            "why": action.reason,
        }
        for number, action in enumerate(actions[:limit], 1)
    ]
    show_rows(rows, ACTION_COLUMNS, Output.TEXT, empty="no action may start now")
    if len(actions) > limit:
        say_sentence(f"and {len(actions) - limit} actions more; --limit shows them")
    if document["pending_moves"]:
        pending = format_size(document["pending_bytes"])
        say_sentence(f"{document['pending_moves']} moves ({pending}) follow as the budgets allow")
    for change in document["node_changes"]:
        say_sentence(f"node {change['node']} becomes {change['condition']}: {change['reason']}")
    _show_rejections(document, limit)
    for note in document["notes"]:
        say_sentence(f"note: {note}")
    for failure in document.get("not_started", ()):
        say_sentence(f"not started: {failure}")


def _show_rejections(document: dict[str, Any], limit: int) -> None:
    if document["counts"]:
        say_sentence("left as they are:")
        for code, count in sorted(document["counts"].items(), key=lambda pair: (-pair[1], pair[0])):
            meaning = MEANINGS.get(code)
            say_sentence(f"{count} {code}" + (f": {meaning}" if meaning else ""), 2)
    rows = [
        {
            "what": rejection["kind"],
            "tablets": ", ".join(map(str, rejection["tablets"])),
            "to": rejection["target"] or None,
            "code": rejection["code"],
            "why_not": rejection["reason"],
        }
        for rejection in document["rejections"][:limit]
    ]
    if rows:
        show_rows(rows, REJECTION_COLUMNS, Output.TEXT)
