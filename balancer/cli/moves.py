"""`balancer moves | move | split | merge`: what migrations do now, and wishes for new ones.

Wishes go through the directory to the leader (`operate.submit`); nothing here acts on a node.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table as RichTable

from balancer.cli.operate import ReasonOption, submit
from balancer.cli.output import Output, OutputOption, Row, console, say, show_json, show_rows
from balancer.cli.places import ConfigOption, DirectoryOption, directory_of
from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import Migration, RangeBounds
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Unavailable, UserError
from balancer.migration.progress import TOPIC
from balancer.migration.record import read_detail
from balancer.nodes.bounds import parse_value
from policies.keys import encode_key

COLUMNS = ("id", "what", "tablets", "from", "to", "state", "done", "rate", "eta", "waits_for", "pause", "error")
REFRESH = 0.5
BEGIN_PATIENCE = 30.0
_BAR = 12

WaitOption = Annotated[bool, typer.Option("--wait", "-w", help="wait for its end, showing how far it is")]


class Failed(BalancerError):
    """The migration that was waited for did not succeed."""


def moves(
    watch: Annotated[bool, typer.Option("--watch", help="keep showing until nothing is left; Ctrl-C ends it")] = False,
    all: Annotated[bool, typer.Option("--all", "-a", help="finished ones too")] = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Migrations: phase, bytes, rate, time left, and what each waits for."""
    with directory_of(directory, config) as opened:
        if watch and console.is_terminal and output is Output.TEXT:
            _watch(opened, all)
        else:
            show_rows(list(migration_rows(opened, all)), COLUMNS, output, empty="no migration is running")


def move(
    tablet: str,
    node: Annotated[str, typer.Argument(help="the node it should go to")],
    wait: WaitOption = False,
    reason: ReasonOption = "",
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Moves a tablet to another node."""
    _give("move", {"tablet": tablet, "node": node, "reason": reason}, (tablet,), wait, (directory, config, output))


def split(
    tablet: str,
    keys: Annotated[list[str] | None, typer.Argument(help="where to cut a range; else in equal parts")] = None,
    parts: Annotated[int, typer.Option(help="how many parts, where no keys are given")] = 2,
    wait: WaitOption = False,
    reason: ReasonOption = "",
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Splits a tablet: a vbucket into its halves, a range at keys or in equal parts. `5,x` is a key of two columns."""
    arguments: dict[str, Any] = {"tablet": tablet, "parts": parts, "reason": reason}
    if keys:
        with directory_of(directory, config) as opened:
            arguments["keys"] = [encoded_key(opened.snapshot(), tablet, text).hex() for text in keys]
    _give("split", arguments, (tablet,), wait, (directory, config, output))


def merge(
    tablets: list[str],
    wait: WaitOption = False,
    reason: ReasonOption = "",
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Merges neighbouring ranges, or the two halves of a vbucket."""
    _give("merge", {"tablets": tablets, "reason": reason}, tuple(tablets), wait, (directory, config, output))


def encoded_key(snapshot: Snapshot, tablet: str, text: str) -> bytes:
    """A key as a person writes it, with commas between its columns, as the directory keeps it."""
    if not tablet.isdigit():
        raise UserError(f"{tablet!r} is not a tablet's id: ids are numbers")
    found = snapshot.tablet(int(tablet))
    if not isinstance(found.bounds, RangeBounds):
        raise UserError(f"tablet {tablet} is a vbucket: it is split into its halves, without keys")
    types = snapshot.tables[found.table].key_types
    words = next(csv.reader([text]))
    if len(words) > len(types):
        raise UserError(f"the key {text!r} has {len(words)} values, the table's key has {len(types)} columns")
    values = [parse_value(kind, word) for kind, word in zip(types, words, strict=False)]
    return encode_key(types, values, prefix=True)


def migration_rows(directory: Directory, finished: bool = False) -> Iterator[Row]:
    """What `moves` shows, oldest first."""
    notes = directory.published(TOPIC)
    records = sorted(directory.snapshot().migrations.values(), key=lambda record: record.created)
    for record in records:
        if finished or not record.finished:
            yield _row(record, notes.get(record.id) or {})


def _row(record: Migration, note: dict[str, Any]) -> Row:
    detail = read_detail(record)
    done, total = note.get("bytes_done", 0), note.get("bytes_total", 0)
    # The journal leaves out the short states of a switch; the note has them.
    state = record.state if record.finished else note.get("state", record.state)
    since = "" if record.finished or "since" not in note else f" {note['since']:.0f} s"
    return {
        "id": record.id,
        "what": f"{record.operation}, {record.mode}",
        "tablets": ",".join(map(str, record.sources)),
        "from": record.source_node,
        "to": record.target_node if record.target_node != record.source_node else "",
        "state": ("paused, " if note.get("paused") else "") + str(state) + since,
        "done": bar(done, total) if total and not record.finished else "",
        "rate": f"{note.get('rate', 0) / 1e6:.1f} MB/s" if done else "",
        "eta": f"{note['eta']:.0f} s" if note.get("eta") is not None else "",
        "waits_for": note.get("waiting_for", ""),
        "pause": f"{detail.pause * 1000:.0f} ms" if detail.pause is not None else "",
        "error": record.error,
    }


def bar(done: int, total: int) -> str:
    """A bar and a percentage; an estimate of the total may be too small."""
    share = min(1.0, done / total)
    filled = round(share * _BAR)
    return "█" * filled + "░" * (_BAR - filled) + f" {share:4.0%}"


def _watch(directory: Directory, finished: bool) -> None:
    clock = SystemClock()
    with Live(console=console, refresh_per_second=4) as live:
        while True:
            rows = list(migration_rows(directory, finished))
            table = RichTable(box=None, pad_edge=False, header_style="bold")
            for name in COLUMNS:
                table.add_column(name.replace("_", " "))
            for row in rows:
                table.add_row(*(str(row[name]) for name in COLUMNS))
            live.update(table if rows else "no migration is running")
            if not any(not record.finished for record in directory.snapshot().migrations.values()):
                return
            clock.sleep(REFRESH)


def _give(
    verb: str,
    arguments: dict[str, Any],
    tablets: tuple[str, ...],
    wait: bool,
    where: tuple[str | None, Path | None, Output],
) -> None:
    address, config, output = where
    with directory_of(address, config) as directory:
        known = set(directory.snapshot().migrations)
        answered = submit(directory, verb, arguments)
        if not wait:
            if output is Output.JSON:
                show_json({"command": answered.id, "state": answered.state, "result": answered.result})
            else:
                say(answered.result)
            return
        last = _follow(directory, _begun(directory, known, {int(tablet) for tablet in tablets}), output)
        row = next(row for row in migration_rows(directory, finished=True) if row["id"] == last.id)
        show_rows([row], COLUMNS, output)
        if last.state != "done":
            raise Failed(f"migration {last.id} is {last.state}: {last.error}")


def _begun(directory: Directory, known: set[str], tablets: set[int]) -> str:
    """The migration that the command has come to."""
    clock = SystemClock()
    deadline = clock.monotonic() + BEGIN_PATIENCE
    while clock.monotonic() < deadline:
        for record in directory.snapshot().migrations.values():
            if record.id not in known and tablets & set(record.sources):
                return record.id
        clock.sleep(0.1)
    raise Unavailable(f"the migration has not begun within {BEGIN_PATIENCE:.0f} s; see `balancer moves`")


def _follow(directory: Directory, migration: str, output: Output) -> Migration:
    """Waits for the end; on a terminal with a line that moves."""
    clock = SystemClock()
    quiet = output is Output.JSON or not console.is_terminal
    with console.status(f"migration {migration}") as status:
        if quiet:
            status.stop()
        while True:
            record = directory.snapshot().migrations[migration]
            if record.finished:
                return record
            row = _row(record, directory.published(TOPIC).get(migration) or {})
            words = [row["id"], row["state"], row["done"], row["rate"], row["eta"], row["waits_for"]]
            status.update("  ".join(word for word in words if word))
            clock.sleep(REFRESH)
