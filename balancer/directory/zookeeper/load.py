"""Reads a whole directory from ZooKeeper while others write to it, and returns a view of exactly one version.

Nothing locks the writers out, so pieces read one by one are inconsistent. Every page says at which version it was
written; the log says what each commit changed. So: read the root, then everything, then the root again, and apply the
commits in between to what is older than they are. Pages that were split or merged meanwhile are read once more; that
repeats only while splits keep coming.

The signal behind a follower: the watch on the root, and every change of the connection's state.

Watches are not registered again after a reconnect; but a reconnect is a change of state, which wakes the follower, and
its next read of the root sets the watch again. kazoo's thread only ever sets the event.

Replaces a whole directory in ZooKeeper, in as many requests as it takes.

The root is marked first: while it is, anybody who reads or commits is told to wait. Every request checks the leader's
epoch and that mark, so a predecessor or a second import cannot mix in. If it stops half-way the mark stays, and the
import has to be run again. The version grows by two: one for the mark, one for the end.
"""

import re
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from balancer.directory.model import Change, Put, RecordKind, Remove, Tablet
from balancer.directory.snapshot import Snapshot, TableIndex
from balancer.directory.store.codec import RECORD_KINDS, StoredEntry, is_cold, lazily, pack_entry, read_record
from balancer.directory.store.commit import Contents, DirectoryRoot, index_of, with_pages
from balancer.directory.store.delta import apply, key_of
from balancer.directory.store.page_codec import unpack_page
from balancer.directory.store.pages import Page, edited, start_of
from balancer.directory.zookeeper.paths import Paths
from balancer.directory.zookeeper.session import Lost, Session
from balancer.errors import Conflict, Fenced, OutcomeUnknown, Refused, Unavailable

_PAGE_NAME = re.compile("[0-9]{1,18}")
_ATTEMPTS = 20  # loads that were overtaken by an import or by a trimmed log


class Loader:
    """One load."""

    def __init__(
        self,
        session: Session,
        paths: Paths,
        read_root: Callable[[], DirectoryRoot],
        read_entries: Callable[[int, int], list[StoredEntry] | None],
    ) -> None:
        self._session = session
        self._paths = paths
        self._read_root = read_root
        self._read_entries = read_entries

    def load(self) -> tuple[Snapshot, DirectoryRoot]:
        """The directory at one version, and the root of that version."""
        for _ in range(_ATTEMPTS):
            loaded = self._attempt()
            if loaded is not None:
                return loaded
        raise Unavailable("the directory changes faster than it can be read; try again later")

    def _attempt(self) -> tuple[Snapshot, DirectoryRoot] | None:
        first = self._read_root()
        folders = [self._paths.pages, *map(self._paths.records, RECORD_KINDS)]
        numbers, *keys = self._children(folders)
        # Anything else there belongs to nobody: none of our pages has such a name.
        held = self._fetch_pages(int(number) for number in numbers if _PAGE_NAME.fullmatch(number))
        bare, records = self._fetch_records(keys)
        entries: list[StoredEntry] = []
        root = first
        while True:
            reached, root = root.version, self._read_root()
            news = self._read_entries(reached, root.version)
            if root.importing or news is None or any(stored.reset for stored in news):
                return None
            entries += news
            outdated = drop_outdated(held, entries)
            if not outdated:
                break
            held |= self._fetch_pages(outdated)
        roll(held, entries)
        plain = [
            change for stored in entries for change in stored.entry.changes if key_of(change)[0] != RecordKind.TABLET
        ]
        view = apply(Snapshot(epoch=root.epoch, records=bare), [*records, *plain], root.version, ()).snapshot
        return with_pages(view, held, root.next_page), root

    def _children(self, folders: Sequence[str]) -> list[list[str]]:
        client = self._session.client
        return self._session.read(
            lambda: self._session.gather([client.get_children_async(folder) for folder in folders])
        )

    def _fetch_pages(self, numbers: Iterable[int]) -> dict[int, Page]:
        wanted = list(numbers)
        found = self._session.read_many([self._paths.page(number) for number in wanted], unpack_page)
        return {number: page for number, page in zip(wanted, found, strict=True) if page is not None}

    def _fetch_records(self, keys: Sequence[Sequence[str]]) -> tuple[dict[RecordKind, Mapping[Any, Any]], list[Change]]:
        """Those that are over, and the others as changes."""
        named = [(kind, key) for kind, names in zip(RECORD_KINDS, keys, strict=True) for key in names]
        found = self._session.read_many([self._paths.record(kind, key) for kind, key in named], bytes)
        cold: dict[RecordKind, dict[str, bytes]] = defaultdict(dict)
        changes: list[Change] = []
        for (kind, key), data in zip(named, found, strict=True):
            if data is None:
                continue
            if is_cold(kind, data):
                cold[kind][key] = data
            else:
                changes.append(Put(read_record(kind, key, data)))
        return lazily(cold), changes


def drop_outdated(held: dict[int, Page], entries: Iterable[StoredEntry]) -> set[int]:
    """Forgets pages that no longer exist; returns those that were redistributed since they were read."""
    dealt: dict[int, int] = {}
    gone: set[int] = set()
    for stored in entries:
        for repage in stored.repages:
            new = {number for number, _ in repage.new}
            gone = (gone | set(repage.old)) - new
            dealt.update(dict.fromkeys(new, stored.entry.version))
    for number in gone:
        held.pop(number, None)
    return {
        number
        for number, version in dealt.items()
        if number not in gone and (number not in held or held[number].version < version)
    }


def roll(held: dict[int, Page], entries: Sequence[StoredEntry]) -> None:
    """Brings every page up to the last entry: each commit is applied to the pages that are older than it."""
    touched = {tablet_id for stored in entries for tablet_id, _ in _tablet_changes(stored)}
    places: dict[int, set[int]] = defaultdict(set)
    if touched:
        for number, page in held.items():
            for tablet_id in touched.intersection(page.ids):
                places[tablet_id].add(number)
    index = index_of(held)
    for stored in entries:
        version = stored.entry.version
        removed: dict[int, list[int]] = defaultdict(list)
        added: dict[int, list[Tablet]] = defaultdict(list)
        for tablet_id, tablet in _tablet_changes(stored):
            for number in [one for one in places[tablet_id] if held[one].version < version]:
                removed[number].append(tablet_id)
                places[tablet_id].discard(number)
            if tablet is not None:
                target = _page_for(held, index.get(tablet.table), tablet, version)
                if target is not None:
                    added[target].append(tablet)
                    places[tablet_id].add(target)
        for number in {**removed, **added}:
            held[number] = edited(held[number], version, removed[number], added[number])


def _tablet_changes(stored: StoredEntry) -> Iterator[tuple[int, Tablet | None]]:
    """Id and tablet, None if it was removed, of each tablet that a commit has changed."""
    for change in stored.entry.changes:
        if isinstance(change, Remove):
            if change.kind is RecordKind.TABLET:
                yield int(change.key), None
        elif isinstance(change.record, Tablet):
            yield change.record.id, change.record


def _page_for(held: dict[int, Page], index: TableIndex | None, tablet: Tablet, version: int) -> int | None:
    """The page, older than this version, that held the tablet's first position just before it; None: it is newer.

    The index is of mixed versions. Without a redistribution, a page's start only ever moves to the right (a merge over
    the border goes to the left page), so the page is the one found or one of its neighbours.
    """
    if index is None:
        return None
    position = start_of(tablet.bounds)
    at = bisect_right(index.starts, position) - 1
    for near in (at, at - 1, at + 1):
        if 0 <= near < len(index.numbers):
            page = held[index.numbers[near]]
            if page.version < version and page.holds(position):
                return index.numbers[near]
    return None


class RootSignal:
    """See `directory/store/follower.Signal`. The directory sets the root's watch whenever it reads the root and anybody
    listens."""

    def __init__(self, session: Session, listeners: "list[RootSignal]") -> None:
        self._session = session
        self._listeners = listeners
        self._event = threading.Event()
        session.add_waker(self.wake)

    def wait(self, timeout: float) -> None:
        """Returns when the root may have changed since the last call."""
        self._event.wait(timeout)
        self._event.clear()

    def wake(self) -> None:
        """Makes a waiter return at once."""
        self._event.set()

    def close(self) -> None:
        """Stops listening."""
        self._session.remove_waker(self.wake)
        if self in self._listeners:
            self._listeners.remove(self)


_CHUNK_BYTES = 256 * 1024
_CHUNK_ROWS = 500

Write = Callable[[Any], None]


def replace_all(
    session: Session, paths: Paths, contents: Contents, root: DirectoryRoot, *, entry: StoredEntry, leader_epoch: int
) -> None:
    """Replaces what is there with the contents."""
    mark = DirectoryRoot(root.version - 1, root.version, root.next_page, f"mark-{root.transaction}", importing=True)
    send = _Sender(session, paths, leader_epoch)
    send(root.version - 2, [lambda request: request.set_data(paths.root, mark.pack())])
    for chunk in _chunks([(path, 0) for path in _existing(session, paths)]):
        send(mark.version, [_delete(path) for path in chunk], NoNodeError)
    data = {paths.page(number): page for number, page in contents.pages.items()}
    data |= {paths.record(kind, key): record for (kind, key), record in contents.records.items()}
    for chunk in _chunks([(path, len(one)) for path, one in data.items()]):
        send(mark.version, [_create(path, data[path]) for path in chunk], NodeExistsError)
    send(
        mark.version,
        [
            lambda request: request.set_data(paths.root, root.pack()),
            _create(paths.entry(root.version), pack_entry(entry)),
        ],
    )


class _Sender:
    """Sends one chunk, conditional on the root's version and the leader's epoch, until its outcome is known."""

    def __init__(self, session: Session, paths: Paths, leader_epoch: int) -> None:
        self._session = session
        self._paths = paths
        self._leader_epoch = leader_epoch

    def __call__(self, version: int, writes: Sequence[Write], done: type[Exception] = BadVersionError) -> None:
        """`done` is the error that a second copy of an applied chunk meets."""

        def build(request: Any) -> None:
            request.check(self._paths.epoch, self._leader_epoch)
            request.check(self._paths.root, version)
            for write in writes:
                write(request)

        deadline = self._session.clock.monotonic() + self._session.timeout
        doubtful = False
        while True:
            try:
                verdict = self._session.multi(build, deadline)
            except Lost:
                doubtful = True
                if not self._session.wait_connected(deadline) or self._session.clock.monotonic() >= deadline:
                    raise OutcomeUnknown("the import was interrupted; run it again") from None
                continue
            if verdict.applied or (doubtful and isinstance(verdict.error, done) and verdict.failed_at != 0):
                return
            if verdict.failed(0, BadVersionError):
                raise Fenced(f"an import under leader epoch {self._leader_epoch} was refused: there is a newer one")
            if verdict.failed(1, BadVersionError):
                raise Conflict("the directory was changed while it was being imported; run the import again")
            raise Refused(f"ZooKeeper has refused a part of the import: {verdict.error!r}")


def _existing(session: Session, paths: Paths) -> list[str]:
    client = session.client
    folders = [paths.pages, paths.log, *map(paths.records, RECORD_KINDS)]
    found = session.read(lambda: session.gather([client.get_children_async(folder) for folder in folders]))
    return [f"{folder}/{name}" for folder, names in zip(folders, found, strict=True) for name in names]


def _chunks(sized: Sequence[tuple[str, int]]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for path, length in sized:
        if chunk and (size + length > _CHUNK_BYTES or len(chunk) >= _CHUNK_ROWS):
            yield chunk
            chunk, size = [], 0
        chunk.append(path)
        size += length
    if chunk:
        yield chunk


def _create(path: str, data: bytes) -> Write:
    return lambda request: request.create(path, data)


def _delete(path: str) -> Write:
    return lambda request: request.delete(path)
