"""What was stored by another version of this software, or by another program, is refused in one sentence."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from balancer.directory.open import open_directory
from balancer.directory.store.codec import FORMAT, pack, unpack, unpack_entry
from balancer.directory.store.page_codec import unpack_page
from balancer.errors import BalancerError, Refused, UserError
from tests.support.directories import fill

pytestmark = pytest.mark.quick

NEWER = f"has format {FORMAT + 1}, written by a newer version; upgrade this one"
OLDER = f"has format {FORMAT - 1}, written by an older version.*export it with the older version"
FOREIGN = "data that this software did not write"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "directory.db"
    with open_directory(f"sqlite://{path}") as directory:
        fill(directory)
    return path


def opened(file: Path) -> None:
    with open_directory(f"sqlite://{file}") as directory:
        directory.snapshot()


@pytest.mark.parametrize("part", ["root", "page", "record"])
@pytest.mark.parametrize(
    ("first", "sentence"),
    [(FORMAT + 1, NEWER), (FORMAT - 1, OLDER), (0, FOREIGN), (ord("e"), FOREIGN), (ord("{"), FOREIGN)],
)
def test_bytes_of_another_format_are_refused_wherever_they_are(
    file: Path, part: str, first: int, sentence: str
) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        for row, data in connection.execute(f"SELECT data, data FROM {part}").fetchall():
            connection.execute(f"UPDATE {part} SET data = ? WHERE data = ?", (bytes([first]) + data[1:], row))
    with pytest.raises(Refused, match=sentence) as refused:
        opened(file)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("data", [b"", b"\0", b"e", bytes([FORMAT]), pack("elsewhere"), pack({"version": 1}), pack([])])
def test_what_is_no_entry_and_no_page_is_refused(data: bytes) -> None:
    for read in (unpack_entry, unpack_page):
        with pytest.raises(Refused, match=r"this software did not write|damaged data"):
            read(data)


def test_a_document_is_read_as_it_was_written() -> None:
    assert unpack(pack({"a": [1, None, "ä"], "b": "x" * 5000})) == {"a": [1, None, "ä"], "b": "x" * 5000}


def test_a_root_without_its_fields_is_damaged(file: Path) -> None:
    wrong = pack({"version": 1})
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE root SET data = ?", (bytes([FORMAT]) + len(wrong).to_bytes(4, "little") + wrong,))
    with pytest.raises(Refused, match="damaged data: there is no field 'first'"):
        opened(file)


def test_another_programs_database_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE page (title TEXT)")
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"theirs\.db is another program's database"):
        opened(path)
    assert path.read_bytes() == before


def test_a_new_file_is_closed_to_others(file: Path) -> None:
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_made_is_a_sentence() -> None:
    with pytest.raises(BalancerError, match=r"/proc/directory\.db cannot be made"):
        opened(Path("/proc/directory.db"))
