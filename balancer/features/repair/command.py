"""`balancer doctor [--fix]`: what migrations left on the nodes, and where nodes and directory disagree.

Commands that give something up: `balancer tablet lost`, and what `node rejoin` and `node lost` share with it.

Each says first what is given up, in numbers, and does nothing without `--accept-loss`. The leader carries it out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from balancer.directory.configured import open_configured
from balancer.directory.contract import Directory
from balancer.directory.handover_record import ARRIVING, GONE, UNDOING, handovers_in
from balancer.directory.model import NodeState, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused, Unavailable, UserError
from balancer.features.checker.book import read_books
from balancer.features.import_tables.record import RENAMING, SEALING, imports_in
from balancer.features.repair.doctor import Finding, Repairs, examine, repair
from balancer.features.repair.revive import copies_of, reshard_of
from balancer.nodes.schema.install import OwnState, read_tablets
from balancer.nodes.session.addresses import address_in
from balancer.nodes.session.connection import translated
from balancer.nodes.session.holder import Addresses, NodeSessions
from balancer.nodes.tablets.object_names import CLOSED
from balancer.planner.bundle_state import STATUS_TOPIC
from balancer.planner.verbs import CommandContext, tablets_on
from balancer.settings import Settings, load_settings
from balancer.settings.units import format_size
from balancer.terminal.operate import AcceptOption, give
from balancer.terminal.options import ConfigOption, operator
from balancer.terminal.output import Output, OutputOption, say, show_json, show_rows, tell

COLUMNS = ("node", "finding", "repair")
LEAD_PATIENCE = 5.0
DIRECTORY = "(directory)"
SECURE = "balancer directory secure"


def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="repair what it can; only while no daemon leads")] = False,
    node: Annotated[list[str] | None, typer.Option("--node", "-n", help="only these nodes")] = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Looks for leftovers of migrations, for nodes that contradict the directory, and for a directory that is open to
    anyone but the writer and the reader. Exits with 1 if it finds any."""
    settings = load_settings(config)
    addresses = partial(address_in, settings)
    with open_configured(settings.daemon) as directory:
        for name in node or ():
            directory.snapshot().node(name)
        exposures = [Finding(DIRECTORY, text, command=SECURE) for text in directory.exposures(everything=True)]
        exposures += [found for found in _of_checks(directory) if node is None or found.node in node]
        exposures += _of_imports(directory)
        exposures += _of_handovers(directory, settings)
        findings = examine(directory, addresses, node)
        if fix and findings:
            _tell(_fix(directory, addresses, node), output)
            findings = examine(directory, addresses, node)
    findings = [*exposures, *findings]
    rows = [{"node": found.node, "finding": found.text, "repair": _repair(found)} for found in findings]
    show_rows(rows, COLUMNS, output, empty="nothing is wrong")
    if findings:
        raise typer.Exit(1)


def _tell(repairs: Repairs, output: Output) -> None:
    """What was repaired, then what was not, and why. With data output, that is not part of it."""
    speak = say if output is Output.TEXT else tell
    for found in repairs.done:
        speak(f"repaired on {found.node}: {found.text}")
    for found, why in repairs.refused:
        speak(f"not repaired on {found.node}, try again later: {found.text} ({why})")


def _of_checks(directory: Directory) -> Iterator[Finding]:
    """What the leader's consistency checker has found that has not gone since."""
    for bundle, book in sorted(read_books(directory).items()):
        for standing in book.standing.values():
            found = standing.anomaly
            yield Finding(found.node or f"({bundle})", f"check of {found.kind}: {found.text}", command=found.advice)


def _of_imports(directory: Directory) -> Iterator[Finding]:
    """Only a person resumes one that was interrupted, and writers may be waiting for it."""
    for bundle, table, record in imports_in(directory.snapshot()):
        waits = "; writers of its old tables are refused" if record.state in (SEALING, RENAMING) else ""
        yield Finding(
            DIRECTORY,
            f"the import of table {table} has not ended ({record.state}): it runs, or was interrupted{waits}",
            command=f"balancer table import {bundle} {table}",
        )


def _of_handovers(directory: Directory, settings: Settings) -> Iterator[Finding]:
    """One that was interrupted, and a file that stayed behind: only a person resumes either."""
    for bundle, record in handovers_in(directory.snapshot()).items():
        again = f"balancer directory hand-over {' '.join(record.with_it)} --to {record.to}"
        if record.state == ARRIVING:
            yield Finding(DIRECTORY, record.sentence(bundle), command="the same command again, in that directory")
        elif record.state == UNDOING:
            yield Finding(DIRECTORY, f"{record.sentence(bundle)}, and is being undone", command=f"{again} --undo")
        elif record.state != GONE:
            yield Finding(
                DIRECTORY, f"{record.sentence(bundle)}, and that has not ended ({record.state})", command=again
            )
        elif bundle in settings.bundles:
            yield Finding(DIRECTORY, record.sentence(bundle), command="move its file to the folder of that directory")


def _repair(found: Finding) -> str:
    if found.repairable:
        return "with --fix"
    return f"by hand: {found.command}" if found.command else "by hand"


def _fix(directory: Directory, addresses: Addresses, nodes: list[str] | None) -> Repairs:
    """Looks again once it leads: nothing else begins from then on."""
    leadership = directory.campaign(f"doctor of {operator()}", LEAD_PATIENCE)
    if leadership is None:
        raise Refused(
            f"{directory.leader() or 'another instance'} leads, and what looks left over may be at work: stop it first"
        )
    try:
        return repair(leadership, addresses, examine(directory, addresses, nodes))
    finally:
        leadership.resign()


app = typer.Typer(help="Give up tablets that are nowhere.", no_args_is_help=True)

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="only say what would be lost")]


@dataclass(frozen=True, slots=True)
class Loss:
    """How such a command was given."""

    config: Path | None
    accepted: bool
    dry_run: bool
    output: Output


@dataclass(frozen=True, slots=True)
class Scene:
    """What there is to look at."""

    directory: Directory
    snapshot: Snapshot
    links: NodeSessions
    dry_run: bool


Losses = Callable[[Scene, dict[str, Any]], Iterator[str]]
"""What would be given up, as sentences; raises `Refused` if there is nothing to give up."""


@app.callback()
def tablets() -> None:
    """Keeps `lost` a word of its own: there will be others."""


@app.command("lost")
def tablet_lost(
    tablet: Annotated[str, typer.Argument(help="the tablet's id")],
    recreate: Annotated[str | None, typer.Option("--recreate-empty-on", help="create it on this node, empty")] = None,
    take: Annotated[str | None, typer.Option("--take-from", help="open the copy that this node still has")] = None,
    former: Annotated[
        str | None,
        typer.Option("--former-on", help="undo its split or merge: this node has the tablets from before"),
    ] = None,
    accept_loss: AcceptOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Gives a tablet that is nowhere a new owner: a node that still has a copy of it, or an empty one.

    Without options it shows which nodes have a copy, and how many rows.
    """
    if sum(one is not None for one in (recreate, take, former)) > 1:
        raise UserError("give one of --recreate-empty-on, --take-from and --former-on: a tablet has one owner")
    arguments = {
        "tablet": tablet,
        "node": recreate or take or former,
        "empty": recreate is not None,
        "former": former is not None,
    }
    dry = dry_run or arguments["node"] is None
    give_loss("tablet-lost", arguments, Loss(config, accept_loss, dry, output), lost_of_tablet)


def give_loss(verb: str, arguments: dict[str, Any], loss: Loss, losses: Losses) -> None:
    """Says what is given up; then, if that is accepted, gives the command to the leader."""
    settings = load_settings(loss.config)
    links = NodeSessions(partial(address_in, settings), "lost")
    try:
        with open_configured(settings.daemon) as directory:
            found = list(losses(Scene(directory, directory.snapshot(), links, loss.dry_run), arguments))
            result = ""
            if loss.output is Output.TEXT:
                for sentence in found:
                    say(sentence)
            if not loss.dry_run:
                result = give(directory, verb, {**arguments, "accept_loss": loss.accepted}).result
    finally:
        links.close()
    if loss.output is Output.JSON:
        show_json({"dry_run": loss.dry_run, "given_up": found, "result": result})
    elif result:
        say(result)


def lost_of_rewound_node(scene: Scene, arguments: dict[str, Any]) -> Iterator[str]:
    """What `node rejoin` accepts."""
    node = scene.snapshot.node(arguments["node"])
    if not node.rewound:
        raise Refused(f"node {node.id} is not known to have gone back in time: there is nothing to accept")
    yield f"node {node.id} has gone back in time: {node.rewound}"
    count = tablets_on(scene.snapshot, node.id)
    size = _figure(scene, node.bundle, node.id, "bytes")
    yield f"given up: writes that it acknowledged and lost, in any of its {count} tablets ({size})"
    for tablet in _tablets_of(scene.snapshot, node.id):
        if scene.snapshot.tables[tablet.table].everywhere:
            yield from _newer_copies(scene, tablet)
    try:
        with translated(node.id):
            link = scene.links.control(node.id)
            with link.cursor() as cursor:
                rows = {row.id: row for row in read_tablets(cursor) if row.state in (OwnState.OWNED, OwnState.FENCED)}
    except Unavailable as error:
        yield f"the node cannot be asked what it has: {error}"
        return
    yield f"opened again: {sum(row.migration == CLOSED for row in rows.values())} tablets that are closed now"
    missing = [tablet.id for tablet in _tablets_of(scene.snapshot, node.id) if tablet.id not in rows]
    if missing:
        some = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        text = f"{len(missing)} tablets are not there at all ({some}): `balancer tablet lost {missing[0]}` comes first"
        if not scene.dry_run:
            raise Refused(text)
        yield text


def lost_of_lost_node(scene: Scene, arguments: dict[str, Any]) -> Iterator[str]:
    """What `node lost` accepts."""
    node = scene.snapshot.node(arguments["node"])
    if node.state is NodeState.LOST:
        raise Refused(f"node {node.id} is lost already")
    count, size = tablets_on(scene.snapshot, node.id), _figure(scene, node.bundle, node.id, "bytes")
    running = [
        record.id
        for record in scene.snapshot.migrations.values()
        if not record.finished and node.id in (record.source_node, record.target_node)
    ]
    yield f"given up: {count} tablets on node {node.id} ({size}), until each has a new owner"
    yield f"ended: {len(running)} migrations{': ' + ', '.join(running) if running else ''}"


def lost_of_tablet(scene: Scene, arguments: dict[str, Any]) -> Iterator[str]:
    """What `tablet lost` accepts: which node has what of it."""
    tablet = scene.snapshot.tablet(CommandContext.number(arguments["tablet"]))
    yield f"tablet {tablet.id} belongs to node {tablet.node} with epoch {tablet.epoch}"
    copies = copies_of(scene.links, scene.snapshot, tablet)
    for copy in copies:
        rows = "no rows" if copy.rows is None else f"{copy.rows} rows"
        yield f"node {copy.node}: {copy.state}, epoch {copy.epoch}, {rows}"
    if not copies:
        yield "no node has a copy of it"
    yield from _former(scene, tablet)
    if arguments["former"]:
        lost, before = reshard_of(scene.snapshot, tablet)
        named = [" and ".join(str(one.id) for one in group) for group in (lost, before)]
        yield f"given up: what was written to tablet {named[0]} after it was made from tablet {named[1]}"
    elif arguments["empty"]:
        yield "given up: all its rows"
    elif arguments["node"] is not None:
        yield f"given up: what was written after node {arguments['node']} had ceased to be its owner"


def _former(scene: Scene, tablet: Tablet) -> Iterator[str]:
    """Which node has what a split or merge made it from."""
    try:
        _, before = reshard_of(scene.snapshot, tablet)
    except Refused:
        return
    for former in before:
        for copy in copies_of(scene.links, scene.snapshot, former):
            if copy.rows is not None:
                yield (
                    f"node {copy.node} has tablet {former.id}, from which it was made, with {copy.rows} rows:"
                    f" --former-on {copy.node} undoes that"
                )


def _newer_copies(scene: Scene, tablet: Tablet) -> Iterator[str]:
    """For a reference table whose home went back in time: its copies know more than it does."""
    rows = {copy.node: copy.rows for copy in copies_of(scene.links, scene.snapshot, tablet) if copy.rows is not None}
    others = {node: count for node, count in rows.items() if node != tablet.node}
    if not others:
        return
    table, best = scene.snapshot.tables[tablet.table].name, max(others, key=lambda node: others[node])
    counts = ", ".join(f"{count} on {node}" for node, count in sorted(others.items()))
    yield (
        f"it is the home of reference table {table}, with {rows.get(tablet.node, 0)} rows; its copies have {counts}:"
        f" `balancer tablet lost {tablet.id} --take-from {best} --accept-loss` first makes that copy the home, and"
        " keeps what other nodes' rows refer to"
    )


def _tablets_of(snapshot: Snapshot, node: str) -> Iterator[Tablet]:
    return (tablet for table in snapshot.tables for tablet in snapshot.tablets(table) if tablet.node == node)


def _figure(scene: Scene, bundle: str, node: str, name: str) -> str:
    """From the leader's last report."""
    note = scene.directory.published(STATUS_TOPIC).get(bundle) or {}
    value = next((row.get(name) for row in note.get("nodes", ()) if row["node"] == node), None)
    return "of unknown size" if value is None else format_size(value)
