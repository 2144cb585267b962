"""`balancer verify --deep` and `--watch`: the consistency checker run by a person; and what the leader's own has found.

The same checker as the leader's, on the same kinds, from any host that reaches directory and nodes. It keeps its book
for itself: what the leader knows about its rounds is not touched. Sums that must not change are compared with the first
value that the leader saw, if it has seen one.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import typer

from balancer.checks.book_notes import read_book, read_books
from balancer.checks.check_loop import Checker, ground_of
from balancer.cli.output import Output, say, show_json, show_rows, tell
from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Directory
from balancer.errors import Refused
from balancer.policies.checking import Anomaly, CheckBook, counts, rest_after
from balancer.polling.addresses import address_in, cluster_name
from balancer.settings import BundleSettings, Settings

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


def book_document(book: CheckBook) -> dict[str, Any]:
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


def _tell_book(bundle: str, book: CheckBook) -> None:
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
    books: dict[str, CheckBook] = {}
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
    settings: Settings, directory: Directory, bundle: BundleSettings, what: Wanted, book: CheckBook | None = None
) -> Iterator[Checker]:
    """A checker of one bundle, as far as it is wanted."""
    cluster = cluster_name(settings.daemon.directory)
    addresses = partial(address_in, settings)
    with ground_of(
        bundle, directory, addresses, cluster, SystemClock(), tables=what.tables, tablets=what.tablets
    ) as ground:
        yield Checker(ground, book or CheckBook(sums=read_book(directory, bundle.name).sums))
