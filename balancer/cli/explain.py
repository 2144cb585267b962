"""`balancer explain tablet|node|action` and `balancer why-not`: questions about a stored plan, asked of its own inputs.

The answers are those of the policies, for the figures that the plan was made from: nothing is asked of a node.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from balancer.cli.output import Output, OutputOption, say_sentence, show_json
from balancer.cli.places import ConfigOption, DirectoryOption, directory_of
from balancer.cli.plan import BundleArgument, IdOption, age_text, chosen_plan, only_bundle, planned_again
from balancer.directory.contract import Directory
from balancer.directory.model import Plan
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused, UserError
from balancer.migration.record import read_detail
from balancer.planner.stored_plan import read_actions, unpack_input
from balancer.policies import explain
from balancer.policies import why_not as questions
from balancer.policies.bundle_view import BundleView, PlanResult
from balancer.policies.explain import Explanation
from balancer.policies.options import BundleOptions


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
