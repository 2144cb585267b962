"""The directory for applications that may not reach its servers: what `balancer.directory.http_directory` asks for.

Each commit is read from the directory's log once for everybody who asks, and packed once; so is a snapshot, which may
be a few commits old, because its reader continues by the log. What applications do not need (commands, plans, who did
what and why) is left out. Nodes' addresses are in it, so it is only for bearers of a token, including the readers'.
"""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from balancer.api.long_poll import MAX_WAIT, VersionWatch
from balancer.api.problems import problem
from balancer.api.source import Source
from balancer.directory.batch import LOG_KEPT, NEWS, DirectoryRoot
from balancer.directory.codec import StoredEntry, pack_entry
from balancer.directory.delta import key_of
from balancer.directory.handover_record import is_handover
from balancer.directory.model import RecordKind
from balancer.directory.open import cluster_name
from balancer.directory.snapshot import Snapshot
from balancer.directory.snapshot_codec import pack_log, pack_snapshot
from balancer.outside import quoted

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
