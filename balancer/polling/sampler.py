"""Asks the node that owns a tablet about its keys: which are in use, and where to cut.

For the planner, when clients tell too little, and for splits by size. Only suspicious tablets are asked about, each
question is bounded in time, and a node that does not answer is no answer, not an error. Used from one thread.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from balancer.clock import Clock
from balancer.directory.model import Layout, Table, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Refused
from balancer.nodes.bounds import KeyColumn
from balancer.nodes.catalog import read_root
from balancer.nodes.connection import Address, Connection, ConnectionHolder, Timeouts, deadline
from balancer.nodes.names import Name, parse_name
from balancer.nodes.samples import current_xid, row_age_samples, split_keys, statistics_samples
from balancer.polling.index import partition_names
from policies.model import KeySamples

SECONDS = 2.0
RENEW_AFTER = 600.0  # older writes are no longer news


@dataclass(frozen=True, slots=True)
class _Baseline:
    """Since when rows of a tablet count as recent; void when the tablet has moved, because moving writes every row."""

    xid: int
    at: float
    node: str
    epoch: int


class NodeSampler:
    """Keeps connections, and since which transaction each tablet's rows count as recently written."""

    def __init__(self, addresses: Callable[[], Mapping[str, Address]], clock: Clock) -> None:
        self._addresses = addresses
        self._clock = clock
        self._holder = ConnectionHolder("sample", Timeouts(connect=SECONDS, statement=2 * SECONDS, lock=1.0))
        self._baselines: dict[int, _Baseline] = {}

    def ask(self, snapshot: Snapshot, tablet_id: int) -> KeySamples | None:
        """Keys in use of a tablet; None: its node cannot tell now.

        The first question about a tablet takes the baseline and answers from statistics; later ones answer from rows
        written since.
        """
        tablet = snapshot.find_tablet(tablet_id)
        if tablet is None:
            return None
        try:
            return self._ask(snapshot.tables[tablet.table], tablet)
        except BalancerError:
            return None

    def split_keys(self, snapshot: Snapshot, tablets: Sequence[Tablet], parts: int) -> list[bytes]:
        """Keys at which to cut neighbouring range tablets of one node into parts of about the same size.

        Raises `Refused` where there are none, `Unavailable` where the node does not answer.
        """
        table = snapshot.tables[tablets[0].table]
        if table.layout is Layout.HASH:
            raise Refused(f"table {table.name} is a hash table: its tablets are cut into leaves, not at keys")
        address = self._address(tablets[0].node)
        names = [partition_names(table, tablet)[0] for tablet in tablets]
        with self._holder.borrow(address) as connection, deadline(connection, 4 * SECONDS):
            return list(split_keys(connection, names, _columns(connection, table), parts, SECONDS).keys)

    def close(self) -> None:
        """Closes the connections. Idempotent."""
        self._holder.close()

    def _address(self, node: str) -> Address:
        address = self._addresses().get(node)
        if address is None:
            raise Refused(f"node {node} is not in the configuration")
        return address

    def _ask(self, table: Table, tablet: Tablet) -> KeySamples | None:
        partition = partition_names(table, tablet)[0]
        with self._holder.borrow(self._address(tablet.node)) as connection, deadline(connection, 4 * SECONDS):
            columns = _columns(connection, table)
            baseline = self._baselines.get(tablet.id)
            if baseline is None or (baseline.node, baseline.epoch) != (tablet.node, tablet.epoch):
                self._begin(connection, tablet)
                return _from_statistics(connection, table, partition, columns)
            hashed = table.layout is Layout.HASH
            found = row_age_samples(connection, partition, columns, baseline.xid, hashed=hashed, seconds=SECONDS)
            if self._clock.monotonic() - baseline.at > RENEW_AFTER:
                self._begin(connection, tablet)
            return found

    def _begin(self, connection: Connection, tablet: Tablet) -> None:
        with connection.cursor() as cursor:
            xid = current_xid(cursor)
        self._baselines[tablet.id] = _Baseline(xid, self._clock.monotonic(), tablet.node, tablet.epoch)


def _columns(connection: Connection, table: Table) -> tuple[KeyColumn, ...]:
    """The key as the node has it: with the collations, which the directory does not know."""
    name: Name = parse_name(table.roots[0])
    with connection.cursor() as cursor:
        return read_root(cursor, name).columns


def _from_statistics(
    connection: Connection, table: Table, partition: Name, columns: Sequence[KeyColumn]
) -> KeySamples | None:
    # The histogram is of values; of a hash table it says nothing about positions.
    if table.layout is Layout.HASH:
        return None
    return statistics_samples(connection, partition, columns[0])
