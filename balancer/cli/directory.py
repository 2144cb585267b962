"""`balancer directory export | import | check | secure` and `balancer history`: the directory as a whole, its past."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from balancer.cli.output import Output, OutputOption, fail, say, show_json, show_rows
from balancer.cli.places import ConfigOption, DirectoryOption, directory_of, operator
from balancer.directory.codec import change_document, read_json
from balancer.directory.contract import Directory
from balancer.directory.document import export_document, import_document
from balancer.directory.id_space import carried_over
from balancer.directory.invariants import violations
from balancer.directory.model import LogEntry
from balancer.directory.telling import nodes_of, tablets_of, told
from balancer.errors import Refused, UserError
from balancer.logs import mask
from balancer.outside import one_line, read_text_file, visible_json

app = typer.Typer(help="The directory as a whole: export, import, check, secure.", no_args_is_help=True)

_READ_AT_ONCE = 500
_ELECTION_PATIENCE = 3.0
_CHANGES_SHOWN = 3
_LARGEST_DOCUMENT = 2 << 30


@app.command("export")
def export_(
    file: Annotated[Path | None, typer.Argument(help="where to write; else to standard output")] = None,
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
    file: Annotated[Path, typer.Argument(help="a document that export has written")],
    force: Annotated[bool, typer.Option("--force", help="replace what the directory contains")] = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
) -> None:
    """Replaces the whole directory by an exported document. No daemon may lead meanwhile."""
    records = import_document(_read(file))
    with directory_of(directory, config, create=True) as opened:
        if not force and not _is_empty(opened):
            raise Refused("the directory is not empty; --force replaces all that it contains")
        leadership = opened.campaign(f"import by {operator()}", timeout=_ELECTION_PATIENCE)
        if leadership is None:
            raise Refused(f"{opened.leader()} leads; stop the daemons before an import")
        version = opened.restore(
            records, reason=f"imported from {file.name}", author=operator(), leader_epoch=leadership.epoch
        )
    say(f"imported {len(records)} records; the directory is at version {version}")


@app.command("check")
def check(directory: DirectoryOption = None, config: ConfigOption = None, output: OutputOption = Output.TEXT) -> None:
    """Checks every invariant of the directory; exit code 1 and one line for each violation."""
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


@app.command("secure")
def secure(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be changed")] = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Closes the directory to all but the writer and the reader that the configuration names.

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


def history(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="at most this many commits, the newest")] = 50,
    after: Annotated[int, typer.Option(help="only commits with a version above this")] = 0,
    tablet: Annotated[int | None, typer.Option(help="only commits about this tablet")] = None,
    node: Annotated[str | None, typer.Option(help="only commits about this node")] = None,
    author: Annotated[str | None, typer.Option(help="only commits by this author")] = None,
    text: Annotated[str | None, typer.Option(help="only commits whose reason contains this")] = None,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Who changed what, when and why: the commits, oldest first, as far back as they are kept."""
    with directory_of(directory, config) as opened:
        entries = [
            entry
            for entry in _entries(opened, after)
            if (tablet is None or any(tablet in tablets_of(change) for change in entry.changes))
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
