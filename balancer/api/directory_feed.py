"""The directory for applications that may not reach its servers: what `balancer.directory.http` asks for.

Each commit is read from the directory's log once for everybody who asks, and packed once; so is a snapshot, which may
be a few commits old, because its reader continues by the log. What applications do not need (commands, plans, who did
what and why) is left out. Nodes' addresses are in it, so it is only for bearers of a token, including the readers'.

Long polls: any number of requests wait for a newer directory, and one thread waits for all of them.

A request that waited in a thread of its own would use up the pool; here requests are coroutines, and a single task asks
the follower in a thread while anybody waits. Every commit wakes all of them, and each asks again at once: thousands
would take the interpreter from the ticks and migrations that make the commits. So they are answered in turns, each with
the newest directory when its turn comes.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from balancer.api.problems import problem
from balancer.api.source import Source
from balancer.directory.contract import Follower
from balancer.directory.handover_record import is_handover
from balancer.directory.model import RecordKind
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.codec import StoredEntry, pack_entry
from balancer.directory.store.commit import LOG_KEPT, NEWS, DirectoryRoot
from balancer.directory.store.delta import key_of
from balancer.directory.store.host_cache import pack_log, pack_snapshot
from balancer.errors import Unavailable
from balancer.naming import cluster_name
from balancer.untrusted import quoted

MAX_WAIT: Final = 60.0
MAX_WAITERS: Final = 4096
_STEP: Final = 0.5  # how long the thread waits at most before it checks whether anybody is still interested

ANSWERS_PER_SECOND: Final = 200.0
"""More would take over a third of a core from the daemon; with fewer, thousands of clients learn of moves later."""
_AT_ONCE: Final = 200  # this many are answered without a turn: an ordinary number of clients never waits


class Turns:
    """When each of many may proceed: some at once, the rest one after another. Time is an argument."""

    def __init__(self, per_second: float = ANSWERS_PER_SECOND, at_once: int = _AT_ONCE) -> None:
        self._every = 1 / per_second
        self._ahead = at_once * self._every
        self._last = float("-inf")

    def take(self, now: float) -> float:
        """Seconds until the next free turn, which is taken by asking."""
        self._last = max(self._last, now - self._ahead) + self._every
        return max(0.0, self._last - now)


class VersionWatch:
    """Belongs to one event loop."""

    def __init__(self, follower: Callable[[], Follower]) -> None:
        self._follower = follower
        self._waiters = 0
        self._turns = Turns()
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """The event loop runs."""
        self._loop = asyncio.get_running_loop()
        self._closing = False

    async def newer(self, after: int, timeout: float) -> Snapshot:
        """The first snapshot above `after`, or the newest when the time has passed or the server stops."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(timeout, MAX_WAIT)
        snapshot = self._follower().snapshot
        if snapshot.version > after or timeout <= 0:
            return snapshot
        if self._waiters >= MAX_WAITERS:
            raise Unavailable(f"{MAX_WAITERS} requests are waiting already: try again without waiting")
        self._waiters += 1
        try:
            while snapshot.version <= after and not self._closing and (left := deadline - loop.time()) > 0:
                await self._wait(left)
                snapshot = self._follower().snapshot
        finally:
            self._waiters -= 1
        return snapshot

    async def newer_in_turn(self, after: int, timeout: float) -> Snapshot:
        """The same for one of many: it may come later, with whatever is newest by then."""
        found = await self.newer(after, timeout)
        if found.version > after and timeout > 0 and not self._closing:
            await asyncio.sleep(self._turns.take(asyncio.get_running_loop().time()))
            found = self._follower().snapshot
        return found

    def close(self) -> None:
        """Releases everybody who waits with what there is. From any thread; idempotent."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._let_go)

    def _let_go(self) -> None:
        self._closing = True
        self._changed.set()

    async def _wait(self, left: float) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow())
        changed = self._changed
        try:
            await asyncio.wait_for(changed.wait(), left)
        except TimeoutError:
            return

    async def _follow(self) -> None:
        """Runs while anybody waits. The first look always wakes them: something may have changed before it."""
        known = -1
        loop = asyncio.get_running_loop()
        while self._waiters and not self._closing:
            asked = loop.time()
            found = await run_in_threadpool(self._follower().wait, known, _STEP)
            if found.version > known:
                known = found.version
                self._changed.set()
                self._changed = asyncio.Event()
            elif loop.time() < asked + _STEP / 2:  # a closed follower does not wait: do not spin on it
                await asyncio.sleep(_STEP)


KINDS: Final = (RecordKind.BUNDLE, RecordKind.NODE, RecordKind.TABLE, RecordKind.MIGRATION, RecordKind.PAUSE)
"""What is sent in addition to tablets; of pauses only those that say where a bundle was handed over to."""
_SENT: Final = frozenset((*KINDS, RecordKind.TABLET))
_MOST_BYTES: Final = 32 << 20
"""Bytes of commits that are kept here: thousands of ordinary ones."""
SNAPSHOT_MAY_LAG: Final = 100
"""Commits that a packed snapshot may be behind: packing a million tablets takes more than sending as many commits."""
_BINARY: Final = "application/octet-stream"

Version = Annotated[int, Query(ge=0, lt=2**63)]


class DirectoryFeed:
    """Of one instance; may be asked from several threads."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._entries: dict[int, bytes] = {}  # by version, oldest first
        self._size = 0
        self._reset = 0  # the version of the newest import among the entries that were read
        self._packed: tuple[int, bytes] | None = None

    def root(self) -> bytes:
        """The root of the newest view known here, with the last commit if that is small."""
        view = self._source.follower().snapshot
        last = self.log(view.version - 1, view.version) if view.version else None
        news = last[0] if last and len(last[0]) <= NEWS else b""
        return DirectoryRoot(view.version, 1, view.next_page, view.transaction, news=news).pack()

    def log(self, after: int, upto: int) -> Sequence[bytes] | None:
        """The commits `after < version <= upto`; None if the log does not have them all, or they are too many."""
        with self._lock:
            return self._kept(after, upto)

    def _kept(self, after: int, upto: int) -> Sequence[bytes] | None:
        wanted = range(after + 1, upto + 1)
        if len(wanted) > LOG_KEPT or upto > self._source.follower().snapshot.version:
            return None
        missing = next((version for version in wanted if version not in self._entries), None)
        if missing is not None and not self._read(missing - 1, upto):
            return None
        found = [self._entries[version] for version in wanted if version in self._entries]
        return found if len(found) == len(wanted) else None

    def _read(self, after: int, upto: int) -> bool:
        found = self._source.directory().log(after, upto)
        for stored in found or ():
            data = pack_entry(_stripped(stored))
            self._size += len(data) - len(self._entries.pop(stored.entry.version, b""))
            self._entries[stored.entry.version] = data
            if stored.reset:
                self._reset = max(self._reset, stored.entry.version)
        while self._size > _MOST_BYTES and len(self._entries) > len(found or ()):
            self._size -= len(self._entries.pop(next(iter(self._entries))))
        return found is not None

    def snapshot(self) -> bytes:
        """A snapshot; not always the newest, but the log leads from it to that."""
        view = self._source.follower().snapshot
        with self._lock:
            packed = self._packed
            if packed is None or not self._leads(packed[0], view.version):
                packed = self._packed = (view.version, pack_snapshot(_without_finished(view), KINDS))
            return packed[1]

    def _leads(self, first: int, last: int) -> bool:
        """Whether the log leads from one version to another, in few steps and over no import."""
        return 0 <= last - first <= SNAPSHOT_MAY_LAG and self._kept(first, last) is not None and self._reset <= first


def _stripped(stored: StoredEntry) -> StoredEntry:
    changes = tuple(change for change in stored.entry.changes if _is_sent(*key_of(change)))
    return replace(stored, entry=replace(stored.entry, author="", reason="", changes=changes))


def _is_sent(kind: RecordKind, key: str) -> bool:
    return kind in _SENT and (kind is not RecordKind.PAUSE or is_handover(key))


def _without_finished(view: Snapshot) -> Snapshot:
    running = {key: record for key, record in view.migrations.items() if not record.finished}
    signposts = {key: record for key, record in view.pauses.items() if is_handover(key)}
    return replace(view, records={**view.records, RecordKind.MIGRATION: running, RecordKind.PAUSE: signposts})


def add_feed(router: APIRouter, source: Source, watch: VersionWatch) -> None:
    """Its endpoints. They are the library's own, not part of the API for other programs, so not in its description."""
    feed = DirectoryFeed(source)

    def refusal(request: Request, cluster: str) -> Response | None:
        if not request.scope["bears_token"]:
            return problem(401, "a bearer token is needed: the directory has the nodes' addresses")
        ours = cluster_name(source.settings().daemon.directory)
        if cluster != ours:
            return problem(404, f"there is no cluster {quoted(cluster)} here: this is {quoted(ours)}")
        return None

    def binary(data: bytes) -> Response:
        headers = {
            "Balancer-Epoch": str(source.follower().snapshot.epoch),
            "Balancer-Age": f"{source.follower().age():.3f}",
        }
        return Response(data, 200, headers, _BINARY)

    @router.get("/directory/{cluster}/root", include_in_schema=False)
    async def get_directory_root(
        request: Request,
        cluster: str,
        after: Version | None = None,
        wait: Annotated[float, Query(ge=0, le=MAX_WAIT)] = 0.0,
    ) -> Response:
        """The root; with `after` and `wait` it comes when there is a newer version, or when the time is over."""
        refused = refusal(request, cluster)
        if refused is not None:
            return refused
        if after is not None and wait > 0:
            await watch.newer_in_turn(after, wait)
        return binary(await run_in_threadpool(feed.root))

    @router.get("/directory/{cluster}/log", include_in_schema=False)
    def get_directory_log(request: Request, cluster: str, after: Version, upto: Version) -> Response:
        """Commits."""
        refused = refusal(request, cluster)
        if refused is not None:
            return refused
        entries = feed.log(after, upto)
        if entries is None:
            return problem(410, "the log does not have all of these commits")
        return binary(pack_log(entries))

    @router.get("/directory/{cluster}/snapshot", include_in_schema=False)
    def get_directory_snapshot(request: Request, cluster: str) -> Response:
        """Everything."""
        return refusal(request, cluster) or binary(feed.snapshot())
