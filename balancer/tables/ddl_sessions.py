"""The sessions of a schema change: one on each node, and one that keeps other processes from changes meanwhile.

An owner's code runs in the first kind, and may leave something behind there (`nodes.deferred_code`): such a session is
not reused. Called by `ddl_apply`.
"""

from collections.abc import Mapping

from balancer.nodes import ddl_journal
from balancer.nodes.connection import Address, Connection, connect, translated


class ChangeSessions:
    """Belongs to one thread."""

    def __init__(self, addresses: Mapping[str, Address]) -> None:
        self._addresses = addresses
        self._open: dict[str, Connection] = {}
        self._spoilt: set[str] = set()  # nodes on whose session an owner's code has run
        self._turn: Connection | None = None

    def on(self, node: str) -> Connection:
        """The session on a node; a new one after an owner's code."""
        known = self._open.get(node)
        if known is not None and node in self._spoilt:
            known.close()
        if known is None or known.closed:
            self._open[node] = known = connect(self._addresses[node], purpose="ddl")
            known.prepare_threshold = None
            self._spoilt.discard(node)
        return known

    def known(self, node: str) -> Connection | None:
        """The session on a node, if there is one, in whatever state it is."""
        return self._open.get(node)

    def spoil(self, node: str) -> None:
        """From here on an owner's code runs in this session: it is closed after its transaction."""
        self._spoilt.add(node)

    def take_turn(self) -> bool:
        """Takes the turn on the first node, in a session used for nothing else, and holds it until `close`. Idempotent;
        True: this process did not have it until now."""
        first = min(self._addresses)
        with translated(first):
            if self._turn is None or self._turn.closed:
                self._turn = connect(self._addresses[first], purpose="ddl turn")
            return ddl_journal.take_turn(self._turn, first)

    def give_turn(self) -> None:
        """To other processes."""
        if self._turn is not None:
            self._turn.close()

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self.give_turn()
        self._open.clear()
