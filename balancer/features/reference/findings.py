"""What is wrong with copies of reference tables: missing, not following, different, or streams that belong to nobody.

`balancer doctor` asks it; the leader's keeper repairs everything except rows that differ. Only reads.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

from balancer.clock import SystemClock
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.nodes.catalog.owners_code import check_owners_code
from balancer.nodes.session.connection import Connection, translated
from balancer.nodes.session.holder import NodeSessions
from balancer.nodes.tablets.object_names import stream_name
from balancer.nodes.tablets.reference_copies import (
    Streams,
    confirmed,
    content,
    copied_columns,
    read_streams,
    tablet_of,
    wal_position,
)
from balancer.polling.view import ReferenceTable, reference_tables

LOOKS = 20
PAUSE = 0.1
MENDS = "the leader recreates it, or `balancer status` says why not"


class CopyFinding(NamedTuple):
    """What is wrong with a node's copy of a reference table."""

    node: str
    text: str
    table: str = ""
    differs: bool = False
    """Whether its rows differ from its home's, which the leader does not repair."""


def copy_findings(snapshot: Snapshot, links: NodeSessions, reached: Collection[str]) -> Iterator[CopyFinding]:
    """Covers the nodes that can be reached."""
    streams: dict[str, Streams] = {}
    for node in reached:
        with suppress(BalancerError), translated(node):  # one that has just gone away is reported at the next look
            streams[node] = read_streams(links.control(node))
    references = [one for bundle in snapshot.bundles for one in reference_tables(snapshot, bundle)]
    for reference in references:
        if reference.home in streams and snapshot.migration_of(reference.tablet.id) is None:
            yield from _of_copies(links, reference, streams)
    yield from _of_nobody(snapshot, references, streams)


def _of_copies(links: NodeSessions, reference: ReferenceTable, streams: dict[str, Streams]) -> Iterator[CopyFinding]:
    name, home = reference.table.name, reference.home
    for node, stream in reference.streams.items():
        if node not in streams:
            continue
        if stream not in streams[node].subscriptions:
            yield CopyFinding(node, f"has no copy of the reference table {name}, or an old one: {MENDS}", name)
        elif not streams[home].slots.get(stream):
            yield CopyFinding(node, f"its copy of the reference table {name} does not follow {home}: {MENDS}", name)
        else:
            yield from _of_rows(links, reference, node)


def _of_rows(links: NodeSessions, reference: ReferenceTable, node: str) -> Iterator[CopyFinding]:
    """A copy that only lags is not a finding: it is watched until it has what its home had, or for a few seconds."""
    home, stream, name = reference.home, reference.streams[node], reference.table.name
    clock = SystemClock()
    try:
        with links.data(home) as here, links.data(node) as there:
            for _ in range(LOOKS):
                rows, position = _contents(links, here, home, reference), wal_position(here)
                if _contents(links, there, node, reference) == rows:
                    return
                for _ in range(LOOKS):
                    if confirmed(here, stream, position):
                        break
                    clock.sleep(PAUSE)
                now = _contents(links, there, node, reference)
                if now != rows and _contents(links, here, home, reference) == rows:
                    text = f"its copy of the reference table {name} has other rows than {home}"
                    yield CopyFinding(node, text, name, differs=True)
                    return
    except BalancerError as error:
        yield CopyFinding(node, f"its copy of the reference table {name} cannot be compared: {error}", name)


def _contents(
    links: NodeSessions, connection: Connection, node: str, reference: ReferenceTable
) -> list[tuple[int, int]]:
    """Raises `Refused` if that would run the tables' owner's code with our rights."""
    if not links.address(node).trusts_owners:
        with connection.cursor() as cursor:
            check_owners_code(cursor, reference.names)
    return [content(connection, copied_columns(connection, name)) for name in reference.names]


def _of_nobody(
    snapshot: Snapshot, references: list[ReferenceTable], streams: dict[str, Streams]
) -> Iterator[CopyFinding]:
    for node, there in streams.items():
        wanted = {
            stream
            for reference in references
            for copy, stream in reference.streams.items()
            if node in (copy, reference.home)
        }
        for stream in sorted(there.all() - wanted):
            if snapshot.migration_of(tablet_of(stream)) is None:
                text = f"leftover: stream {stream_name(stream)} of a reference table; the leader removes it"
                yield CopyFinding(node, text)
