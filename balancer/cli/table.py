"""`balancer table create|adopt|convert|unconvert|import|double|halve`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from balancer.cli.convert_table import BundleArgument, TableArgument, convert_table, unconvert_table, wanted
from balancer.cli.import_table import import_table
from balancer.cli.output import Output, OutputOption, say, show_json, show_rows
from balancer.cli.places import ConfigOption, open_configured
from balancer.cli.vbuckets import double, halve
from balancer.directory.identity import identity_of
from balancer.errors import UserError
from balancer.nodes.bounds import show_part
from balancer.nodes.catalog import EVERYWHERE
from balancer.polling.addresses import cluster_name, connected, records_of
from balancer.settings import load_settings
from balancer.tables.adopt import adopt, inspect
from balancer.tables.coverage import in_key_order
from balancer.tables.create import create
from balancer.tables.reference import FoundReference, adopt_reference, create_reference, inspect_reference
from balancer.tables.survey import Found

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

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="only show what it finds")]
DefinitionOption = Annotated[
    Path | None, typer.Option("--definition", help="SQL that creates the roots, if no node has them yet")
]


@app.command("adopt")
def adopt_table(
    bundle: BundleArgument,
    table: TableArgument,
    dry_run: DryRunOption = False,
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
