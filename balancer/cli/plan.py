"""`balancer plan`: what the planner wants and why, what it left and why not, as the directory keeps it.

`balancer explain tablet|node|action` and `balancer why-not`: questions about a stored plan, asked of its own inputs.

The answers are those of the policies, for the figures that the plan was made from: nothing is asked of a node.

`balancer run-now`: one round of a bundle outside of its schedule.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from balancer.cli.migrate import check_dry
from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import Plan
from balancer.directory.snapshot import NotFound, Snapshot
from balancer.errors import Refused, Unavailable, UserError
from balancer.migration.journal import read_detail
from balancer.planner import plans
from balancer.planner.orders import is_order
from balancer.planner.plans import read_actions, unpack_input
from balancer.planner.windows import VERB
from balancer.policies.options import BundleOptions
from balancer.policies.plan import explain
from balancer.policies.plan import explain as questions
from balancer.policies.plan.explain import Explanation
from balancer.policies.reasons import MEANINGS
from balancer.policies.view import BundleView, PlanResult
from balancer.settings.units import format_duration, format_size
from balancer.terminal.operate import give
from balancer.terminal.options import ConfigOption, DirectoryOption, directory_of
from balancer.terminal.output import Output, OutputOption, say, say_sentence, show_json, show_rows

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


class _Anything(TyperGroup):
    """`explain 5` is a tablet, `explain pg-a` a node, `explain '#2'` the second action of the plan."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            first = args[0]
            kind = "tablet" if first.isdigit() else "action" if first.startswith("#") else "node"
            args = [kind, first.removeprefix("#") if kind == "action" else first, *args[1:]]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Anything,
    help="Why things are as they are: a tablet (explain 5), a node (explain pg-a), an action (explain '#2').",
    no_args_is_help=True,
)

TabletArgument = Annotated[str, typer.Argument(help="the tablet's id")]
NodeArgument = Annotated[str, typer.Argument(help="the node's id")]
ReplanOption = Annotated[bool, typer.Option("--replan", help="let the leader make a new plan first, and use that")]
_Answer = TypeVar("_Answer")


@app.command("tablet")
def explain_tablet(
    tablet: TabletArgument,
    id_: IdOption = None,
    replan: ReplanOption = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Shows the load of a tablet, what decides about it, and what the plan does with it."""
    with directory_of(directory, config) as opened:
        number, bundle = _tablet(opened.snapshot(), tablet)
        snapshot = _fresh(opened, bundle, replan=replan)
    plan = chosen_plan(snapshot, bundle, id_)
    answer = _asked(plan, lambda view, options: explain.explain_tablet(view, options, number))
    _show(plan, replace(answer, sentences=(*answer.sentences, *_on_its_way(snapshot, number))), output)


@app.command("node")
def explain_node(
    node: NodeArgument,
    id_: IdOption = None,
    replan: ReplanOption = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Shows how full a node is in every dimension, and what the plan takes from it and gives to it."""
    with directory_of(directory, config) as opened:
        bundle = _node_bundle(opened.snapshot(), node)
        snapshot = _fresh(opened, bundle, replan=replan)
    plan = chosen_plan(snapshot, bundle, id_)
    _show(plan, _asked(plan, lambda view, options: explain.explain_node(view, options, node)), output)


@app.command("action")
def explain_action(
    number: Annotated[int, typer.Argument(min=1, help="the action's number, as `balancer plan` shows it")],
    bundle: BundleArgument = None,
    id_: IdOption = None,
    replan: ReplanOption = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Says why an action is proposed, what it costs, and where it is in the plan."""
    with directory_of(directory, config) as opened:
        named = only_bundle(opened.snapshot(), bundle) if replan else bundle
        plan = chosen_plan(_fresh(opened, named or "", replan=replan), named, id_)
    result = stored_result(plan)
    if number > len(result.actions):
        raise UserError(f"plan {plan.id} has {len(result.actions)} actions; there is no action {number}")
    _show(plan, explain.explain_action(result, result.actions[number - 1]), output)


def why_not(
    tablet: TabletArgument,
    node: NodeArgument,
    id_: IdOption = None,
    replan: ReplanOption = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Says why a tablet does not go to a node, and the smallest change that would send it there."""
    with directory_of(directory, config) as opened:
        number, bundle = _tablet(opened.snapshot(), tablet)
        _node_bundle(opened.snapshot(), node)
        snapshot = _fresh(opened, bundle, replan=replan)
    plan = chosen_plan(snapshot, bundle, id_)
    answer = _asked(plan, lambda view, options: questions.why_not(view, options, number, node))
    if output is Output.JSON:
        words = {"tablet": answer.tablet, "node": answer.node, "planned": answer.planned, "code": answer.code}
        show_json({**words, "reason": answer.reason, "flip": answer.flip, "plan": plan.id, "made": plan.created})
        return
    say_sentence(f"{'planned' if answer.planned else 'not planned'} ({answer.code}): {answer.reason}")
    if answer.flip:
        say_sentence(f"to change that: {answer.flip}")
    say_sentence(_origin(plan))


def _fresh(directory: Directory, bundle: str, *, replan: bool) -> Snapshot:
    """The directory as it is, after the leader has planned again if that is wanted."""
    if replan:
        planned_again(directory, bundle)
    return directory.snapshot()


def stored_result(plan: Plan) -> PlanResult:
    """The plan as the policies made it, as far as explanations need it."""
    document = plan.document
    return PlanResult(
        actions=read_actions(document),
        score_before=document["score_before"],
        score_after=document["score_after"],
        bound=document["bound"],
    )


def _asked(plan: Plan, question: Callable[[BundleView, BundleOptions], _Answer]) -> _Answer:
    """The answer, for the inputs that the plan was made from."""
    packed = plan.document.get("input")
    if packed is None:
        raise Refused(f"plan {plan.id} was too large to be stored with its inputs: it cannot be explained")
    view, options = unpack_input(packed)
    try:
        return question(view, options)
    except questions.Unknown as error:
        raise Refused(
            f"{error} at the time of plan {plan.id}; `balancer plan {plan.bundle} --replan` makes a new one"
        ) from None


def _tablet(snapshot: Snapshot, text: str) -> tuple[int, str]:
    """A tablet's id and its bundle."""
    if not text.isdigit():
        raise UserError(f"{text!r} is not a tablet's id: ids are numbers, see `balancer tablets`")
    found = snapshot.tablet(int(text))
    return found.id, snapshot.tables[found.table].bundle


def _on_its_way(snapshot: Snapshot, tablet: int) -> Iterator[str]:
    """What a migration does with it now, and why in that way."""
    record = snapshot.migration_of(tablet)
    if record is None:
        return
    yield f"It is part of migration {record.id} ({record.operation}, {record.mode}), which is {record.state}."
    detail = read_detail(record)
    if detail.mode_reason:
        yield f"The migration is read-only, so writers wait for the whole copy, because {detail.mode_reason}."
    if detail.retries:
        yield f"It was tried again {detail.retries} times, last because {detail.retreat}."


def _node_bundle(snapshot: Snapshot, node: str) -> str:
    return snapshot.node(node).bundle


def _show(plan: Plan, explanation: Explanation, output: Output) -> None:
    if output is Output.JSON:
        words = {"subject": explanation.subject, "sentences": list(explanation.sentences)}
        show_json({**words, "plan": plan.id, "made": plan.created})
        return
    for sentence in explanation.sentences:
        say_sentence(sentence)
    say_sentence(_origin(plan))


def _origin(plan: Plan) -> str:
    return f"By plan {plan.id}, {age_text(plan)}; --replan uses the newest figures."


DryRunOption = Annotated[bool, typer.Option("--dry-run", help="only plan, and show what would start")]


def run_now(
    bundle: BundleArgument = None,
    dry_run: DryRunOption = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Starts at once what the next plan of a bundle wants, whatever its schedule says; budgets and pins still apply."""
    with directory_of(directory, config) as opened:
        arguments = {"bundle": only_bundle(opened.snapshot(), bundle)}
        if dry_run:
            check_dry(opened, VERB, arguments)
            planned_again(opened, arguments["bundle"])
            found = chosen_plan(opened.snapshot(), arguments["bundle"], None)
        else:
            answered = give(opened, VERB, arguments)
    if dry_run:
        show_json(document_of(found)) if output is Output.JSON else show_plan(found, 50)
    elif output is Output.JSON:
        show_json({"command": answered.id, "state": answered.state, "result": answered.result})
    else:
        say(answered.result)
