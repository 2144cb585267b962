"""Asks the node that owns a tablet about its keys: which rows were written lately, and where to cut by size.

The tick asks for hot tablets whose clients report too little; a split by size asks for keys. Each question is bounded
in time by `balancer.nodes.key_samples`, and asked of the first root, which names a table's heat.
"""

import threading
from collections.abc import Callable, Sequence

import structlog

from balancer.clock import Clock
from balancer.directory.model import Table, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Refused
from balancer.nodes.bounds import KeyColumn
from balancer.nodes.connection import Address, Connection, translated
from balancer.nodes.connection_holder import ConnectionHolder
from balancer.nodes.key_samples import current_xid, row_age_samples, split_keys, statistics_samples
from balancer.nodes.names import Name, parse_name, partition_name
from balancer.policies.bundle_view import KeySamples

log = structlog.get_logger()

ROW_KEYS = 20  # twentieths of the rows: enough to tell what an edge is
ROW_KEYS_SECONDS = 60.0
BASELINE_SECONDS = 300.0
BASELINE_LIFE = 2 * BASELINE_SECONDS

Baseline = tuple[float, int]
"""When it was taken, and the newest transaction then."""


class NodeSampler:
    """Keeps a connection per node and, per tablet, the transaction from which rows count as new."""

    def __init__(self, addresses: Callable[[str], Address], snapshot: Callable[[], Snapshot], clock: Clock) -> None:
        self._addresses = addresses
        self._snapshot = snapshot
        self._holder = ConnectionHolder("samples")
        self._clock = clock
        self._lock = threading.Lock()  # of the memories below: every bundle's tick asks
        self._baselines: dict[tuple[int, int], tuple[Baseline | None, Baseline | None]] = {}
        self._refused: dict[int, str] = {}
        self._row_keys: dict[tuple[int, int], tuple[float, tuple[bytes, ...]]] = {}

    def ask(self, tablet_id: int) -> KeySamples | None:
        """Keys written lately in a tablet; None: the node cannot tell.

        The first call only takes the baseline: after a move all rows have one age, so it is per epoch.
        """
        snapshot = self._snapshot()
        tablet = snapshot.find_tablet(tablet_id)
        if tablet is None:
            return None
        table = snapshot.tables[tablet.table]
        try:
            return self._ask(table, tablet)
        except Refused as error:
            self._say_once(tablet, str(error))
            return None
        except BalancerError:
            return None  # the poll reports a node that does not answer; here it only means: nothing known

    def row_keys(self, tablet_id: int) -> tuple[bytes, ...]:
        """Where a range tablet's rows lie, as keys evenly spaced by rank; asked of the node once a minute at most."""
        tablet = self._snapshot().find_tablet(tablet_id)
        if tablet is None:
            return ()
        now = self._clock.monotonic()
        with self._lock:
            fresh = {key: known for key, known in self._row_keys.items() if now - known[0] <= ROW_KEYS_SECONDS}
            self._row_keys = fresh
            known = fresh.get((tablet.id, tablet.epoch))
        if known is not None:
            return known[1]
        try:
            keys = tuple(self.split_keys(self._snapshot(), [tablet], ROW_KEYS))
        except BalancerError:
            keys = ()
        with self._lock:
            self._row_keys[tablet.id, tablet.epoch] = now, keys
        return keys

    def split_keys(self, snapshot: Snapshot, tablets: Sequence[Tablet], parts: int) -> list[bytes]:
        """The keys at which to cut neighbouring range tablets on one node into parts of about the same size."""
        table, node = snapshot.tables[tablets[0].table], tablets[0].node
        partitions = [partition_of(table, tablet) for tablet in tablets]
        address = self._addresses(node)
        with self._holder.borrow(address) as connection, translated(node):
            found = split_keys(connection, partitions, columns_of(table), parts, trusted=address.trusts_owners)
            return list(found.keys)

    def _say_once(self, tablet: Tablet, why: str) -> None:
        """`node check` and `doctor` say this too: with every tick, it would fill the log."""
        with self._lock:
            known = self._refused.get(tablet.id) == why
            self._refused[tablet.id] = why
        if not known:
            log.warning("keys cannot be sampled", tablet=tablet.id, node=tablet.node, reason=why)

    def close(self) -> None:
        """Closes the connections. Idempotent."""
        self._holder.close()

    def _ask(self, table: Table, tablet: Tablet) -> KeySamples | None:
        partition, columns = partition_of(table, tablet), columns_of(table)
        address = self._addresses(tablet.node)
        with self._holder.borrow(address) as connection, translated(tablet.node):
            baseline = self._baseline(tablet, connection)
            if baseline is None:
                return None
            found = row_age_samples(
                connection,
                partition,
                columns,
                newer_than=baseline,
                hashed=table.hashed,
                trusted=address.trusts_owners,
            )
            if found.keys or table.hashed:
                return found
            return statistics_samples(connection, partition, columns[0])

    def _baseline(self, tablet: Tablet, connection: Connection) -> int | None:
        """The transaction after which rows count as new: some minutes old, so that "lately" stays lately."""
        key, now = (tablet.id, tablet.epoch), self._clock.monotonic()
        with self._lock:
            # One that nobody has renewed for this long would call an hour "lately".
            self._baselines = {
                one: pair for one, pair in self._baselines.items() if pair[1] and now - pair[1][0] <= BASELINE_LIFE
            }
            older, newer = self._baselines.get(key, (None, None))
        if newer is None or now - newer[0] > BASELINE_SECONDS:
            with connection.cursor() as cursor:
                taken = now, current_xid(cursor)
            with self._lock:
                self._baselines[key] = newer, taken
        chosen = older or newer
        return None if chosen is None else chosen[1]


def partition_of(table: Table, tablet: Tablet) -> Name:
    """The tablet's partition of the table's first root."""
    root = parse_name(table.roots[0])
    return Name(root.schema, tablet.partitions[0]) if tablet.partitions else partition_name(root, tablet.id)


def columns_of(table: Table) -> tuple[KeyColumn, ...]:
    """The key as the nodes' package knows it."""
    return tuple(KeyColumn(column.name, column.type) for column in table.columns)
