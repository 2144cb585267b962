"""`balancer doctor [--fix]`: what migrations left on the nodes, and where nodes and directory disagree."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import typer

from balancer.checks.book_notes import read_books
from balancer.cli.output import Output, OutputOption, say, show_rows, tell
from balancer.cli.places import ConfigOption, operator
from balancer.directory.configured import open_configured
from balancer.directory.contract import Directory
from balancer.directory.handover_record import ARRIVING, GONE, UNDOING, handovers_in
from balancer.errors import Refused
from balancer.migration.doctor import Finding, Repairs, examine, repair
from balancer.migration.links import Addresses
from balancer.polling.addresses import address_in
from balancer.settings import Settings, load_settings
from balancer.tables.import_record import RENAMING, SEALING, imports_in

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
