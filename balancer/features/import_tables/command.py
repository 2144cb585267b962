"""`balancer table import`: a table that the application shards by itself over several nodes comes into the cluster."""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated

import typer

from balancer.clock import SystemClock
from balancer.directory.configured import records_of
from balancer.directory.identity import identity_of
from balancer.errors import UserError
from balancer.features.convert.command import BundleArgument, TableArgument, wanted
from balancer.features.import_tables.plan import ImportPlan
from balancer.features.import_tables.run import Imported, TableImport
from balancer.naming import cluster_name
from balancer.nodes.session.addresses import addresses_of
from balancer.settings import load_settings
from balancer.terminal.options import ConfigOption, open_configured
from balancer.terminal.output import Output, OutputOption, say, show_json, tell

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="only show what it would do, and what is in the way")]
CancelOption = Annotated[bool, typer.Option("--cancel", help="undo an import that is not committed")]
ReleaseOption = Annotated[bool, typer.Option("--release", help="drop the old tables that an import kept")]


def import_table(
    bundle: BundleArgument,
    table: TableArgument,
    dry_run: DryRunOption = False,
    cancel: CancelOption = False,
    release: ReleaseOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Makes one table out of the plain tables with this name on several nodes, online; run it again to continue."""
    if cancel and (release or dry_run):
        raise UserError("give --cancel alone; --dry-run goes with --release or with none")
    settings = load_settings(config)
    found = settings.bundle(bundle)
    request = wanted(found, table)
    shape = found.tables[table]
    with open_configured(settings.daemon, create=True) as directory:
        work = TableImport(
            request,
            directory,
            addresses_of([found], identity_of(directory.snapshot())),
            records=records_of(found),
            cluster=cluster_name(settings.daemon.directory),
            settings=found.migration,
            clock=SystemClock(),
            observe=lambda step: tell(f"… {step}"),
        )
        with work:
            if cancel:
                work.cancel()
                _say({"table": table, "result": "cancelled"}, f"the import of table {table} is undone", output)
            elif release:
                _released(table, work.release(dry_run=dry_run), dry_run, output)
            elif dry_run:
                _planned(table, work.plan(shape.tablets, shape.splits), output)
            else:
                _imported(work.run(shape.tablets, shape.splits), output)


def _planned(table: str, plan: ImportPlan, output: Output) -> None:
    tablets = Counter(plan.owners)
    facts = {
        "table": table,
        "sources": list(plan.sources),
        "nodes_without": list(plan.without),
        "tablets": dict(tablets),
        "old_tables": [str(one.before) for one in plan.tables],
    }
    spread = ", ".join(f"{count} on {node}" for node, count in tablets.items())
    _say(
        facts,
        f"{plan.words} on {', '.join(plan.sources)} would become one table with {len(plan.parts)} tablets ({spread});"
        f" the old tables would be kept as {', '.join(str(one.before) for one in plan.tables)}; no key is on two"
        " nodes; nothing was changed",
        output,
    )


def _imported(done: Imported, output: Output) -> None:
    pause = None if done.pause is None else round(done.pause * 1000, 1)
    facts = {"table": done.table, "tablets": done.tablets, "rows": done.rows, "pause_ms": pause, "result": "imported"}
    waited = "" if pause is None else f"; writers were refused for {pause:g} ms"
    _say(
        facts,
        f"imported table {done.table} with {done.tablets} tablets and {done.rows} rows{waited}; the old tables are"
        " kept, read-only, until --release",
        output,
    )


def _released(table: str, rows: dict[str, int], dry_run: bool, output: Output) -> None:
    word = "would be dropped" if dry_run else "are dropped"
    counted = ", ".join(f"{count} rows on {node}" for node, count in rows.items())
    _say({"table": table, "rows": rows, "dry_run": dry_run}, f"the old tables of {table} {word}: {counted}", output)


def _say(facts: Mapping[str, object], sentence: str, output: Output) -> None:
    if output is Output.JSON:
        show_json(facts)
    else:
        say(sentence)
