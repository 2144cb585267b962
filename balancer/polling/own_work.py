"""Which counters our own work has touched, so that the poller does not take it for load. Pure.

A copy, a checksum or a split reads every row, and PostgreSQL counts that like anybody's reads. The poller makes a
tablet's number from here part of where its counters come from: when it changes, the tablet's rates begin a new interval
instead of showing what we did.
"""

from collections import defaultdict

import numpy as np

from balancer.directory.model import Migration
from balancer.directory.snapshot import Snapshot

ATTACHING = ("swapping", "committing", "opening", "retiring", "done")
"""States of a migration from which partitions may have been attached or detached."""


def own_work(snapshot: Snapshot, poll: int) -> dict[int, int]:
    """Tablet → a number that changes with our own work on it; tablets that we have never touched are left out.

    While a migration is under way it changes with every poll, whose number is given: checksums and scans continue
    within one step, so the rates stand still until the end.
    """
    found = _neighbours(snapshot, poll)
    for record in snapshot.migrations.values():
        step = hash((record.id, record.state, 0 if record.finished else poll))
        for tablet in {*record.sources, *(target.id for target in record.targets)}:
            found[tablet] = found.get(tablet, 0) ^ step
    return found


def _neighbours(snapshot: Snapshot, poll: int) -> dict[int, int]:
    """The table's other tablets on the nodes where one comes or goes.

    Where a root of a table refers to another by a foreign key, PostgreSQL reads a whole root on that node: when a
    partition is attached, to see that its rows' targets are there, and when one is detached, that none points into it.
    """
    touched: dict[tuple[int, str], int] = defaultdict(int)
    for record in snapshot.migrations.values():
        if _reads_neighbours(snapshot, record):
            for node in {record.source_node, record.target_node}:
                touched[record.table, node] ^= hash((record.id, 0 if record.finished else poll))
    found: dict[int, int] = {}
    for (table, node), number in touched.items():
        found |= dict.fromkeys(_tablets_on(snapshot, table, node), number)
    return found


def _reads_neighbours(snapshot: Snapshot, record: Migration) -> bool:
    table = snapshot.tables.get(record.table)
    return table is not None and len(table.roots) > 1 and record.state in ATTACHING


def _tablets_on(snapshot: Snapshot, table: int, node: str) -> list[int]:
    columns = snapshot.columns(table)
    if node not in columns.nodes:
        return []
    mine = np.asarray(columns.node, np.int64) == list(columns.nodes).index(node)
    tablets: list[int] = np.asarray(columns.ids, np.int64)[mine].tolist()
    return tablets
