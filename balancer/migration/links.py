"""The connections of one migration: opened when first used, by the node's stable id, and all closed after an error.

An address is looked up each time a connection is opened, so a failover between two steps costs one retry. Steps ask
for connections here and keep none of their own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from balancer.nodes.checksum import pin_output
from balancer.nodes.connection import Address, Connection, Timeouts, connect, translated

Addresses = Callable[[str], Address]
"""Node id → where it is now."""

# Idle in a transaction, it holds the leader's row on the node: a successor must not wait long for one that hangs.
_STEP_TIMEOUTS = Timeouts(statement=60.0, lock=2.0, idle_in_transaction=5.0)


class Links:
    """Belongs to one thread."""

    def __init__(self, addresses: Addresses, migration: str) -> None:
        self._addresses = addresses
        self._purpose = f"migration {migration}"
        self._control: dict[str, Connection] = {}

    def address(self, node: str) -> Address:
        """Where a node is now."""
        return self._addresses(node)

    def control(self, node: str) -> Connection:
        """The connection for short steps; definitions read over it have full names."""
        found = self._control.get(node)
        if found is None or found.closed or found.broken:
            address = self._addresses(node)
            found = connect(address, purpose=self._purpose, timeouts=_STEP_TIMEOUTS)
            found.prepare_threshold = None  # the driver would throw away what `guards.plan_definitions` has planned
            self._control[node] = found
            with translated(node):
                found.execute("SELECT set_config('search_path', 'pg_catalog', false)")
        return found

    @contextmanager
    def data(self, node: str) -> Iterator[Connection]:
        """A connection of its own for long statements, with pinned output; closed afterwards."""
        connection = connect(self._addresses(node), purpose=self._purpose, timeouts=_STEP_TIMEOUTS)
        try:
            with translated(node):
                # Chunks are too short for JIT to be worth it.
                pin_output(connection, statement_timeout="0", jit="off", idle_in_transaction_session_timeout="600s")
                yield connection
        finally:
            connection.close()

    @contextmanager
    def replication(self, node: str) -> Iterator[Connection]:
        """A connection for making a slot; closed afterwards, and with it the slot's snapshot."""
        connection = connect(self._addresses(node), purpose=self._purpose, timeouts=_STEP_TIMEOUTS, replication=True)
        try:
            with translated(node):
                yield connection
        finally:
            connection.close()

    def evict(self, node: str, leader_epoch: int) -> None:
        """Ends the sessions that another leader left on a node for this migration: a copy that hangs holds locks.

        Not in one of our transactions, which would wait for them; so it looks by itself that nobody leads since.
        """
        with translated(node):
            self.control(node).execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity, balancer.node WHERE leader_epoch <= %s"
                " AND application_name = %s AND datname = current_database() AND pid <> pg_backend_pid()",
                (leader_epoch, f"tablet-balancer {self._purpose}"),
            )

    def close(self) -> None:
        """Closes everything; the next use opens it again. Idempotent."""
        for connection in self._control.values():
            connection.close()
        self._control.clear()
