"""Asks the node that owns a tablet about its keys: which rows were written lately, and where to cut by size.

The tick asks for hot tablets whose clients tell too little; whoever begins a split by size asks for keys. Each question
is bounded in time by `balancer.nodes.samples`, and asked of the first root, which names a table's heat.
"""

from collections.abc import Callable, Sequence

from balancer.directory.model import Layout, Table, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.nodes.bounds import KeyColumn
from balancer.nodes.connection import Address, ConnectionHolder, translated
from balancer.nodes.names import Name, parse_name, partition_name
from balancer.nodes.samples import current_xid, row_age_samples, split_keys, statistics_samples
from policies.model import KeySamples


class NodeSampler:
    """Keeps a connection per node and, per tablet, the transaction from which on rows count as new."""

    def __init__(self, addresses: Callable[[str], Address], snapshot: Callable[[], Snapshot]) -> None:
        self._addresses = addresses
        self._snapshot = snapshot
        self._holder = ConnectionHolder("samples")
        self._baselines: dict[tuple[int, int], int] = {}

    def ask(self, tablet_id: int) -> KeySamples | None:
        """Keys written lately in a tablet; None: the node cannot tell.

        The first question only takes the baseline: after a move all rows have one age, so it is per epoch.
        """
        snapshot = self._snapshot()
        tablet = snapshot.find_tablet(tablet_id)
        if tablet is None:
            return None
        table = snapshot.tables[tablet.table]
        try:
            return self._ask(table, tablet)
        except BalancerError:
            return None  # a node that does not answer is said by the poll; here it only means: nothing known

    def split_keys(self, snapshot: Snapshot, tablets: Sequence[Tablet], parts: int) -> list[bytes]:
        """The keys at which to cut neighbouring range tablets on one node into parts of about the same size."""
        table, node = snapshot.tables[tablets[0].table], tablets[0].node
        partitions = [partition_of(table, tablet) for tablet in tablets]
        with self._holder.borrow(self._addresses(node)) as connection, translated(node):
            return list(split_keys(connection, partitions, columns_of(table), parts).keys)

    def close(self) -> None:
        """Closes the connections. Idempotent."""
        self._holder.close()

    def _ask(self, table: Table, tablet: Tablet) -> KeySamples | None:
        partition, columns = partition_of(table, tablet), columns_of(table)
        with self._holder.borrow(self._addresses(tablet.node)) as connection, translated(tablet.node):
            key = tablet.id, tablet.epoch
            if key not in self._baselines:
                with connection.cursor() as cursor:
                    self._baselines[key] = current_xid(cursor)
                return None
            found = row_age_samples(
                connection, partition, columns, newer_than=self._baselines[key], hashed=table.layout is Layout.HASH
            )
            if found.keys or table.layout is Layout.HASH:
                return found
            return statistics_samples(connection, partition, columns[0])


def partition_of(table: Table, tablet: Tablet) -> Name:
    """The tablet's partition of the table's first root."""
    root = parse_name(table.roots[0])
    return Name(root.schema, tablet.partitions[0]) if tablet.partitions else partition_name(root, tablet.id)


def columns_of(table: Table) -> tuple[KeyColumn, ...]:
    """The key as the nodes' package knows it."""
    return tuple(KeyColumn(column.name, column.type) for column in table.columns)
