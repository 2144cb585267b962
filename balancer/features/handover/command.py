"""`balancer directory hand-over`: whole bundles into another directory."""

from contextlib import ExitStack
from functools import partial
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from balancer.directory.configured import open_configured
from balancer.directory.contract import Directory
from balancer.directory.open import open_directory
from balancer.errors import Refused, UserError
from balancer.features.handover.checks import in_the_way
from balancer.features.handover.run import HandingOver, HandoverSide
from balancer.nodes.session.addresses import address_in
from balancer.settings import DaemonFile, load_settings
from balancer.terminal.operate import AcceptOption
from balancer.terminal.options import ConfigOption, operator
from balancer.terminal.output import Output, OutputOption, say, show_json

BundlesArgument = Annotated[list[str], typer.Argument(help="bundles that go together")]
ToOption = Annotated[str, typer.Option("--to", help="the other directory: zk://…, zks://… or sqlite://…")]


def hand_over(
    bundle: BundlesArgument,
    to: ToOption,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what is in the way")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="undo it, before the nodes have changed hands")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="remove the signpost left here")] = False,
    lost: Annotated[
        list[str] | None, typer.Option("--lost", help="continue without this node, which is gone for good")
    ] = None,
    accept_loss: AcceptOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Hands bundles over to another directory, with their nodes and tables, while applications keep running.

    Run it again after an interruption, and it continues. The bundles arrive paused; a signpost stays here until
    --forget. Use the configuration of the old directory; its credentials are used for both.
    """
    if dry_run + undo + forget > 1:
        raise UserError("give one of --dry-run, --undo and --forget")
    if lost and (dry_run or undo or forget or not accept_loss):
        raise UserError("--lost gives up what these nodes have: confirm with --accept-loss, and no other options")
    if to.partition(":")[0] in ("http", "https"):
        raise UserError("--to is the directory itself, not an instance that tells it: zk://…, zks://… or sqlite://…")
    settings = load_settings(config)
    bundles = tuple(sorted(set(bundle)))
    if forget and (listed := [name for name in bundles if name in settings.bundles]):
        raise Refused(f"take the files of {', '.join(listed)} out of {settings.daemon.bundles} first")
    other = settings.daemon.model_copy(update={"directory": to})
    with ExitStack() as stack:
        giver = stack.enter_context(open_configured(settings.daemon))
        taker = stack.enter_context(_taker(stack, other, dry_run=dry_run, create=not (dry_run or undo or forget)))
        tell = (lambda step: say(f"… {step}")) if output is Output.TEXT else (lambda step: None)
        sides = HandoverSide(settings.daemon.directory, giver), HandoverSide(to, taker)
        work = HandingOver(*sides, bundles, partial(address_in, settings), operator(), tell)
        if dry_run:
            _show_reasons(work, output)
            return
        if undo:
            work.undo()
            _say(output, bundles, "undone", "the hand-over is undone; its leader continues with the bundle")
        elif forget:
            work.forget()
            _say(output, bundles, "forgotten", "the signpost is gone")
        else:
            done = work.run(lambda closed: in_the_way(work, closed=closed), lost or ())
            next_ = "move its file, then its applications, then `balancer resume` it there, then --forget here"
            _say(output, bundles, done.state, f"handed over to {to}; now {next_}")


def _taker(stack: ExitStack, daemon: DaemonFile, *, dry_run: bool, create: bool) -> Directory:
    """The other directory. A dry run does not make one that does not exist yet: an empty one stands in for it."""
    try:
        return open_configured(daemon, create=create)
    except UserError:
        if not dry_run:
            raise
        return open_directory(f"sqlite://{stack.enter_context(TemporaryDirectory())}/empty.db")


def _show_reasons(work: HandingOver, output: Output) -> None:
    record = work.record()
    found = in_the_way(work, closed=record is not None, dry_run=True)
    if output is Output.JSON:
        show_json({"bundles": list(work.bundles), "in_the_way": found, "state": record.state if record else ""})
    else:
        for one in found:
            say(one)
        say(f"{len(found)} things are in the way; nothing was changed" if found else "nothing is in the way")
    if found:
        raise typer.Exit(1)


def _say(output: Output, bundles: tuple[str, ...], state: str, text: str) -> None:
    if output is Output.JSON:
        show_json({"bundles": list(bundles), "state": state})
    else:
        say(f"{', '.join(bundles)}: {text}")
