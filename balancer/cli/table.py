"""`balancer table create|adopt|convert|unconvert|import|double|halve`.

`balancer table double|halve`: an order that the leader works off, vbucket by vbucket, as the budgets allow.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from balancer.cli.migrate import CommandOptions, DryRunOption, Failed, TimeoutOption, WaitOption, check_dry
from balancer.cli.moves import REFRESH
from balancer.clock import SystemClock
from balancer.directory.configured import records_of
from balancer.directory.contract import Directory
from balancer.directory.identity import identity_of
from balancer.directory.model import Plan
from balancer.directory.snapshot import Snapshot
from balancer.errors import Unavailable, UserError
from balancer.features.convert.command import BundleArgument, TableArgument, convert_table, unconvert_table, wanted
from balancer.features.import_tables.command import import_table
from balancer.features.reference.setup import FoundReference, adopt_reference, create_reference, inspect_reference
from balancer.features.tables.adopt import adopt, inspect
from balancer.features.tables.create import create
from balancer.features.tables.survey import Found, in_key_order
from balancer.naming import cluster_name
from balancer.nodes.catalog.bounds import show_part
from balancer.nodes.catalog.roots import EVERYWHERE
from balancer.nodes.session.addresses import connected
from balancer.planner import orders
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.settings import load_settings
from balancer.settings.units import format_duration
from balancer.terminal.operate import give, seconds
from balancer.terminal.options import ConfigOption, DirectoryOption, directory_of, open_configured
from balancer.terminal.output import Output, OutputOption, console, say, show_json, show_rows

VbucketsBundleArgument = Annotated[str, typer.Argument(help="the bundle")]
VbucketsTableArgument = Annotated[str, typer.Argument(help="the table")]
NowOption = Annotated[bool, typer.Option("--now", help="do not wait for the schedule")]
LINE_SECONDS = 5.0  # between two lines without a terminal


def double(
    bundle: VbucketsBundleArgument,
    table: VbucketsTableArgument,
    now: NowOption = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    dry_run: DryRunOption = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Splits every vbucket of a hash table into two halves, as the budgets allow.

    However small they get, the balancer does not merge them back; `table halve` does.
    """
    _order(
        orders.DOUBLE,
        {"bundle": bundle, "table": table, "at_once": now},
        CommandOptions(wait, seconds(timeout), dry_run, directory, config, output),
    )


def halve(
    bundle: VbucketsBundleArgument,
    table: VbucketsTableArgument,
    now: NowOption = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    dry_run: DryRunOption = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Merges every pair of sibling vbuckets of a hash table; pairs on different nodes are first moved together."""
    _order(
        orders.HALVE,
        {"bundle": bundle, "table": table, "at_once": now},
        CommandOptions(wait, seconds(timeout), dry_run, directory, config, output),
    )


def _order(what: str, arguments: dict[str, Any], manner: CommandOptions) -> None:
    table = arguments["table"]
    with directory_of(manner.directory, manner.config) as opened:
        if manner.dry_run:
            check_dry(opened, what, arguments)
            _show(_preview(opened.snapshot(), what, table), manner.output)
            return
        known = set(opened.snapshot().plans)
        answered = give(opened, what, arguments)
        order = _given(opened, known, what, table)
        if not manner.wait:
            result = {"order": order.id, "command": answered.id, "result": answered.result}
            _show({**result, "sentence": answered.result}, manner.output)
            return
        last = _followed(opened, order.id, manner)
    _show(last, manner.output)
    if last["state"] != orders.DONE or last["not_started"]:
        why = "; ".join(last["not_started"][:3]) or f"it is {last['state']}"
        raise Failed(f"order {order.id} was not carried out in full: {why}")


def _preview(snapshot: Snapshot, what: str, name: str) -> dict[str, Any]:
    table = snapshot.table(name)
    tablets = [snapshot.tablet(number) for number in orders.concerned(snapshot, table, what)]
    before = len(snapshot.tablets(table.id))
    after = before + (len(tablets) if what == orders.DOUBLE else -len(tablets) // 2)
    busy = sum(1 for tablet in tablets if snapshot.migration_of(tablet.id) is not None)
    apart = _apart(snapshot, [tablet.id for tablet in tablets]) if what == orders.HALVE else 0
    words = f"would be done: {name} has {before} vbuckets and gets {after}, by {abs(after - before)} migrations"
    words += f"; {apart} pairs on different nodes are moved together first" if apart else ""
    words += f"; {busy} of them in migrations that run now follow later" if busy else ""
    numbers = {"before": before, "after": after, "apart": apart, "busy": busy}
    return {"dry_run": True, "order": what, "table": name, **numbers, "sentence": words}


def _apart(snapshot: Snapshot, tablets: list[int]) -> int:
    """How many pairs of siblings are not on one node."""
    nodes: dict[object, str] = {found.bounds: found.node for found in map(snapshot.tablet, tablets)}
    pairs = [(node, nodes.get(leaf.sibling())) for leaf, node in nodes.items() if isinstance(leaf, Leaf)]
    return sum(1 for mine, other in pairs if mine != other) // 2


def _given(directory: Directory, known: set[str], what: str, table: str) -> Plan:
    for plan in directory.snapshot().plans.values():
        wish = plan.document.get("order"), plan.document.get("table")
        if plan.id not in known and wish == (what, table):
            return plan
    raise Unavailable("the order is not in the directory any more; see `balancer history`")


def _followed(directory: Directory, order: str, manner: CommandOptions) -> dict[str, Any]:
    """Waits for the end of an order; shows how far it is."""
    clock = SystemClock()
    began = told = clock.monotonic()
    quiet = manner.output is Output.JSON
    with console.status(f"order {order}") as status:
        if quiet or not console.is_terminal:
            status.stop()
        while True:
            snapshot = directory.snapshot()
            found = orders.progress(snapshot.plans[order], snapshot)
            if found["state"] != orders.ORDERED:
                return found
            status.update(f"{found['sentence']}, {found['running']} in migrations")
            if not quiet and not console.is_terminal and clock.monotonic() - told >= LINE_SECONDS:
                told = clock.monotonic()
                say(f"{found['sentence']}, {found['running']} in migrations")
            if manner.timeout is not None and clock.monotonic() - began > manner.timeout:
                raise Unavailable(
                    f"order {order} has not been carried out within {format_duration(manner.timeout)} and continues:"
                    f" `balancer status` shows it, `balancer cancel {order}` ends it"
                )
            clock.sleep(REFRESH)


def _show(document: dict[str, Any], output: Output) -> None:
    if output is Output.JSON:
        show_json(document)
    else:
        say(document["sentence"])


app = typer.Typer(
    help="Create tables; adopt, convert or import existing ones; double or halve their vbuckets.",
    no_args_is_help=True,
)
app.command("convert")(convert_table)
app.command("unconvert")(unconvert_table)
app.command("import")(import_table)
app.command("double")(double)
app.command("halve")(halve)

COPIES = "the daemon makes the copies; `balancer doctor` names those that are missing"

AdoptDryRunOption = Annotated[bool, typer.Option("--dry-run", help="only show what it finds")]
DefinitionOption = Annotated[
    Path | None, typer.Option("--definition", help="SQL that creates the roots, if no node has them yet")
]


@app.command("adopt")
def adopt_table(
    bundle: BundleArgument,
    table: TableArgument,
    dry_run: AdoptDryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Takes over an existing partitioned table. Its rows stay where they are."""
    settings = load_settings(config)
    found_bundle = settings.bundle(bundle)
    request = wanted(found_bundle, table)
    if dry_run:
        with connected(found_bundle, "table") as nodes:
            if request.layout == EVERYWHERE:
                _show_reference(inspect_reference(request, nodes), output)
            else:
                _show_found(inspect(request, nodes), output)
        return
    with (
        open_configured(settings.daemon, create=True) as directory,
        connected(found_bundle, "table", identity=identity_of(directory.snapshot())) as nodes,
    ):
        cluster = cluster_name(settings.daemon.directory)
        if request.layout == EVERYWHERE:
            adopt_reference(request, directory, nodes, records_of(found_bundle), cluster)
            _done("adopted", table, 1, output, (COPIES,))
            return
        adopted = adopt(request, directory, nodes, records_of(found_bundle), cluster)
    _done("adopted", table, len(adopted.tablets), output, adopted.found.notes)


@app.command("create")
def create_table(
    bundle: BundleArgument,
    table: TableArgument,
    definition: DefinitionOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Creates the table's roots and tablets on the nodes, as the bundle's file describes them."""
    settings = load_settings(config)
    found_bundle = settings.bundle(bundle)
    request = wanted(found_bundle, table)
    shape = found_bundle.tables[table]
    with (
        open_configured(settings.daemon, create=True) as directory,
        connected(found_bundle, "table", identity=identity_of(directory.snapshot())) as nodes,
    ):
        if request.layout == EVERYWHERE:
            cluster, epoch = cluster_name(settings.daemon.directory), directory.snapshot().epoch
            create_reference(request, nodes, epoch, cluster, _read(definition))
            adopt_reference(request, directory, nodes, records_of(found_bundle), cluster)
            _done("created", table, 1, output, (COPIES,))
            return
        created = create(
            request,
            directory,
            nodes,
            records_of(found_bundle),
            cluster_name(settings.daemon.directory),
            tablets=shape.tablets,
            splits=shape.splits,
            definition=_read(definition),
        )
    _done("created", table, len(created.tablets), output)


def _read(definition: Path | None) -> str:
    if definition is None:
        return ""
    try:
        return definition.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{definition} cannot be read: {error.strerror}") from None
    except UnicodeError:
        raise UserError(f"{definition} is not UTF-8 text") from None


def _show_reference(found: FoundReference, output: Output) -> None:
    rows: list[dict[str, Any]] = [{"node": found.home, "part": "home"}]
    rows += [{"node": node, "part": "copy"} for node in found.others]
    rows += [{"node": node, "part": "copy, whose tables will be made"} for node in found.without]
    show_rows(rows, ("node", "part"), output)


def _show_found(found: Found, output: Output) -> None:
    columns = found.roots[0].columns
    rows: list[dict[str, Any]] = [
        {
            "part": show_part(columns, tablet.part),
            "node": tablet.node,
            "partitions": ", ".join(map(str, tablet.partitions)),
        }
        for tablet in in_key_order(found.tablets)
    ]
    show_rows(rows, ("part", "node", "partitions"), output)
    if output is Output.TEXT:
        key = ", ".join(f"{column.name} {column.type}" for column in columns)
        layout = "whole" if found.whole else f"{found.roots[0].layout} by ({key})"
        say(f"{len(rows)} tablets of {found.table}, {layout}")
        for note in found.notes:
            say(note)
        for node in found.without:
            say(f"node {node} has no roots yet; they will be made there")


def _done(word: str, table: str, tablets: int, output: Output, notes: Sequence[str] = ()) -> None:
    if output is Output.JSON:
        show_json({"table": table, "tablets": tablets, "result": word, "notes": list(notes)})
    else:
        for note in notes:
            say(note)
        say(f"{word} table {table} with {tablets} tablets")
