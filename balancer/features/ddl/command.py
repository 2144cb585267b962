"""`balancer ddl apply|status`: schema changes over all nodes of a bundle."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from balancer.clock import SystemClock
from balancer.directory.identity import identity_of
from balancer.errors import UserError
from balancer.features.ddl.apply import ChangeRunner, SchemaChange, changes_of
from balancer.features.ddl.steps import DdlStep
from balancer.naming import cluster_name
from balancer.nodes.session.addresses import addresses_of
from balancer.settings import load_settings
from balancer.settings.units import parse_duration
from balancer.terminal.options import ConfigOption, DirectoryOption, directory_of, open_configured, operator
from balancer.terminal.output import Output, OutputOption, say, show_json, show_rows
from balancer.untrusted import read_text_file

app = typer.Typer(help="Change the schema of a bundle's tables on all nodes.", no_args_is_help=True)

LARGEST_FILE = 100_000  # bytes: it is kept in a note

BundleArgument = Annotated[str, typer.Argument(help="the bundle")]
FileArgument = Annotated[Path | None, typer.Argument(help="the file with the statements")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="try everything on every node and undo it")]
ContinueOption = Annotated[bool, typer.Option("--continue", help="continue an interrupted change")]
UndoOption = Annotated[bool, typer.Option("--undo", help="undo an interrupted change")]
RewriteOption = Annotated[bool, typer.Option("--allow-rewrite", help="also allow statements that rewrite whole tables")]
RoleOption = Annotated[str, typer.Option("--role", help="the role that runs it; default: the owner of each table")]
PatienceOption = Annotated[str, typer.Option("--patience", help="how long to wait for a lock, a node or a move")]


@app.command("apply")
def apply_change(
    bundle: BundleArgument,
    file: FileArgument = None,
    dry_run: DryRunOption = False,
    resume: ContinueOption = False,
    undo: UndoOption = False,
    allow_rewrite: RewriteOption = False,
    role: RoleOption = "",
    patience: PatienceOption = "60s",
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Runs the statements of a file on every node, while nothing moves; may be interrupted and continued."""
    if (file is None) != (resume or undo) or (resume and undo) or (dry_run and file is None):
        raise UserError("give a file (with or without --dry-run), or --continue, or --undo")
    settings = load_settings(config)
    found = settings.bundle(bundle)
    if not found.nodes:
        raise UserError(f"{found.file} has no nodes")
    text = "" if file is None else _text(file)
    with open_configured(settings.daemon) as directory:
        runner = ChangeRunner(
            directory,
            found.name,
            addresses_of([found], identity_of(directory.snapshot())),
            cluster_name(settings.daemon.directory),
            SystemClock(),
            patience=_seconds(patience),
            tell=say if output is Output.TEXT else _silent,
        )
        try:
            if dry_run:
                steps = runner.steps(text, allow_rewrite=allow_rewrite)
                runner.rehearse(steps, role)
                _show_steps(steps, sorted(found.nodes), output)
                return
            if resume:
                ended = runner.resume()
            elif undo:
                ended = runner.take_back()
            else:
                ended = runner.apply(text, operator(), allow_rewrite=allow_rewrite, role=role)
        finally:
            runner.close()
    if output is Output.JSON:
        show_json(asdict(ended))
    else:
        say(f"schema change {ended.id} of bundle {bundle} is {ended.state} on {len(found.nodes)} nodes")


@app.command("status")
def change_status(
    bundle: Annotated[str, typer.Argument(help="the bundle; default: all")] = "",
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Shows schema changes, including unfinished ones, and the progress of each node."""
    with directory_of(directory, config) as opened:
        rows = [_row(change) for change in changes_of(opened, bundle)]
    show_rows(rows, ("change", "bundle", "began", "author", "state", "nodes", "error"), output)


def _row(change: SchemaChange) -> dict[str, object]:
    began = datetime.fromtimestamp(change.began, UTC).isoformat(timespec="seconds")
    nodes = ", ".join(f"{node} {count} of {change.steps}" for node, count in sorted((change.done or {}).items()))
    return {
        "change": change.id,
        "bundle": change.bundle,
        "began": began,
        "author": change.author,
        "state": change.state,
        "nodes": nodes,
        "error": change.error,
    }


def _show_steps(steps: tuple[DdlStep, ...], nodes: list[str], output: Output) -> None:
    rows: list[dict[str, object]] = [
        {
            "step": number,
            "statement": " ".join(step.text.split()),
            "how": _how(step),
            "undo": "no" if step.undo is None else "yes",
        }
        for number, step in enumerate(steps, 1)
    ]
    show_rows(rows, ("step", "statement", "how", "undo"), output)
    if output is Output.TEXT:
        say(f"{len(rows)} steps on each of the nodes {', '.join(nodes)}; nothing was changed")


def _how(step: DdlStep) -> str:
    if step.index is not None:
        return "leaf by leaf, concurrently"
    if step.rewrites:
        return "not tried: it may rewrite the table"
    return "not tried: it reads the table" if step.scans else "in one transaction"


def _text(file: Path) -> str:
    try:
        return read_text_file(file, LARGEST_FILE)
    except FileNotFoundError:
        raise UserError(f"there is no file {file}") from None
    except ValueError as error:
        raise UserError(f"the file {file} {error}") from error


def _seconds(text: str) -> float:
    try:
        return float(str(parse_duration(text)))
    except ValueError as error:
        raise UserError(str(error)) from None


def _silent(_: str) -> None:
    """A document is all that is printed."""
