"""The file that processes of a host share: never trusted beyond what the directory's own log says, whoever wrote it."""

import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from balancer.clock import SystemClock
from balancer.directory.model import Counter, Put
from balancer.directory.open import open_directory
from balancer.directory.snapshot import Snapshot
from balancer.directory.sqlite.backend import SqliteDirectory
from balancer.directory.store import commit, host_cache
from balancer.directory.store.backend import PagedDirectory
from balancer.directory.store.host_cache import REWRITE_AFTER, HostCache
from balancer.errors import UserError
from tests.support.directories import fill, moved, small_cluster, transaction
from tests.support.fleet import until

pytestmark = pytest.mark.quick


@pytest.fixture
def url(tmp_path: Path) -> str:
    address = f"sqlite://{tmp_path}/directory.db"
    with open_directory(address) as directory:
        fill(directory)
    return address


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each full load."""
    made: list[int] = []
    load = SqliteDirectory._load

    def counted(self: SqliteDirectory) -> object:
        made.append(1)
        return load(self)

    monkeypatch.setattr(SqliteDirectory, "_load", counted)
    return made


@contextmanager
def opened(url: str, folder: Path) -> Iterator[PagedDirectory]:
    with open_directory(url, cache=folder) as directory:
        assert isinstance(directory, PagedDirectory)
        yield directory


def warmed(url: str, folder: Path) -> Path:
    """The file that a first process leaves."""
    with opened(url, folder) as directory:
        directory.snapshot()
    return next(folder.glob("*.snapshot"))


def told(view: Snapshot) -> object:
    """Everything that a snapshot says."""
    tablets = {table: list(view.tablets(table)) for table in view.tables}
    records = {kind: dict(records) for kind, records in view.records.items() if records}
    by_id = {tablet.id: view.find_tablet(tablet.id) for found in tablets.values() for tablet in found}
    return view.version, view.epoch, tablets, by_id, records, dict(view.busy), view.next_page


def plain(url: str) -> object:
    with open_directory(url) as directory:
        return told(directory.snapshot())


def move(url: str, times: int) -> None:
    with open_directory(url) as directory:
        for number in range(times):
            view = directory.snapshot()
            tablet = view.tablet(number % 8 + 1)
            target = next(node for node in sorted(view.nodes) if node != tablet.node)
            directory.commit(transaction([Put(moved(tablet, target))], view.version))


def test_a_second_process_loads_nothing_and_knows_the_same(url: str, folder: Path, loads: list[int]) -> None:
    expected = plain(url)
    loads.clear()
    file = warmed(url, folder)
    assert len(loads) == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with opened(url, folder) as directory:
        assert told(directory.snapshot()) == expected
    assert len(loads) == 1


def test_what_was_committed_since_is_known_at_once(url: str, folder: Path, loads: list[int]) -> None:
    warmed(url, folder)
    move(url, 5)
    expected = plain(url)
    loads.clear()
    with opened(url, folder) as directory:
        assert told(directory.snapshot()) == expected
        tablet = directory.snapshot().tablet(8)
        assert directory.commit(transaction([Put(moved(tablet, "pg-a"))], directory.snapshot().version)) == 7
    assert loads == []


def _other_directory(url: str, folder: Path, tmp_path: Path) -> None:
    """A file of another directory, of the same version, at the place of ours."""
    other = f"sqlite://{tmp_path}/other.db"
    with open_directory(other) as directory:
        fill(directory, small_cluster()[:4])
    file, foreign = warmed(url, folder), warmed(other, tmp_path / "elsewhere")
    file.write_bytes(foreign.read_bytes())


def _made_again(url: str, folder: Path, tmp_path: Path) -> None:
    """The directory was lost and made again, and has come further than the file."""
    warmed(url, folder)
    for file in tmp_path.glob("directory.db*"):
        file.unlink()
    with open_directory(url) as directory:
        fill(directory, small_cluster()[:4])
        directory.commit(transaction([Put(Counter("n", 2))], 1))


def _restored_from_a_backup(url: str, folder: Path, tmp_path: Path) -> None:
    """The file is newer than the directory."""
    shutil.copy(tmp_path / "directory.db", tmp_path / "backup.db")
    move(url, 3)
    warmed(url, folder)
    for file in tmp_path.glob("directory.db*"):
        file.unlink()
    shutil.copy(tmp_path / "backup.db", tmp_path / "directory.db")


def _imported_since(url: str, folder: Path, tmp_path: Path) -> None:
    warmed(url, folder)
    with open_directory(url) as directory:
        leadership = directory.campaign("importer", timeout=10)
        assert leadership is not None
        directory.restore(small_cluster()[:4], reason="test", author="test", leader_epoch=leadership.epoch)


@pytest.mark.parametrize("other", [_other_directory, _made_again, _restored_from_a_backup, _imported_since])
def test_another_past_than_the_directorys_own_is_not_believed(
    other: Callable[[str, Path, Path], None], url: str, folder: Path, tmp_path: Path, loads: list[int]
) -> None:
    other(url, folder, tmp_path)
    expected = plain(url)
    loads.clear()
    for _ in range(2):  # the second process profits from what the first has written instead
        with opened(url, folder) as directory:
            assert told(directory.snapshot()) == expected
    assert len(loads) == 1


def test_a_file_that_the_log_does_not_reach_any_more_is_replaced(
    url: str, folder: Path, loads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "LOG_KEPT", 3)
    warmed(url, folder)
    move(url, 8)
    loads.clear()
    for _ in range(2):
        with opened(url, folder) as directory:
            assert directory.snapshot().version == 9
    assert len(loads) == 1


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _cut_to_the_mark(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:30])


def _emptied(file: Path) -> None:
    file.write_bytes(b"")


def _longer(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


def _one_bit_else(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def _of_a_later_layout(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"snapshot 1", b"snapshot 2"))


def _link(file: Path) -> None:
    file.rename(file.with_suffix(".real"))
    file.symlink_to(file.with_suffix(".real"))


def _second_name(file: Path) -> None:
    os.link(file, file.with_suffix(".twin"))


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _readable(file: Path) -> None:
    file.chmod(0o644)


def _writable_by_the_group(file: Path) -> None:
    file.chmod(0o620)


SPOILED = [
    *(_cut, _cut_to_the_mark, _emptied, _longer, _one_bit_else, _of_a_later_layout),
    *(_link, _second_name, _pipe, _folder, _readable, _writable_by_the_group),
]


@pytest.mark.parametrize("spoil", SPOILED)
def test_a_file_that_is_not_what_we_left_is_left_alone(
    spoil: Callable[[Path], None], url: str, folder: Path, loads: list[int]
) -> None:
    expected = plain(url)
    spoil(warmed(url, folder))
    loads.clear()
    with opened(url, folder) as directory:
        assert told(directory.snapshot()) == expected
    assert len(loads) == 1


def test_a_file_of_another_account_is_left_alone(
    url: str, folder: Path, loads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner is what the kernel says, which nobody but root can change: so the owner stays, and we are another."""
    file = warmed(url, folder)
    real = os.fstat

    def of_another(descriptor: int) -> os.stat_result:
        found = real(descriptor)
        return os.stat_result((*found[:4], found.st_uid + (not stat.S_ISDIR(found.st_mode)), *found[5:]))

    monkeypatch.setattr(os, "fstat", of_another)
    loads.clear()
    with opened(url, folder) as directory:
        directory.snapshot()
    assert len(loads) == 1
    assert file.exists()


def _open_to_all(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def _linked(folder: Path) -> None:
    (folder.parent / "real").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "real")


def _no_folder(folder: Path) -> None:
    folder.write_text("")


@pytest.mark.parametrize("spoil", [_open_to_all, _linked, _no_folder])
def test_a_folder_that_is_not_ours_alone_is_refused(spoil: Callable[[Path], None], url: str, folder: Path) -> None:
    spoil(folder)
    with pytest.raises(UserError, match="the cache folder"):
        open_directory(url, cache=folder)


def test_a_folder_that_cannot_be_written_costs_a_load_and_nothing_else(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with opened(url, folder) as directory:
        assert directory.snapshot().version == 1
    assert "could not be written: [Errno 28] No space left on device" in caplog.text
    assert [file.suffix for file in folder.iterdir()] == [".lock"]


def test_of_many_processes_that_start_at_once_one_loads(
    url: str, folder: Path, loads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plain(url)
    loads.clear()
    found: list[object] = []
    load = SqliteDirectory._load

    def slow(self: SqliteDirectory) -> object:
        SystemClock().sleep(0.5)
        return load(self)

    monkeypatch.setattr(SqliteDirectory, "_load", slow)

    def start() -> None:
        with opened(url, folder) as directory:
            found.append(told(directory.snapshot()))

    threads = [threading.Thread(target=start) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 12
    assert len(loads) == 1


def test_one_that_hangs_while_it_loads_keeps_others_for_a_while_only(url: str, folder: Path) -> None:
    cache = HostCache(folder, url, SystemClock())
    with cache.turn(1.0), open_directory(url, cache=folder, timeout=0.5) as directory:
        assert directory.snapshot().version == 1


def test_writers_at_once_leave_a_whole_file(url: str, folder: Path) -> None:
    with open_directory(url) as directory:
        view = directory.snapshot()
    cache = HostCache(folder, url, SystemClock())
    done = threading.Event()

    def write(name: str) -> None:
        while not done.is_set():
            cache.write(replace(view, transaction=name * 32))

    writers = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    cache.write(replace(view, transaction="a" * 32))
    for writer in writers:
        writer.start()
    try:
        seen = {kept.transaction for kept in (cache.read() for _ in range(200)) if kept is not None}
        whole = all(cache.read() is not None for _ in range(200))
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert seen <= {"a" * 32, "b" * 32}
    assert whole
    assert [file.suffix for file in folder.iterdir()] == [".snapshot"]


def test_a_process_that_follows_keeps_the_file_near_the_directory(
    url: str, folder: Path, loads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_cache, "REWRITE_AFTER", 5)
    with opened(url, folder) as directory:
        directory.follow()
        move(url, 20)
        cache = HostCache(folder, url, SystemClock())
        until(lambda: (kept := cache.read()) is not None and kept.version > 10, 10, "a newer file")
    assert REWRITE_AFTER > 5
    loads.clear()
    with opened(url, folder) as directory:
        assert told(directory.snapshot()) == plain(url)
