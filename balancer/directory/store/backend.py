"""What every backend shares: a cached view kept current by deltas, and commits conditional on what they touch.

A backend (`directory/sqlite/backend`, `zookeeper`) says how the root, the log, the pages and the records are read and
how one `Batch` is written atomically; everything about versions, conflicts, rebasing and exactly-once lives here, once.
May be called from several threads. Two locks, always taken in this order: one for commits, one for the view."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Leadership, Secured
from balancer.directory.model import Json, LogEntry, Record, RecordKind, Transaction
from balancer.directory.snapshot import Snapshot
from balancer.directory.store import delta
from balancer.directory.store.codec import StoredEntry, reading_stored, unpack_entry
from balancer.directory.store.commit import Batch, Contents, DirectoryRoot, contents_of, prepare
from balancer.directory.store.follower import CONFIRM_EVERY, PollingFollower, Signal
from balancer.errors import Conflict, Fenced, Refused, Unavailable

if TYPE_CHECKING:  # it needs locks that not every system has, and few processes use it
    from balancer.directory.store.host_cache import HostCache

_UNIQUE = 32  # characters of a random number
_RECENT = 4000  # commits whose keys are remembered, to find conflicts without reading the log


class Stale(Exception):
    """The root has moved on since the batch was made: nothing was written, and this batch never will be."""


class PagedDirectory(ABC):
    """The directory over pages; see `directory/contract.Directory` for what its methods promise."""

    def __init__(self, clock: Clock | None = None, timeout: float = 10.0) -> None:
        self.clock: Clock = clock or SystemClock()
        self.timeout = timeout
        """Seconds a call waits for servers, locks and other processes before it gives up."""
        self._view: Snapshot | None = None
        self._cache: HostCache | None = None
        self._cached = 0  # the version of the cache's file when we last looked
        self._first = 1
        self._recent: deque[tuple[int, str, frozenset[tuple[RecordKind, str]]]] = deque(maxlen=_RECENT)
        self._commit_lock = threading.Lock()
        self._view_lock = threading.RLock()
        self._followers: list[PollingFollower] = []

    # What a backend provides.

    @abstractmethod
    def _read_root(self, fresh: bool = True) -> DirectoryRoot:
        """The newest root, at least as new as every commit acknowledged to anybody before the call.

        Not `fresh`: as new as the server that happens to answer, which may be a moment behind the others, and without
        the leader's epoch (0) where that would take another read.
        """

    @abstractmethod
    def _load(self) -> tuple[Snapshot, DirectoryRoot]:
        """A consistent view, read in full."""

    @abstractmethod
    def _read_entries(self, after: int, upto: int) -> list[StoredEntry] | None:
        """The commits `after < version <= upto`; None if the log no longer has them all."""

    @abstractmethod
    def _write(self, batch: Batch) -> None:
        """Writes a batch exactly once; raises `Stale`, `Fenced`, `Unavailable` or `OutcomeUnknown`."""

    @abstractmethod
    def _replace(self, contents: Contents, root: DirectoryRoot, entry: StoredEntry, leader_epoch: int) -> None:
        """Replaces what is there with a whole directory."""

    @abstractmethod
    def _signal(self) -> Signal:
        """Something that wakes up when the root may have changed."""

    @abstractmethod
    def campaign(self, name: str, timeout: float | None = None) -> Leadership | None: ...

    @abstractmethod
    def leader(self) -> str | None: ...

    @abstractmethod
    def publish(self, topic: str, name: str, document: Json) -> int: ...

    @abstractmethod
    def published(self, topic: str) -> Mapping[str, Json]: ...

    @abstractmethod
    def unpublish(self, topic: str, name: str) -> None: ...

    @abstractmethod
    def take_block(self, table: int) -> int: ...

    @abstractmethod
    def blocks(self) -> Mapping[int, int]: ...

    @abstractmethod
    def exposures(self, *, everything: bool = False) -> Sequence[str]: ...

    @abstractmethod
    def secure(self, *, dry_run: bool) -> Secured: ...

    @abstractmethod
    def _close(self) -> None: ...

    # What is the same for all backends.

    def snapshot(self) -> Snapshot:
        """A consistent view, as new as every commit that was acknowledged before the call."""
        return self._refresh()

    def history(self, after: int = 0, limit: int = 100) -> Sequence[LogEntry]:
        """Commits with a version above `after`, oldest first; as far back as the log is kept."""
        with reading_stored():
            root = self._read_root()
            start = max(after, root.first - 1)
            stored = self._read_entries(start, min(root.version, start + limit))
        if stored is None:  # trimmed in the meantime
            return self.history(after, limit)
        return [one.entry for one in stored]

    def log(self, after: int, upto: int) -> Sequence[StoredEntry] | None:
        """The commits `after < version <= upto` as the log keeps them; None if it does not have them all."""
        with reading_stored():
            return self._read_entries(after, upto)

    def commit(self, transaction: Transaction) -> int:
        """Applies all changes or none, exactly once; see `contract.Directory.commit`."""
        with self._holding(self._commit_lock):
            view = self._view if self._view is not None else self._refresh()
            if transaction.base > view.version or transaction.leader_epoch not in (None, view.epoch):
                view = self._refresh()
            deadline = self.clock.monotonic() + self.timeout
            while True:
                if self.clock.monotonic() > deadline:
                    raise Unavailable(f"others committed faster for {self.timeout:.0f} s; nothing was applied")
                try:
                    done = self._already_done(transaction, view)
                    if done is not None:
                        return done
                    batch = prepare(view, self._first, transaction, self.clock.now().timestamp())
                    self._write(batch)
                except Stale:
                    view = self._refresh()
                except (Conflict, Refused):
                    newer = self._refresh()
                    self._check_epoch(transaction, newer)
                    if newer.version == view.version:
                        raise
                    view = newer
                else:
                    self._advance(batch)
                    return batch.version

    def restore(self, records: Sequence[Record], *, reason: str, author: str, leader_epoch: int) -> int:
        """Replaces the whole directory by these records; returns the new version. For imports.

        The caller has checked the records (`directory/invariants.violations`) and leads with `leader_epoch`.
        """
        with self._holding(self._commit_lock):
            version = self._import_version()
            contents = contents_of(records, version)
            entry = LogEntry(
                version, f"import-{uuid4().hex}", self.clock.now().timestamp(), author, leader_epoch, reason, ()
            )
            root = DirectoryRoot(version, version, contents.snapshot.next_page, entry.transaction)
            self._replace(contents, root, StoredEntry(entry, reset=True), leader_epoch)
            return self._refresh().version

    def _import_version(self) -> int:
        """The version that an import will have."""
        return self._read_root().version + 1

    def follow(self, confirm_every: float = CONFIRM_EVERY) -> PollingFollower:
        """Starts following; the first snapshot is loaded when this returns."""
        follower = PollingFollower(self._refresh_followed, self._signal(), self.clock, confirm_every)
        self._followers = [*(one for one in self._followers if not one.closed), follower]
        return follower

    def close(self) -> None:
        """Releases connections, followers and leadership. Idempotent."""
        for follower in self._followers:
            follower.stop()
        self._close()
        for follower in self._followers:
            follower.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _refresh(self, fresh: bool = True) -> Snapshot:
        """Brings the cached view up to the newest root, by deltas where the log has them."""
        with self._holding(self._view_lock), reading_stored():
            view = self._view
            root = self._read_root(fresh or view is None)
            if root.importing:
                raise Unavailable("the directory is being imported; try again when the import has finished")
            if view is not None and root.version < view.version:
                return view
            if view is None or not self._catch_up(view, root):
                self._recent.clear()
                self._view, root = self._load() if self._cache is None else self._load_shared(self._cache, root)
            assert self._view is not None
            self._first = root.first
            self._view = _stamped(self._view, root.epoch, root.transaction)
            return self._view

    def share(self, cache: "HostCache") -> None:
        """Loads through a file that other processes of this host also use."""
        self._cache = cache

    def _load_shared(self, cache: "HostCache", root: DirectoryRoot) -> tuple[Snapshot, DirectoryRoot]:
        """The view from the cache, brought up to the root; or a full load, for all processes that are waiting."""
        found = self._from_cache(cache, root)
        if found is not None:
            return found, root
        with cache.turn(self.timeout):
            root = self._read_root()
            found = self._from_cache(cache, root)
            if found is not None:
                return found, root
            view, root = self._load()
            if _is_unique(root.transaction):
                cache.write(_stamped(view, root.epoch, root.transaction))
                self._cached = view.version
            return view, root

    def _from_cache(self, cache: "HostCache", root: DirectoryRoot) -> Snapshot | None:
        """What the cache has, if the log says that it is a version of this very directory, and the commits since."""
        kept = cache.read()
        if kept is None or not root.first <= kept.version <= root.version:
            return None
        self._cached = kept.version
        if kept.version == root.version:
            return kept if kept.transaction == root.transaction else None
        entries = self._read_entries(kept.version - 1, root.version)
        if entries is None or entries[0].entry.transaction != kept.transaction:
            return None
        return self._applied(kept, entries[1:])  # after an import the log begins with it: there can be none among these

    def _refresh_followed(self, fresh: bool) -> Snapshot:
        """For followers: keeps the host's cache close to the view."""
        view = self._refresh(fresh)
        if self._cache is not None and _is_unique(view.transaction):
            self._cached = self._cache.keep(view, self._cached)
        return view

    def _catch_up(self, view: Snapshot, root: DirectoryRoot) -> bool:
        if root.version == view.version:
            return True
        entries: list[StoredEntry] | None = None
        if root.news and root.version == view.version + 1:
            entries = [unpack_entry(root.news)]
        elif root.first <= view.version + 1:
            entries = self._read_entries(view.version, root.version)
        if entries is None or any(stored.reset for stored in entries):
            return False
        self._view = self._applied(view, entries)
        return True

    def _applied(self, view: Snapshot, entries: Sequence[StoredEntry]) -> Snapshot:
        for stored in entries:
            view = delta.apply(view, stored.entry.changes, stored.entry.version, stored.repages).snapshot
            view = _stamped(view, stored.entry.leader_epoch or 0, stored.entry.transaction)
            self._remember(stored.entry)
        return view

    def _advance(self, batch: Batch) -> None:
        """After a commit of our own: the next view is known without reading anything."""
        with self._holding(self._view_lock):
            if self._view is not None and self._view.version == batch.base:
                epoch = max(self._view.epoch, batch.leader_epoch or 0)
                self._view = _stamped(batch.snapshot, epoch, batch.root.transaction)
                self._first = batch.root.first
                self._remember(batch.stored.entry)

    def _remember(self, entry: LogEntry) -> None:
        keys = frozenset(delta.key_of(change) for change in entry.changes)
        self._recent.append((entry.version, entry.transaction, keys))

    def _already_done(self, transaction: Transaction, view: Snapshot) -> int | None:
        """The version of this very transaction if it is in the log; `Conflict` if what it touches has changed."""
        if transaction.base > view.version:
            raise Conflict(f"the commit is based on version {transaction.base}, the newest is {view.version}")
        keys = {delta.key_of(change) for change in transaction.changes}
        for version, other, touched in self._since(transaction.base, view.version):
            if other == transaction.id:
                return version
            for kind, key in keys & touched:
                raise Conflict(f"{kind} {key!r} was changed in version {version}, after version {transaction.base}")
        self._check_epoch(transaction, view)
        return None

    def _since(self, base: int, upto: int) -> Iterator[tuple[int, str, frozenset[tuple[RecordKind, str]]]]:
        """Version, transaction and keys of every commit after `base`; `Conflict` if the log is too short."""
        if base == upto:
            return
        with self._holding(self._view_lock):
            recent = [one for one in takewhile(lambda one: one[0] > base, reversed(self._recent)) if one[0] <= upto]
        recent.reverse()
        known_from = recent[0][0] if recent else upto + 1
        if base + 1 < known_from:
            entries = self._read_entries(base, known_from - 1)
            if entries is None or any(stored.reset for stored in entries):
                raise Conflict(f"the log does not reach back to version {base}, on which the commit is based")
            for stored in entries:
                keys = frozenset(delta.key_of(change) for change in stored.entry.changes)
                yield stored.entry.version, stored.entry.transaction, keys
        yield from recent

    def _check_epoch(self, transaction: Transaction, view: Snapshot) -> None:
        epoch = transaction.leader_epoch
        if epoch is not None and view.epoch != epoch:
            raise Fenced(f"a commit under leader epoch {epoch} was refused: the newest is {view.epoch}")

    @contextmanager
    def _holding(self, lock: "threading.Lock | threading.RLock") -> Iterator[None]:
        if not lock.acquire(timeout=self.timeout * 2):
            raise Unavailable(f"another thread has kept the directory busy for {self.timeout * 2:.0f} s")
        try:
            yield
        finally:
            lock.release()


def _is_unique(transaction: str) -> bool:
    """Whether no other directory can have a transaction of this name: former versions numbered imports."""
    return len(transaction) >= _UNIQUE


def _stamped(view: Snapshot, epoch: int, transaction: str) -> Snapshot:
    """The view with what is known in addition to its records. Epochs only grow."""
    if view.epoch >= epoch and view.transaction == transaction:
        return view
    return replace(view, epoch=max(view.epoch, epoch), transaction=transaction)
