"""What every router knows: the directory, kept up to date by deltas, and where each key is by its newest snapshot.

`Router` and `AsyncRouter` build on it. Nothing here talks to a node.

`router.explain(table, key)`: where a key is, why there, and what is happening to it; from memory, in a few words.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from balancer.client.keys.lookup import Maps
from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Directory
from balancer.directory.handover_record import signpost
from balancer.directory.locate import NO_KEY, AnyKey, Location, RowId, locate_key
from balancer.directory.model import Node, RangeBounds, TabletState
from balancer.directory.open import open_directory
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused, Unavailable, UserError
from balancer.naming import cluster_name
from balancer.untrusted import quoted

if TYPE_CHECKING:
    from balancer.client.keys.bulk import BulkMap, Rows


@dataclass(frozen=True, slots=True)
class KeyExplanation:
    """The parts of the answer; as text, the answer itself."""

    table: str
    node: str
    tablet: int
    epoch: int
    why: str
    """Which part of the key space the tablet has, and that the key is in it."""
    migration: str
    """What is being done with the tablet; empty: nothing."""
    version: int
    """Of the directory."""
    age: float
    """Seconds since it was last known to be the newest."""

    def __str__(self) -> str:
        moving = f" {self.migration}." if self.migration else ""
        return (
            f"table {self.table}: {self.why}, which is on node {self.node} with epoch {self.epoch}.{moving}"
            f" By version {self.version} of the directory, heard {self.age:.1f} s ago."
        )


def explain(snapshot: Snapshot, table_name: str, key: AnyKey, age: float) -> KeyExplanation:
    """Raises `UserError` for an unknown table or a key that does not fit it."""
    found = locate_key(snapshot, table_name, key)
    table, tablet = snapshot.table(table_name), snapshot.tablet(found.tablet)
    shown = f"id {key.id}" if isinstance(key, RowId) else f"key {quoted(key)}"
    if table.whole:
        why = f"all of it is tablet {tablet.id}"
    elif isinstance(tablet.bounds, RangeBounds):
        why = f"{shown} lies in the range of tablet {tablet.id}"
    else:
        why = f"{shown} is of remainder {tablet.bounds.remainder} of {tablet.bounds.modulus}, tablet {tablet.id}"
    if tablet.state is not TabletState.OWNED:
        why += f" ({tablet.state})"
    return KeyExplanation(
        table_name,
        found.node,
        found.tablet,
        found.epoch,
        why,
        _migration(snapshot, found.tablet),
        snapshot.version,
        age,
    )


def _migration(snapshot: Snapshot, tablet: int) -> str:
    running = snapshot.migration_of(tablet)
    if running is None:
        return ""
    where = f" to node {running.target_node}" if running.target_node != running.source_node else ""
    return f"A {running.operation}{where} is under way ({running.state})"


CONFIRM_EVERY = 10.0
"""Seconds between two checks for a missed change: changes are signalled, a node refuses a client that has missed one,
and ten thousand applications that asked each second would be most of what a directory's servers do."""


class Routes:
    """The directory in memory. May be used from several threads."""

    proof = True
    """Whether nodes must prove that they own a tablet: everywhere except in `testing`."""

    def __init__(self, directory: Directory, clock: Clock | None = None, cluster: str = "cluster") -> None:
        self.directory = directory
        self.cluster = cluster
        self.clock: Clock = clock or SystemClock()
        self._follower = directory.follow(CONFIRM_EVERY)
        self._maps = Maps(self._follower.snapshot)
        self._memories = self._maps.memories
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        self._watchers: list[Callable[[float], None]] = []
        # Looking at the follower in each `locate` would cost as much as all the rest of it.
        self._thread = threading.Thread(target=self._keep_newest, name="routes", daemon=True)
        self._thread.start()
        self._bulk: tuple[Maps, dict[str, BulkMap]] = (self._maps, {})

    @classmethod
    def open(cls, url: str, **options: Any) -> "Routes":
        """Opens the directory at this address, which must exist; its first snapshot is loaded when this returns.

        The environment's `BALANCER_CACHE` is a folder in which processes of this host share what one has loaded.
        """
        options.setdefault("cache", os.environ.get("BALANCER_CACHE") or None)
        directory = open_directory(url, create=False, **options)
        try:
            return cls(directory, cluster=cluster_name(url))
        except BaseException:
            directory.close()
            raise

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot known."""
        return self._follower.snapshot

    def locate(self, table: str, key: AnyKey = NO_KEY) -> Location:
        """The owner of a key; the newest snapshot takes effect moments after it became known."""
        try:
            return self._memories[table][key]
        except TypeError:  # a list has no hash
            return self._newest().table(table).locate(key)

    def finder(self, table: str, key: AnyKey) -> Callable[[], tuple[int, Location]]:
        """For `enter`: the version first, so that at worst it waits needlessly for a change that came in between."""

        def find() -> tuple[int, Location]:
            maps = self._newest()
            return maps.snapshot.version, maps.table(table).locate(key)

        return find

    def explain(self, table: str, key: AnyKey = NO_KEY) -> KeyExplanation:
        """See `Router.explain`."""
        return explain(self.snapshot, table, key, self._follower.age())

    def watch(self, look: Callable[[float], None]) -> None:
        """Has this called about once a second, with the monotonic time."""
        self._watchers.append(look)

    def group(self, table: str, keys: Any) -> "dict[str, Rows]":
        """See `Router.group`."""
        return self.grouped(table, keys)[1]

    def grouped(self, table: str, keys: Any) -> "tuple[Snapshot, dict[str, Rows]]":
        """The same, with the snapshot that it is based on."""
        from balancer.client.keys.bulk import BulkMap  # noqa: PLC0415 - only this method needs numpy

        maps = self._newest()
        of, known = self._bulk
        if of is not maps:
            known = {}
            self._bulk = (maps, known)
        if table not in known:
            known[table] = BulkMap(maps.snapshot, maps.table(table))
        return maps.snapshot, known[table].group(keys)

    def node(self, node: str) -> Node:
        """A node's record by the newest snapshot known: its address may change at any time."""
        found = self.snapshot.nodes.get(node)
        if found is None:
            raise Unavailable(f"node {node} is not in the directory any more")
        return found

    def signpost(self, location: Location) -> str:
        """Where a tablet's bundle has gone, if to another directory; otherwise empty."""
        snapshot = self.snapshot
        found = snapshot.find_tablet(location.tablet)
        return "" if found is None else signpost(snapshot, found.table)

    def check_here(self, table: str, what: str) -> None:
        """Raises `Refused` for what the leader would have to finish, if the table's bundle has gone elsewhere."""
        snapshot = self.snapshot
        told = signpost(snapshot, snapshot.table(table).id)
        if told:
            raise Refused(f"{what} of table {table} needs the directory that leads it: {told}")

    def wait(self, version: int, timeout: float) -> None:
        """Waits for a snapshot newer than this version, at most this many seconds."""
        self._follower.wait(version, timeout)

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the one that opened it."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raises `UserError` in a process that was forked since: both would read each other's answers from the same
        connections, and only the other one hears of moves."""
        if self.inherited:
            raise UserError(
                f"this router was made by process {self._process}, from which this one was forked: make a router after"
                " the fork, in each process"
            )

    def close(self) -> None:
        """Stops following. Idempotent."""
        self._closed = True
        self._follower.close()
        self._thread.join()
        self.directory.close()

    def _keep_newest(self) -> None:
        while not self._closed:
            # A caller that a node refused waits on its own, and is not delayed.
            self._follower.wait(self._newest().snapshot.version, 1.0, patient=True)
            for look in self._watchers:
                look(self.clock.monotonic())

    def _newest(self) -> Maps:
        snapshot = self._follower.snapshot
        if self._maps.snapshot is not snapshot:
            with self._lock:
                snapshot = self._follower.snapshot
                if self._maps.snapshot is not snapshot:
                    self._maps = Maps(snapshot, self._maps)
                    self._memories = self._maps.memories
        return self._maps
