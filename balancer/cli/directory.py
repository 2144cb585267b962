"""`balancer directory export | import | recover | check | secure`, and `balancer history`: as a whole, and its past."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from balancer.directory.configured import open_configured, records_of
from balancer.directory.contract import Directory
from balancer.directory.history import export_document, import_document, is_step, nodes_of, tablets_of, told
from balancer.directory.identity import with_identity
from balancer.directory.invariants import violations
from balancer.directory.model import LogEntry, NodeState
from balancer.directory.snapshot import carried_over
from balancer.directory.store.codec import change_document, read_json
from balancer.errors import Refused, UserError
from balancer.features.handover.command import hand_over
from balancer.features.repair.recover import lead_above, plan_recovery, recover, shut_out, tell_former_owners
from balancer.logs import mask
from balancer.naming import cluster_name
from balancer.nodes.session.addresses import address_in, addresses_of
from balancer.nodes.session.connection import connect
from balancer.settings import load_settings
from balancer.terminal.options import ConfigOption, DirectoryOption, directory_of, operator
from balancer.terminal.output import Output, OutputOption, fail, say, show_json, show_rows
from balancer.untrusted import one_line, read_text_file, visible_json

app = typer.Typer(help="The directory as a whole: export, import, recover, check, secure.", no_args_is_help=True)

_READ_AT_ONCE = 500
_ELECTION_PATIENCE = 3.0
_CHANGES_SHOWN = 3
_LARGEST_DOCUMENT = 2 << 30


@app.command("export")
def export_(
    file: Annotated[Path | None, typer.Argument(help="where to write; default: standard output")] = None,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
) -> None:
    """Writes the whole directory as one JSON document."""
    with directory_of(directory, config) as opened:
        snapshot = opened.snapshot()
        document = export_document(snapshot, carried_over(snapshot, opened.blocks()))
    text = visible_json(json.dumps(document, indent=1, ensure_ascii=False)) + "\n"
    if file is None:
        sys.stdout.write(text)
        return
    try:
        file.write_text(text)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None
    say(f"version {document['version']} written to {file}")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="a document written by export")],
    force: Annotated[bool, typer.Option("--force", help="replace what the directory contains")] = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
) -> None:
    """Replaces the whole directory with an exported document. No daemon may lead meanwhile."""
    records = import_document(_read(file))
    with directory_of(directory, config, create=True) as opened:
        if not force and not _is_empty(opened):
            raise Refused("the directory is not empty; --force replaces everything in it")
        leadership = opened.campaign(f"import by {operator()}", timeout=_ELECTION_PATIENCE)
        if leadership is None:
            raise Refused(f"{opened.leader()} leads; stop the daemons before an import")
        records = with_identity(records, opened.snapshot())
        version = opened.restore(
            records, reason=f"imported from {file.name}", author=operator(), leader_epoch=leadership.epoch
        )
    say(f"imported {len(records)} records; the directory is at version {version}")


@app.command("check")
def check(directory: DirectoryOption = None, config: ConfigOption = None, output: OutputOption = Output.TEXT) -> None:
    """Checks every invariant of the directory; prints one line for each violation and exits with 1."""
    with directory_of(directory, config) as opened:
        snapshot = opened.snapshot()
    found = list(violations(snapshot))
    if output is Output.JSON:
        show_json({"version": snapshot.version, "tablets": snapshot.tablet_count(), "violations": found})
    elif found:
        for one in found:
            fail(one)
    else:
        say(f"version {snapshot.version}: {snapshot.tablet_count()} tablets, no violations")
    if found:
        raise typer.Exit(1)


@app.command("recover")
def recover_(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what it would change")] = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Learns from the nodes who owns what, when the directory is older than they are: after importing an old export.
    All nodes must answer, except those lost before the export, and no daemon may lead."""
    settings = load_settings(config)
    with open_configured(settings.daemon) as opened, ExitStack() as stack:
        snapshot = opened.snapshot()
        bundles = settings.bundles.values()
        lost = {node.id for node in snapshot.nodes.values() if node.state is NodeState.LOST}
        known = {node: address_in(settings, node) for node in snapshot.nodes if node not in lost}
        addresses = known | {node: one for node, one in addresses_of(bundles).items() if node not in lost}
        records = [record for bundle in bundles for record in records_of(bundle)]
        nodes = {node: stack.enter_context(connect(one, purpose="recover")) for node, one in addresses.items()}
        cluster = cluster_name(settings.daemon.directory)
        planned = plan_recovery(snapshot, nodes, records, cluster)
        if planned.words and not dry_run:
            leadership = lead_above(opened, f"recovery by {operator()}", planned.epoch, _ELECTION_PATIENCE)
            try:
                # Read again: nobody else changes anything from here on.
                shut_out(nodes, leadership.epoch)
                snapshot = opened.snapshot()
                planned = plan_recovery(snapshot, nodes, records, cluster)
                tell_former_owners(nodes, planned, leadership.epoch)
                recover(opened, leadership, planned, snapshot, operator())
            finally:
                leadership.resign()
    if output is Output.JSON:
        show_json({"changes": list(planned.words), "dry_run": dry_run})
        return
    for text in planned.words:
        say(text)
    if not planned.words:
        say("the directory knows what the nodes know; nothing was changed")
    else:
        say(f"{len(planned.words)} changes{'; nothing was changed' if dry_run else ' taken over from the nodes'}")


@app.command("secure")
def secure(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what it would change")] = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Closes the directory to everyone but the writer and the reader that the configuration names.

    Give daemons and applications their credentials first. It may be interrupted and repeated at any time.
    """
    with directory_of(directory, config) as opened:
        done = opened.secure(dry_run=dry_run)
        left = list(opened.exposures(everything=True))
    if output is Output.JSON:
        show_json({**asdict(done), "dry_run": dry_run, "open": left})
    else:
        verb = "would be given" if dry_run else "were given"
        say(f"{done.changed} of {done.parts} parts of the directory {verb} other rights")
        for one in done.examples:
            say(f"  {one}")
        for one in left:
            fail(one)
    if left and not dry_run:
        raise typer.Exit(1)


app.command("hand-over")(hand_over)


def history(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="at most this many commits, the newest")] = 50,
    after: Annotated[int, typer.Option(help="only commits with a version above this")] = 0,
    tablet: Annotated[int | None, typer.Option(help="only commits about this tablet")] = None,
    node: Annotated[str | None, typer.Option(help="only commits about this node")] = None,
    author: Annotated[str | None, typer.Option(help="only commits by this author")] = None,
    text: Annotated[str | None, typer.Option(help="only commits whose reason contains this")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="include each step of migrations and plans")] = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Shows who changed what, when and why: the commits, oldest first, as far back as they are kept."""
    with directory_of(directory, config) as opened:
        if node is not None:
            opened.snapshot().node(node)
        entries = [
            entry
            for entry in _entries(opened, after)
            if (verbose or not is_step(entry))
            and (tablet is None or any(tablet in tablets_of(change) for change in entry.changes))
            and (node is None or any(node in nodes_of(change) for change in entry.changes))
            and (author is None or entry.author == author)
            and (text is None or text in entry.reason)
        ]
    if output is Output.JSON:
        show_json([_full(entry) for entry in entries[-limit:]])
    else:
        columns = ["version", "at", "author", "epoch", "reason", "changes"]
        show_rows([_row(entry) for entry in entries[-limit:]], columns, output, empty="no such commits in the log")


def _read(file: Path) -> Any:
    try:
        text = read_text_file(file, _LARGEST_DOCUMENT)
    except FileNotFoundError:
        raise UserError(f"{file} cannot be read: No such file or directory") from None
    except ValueError as error:
        raise UserError(f"{file} {error}") from None
    try:
        return read_json(text.encode())
    except ValueError as error:
        raise UserError(f"{file} is not JSON: {one_line(str(error), 300)}") from None


def _is_empty(directory: Directory) -> bool:
    snapshot = directory.snapshot()
    return not snapshot.tablet_count() and not any(map(len, snapshot.records.values()))


def _entries(directory: Directory, after: int) -> Iterator[LogEntry]:
    while found := directory.history(after, _READ_AT_ONCE):
        yield from found
        after = found[-1].version


def _row(entry: LogEntry) -> dict[str, Any]:
    more = len(entry.changes) - _CHANGES_SHOWN
    shown = [mask(told(change)) for change in entry.changes[:_CHANGES_SHOWN]]
    return {
        "version": entry.version,
        "at": datetime.fromtimestamp(entry.at, UTC).isoformat(timespec="seconds"),
        "author": entry.author,
        "epoch": entry.leader_epoch,
        "reason": entry.reason,
        "changes": "; ".join(shown) + (f" and {more} more" if more > 0 else ""),
    }


def _full(entry: LogEntry) -> dict[str, Any]:
    return {
        **_row(entry),
        "transaction": entry.transaction,
        "changes": [change_document(change) for change in entry.changes],
    }
