"""`balancer table convert|unconvert`."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from balancer.clock import SystemClock
from balancer.directory.configured import records_of
from balancer.directory.identity import identity_of
from balancer.errors import UserError
from balancer.features.convert.plan import Intent, plan_conversion
from balancer.features.convert.run import convert, plan_unconversion, unconvert
from balancer.features.convert.statements import lock_statements, swap_statements
from balancer.features.convert.swap import SwapSession
from balancer.features.tables.adopt import TableRequest, request_of
from balancer.naming import cluster_name
from balancer.nodes.catalog.roots import EVERYWHERE
from balancer.nodes.session.addresses import connected
from balancer.nodes.session.connection import Connection, Statement
from balancer.settings import BundleSettings, load_settings
from balancer.terminal.options import ConfigOption, open_configured, operator
from balancer.terminal.output import Output, OutputOption, say, show_json, tell

BundleArgument = Annotated[str, typer.Argument(help="the bundle")]
TableArgument = Annotated[str, typer.Argument(help="the table, as named in the bundle's file")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="only show what it would do, and what is in the way")]
WidenOption = Annotated[
    bool,
    typer.Option(
        "--widen-keys",
        help="append the table's key to primary and unique keys that lack it; those of a whole table stay as they"
        " are, only on its partition",
    ),
]


def convert_table(
    bundle: BundleArgument,
    table: TableArgument,
    dry_run: DryRunOption = False,
    widen_keys: WidenOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Turns a plain table into a table of the cluster with one tablet, online. Its rows stay where they are."""
    settings = load_settings(config)
    found_bundle = settings.bundle(bundle)
    request = _sharded(found_bundle, table)
    if dry_run:
        with connected(found_bundle, "convert") as nodes:
            _show_intent(table, plan_conversion(request, nodes, widen=widen_keys), output)
        return
    with (
        open_configured(settings.daemon, create=True) as directory,
        connected(found_bundle, "convert", identity=identity_of(directory.snapshot())) as nodes,
    ):
        cluster = cluster_name(settings.daemon.directory)
        records = records_of(found_bundle)
        workplace = _workplace(found_bundle)
        done = convert(request, directory, nodes, records, cluster, workplace=workplace, widen=widen_keys)
    tablet = done.adopted.tablets[0]
    facts = {"table": table, "result": "converted", "node": tablet.node, "partitions": list(tablet.partitions)}
    _done(facts, done.pause, done.adopted.found.notes, output)


def unconvert_table(
    bundle: BundleArgument,
    table: TableArgument,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Turns a table with one tablet back into a plain one, online; or undoes an unfinished conversion."""
    settings = load_settings(config)
    found_bundle = settings.bundle(bundle)
    request = _sharded(found_bundle, table)
    with (
        open_configured(settings.daemon, create=True) as directory,
        connected(found_bundle, "convert", identity=identity_of(directory.snapshot())) as nodes,
    ):
        if dry_run:
            _show_statements(table, plan_unconversion(request, directory, nodes), output)
            return
        done = unconvert(request, directory, nodes, workplace=_workplace(found_bundle))
    notes = [f"node {node} keeps its empty {', '.join(map(str, request.roots))}" for node in done.kept]
    _done({"table": table, "result": "plain again", "node": done.node}, done.pause, notes, output)


def wanted(bundle: BundleSettings, table: str) -> TableRequest:
    """The table as the bundle's file describes it; an error names those that are there."""
    if table not in bundle.tables:
        known = ", ".join(sorted(bundle.tables)) or "none"
        raise UserError(f"there is no table {table!r} in {bundle.file}; there are: {known}")
    if not bundle.nodes:
        raise UserError(f"{bundle.file} has no nodes")
    return request_of(bundle, table, operator())


def _sharded(bundle: BundleSettings, table: str) -> TableRequest:
    """The same, of a table that has partitions."""
    request = wanted(bundle, table)
    if request.layout == EVERYWHERE:
        raise UserError(
            f"table {table} is everywhere and stays a plain table: take it over with `balancer table adopt`"
        )
    return request


def _workplace(bundle: BundleSettings) -> Any:
    def make(node: str, connection: Connection, leader_epoch: int) -> SwapSession:
        return SwapSession(
            node, connection, leader_epoch, bundle.migration, SystemClock(), lambda step: tell(f"… {step}")
        )

    return make


def _show_intent(table: str, intent: Intent, output: Output) -> None:
    home = intent.whereabouts.home
    before = [
        statement
        for c in intent.conversions
        for statement in (c.create_stub(), *(k.build(c.plain.name) for k in c.new_keys))
    ]
    swap = [*lock_statements(intent.conversions), *swap_statements(intent.conversions)] if intent.conversions else []
    carried = [name for conversion in intent.conversions for name in conversion.carried]
    if output is Output.JSON:
        show_json(
            {
                "table": table,
                "node": home,
                "converted": intent.whereabouts.converted,
                "before": _texts(before),
                "swap": _texts(swap),
                "carried": carried,
                "nodes_without": list(intent.whereabouts.without),
            }
        )
        return
    if intent.whereabouts.converted:
        say(f"table {table} is converted on node {home}; it will be finished and adopted")
        return
    say("-- before, while writers continue:")
    for text in _texts(before):
        say(f"{text};")
    say("-- in one transaction, within write_pause_budget:")
    for text in _texts(swap):
        say(f"{text};")
    for name in carried:
        say(f"-- {name} will name the partitioned table")
    for node in intent.whereabouts.without:
        say(f"-- node {node} has no roots yet; they will be made there")
    say(f"-- table {table} can be converted on node {home}; nothing was changed")


def _show_statements(table: str, statements: Sequence[Statement], output: Output) -> None:
    if output is Output.JSON:
        show_json({"table": table, "swap": _texts(statements)})
        return
    for text in _texts(statements):
        say(f"{text};")
    say(f"-- table {table} can become a plain one again; nothing was changed")


def _texts(statements: Sequence[Statement]) -> list[str]:
    return [statement.as_string(None) for statement in statements]


def _done(facts: dict[str, Any], pause: float | None, notes: Sequence[str], output: Output) -> None:
    milliseconds = None if pause is None else round(pause * 1000, 1)
    if output is Output.JSON:
        show_json({**facts, "pause_ms": milliseconds, "notes": list(notes)})
        return
    for note in notes:
        say(note)
    waited = "" if milliseconds is None else f"; other sessions waited at most {milliseconds:g} ms"
    say(f"table {facts['table']} is {facts['result']} on node {facts['node']}{waited}")
