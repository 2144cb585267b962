"""Replaces a whole directory in ZooKeeper, in as many requests as it takes.

The root is marked first: while it is, anybody who reads or commits is told to wait. Every request checks the leader's
epoch and that mark, so a predecessor or a second import cannot mix in. If it stops half-way the mark stays, and the
import has to be run again. The version grows by two: one for the mark, one for the end.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from balancer.directory.batch import Contents, DirectoryRoot
from balancer.directory.codec import StoredEntry, pack_entry
from balancer.directory.paths import RECORD_KINDS, Paths
from balancer.directory.zookeeper_session import Lost, Session
from balancer.errors import Conflict, Fenced, OutcomeUnknown, Refused

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
