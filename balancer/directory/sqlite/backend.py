"""The directory in one SQLite file: the embedded default, for everything that runs on one machine.

WAL, synchronous FULL: an acknowledged commit survives a crash of the machine. A commit takes the write lock first
(BEGIN IMMEDIATE), so its checks and its writes are one. `PRAGMA data_version` is the watch. Connections are borrowed
from a small pool, one thread at a time. Only this package imports sqlite3.

Who may read and write a directory in a file. Called by `backend`.

The file and what SQLite keeps next to it (`-wal`, `-shm`) belong to its owner: 0600, which is how it is made. It may be
opened to a group that is meant to share it (0640 to read, 0660 to write), but not to everybody.
"""

import os
import queue
import sqlite3
import stat
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from balancer.clock import Clock
from balancer.directory.contract import Leadership, Secured
from balancer.directory.model import Json, Put, RecordKind
from balancer.directory.notes import check_note
from balancer.directory.snapshot import MOST_BLOCKS, Snapshot
from balancer.directory.sqlite.election import SqliteLeadership, campaign
from balancer.directory.store.backend import PagedDirectory, Stale
from balancer.directory.store.codec import (
    StoredEntry,
    is_cold,
    lazily,
    pack,
    pack_entry,
    read_record,
    unpack_entry,
    unpack_notes,
)
from balancer.directory.store.commit import Batch, Contents, DirectoryRoot, RecordKey, with_pages
from balancer.directory.store.delta import apply
from balancer.directory.store.page_codec import unpack_page
from balancer.errors import Fenced, Refused, Unavailable, UserError
from balancer.untrusted import one_line

_SCHEMA = """
CREATE TABLE IF NOT EXISTS root (
    only INTEGER PRIMARY KEY CHECK (only = 1), version INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS page (number INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS record (
    kind TEXT NOT NULL, key TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log (version INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS leader (
    only INTEGER PRIMARY KEY CHECK (only = 1), epoch INTEGER NOT NULL, name TEXT, beat INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS note (
    topic TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (topic, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS block ("table" INTEGER PRIMARY KEY, taken INTEGER NOT NULL);
"""
# Seconds between looks at data_version. A look takes microseconds, but waking up for it takes a tenth of a millisecond.
_LOOK, _LOOK_IDLE = 0.02, 0.2
_BUSY_SECONDS = 10.0  # after a commit more are expected: the steps of a migration


class SqliteDirectory(PagedDirectory):
    """See `directory/contract.Directory`. `lease` is how long, in seconds, a leader that hangs keeps others waiting."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        timeout: float = 10.0,
        lease: float = 5.0,
        create: bool = True,
    ) -> None:
        super().__init__(clock, timeout)
        self._path = path
        self._lease = lease
        self._idle: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._closed = threading.Event()
        self._leaderships: list[SqliteLeadership] = []
        try:
            self._prepare(create)
        except BaseException:
            self._close()
            raise

    def _prepare(self, create: bool) -> None:
        if not self._path.parent.is_dir():
            raise UserError(f"the folder {self._path.parent} of the directory's file does not exist")
        if create:
            self._create()
        elif not self._path.exists():
            raise UserError(f"there is no directory in the file {self._path}: it does not exist")
        check(self._path)
        fresh = DirectoryRoot(0, 1, 1, "")
        with self._connection() as connection:
            if not self._is_ours(connection) and not create:
                raise UserError(f"there is no directory in the file {self._path}: it is empty")
            connection.execute("PRAGMA journal_mode = WAL")
            with self._writing(connection):
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
                connection.execute("INSERT OR IGNORE INTO root VALUES (1, 0, ?)", (fresh.pack(),))
                connection.execute("INSERT OR IGNORE INTO leader VALUES (1, 0, NULL, 0)")

    def _create(self) -> None:
        """Makes an empty file that only we can read, if there is none; SQLite's own would be open to everybody."""
        try:
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return
        except OSError as error:
            raise Unavailable(f"the directory's file {self._path} cannot be made: {error.strerror}") from None

    def _is_ours(self, connection: sqlite3.Connection) -> bool:
        """Whether our tables are there yet; `UserError` in another program's database: they must not appear there."""
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if names and not {"root", "page", "record", "log", "leader"} <= names:
            raise UserError(f"the file {self._path} is another program's database: name one that does not exist yet")
        return bool(names)

    def open(self) -> sqlite3.Connection:
        """A new connection; the caller closes it."""
        connection: sqlite3.Connection | None = None
        try:
            # If the file is gone, SQLite would make an empty one.
            connection = sqlite3.connect(
                f"{self._path.as_uri()}?mode=rw",
                uri=True,
                timeout=self.timeout,
                isolation_level=None,
                check_same_thread=False,
            )
            connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise Unavailable(f"the directory's file {self._path} cannot be opened: {error}") from None
        return connection

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        if self._closed.is_set():
            raise Unavailable("the directory has been closed")
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            connection = self.open()
        try:
            yield connection
        except sqlite3.Error as error:
            raise Unavailable(f"the directory's file {self._path} cannot be used: {error}") from error
        finally:
            self._give_back(connection)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        if self._closed.is_set():
            connection.close()
        else:
            self._idle.put(connection)

    @contextmanager
    def _writing(self, connection: sqlite3.Connection) -> Iterator[None]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: the lock is held from its beginning."""
        with self._connection() as connection, self._writing(connection):
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A read transaction: one consistent view."""
        with self._connection() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    def _read_root(self, fresh: bool = True) -> DirectoryRoot:
        with self.reading() as connection:
            return _root(connection)

    def _load(self) -> tuple[Snapshot, DirectoryRoot]:
        with self.reading() as connection:
            root = _root(connection)
            records = connection.execute("SELECT kind, key, data FROM record").fetchall()
            pages = connection.execute("SELECT number, data FROM page").fetchall()
        puts, cold = [], defaultdict[RecordKind, dict[str, bytes]](dict)
        for word, key, data in records:
            kind = RecordKind(word)
            if is_cold(kind, data):
                cold[kind][key] = data
            else:
                puts.append(Put(read_record(kind, key, data)))
        bare = Snapshot(epoch=root.epoch, records=lazily(cold))
        snapshot = apply(bare, puts, root.version, ()).snapshot
        return with_pages(snapshot, {number: unpack_page(data) for number, data in pages}, root.next_page), root

    def _read_entries(self, after: int, upto: int) -> list[StoredEntry] | None:
        with self.reading() as connection:
            rows = connection.execute(
                "SELECT data FROM log WHERE version > ? AND version <= ? ORDER BY version", (after, upto)
            ).fetchall()
        return [unpack_entry(data) for (data,) in rows] if len(rows) == max(upto - after, 0) else None

    def _write(self, batch: Batch) -> None:
        with self.writing() as connection:
            root = _root(connection)
            if batch.leader_epoch is not None and root.epoch != batch.leader_epoch:
                raise Fenced(
                    f"a commit under leader epoch {batch.leader_epoch} was refused: the newest is {root.epoch}"
                )
            if root.version != batch.base:
                raise Stale
            _write_root(connection, batch.version, batch.packed_root)
            _write_pages(connection, batch.created_pages, batch.changed_pages)
            _write_records(connection, batch.created_records, batch.changed_records)
            connection.executemany("DELETE FROM page WHERE number = ?", [(one,) for one in batch.dropped_pages])
            connection.executemany("DELETE FROM record WHERE kind = ? AND key = ?", batch.removed_records)
            connection.executemany("DELETE FROM log WHERE version = ?", [(one,) for one in batch.trimmed])
            connection.execute("INSERT INTO log VALUES (?, ?)", (batch.version, batch.entry))

    def _replace(self, contents: Contents, root: DirectoryRoot, entry: StoredEntry, leader_epoch: int) -> None:
        with self.writing() as connection:
            before = _root(connection)
            if before.epoch != leader_epoch:
                raise Fenced(f"an import under leader epoch {leader_epoch} was refused: the newest is {before.epoch}")
            if before.version != root.version - 1:
                raise Unavailable("the directory was changed while it was being imported; nothing was applied")
            for table in ("page", "record", "log"):
                connection.execute(f"DELETE FROM {table}")  # noqa: S608 - names from the line above
            _write_root(connection, root.version, root.pack())
            _write_pages(connection, contents.pages)
            _write_records(connection, contents.records)
            connection.execute("INSERT INTO log VALUES (?, ?)", (root.version, pack_entry(entry)))

    def _signal(self) -> "DataVersion":
        return DataVersion(self.open(), self.clock)

    def campaign(self, name: str, timeout: float | None = None) -> Leadership | None:
        """Waits to become leader; None when the timeout has passed."""
        leadership = campaign(self, self._path, name, timeout, self._lease)
        if leadership is not None:
            self._leaderships.append(leadership)
        return leadership

    def leader(self) -> str | None:
        """The name of the current leader, for information."""
        with self.reading() as connection:
            found = connection.execute("SELECT name FROM leader").fetchone()
        return one_line(str(found[0])) if found and found[0] is not None else None

    def publish(self, topic: str, name: str, document: Json) -> int:
        """Leaves a note; the last one wins."""
        data = pack(document)
        check_note(topic, name, data)
        with self.writing() as connection:
            connection.execute("INSERT OR REPLACE INTO note VALUES (?, ?, ?)", (topic, name, data))
        return 0

    def published(self, topic: str) -> Mapping[str, Json]:
        """The notes under a topic."""
        with self.reading() as connection:
            rows = connection.execute("SELECT name, data FROM note WHERE topic = ?", (topic,)).fetchall()
        return unpack_notes(topic, rows)

    def unpublish(self, topic: str, name: str) -> None:
        """Removes a note. Idempotent."""
        with self.writing() as connection:
            connection.execute("DELETE FROM note WHERE topic = ? AND name = ?", (topic, name))

    def take_block(self, table: int) -> int:
        """The number of a block of a table's ids, from 0 on, that nobody else gets."""
        with self.writing() as connection:
            connection.execute(
                'INSERT INTO block VALUES (?, 1) ON CONFLICT ("table") DO UPDATE SET taken = taken + 1', (table,)
            )
            (taken,) = connection.execute('SELECT taken FROM block WHERE "table" = ?', (table,)).fetchone()
        if not isinstance(taken, int) or not 0 < taken <= MOST_BLOCKS:
            raise Refused(f"the ids of table {table} are used up")
        return taken - 1

    def blocks(self) -> Mapping[int, int]:
        """How many blocks of ids have been taken, by table."""
        with self.reading() as connection:
            return dict(connection.execute('SELECT "table", taken FROM block').fetchall())

    def exposures(self, *, everything: bool = False) -> Sequence[str]:
        """Who may read or change it but should not; see the contract."""
        return exposures(self._path)

    def secure(self, *, dry_run: bool) -> Secured:
        """Closes what is open; see the contract."""
        return secure(self._path, dry_run=dry_run)

    def _close(self) -> None:
        for leadership in self._leaderships:
            leadership.resign()
        self._closed.set()
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return


class DataVersion:
    """Notices commits of other connections, in this process or another, by `PRAGMA data_version`.

    A leader's beats and the notes change the file as well, every second or so: only a new root is worth waking for.
    """

    def __init__(self, connection: sqlite3.Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._seen = -1
        self._root: tuple[int, int] = (-1, -1)
        self._busy_until = clock.monotonic() + _BUSY_SECONDS
        self._woken = threading.Event()

    def wait(self, timeout: float) -> None:
        """Returns when the root may have changed since the last call."""
        deadline = self._clock.monotonic() + timeout
        while not self._changed():
            now = self._clock.monotonic()
            pause = _LOOK if now < self._busy_until else _LOOK_IDLE
            if now >= deadline or self._woken.wait(min(pause, deadline - now)):
                return

    def _changed(self) -> bool:
        try:
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
            if version == self._seen:
                return False
            root = self._connection.execute("SELECT version, epoch FROM root, leader").fetchone()
        except sqlite3.Error:
            return True  # a reader of the root learns what is wrong, and retries with pauses
        self._seen = version
        if root == self._root:
            return False
        self._root = root
        self._busy_until = self._clock.monotonic() + _BUSY_SECONDS
        return True

    def wake(self) -> None:
        """Makes a waiter return at once."""
        self._woken.set()

    def close(self) -> None:
        """Closes its connection."""
        self._connection.close()


def _root(connection: sqlite3.Connection) -> DirectoryRoot:
    data, epoch = connection.execute("SELECT data, epoch FROM root, leader").fetchone()
    return DirectoryRoot.unpack(data, epoch)


def _write_root(connection: sqlite3.Connection, version: int, data: bytes) -> None:
    connection.execute("UPDATE root SET version = ?, data = ?", (version, data))


def _write_pages(connection: sqlite3.Connection, *mappings: Mapping[int, bytes]) -> None:
    for mapping in mappings:
        connection.executemany("INSERT OR REPLACE INTO page VALUES (?, ?)", mapping.items())


def _write_records(connection: sqlite3.Connection, *mappings: Mapping[RecordKey, bytes]) -> None:
    for mapping in mappings:
        rows: Iterable[tuple[str, str, bytes]] = [(kind, key, data) for (kind, key), data in mapping.items()]
        connection.executemany("INSERT OR REPLACE INTO record VALUES (?, ?, ?)", rows)


def check(path: Path) -> None:
    """Refuses a file that every account of this machine may change: whatever it says, anybody may have written it."""
    for file, mode in _modes(path):
        if mode & stat.S_IWOTH:
            raise Refused(f"every account of this machine may write the directory's file {file}: chmod o-rwx {file}")


def exposures(path: Path) -> list[str]:
    """A sentence for each thing that lets others read or change it."""
    found = []
    for file, mode in _modes(path):
        if mode & stat.S_IWOTH:
            found.append(f"every account of this machine may write the directory's file {file}")
        elif mode & stat.S_IROTH:
            found.append(f"every account of this machine may read the directory's file {file}")
    mode = path.parent.stat().st_mode
    # In a folder with the sticky bit only owners replace files.
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        found.append(f"every account of this machine may replace the directory's file: folder {path.parent} is open")
    return found


def secure(path: Path, *, dry_run: bool) -> Secured:
    """Revokes what every account may do; what the group may do is the owner's business."""
    parts, changed = 0, []
    for file, mode in _modes(path):
        parts += 1
        if mode & stat.S_IRWXO:
            changed.append(str(file))
            if not dry_run:
                _close(file, mode)
    return Secured(parts, len(changed), tuple(changed))


def _close(file: Path, mode: int) -> None:
    try:
        os.chmod(file, stat.S_IMODE(mode) & ~stat.S_IRWXO)
    except OSError as error:
        raise Refused(f"the rights of {file} cannot be changed: {error.strerror}") from None


def _modes(path: Path) -> Iterator[tuple[Path, int]]:
    """The files that there are, and their modes."""
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        try:
            yield file, file.stat().st_mode
        except OSError:
            continue
