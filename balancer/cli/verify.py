"""`balancer verify`: whether the nodes hold what the directory says of a table or a tablet. Only reads.

Every node of the bundle is asked, not only the owners: somebody else might claim a tablet too. What was in motion while
they were asked is not a finding, see `balancer.checks.ground`. `--deep` and `--watch` are the consistency checker.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from balancer.checks.ground import Bracket
from balancer.cli.bounds_text import bounds_text
from balancer.cli.output import Output, OutputOption, say, show_json, show_rows
from balancer.cli.places import ConfigOption, open_configured
from balancer.cli.verify_rounds import Wanted, run_deep, run_watch, show_books
from balancer.clock import SystemClock
from balancer.directory.model import Table, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.nodes.connection import Connection, Target, Timeouts, connect, translated
from balancer.nodes.names import Name, parse_name
from balancer.nodes.ownership import DisagreementKind
from balancer.nodes.partition import count_rows
from balancer.nodes.readable import check_readable
from balancer.nodes.root_facts import Facts, facts_on
from balancer.nodes.root_findings import compare_roots
from balancer.polling.addresses import addresses_of, cluster_name
from balancer.polling.index import partition_names
from balancer.polling.poller import ClusterPoll, Health, NodeAnswer, Poller
from balancer.settings import Settings, load_settings

COLUMNS = ("tablet", "part", "node", "epoch", "rows", "finding")
COUNT_TIMEOUT = 600.0

_WHOLE_NODE = frozenset(
    {
        DisagreementKind.NOT_INSTALLED,
        DisagreementKind.WRONG_DATABASE,
        DisagreementKind.REWOUND,
        DisagreementKind.DIRECTORY_BEHIND,
        DisagreementKind.DEFAULT_PARTITION,
    }
)


def verify(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[TABLE|TABLET]", help="a table's name, or a tablet's id; default: what the leader found"
        ),
    ] = None,
    count: Annotated[
        bool, typer.Option("--count", help="count the rows instead of estimating; reads everything")
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="run every check of [checks] once, now; reads everything")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="repeat that, gently, until interrupted")] = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Checks that each tablet is attached on its owner, owned with its epoch, and claimed by nobody else.

    With --deep or --watch it also checks rows, copies, sequences and the application's invariants; without a table,
    everything that is configured. Without arguments it shows what the leader's own checks have found. Exits with 1 if
    anything is wrong.
    """
    settings = load_settings(config)
    with open_configured(settings.daemon) as directory:
        if deep or watch:
            run = run_watch if watch else run_deep
            return run(settings, directory, _chosen(settings, directory.snapshot(), what), output)
        if what is None:
            return show_books(directory, output)
        snapshot = directory.snapshot()
        table, tablets = wanted(snapshot, what)
        poll = _polled(settings, snapshot, table.bundle)
        bracket = Bracket(snapshot, directory.snapshot())
    return _show(settings, table, tablets, VerifiedPoll(poll, bracket, count), output)


def _chosen(settings: Settings, snapshot: Snapshot, what: str | None) -> Wanted:
    if what is None:
        return Wanted(list(settings.bundles.values()))
    table, tablets = wanted(snapshot, what)
    return Wanted([settings.bundle(table.bundle)], table.name, tablets[0].id if what.isdigit() else None)


@dataclass(frozen=True, slots=True)
class VerifiedPoll:
    """What the nodes said, and the map before and after."""

    poll: ClusterPoll
    bracket: Bracket
    count: bool


def _show(settings: Settings, table: Table, tablets: Sequence[Tablet], seen: VerifiedPoll, output: Output) -> None:
    poll, count, snapshot = seen.poll, seen.count, seen.bracket.before
    counts = _counted(settings, table, tablets) if count else {}
    rows = [_row(seen, table, tablet, counts) for tablet in tablets]
    trouble = [*_node_trouble(snapshot, table.bundle, poll), *_root_trouble(settings, table, poll)]
    wrong = len(trouble) + sum(1 for row in rows if row["finding"] and not row["busy"])
    if output is Output.JSON:
        show_json({"table": table.name, "tablets": rows, "nodes": trouble, "wrong": wrong})
    else:
        show_rows(rows, COLUMNS, output, empty="the table has no tablets")
        for found in trouble:
            say(f"node {found['node']}: {found['finding']}")
        total = sum(row["rows"] for row in rows if row["rows"] is not None)
        say(f"{len(rows)} tablets, {'' if count else 'about '}{total} rows, {wrong or 'nothing'} wrong")
    if wrong:
        raise typer.Exit(1)


def wanted(snapshot: Snapshot, what: str) -> tuple[Table, Sequence[Tablet]]:
    """The table and the tablets that are meant: a number is a tablet's id."""
    if what.isdigit():
        tablet = snapshot.tablet(int(what))
        return snapshot.tables[tablet.table], [tablet]
    table = snapshot.table(what)
    return table, snapshot.tablets(table.id)


def _polled(settings: Settings, snapshot: Snapshot, bundle: str) -> ClusterPoll:
    addresses = addresses_of([found for found in settings.bundles.values() if found.name == bundle])
    poller = Poller(cluster_name(settings.daemon.directory), SystemClock(), settings.daemon.poll_timeout)
    try:
        return poller.poll(snapshot, addresses)
    finally:
        poller.close()


def _row(seen: VerifiedPoll, table: Table, tablet: Tablet, counts: dict[int, int | str]) -> dict[str, Any]:
    poll, running = seen.poll, seen.bracket.before.migration_of(tablet.id)
    still = running is not None or seen.bracket.still(tablet.id)
    findings = [f"node {node}: {text}" for node, text in _disagreements(poll, tablet.id) if still]
    counted = counts.get(tablet.id)
    if isinstance(counted, str):
        findings.append(counted)
    if running is not None:
        findings.append(f"not checked: {running.operation} {running.id} is {running.state}")
    return {
        "tablet": tablet.id,
        "part": bounds_text(table, tablet),
        "node": tablet.node,
        "epoch": tablet.epoch,
        "rows": counted if isinstance(counted, int) else _estimate(poll.nodes.get(tablet.node), table, tablet),
        "finding": "; ".join(findings) or None,
        "busy": running is not None and len(findings) == 1,
    }


def _disagreements(poll: ClusterPoll, tablet: int) -> Iterator[tuple[str, str]]:
    for node, report in sorted(poll.nodes.items()):
        for found in report.disagreements:
            if found.tablet == tablet:
                yield node, found.text


def _node_trouble(snapshot: Snapshot, bundle: str, poll: ClusterPoll) -> Iterator[dict[str, str]]:
    """What is wrong with whole nodes: nothing can be said about their tablets then."""
    for node in sorted(node.id for node in snapshot.nodes.values() if node.bundle == bundle):
        report = poll.nodes.get(node)
        if report is None:
            yield {"node": node, "finding": "it is not in the configuration, so it was not asked"}
        elif report.health in (Health.UNREACHABLE, Health.STANDBY):
            yield {"node": node, "finding": report.reason}
        else:
            for found in report.disagreements:
                if found.tablet is None and found.kind in _WHOLE_NODE:
                    yield {"node": node, "finding": found.text}


def _root_trouble(settings: Settings, table: Table, poll: ClusterPoll) -> Iterator[dict[str, str]]:
    """Where the nodes' copies of the roots differ: a tablet would behave differently after a move."""
    roots = [parse_name(root) for root in table.roots]
    facts: dict[str, dict[Name, Facts]] = {}
    for node, address in sorted(addresses_of([settings.bundle(table.bundle)]).items()):
        report = poll.nodes.get(node)
        if report is not None and report.poll is not None:
            with connect(address, purpose="verify", target=Target.ANY) as connection, translated(node):
                facts[node] = facts_on(connection, roots)
    for node, text in compare_roots(facts):
        yield {"node": node, "finding": text}


def _estimate(report: NodeAnswer | None, table: Table, tablet: Tablet) -> int | None:
    """Rows of the first root's partition, by the server's own statistics."""
    if report is None or report.poll is None:
        return None
    name = partition_names(table, tablet)[0]
    return next((found.rows for found in report.poll.partitions if (found.schema, found.name) == name), None)


def _counted(settings: Settings, table: Table, tablets: Sequence[Tablet]) -> dict[int, int | str]:
    """Tablet → its rows in the first root, or why they could not be counted."""
    addresses = addresses_of(settings.bundles.values())
    found: dict[int, int | str] = {}
    with ExitStack() as stack:
        connections: dict[str, Connection] = {}
        for tablet in tablets:
            try:
                if tablet.node not in connections:
                    patient = Timeouts(statement=COUNT_TIMEOUT, network=COUNT_TIMEOUT)
                    opened = connect(addresses[tablet.node], purpose="verify", target=Target.ANY, timeouts=patient)
                    connections[tablet.node] = stack.enter_context(opened)
                connection, partition = connections[tablet.node], partition_names(table, tablet)[0]
                with translated(tablet.node), connection.transaction(), connection.cursor() as cursor:
                    check_readable(cursor, [partition], trusted=addresses[tablet.node].trusts_owners)
                    found[tablet.id] = count_rows(cursor, partition)
            except KeyError:
                found[tablet.id] = f"its rows cannot be counted: node {tablet.node} is not in the configuration"
            except BalancerError as error:
                found[tablet.id] = f"its rows cannot be counted: {error}"
    return found
