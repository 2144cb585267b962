"""The sessions of an import: on each node one that writes and one that reads.

The writing ones hold an advisory lock until they end, and whatever an import changes on a node goes through them: so a
process that slept keeps others out while its sessions live, and can do nothing once they are gone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, Self

from balancer.clock import Clock
from balancer.directory.contract import Directory
from balancer.errors import Unavailable
from balancer.nodes.checksum import pin_output
from balancer.nodes.connection import Address, Connection, Cursor, connect, translated
from balancer.nodes.epoch_check import node_transaction
from balancer.nodes.names import Name
from balancer.nodes.readable import check_readable
from balancer.nodes.schema import LEADER_LOCK
from balancer.settings import MigrationSettings

PATIENCE: Final = 3.0
"""Seconds that a predecessor's sessions may take to end."""
_UNLIMITED = ("statement_timeout", "idle_in_transaction_session_timeout")
"""A copy takes as long as it takes; waits for locks are short, as everywhere."""


class ImportSessions:
    """Open while it is entered."""

    def __init__(
        self, addresses: Mapping[str, Address], directory: Directory, settings: MigrationSettings, clock: Clock
    ) -> None:
        self._addresses = addresses
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._stack = ExitStack()
        self.nodes: dict[str, Connection] = {}
        self.readers: dict[str, Connection] = {}

    def __enter__(self) -> Self:
        for node, address in self._addresses.items():
            for kept in (self.nodes, self.readers):
                kept[node] = self._stack.enter_context(connect(address, purpose="import"))
                with translated(node):
                    pin_output(kept[node])
                    for setting in _UNLIMITED:
                        kept[node].execute("SELECT set_config(%s, '0', false)", (setting,))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def lock_out_others(self) -> None:
        """Raises `Unavailable` if another process imports into one of the nodes."""
        for node in self.nodes:
            # The sessions of a process that was killed a moment ago end when their servers notice.
            deadline = self._clock.monotonic() + PATIENCE
            while not self._locked(node):
                if self._clock.monotonic() > deadline:
                    raise Unavailable(f"another process imports a table on node {node}: wait for it, or end it")
                self._clock.sleep(self._settings.retry_back_off)

    def _locked(self, node: str) -> bool:
        with translated(node):
            row = self.nodes[node].execute("SELECT pg_try_advisory_lock(%s, 2)", (LEADER_LOCK,)).fetchone()
        return row == (True,)

    @contextmanager
    def transaction(self, node: str) -> Iterator[Cursor]:
        """A change of a node, under the leader's epoch."""
        epoch = self._directory.snapshot().epoch
        with node_transaction(self.nodes[node], epoch, node, durable=True) as cursor:
            yield cursor

    @contextmanager
    def reading(self, node: str, tables: Sequence[Name], *, trusted: bool) -> Iterator[Connection]:
        """One snapshot of plain tables that are locked: otherwise their owner could add code that reading them runs.

        Writers continue; VACUUM and DDL wait. Raises `Refused` if there is such code, and the owners are not `trusted`.
        """
        reader = self.readers[node]
        self.patiently(partial(self._begin_reading, node, tables, trusted))
        try:
            with translated(node):
                yield reader
        finally:
            if not reader.closed:
                reader.rollback()

    def _begin_reading(self, node: str, tables: Sequence[Name], trusted: bool) -> None:
        reader = self.readers[node]
        with translated(node), reader.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            try:
                check_readable(cursor, tables, trusted=trusted)
            except BaseException:
                if not reader.closed:
                    reader.rollback()
                raise

    def patiently(self, work: Callable[[], None]) -> None:
        """Retries while a lock is not granted; a session that is gone has released its lock, which ends the retries."""
        deadline = self._clock.monotonic() + self._settings.retry_patience
        while True:
            try:
                return work()
            except Unavailable:
                if self._clock.monotonic() > deadline or any(one.closed for one in self.nodes.values()):
                    raise
            self._clock.sleep(self._settings.retry_back_off)
