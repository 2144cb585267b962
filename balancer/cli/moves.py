"""`balancer moves`: what migrations do now, and how finished ones ended. Only reads the directory."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.text import Text

from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import Migration, MigrationMode, Table
from balancer.migration.journal import read_detail
from balancer.migration.progress import TOPIC
from balancer.settings.units import format_duration, format_size
from balancer.terminal.live import WatchOption, shown
from balancer.terminal.options import ConfigOption, DirectoryOption, directory_of
from balancer.terminal.output import Output, OutputOption, Row, console, show_json, show_rows, tell

RUNNING = ("id", "what", "table", "tablets", "from", "to", "phase", "for", "done", "rate", "left", "waits_for")
FINISHED = ("id", "what", "table", "tablets", "from", "to", "ended", "size", "took", "write_pause", "retries", "error")
REFRESH = 0.5
_BAR = 12


def moves(
    watch: WatchOption = False,
    all: Annotated[bool, typer.Option("--all", "-a", help="include finished ones")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="only those that ended with an error")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="at most this many finished ones, newest first")] = 100,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Shows migrations: phase, bytes, rate, time left, what each waits for; with --all also how the finished ones
    ended."""
    with directory_of(directory, config) as opened:
        if watch and console.is_terminal and output is Output.TEXT:
            _watch(opened)
            return

        def view() -> bool:
            documents = migration_documents(opened, limit if all or failed else 0, failed=failed)
            if output is Output.JSON:
                show_json(documents)
            elif failed:
                show_rows([finished_row(one) for one in documents], FINISHED, output, empty="none has failed")
            else:
                show_documents(documents, finished=all)
            return any(not document["finished"] for document in documents)

        shown(view, watch)


def migration_documents(directory: Directory, finished: int = 0, *, failed: bool = False) -> list[dict[str, Any]]:
    """The running migrations and this many of the newest finished ones, as plain data; oldest first.

    With `failed` only those that ended with an error.
    """
    notes = directory.published(TOPIC)
    snapshot = directory.snapshot()
    records = sorted(snapshot.migrations.values(), key=lambda record: (record.created, record.id))
    if failed:
        records = [record for record in records if record.finished and record.error]
    ended = [record for record in records if record.finished]
    dropped = {record.id for record in ended[: max(0, len(ended) - finished)]}
    return [
        migration_document(record, snapshot.tables.get(record.table), notes.get(record.id) or {})
        for record in records
        if record.id not in dropped
    ]


def migration_document(record: Migration, table: Table | None, note: Mapping[str, Any]) -> dict[str, Any]:
    """One migration: the journal, and the note on how far it is if it is still running."""
    detail = read_detail(record)
    running = {} if record.finished else dict(note)
    return {
        "id": record.id,
        "operation": record.operation,
        "mode": record.mode,
        "mode_reason": detail.mode_reason,
        "bundle": record.bundle,
        "table": table.name if table else str(record.table),
        "tablets": list(record.sources),
        "source": record.source_node,
        "target": record.target_node,
        "new_tablets": [tablet.id for tablet in record.targets if tablet.id not in record.sources],
        # The journal leaves out the short states of a switch; the note has them.
        "state": running.get("state", record.state),
        "finished": record.finished,
        "paused": bool(running.get("paused")),
        "seconds_in_state": running.get("since"),
        "bytes_done": running.get("bytes_done"),
        "bytes_total": running.get("bytes_total"),
        "bytes_per_second": running.get("rate"),
        "seconds_left": running.get("eta"),
        "waits_for": running.get("waiting_for", ""),
        "size": detail.size or None,
        "rows": detail.rows or None,
        "seconds": record.updated - record.created if record.finished else None,
        "write_pause": detail.pause,
        "retries": detail.retries,
        "retried_for": detail.retreat,
        "kept": detail.kept,
        "reason": record.reason,
        "error": record.error,
    }


def show_documents(documents: list[dict[str, Any]], *, finished: bool) -> None:
    """The running ones and, on request, the finished ones, for people."""
    running = [running_row(document) for document in documents if not document["finished"]]
    show_rows(running, RUNNING, Output.TEXT, empty="no migration is running")
    ended = [finished_row(document) for document in documents if document["finished"]]
    if finished:
        show_rows(ended, FINISHED, Output.TEXT, empty="none has finished")


def running_row(document: Mapping[str, Any]) -> Row:
    """A line of a running migration."""
    total, done, rate = document["bytes_total"], document["bytes_done"], document["bytes_per_second"]
    return {
        **_common(document),
        "phase": ("paused, " if document["paused"] else "") + str(document["state"]),
        "for": _duration(document["seconds_in_state"]),
        "done": bar(done, total) if total else None,
        "rate": f"{format_size(rate)}/s" if done and rate else None,
        "left": _duration(document["seconds_left"]),
        "waits_for": document["waits_for"] or _why_read_only(document) or None,
    }


def lines_of(document: Mapping[str, Any]) -> Text:
    """A running migration in two lines: a table with that many columns does not fit on a terminal of ordinary width."""
    row = running_row(document)
    way = f"{row['from']} → {row['to']}" if row["to"] else f"on {row['from']}"
    facts = [f"{row['phase']}{' for ' + str(row['for']) if row['for'] else ''}", row["done"], row["rate"]]
    waiting = f"waits for {document['waits_for']}" if document["waits_for"] else _why_read_only(document)
    facts += [f"{row['left']} left" if row["left"] else None, waiting]
    title = f"{row['id']}  {row['what']}: {row['table']} {row['tablets']}, {way}"
    return Text.assemble((title, "bold"), "\n  ", "  ".join(str(fact) for fact in facts if fact))


def finished_row(document: Mapping[str, Any]) -> Row:
    """A line of a migration that has ended."""
    return {
        **_common(document),
        "ended": document["state"],
        "size": None if document["size"] is None else format_size(document["size"]),
        "took": _duration(document["seconds"]),
        "write_pause": _duration(document["write_pause"]),
        "retries": document["retries"] or None,
        "error": document["error"] or None,
    }


def bar(done: int, total: int) -> str:
    """A bar and a percentage; an estimate of the total may be too small."""
    share = min(1.0, done / total)
    filled = round(share * _BAR)
    return "█" * filled + "░" * (_BAR - filled) + f" {share:4.0%}"


def _common(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": document["id"],
        "what": str(document["operation"]) + (", read-only" if document["mode"] == MigrationMode.READ_ONLY else ""),
        "table": document["table"],
        "tablets": ", ".join(map(str, document["tablets"])),
        "from": document["source"],
        "to": document["target"] if document["target"] != document["source"] else None,
    }


def _why_read_only(document: Mapping[str, Any]) -> str:
    return f"it is read-only: {document['mode_reason']}" if document["mode_reason"] else ""


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else format_duration(seconds)


def idle_line(directory: Directory, now: float) -> str:
    """What is said while nothing is running: the last one that ended, and when."""
    ended = [record for record in directory.snapshot().migrations.values() if record.finished]
    if not ended:
        return "idle; no migration has ended yet"
    last = max(ended, key=lambda record: (record.updated, record.id))
    tablets = ", ".join(map(str, last.sources))
    return f"idle; last: {last.operation} of {tablets} {last.state} {format_duration(max(0.0, now - last.updated))} ago"


def _watch(directory: Directory) -> None:
    """On a terminal, until somebody ends it."""
    clock = SystemClock()
    try:
        with Live(console=console, refresh_per_second=4) as live:
            while True:
                lines = [lines_of(document) for document in migration_documents(directory)]
                live.update(Text("\n").join(lines or [Text(idle_line(directory, clock.now().timestamp()))]))
                clock.sleep(REFRESH)
    except KeyboardInterrupt:
        tell("running migrations continue")
        raise
