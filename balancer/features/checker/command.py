"""`balancer verify`: whether the nodes hold what the directory says of a table or a tablet. Only reads.

Every node of the bundle is asked, not only the owners: somebody else might claim a tablet too. What was in motion while
they were asked is not a finding, see `balancer.features.checker.evidence`. `--deep` and `--watch` are the consistency
checker.

`balancer verify --deep` and `--watch`: the consistency checker run by a person; and what the leader's own has found.

The same checker as the leader's, on the same kinds, from any host that reaches directory and nodes. It keeps its book
for itself: what the leader knows about its rounds is not touched. Sums that must not change are compared with the first
value that the leader saw, if it has seen one.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer

from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import Table, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Refused
from balancer.features.checker.book import read_book, read_books
from balancer.features.checker.evidence import MapBeforeAfter
from balancer.features.checker.loop import Checker, ground_of
from balancer.naming import Name, cluster_name, parse_name
from balancer.nodes.catalog.findings import compare_roots
from balancer.nodes.catalog.owners_code import check_readable
from balancer.nodes.catalog.roots import Facts, facts_on
from balancer.nodes.session.addresses import address_in, addresses_of
from balancer.nodes.session.connection import Connection, Timeouts, connect, node_itself, translated
from balancer.nodes.tablets.partition import count_rows
from balancer.policies.checking import Anomaly, CheckRounds, counts, rest_after
from balancer.polling.ownership import DisagreementKind
from balancer.polling.poller import ClusterPoll, Health, NodeAnswer, Poller
from balancer.polling.tablet_index import partition_names
from balancer.settings import BundleSettings, Settings, load_settings
from balancer.terminal.options import ConfigOption, open_configured
from balancer.terminal.output import Output, OutputOption, bounds_text, say, show_json, show_rows, tell

FINDINGS = ("kind", "table", "tablet", "node", "root", "count", "finding", "advice")
_TELL_EVERY = 2.0
_ROUND_PAUSE = 1.0


def show_books(directory: Directory, output: Output) -> None:
    """What the leader's checks have found, bundle by bundle. Exit code 1 if something stands."""
    books = read_books(directory)
    found = [one.anomaly for book in books.values() for one in book.standing.values()]
    if output is Output.JSON:
        show_json({bundle: book_document(book) for bundle, book in books.items()})
    else:
        for bundle, book in sorted(books.items()):
            _tell_book(bundle, book)
        if not books:
            say("no bundle has been checked yet: set enable = true under [checks] in its file, or use verify --deep")
    if found:
        raise typer.Exit(1)


def book_document(book: CheckRounds) -> dict[str, Any]:
    """For programs: rounds over time, and what stands."""
    round_ = book.round
    return {
        "round": None
        if round_ is None
        else {
            "number": round_.number,
            "began": round_.began,
            "kind": round_.kind and str(round_.kind),
            "units": round_.units,
            "rows": round_.rows,
            "seconds": round(round_.seconds, 3),
            "unchecked": {kind: len(subjects) for kind, subjects in round_.unchecked.items()},
            "why": list(round_.why),
        },
        "kinds": {kind: {"at": book.ended.get(kind), "findings": count} for kind, count in counts(book).items()},
        "findings": [
            {**finding_row(one.anomaly), "first": one.first, "last": one.last} for one in book.standing.values()
        ],
        "more": book.more,
        "past": [
            {"number": p.number, "began": p.began, "ended": p.ended, "rows": p.rows, "findings": p.anomalies}
            for p in book.past
        ],
    }


def finding_row(anomaly: Anomaly) -> dict[str, Any]:
    """One finding as a record."""
    return {
        "kind": str(anomaly.kind),
        "table": anomaly.table or None,
        "tablet": anomaly.tablet,
        "node": anomaly.node or None,
        "root": anomaly.root or None,
        "count": anomaly.count,
        "finding": anomaly.text,
        "advice": anomaly.advice,
    }


def _tell_book(bundle: str, book: CheckRounds) -> None:
    round_ = book.round
    if round_ is None:
        say(f"{bundle}: not checked yet")
        return
    state = "is over" if round_.kind is None else f"is at {round_.kind}"
    begun = f"{bundle}: round {round_.number}, begun {_time(round_.began)}"
    say(f"{begun}, {state}: {round_.units} looks, {round_.rows} rows")
    for why in round_.why:
        say(f"  not checked: {why}")
    for past in book.past[-5:]:
        took = f"{past.seconds:.1f} s of work"
        say(f"  round {past.number} ended {_time(past.ended)}: {past.rows} rows, {took}, {past.anomalies} found")
    for one in book.standing.values():
        say(f"  since {_time(one.first)}: {one.anomaly.text}")
        say(f"    {one.anomaly.advice}")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def run_deep(settings: Settings, directory: Directory, what: "Wanted", output: Output) -> None:
    """Everything once, as fast as it goes. Exit code 1 if something was found or could not be looked at."""
    found: list[Anomaly] = []
    unchecked: list[str] = []
    for bundle in what.bundles:
        with checker_for(settings, directory, bundle, what) as checker:
            checker.begin()
            for _ in _steps(checker, SystemClock(), share=1.0):
                pass
            found += [one.anomaly for one in checker.book.standing.values()]
            unchecked += checker.book.round.why if checker.book.round else ()
    rows = [finding_row(one) for one in found]
    if output is Output.JSON:
        show_json({"findings": rows, "unchecked": unchecked})
    else:
        show_rows(rows, FINDINGS, output, empty="nothing is wrong")
        for why in unchecked:
            say(f"not checked: {why}")
    if found or unchecked:
        raise typer.Exit(1)


def run_watch(settings: Settings, directory: Directory, what: "Wanted", output: Output) -> None:
    """Round after round, within the bundle's share of the time, until interrupted: findings as they come and go."""
    clock = SystemClock()
    books: dict[str, CheckRounds] = {}
    found = False
    try:
        while True:
            for bundle in what.bundles:
                with checker_for(settings, directory, bundle, what, books.get(bundle.name)) as checker:
                    checker.begin()
                    for word, anomaly in _steps(checker, clock, bundle.checks.share):
                        _say_finding(word, anomaly, output)
                    books[bundle.name] = checker.book
                    found = found or bool(checker.book.standing)
            clock.sleep(_ROUND_PAUSE)
    except KeyboardInterrupt:
        raise typer.Exit(1 if found else 0) from None


def _say_finding(word: str, anomaly: Anomaly, output: Output) -> None:
    if output is Output.JSON:
        say(json.dumps({"event": word, **finding_row(anomaly)}))  # a line each: nobody waits for the end
    else:
        say(f"{word}: {anomaly.text}" + (f" ({anomaly.advice})" if word == "found" else ""))
    sys.stdout.flush()


def _steps(checker: Checker, clock: Clock, share: float) -> Iterator[tuple[str, Anomaly]]:
    """Goes to the end of the round; what appears and what is gone, as it happens."""
    told = clock.monotonic()
    while (round_ := checker.book.running) is not None:
        step = checker.step()
        yield from (("found", one) for one in step.appeared)
        yield from (("gone", one) for one in step.gone)
        if clock.monotonic() - told > _TELL_EVERY:
            told = clock.monotonic()
            tell(f"round {round_.number}: {round_.kind}, {round_.units} looks, {round_.rows} rows")
        clock.sleep(rest_after(step.seconds, share))
    done = checker.book.round
    if done is not None:
        tell(f"round {done.number}: {done.units} looks, {done.rows} rows, {len(checker.book.standing)} found")


class Wanted:
    """What a person wants checked: a table, a tablet, or everything that is configured."""

    def __init__(self, bundles: Sequence[BundleSettings], table: str | None = None, tablet: int | None = None) -> None:
        self.bundles = bundles
        self.tables = None if table is None else frozenset({table})
        self.tablets = None if tablet is None else frozenset({tablet})
        if not bundles:
            raise Refused("no bundle is configured: there is nothing to check")


@contextmanager
def checker_for(
    settings: Settings, directory: Directory, bundle: BundleSettings, what: Wanted, book: CheckRounds | None = None
) -> Iterator[Checker]:
    """A checker of one bundle, as far as it is wanted."""
    cluster = cluster_name(settings.daemon.directory)
    addresses = partial(address_in, settings)
    with ground_of(
        bundle, directory, addresses, cluster, SystemClock(), tables=what.tables, tablets=what.tablets
    ) as ground:
        yield Checker(ground, book or CheckRounds(sums=read_book(directory, bundle.name).sums))


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
        bracket = MapBeforeAfter(snapshot, directory.snapshot())
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
    bracket: MapBeforeAfter
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
            with connect(address, purpose="verify", target=node_itself(address)) as connection, translated(node):
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
                    where = addresses[tablet.node]
                    opened = connect(where, purpose="verify", target=node_itself(where), timeouts=patient)
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
