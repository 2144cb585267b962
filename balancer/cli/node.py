"""`balancer node list|check|grant-script|rejoin|lost`."""

from typing import Annotated, Any

import typer

from balancer.clock import SystemClock
from balancer.directory.snapshot import NotFound, Snapshot
from balancer.errors import Refused, Unavailable
from balancer.features.repair.command import DryRunOption, Loss, give_loss, lost_of_lost_node, lost_of_rewound_node
from balancer.naming import Name, cluster_name, parse_name
from balancer.nodes.catalog.findings import compare_roots
from balancer.nodes.catalog.preflight import Needs, Severity, Shortfall, TableNeeds, grant_script, preflight
from balancer.nodes.catalog.roots import EVERYWHERE, Facts, facts_on
from balancer.nodes.session.addresses import address_of, addresses_of
from balancer.nodes.session.connection import connect, node_itself, translated
from balancer.polling.poller import NodeAnswer, Poller
from balancer.settings import BundleSettings, NodeSettings, Settings, load_settings
from balancer.settings.units import format_size
from balancer.terminal.operate import AcceptOption
from balancer.terminal.options import ConfigOption, open_configured
from balancer.terminal.output import Output, OutputOption, say, show_rows

app = typer.Typer(help="Look at nodes and prepare them.", no_args_is_help=True)

BundleArgument = Annotated[str | None, typer.Argument(help="a bundle; default: all")]
NodeOption = Annotated[
    str | None, typer.Option("--node", "-n", help="only this node; default: all nodes of the bundle")
]
LIST = (
    "node",
    "bundle",
    "zone",
    "weight",
    "state",
    "health",
    "version",
    "size",
    "disk_free",
    "connections",
    "tablets",
    "reason",
)


@app.command("list")
def list_nodes(bundle: BundleArgument = None, config: ConfigOption = None, output: OutputOption = Output.TEXT) -> None:
    """Polls the nodes of the configuration now and shows their health, size, connections and tablets."""
    settings = load_settings(config)
    bundles = _bundles(settings, bundle)
    with open_configured(settings.daemon) as directory:
        snapshot = directory.snapshot()
    poller = Poller(cluster_name(settings.daemon.directory), SystemClock(), settings.daemon.poll_timeout)
    try:
        reports = poller.poll(snapshot, addresses_of(bundles)).nodes
    finally:
        poller.close()
    rows = [
        _row(node, found.name, snapshot, reports.get(node.id)) for found in bundles for node in found.nodes.values()
    ]
    if output is Output.TEXT:
        sizes = ("size", "disk_free")
        rows = [row | {name: format_size(row[name]) for name in sizes if row[name] is not None} for row in rows]
    show_rows(rows, LIST, output, empty="the configuration has no nodes")


@app.command()
def check(
    bundle: BundleArgument = None,
    node: NodeOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Shows what each node lacks, and the statement that fixes it; exits with 1 if a node cannot be used."""
    rows: list[dict[str, Any]] = []
    bundles = _bundles(load_settings(config), bundle)
    known = sorted(name for one in bundles for name in one.nodes)
    if node is not None and node not in known:
        raise NotFound(f"there is no node {node!r} in the configuration; there are: {', '.join(known) or 'none'}")
    for found in bundles:
        tables = tuple(
            TableNeeds(tuple(map(parse_name, one.roots)), one.key, name, bool(one.messages))
            for name, one in found.tables.items()
            if one.layout != EVERYWHERE
        )
        needs = Needs(tables, 2 * found.options.budgets.moves_per_node, found.migration.trust_table_owners)
        facts: dict[str, dict[Name, Facts]] = {}
        for settings in found.nodes.values():
            if node in (None, settings.id):
                rows += [_finding(settings.id, finding) for finding in _preflight(settings, needs, facts)]
        for where, text in compare_roots(facts):
            rows.append(_finding(where, Shortfall(Severity.ERROR, "roots", text)))
    show_rows(rows, ("node", "level", "subject", "text", "remedy"), output, empty="every node has what it needs")
    if any(row["level"] == Severity.ERROR for row in rows):
        raise typer.Exit(1)


@app.command("grant-script")
def print_grant_script(
    bundle: Annotated[str, typer.Argument(help="the bundle whose tables the role will balance")],
    role: Annotated[str, typer.Option(help="the role named in the nodes' DSNs")] = "balancer",
    forward_role: Annotated[str, typer.Option(help="the nodes' forward_user, for forwarding = true")] = "",
    owner: Annotated[
        list[str] | None, typer.Option(help="the owner of tables that the node does not have yet; may be repeated")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Prints SQL that gives a role what the balancer needs, for a superuser to run on each node."""
    say(grant_script(role, _roots(load_settings(config).bundle(bundle)), forward_role, owner or ()))


@app.command()
def rejoin(
    node: Annotated[str, typer.Argument(help="the node that has gone back in time")],
    accept_loss: AcceptOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Accepts a node that has gone back in time as it is now, and opens its tablets again.

    Writes that it acknowledged and lost are gone for good. If the newer server still exists, bring it back instead.
    """
    give_loss("rejoin", {"node": node}, Loss(config, accept_loss, dry_run, output), lost_of_rewound_node)


@app.command()
def lost(
    node: Annotated[str, typer.Argument(help="the node that is gone for good")],
    accept_loss: AcceptOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Gives up a node: its migrations end, and each of its tablets waits for `balancer tablet lost`."""
    give_loss("lost", {"node": node}, Loss(config, accept_loss, dry_run, output), lost_of_lost_node)


def _bundles(settings: Settings, name: str | None) -> list[BundleSettings]:
    return [settings.bundle(name)] if name else list(settings.bundles.values())


def _roots(bundle: BundleSettings) -> tuple[Name, ...]:
    return tuple(parse_name(root) for table in bundle.tables.values() for root in table.roots)


def _preflight(node: NodeSettings, needs: Needs, facts: dict[str, dict[Name, Facts]]) -> list[Shortfall]:
    try:
        address = address_of(node)
        with connect(address, purpose="check", target=node_itself(address)) as connection, translated(node.id):
            found = preflight(connection, needs)
            if all(
                finding.level is not Severity.ERROR for finding in found
            ):  # a role that may not look is told so first
                facts[node.id] = facts_on(connection, needs.roots)
            return found
    except (Unavailable, Refused) as error:
        return [Shortfall(Severity.ERROR, "connection", str(error))]


def _finding(node: str, finding: Shortfall) -> dict[str, Any]:
    return {
        "node": node,
        "level": finding.level,
        "subject": finding.subject,
        "text": finding.text,
        "remedy": finding.remedy,
    }


def _row(node: NodeSettings, bundle: str, snapshot: Snapshot, report: NodeAnswer | None) -> dict[str, Any]:
    known = snapshot.nodes.get(node.id)
    facts = report.poll.facts if report is not None and report.poll is not None else None
    return {
        "node": node.id,
        "bundle": bundle,
        "zone": node.zone or None,
        "weight": node.weight,
        "state": known.state if known else None,
        "health": report.health if report else None,
        "version": f"{facts.version // 10000}.{facts.version % 10000}" if facts else None,
        "size": facts.database_bytes if facts else None,
        "disk_free": node.disk - facts.database_bytes if facts and node.disk is not None else None,
        "connections": facts.connections if facts else None,
        "tablets": sum(
            page.node.count(page.names.index(node.id)) for page in snapshot.pages.values() if node.id in page.names
        ),
        "reason": (report.reason if report else "not in the directory: create or adopt a table") or None,
    }
