"""A commit that somebody overtakes is made anew, of what there is then; not for ever, and not for nothing."""

from pathlib import Path

import pytest

from balancer.directory.contract import ATTEMPTS, commit_on_newest
from balancer.directory.model import Counter, Put, Transaction
from balancer.directory.snapshot import Snapshot
from balancer.directory.sqlite.backend import SqliteDirectory
from balancer.errors import Conflict
from tests.support.directories import transaction

pytestmark = pytest.mark.quick


class Raised:
    """Raises a counter by one, while somebody else raises it before each of the first so many commits."""

    def __init__(self, directory: SqliteDirectory, overtaken: int) -> None:
        self._directory = directory
        self._overtaken = overtaken

    def propose(self, snapshot: Snapshot) -> tuple[Transaction, int]:
        mine = raised(snapshot)
        if self._overtaken > 0:
            self._overtaken -= 1
            self._directory.commit(raised(snapshot))
        change = mine.changes[0]
        assert isinstance(change, Put)
        assert isinstance(change.record, Counter)
        return mine, change.record.next


def raised(snapshot: Snapshot) -> Transaction:
    counter = snapshot.counters.get("visits") or Counter("visits")
    return transaction([Put(Counter("visits", counter.next + 1))], snapshot.version)


def test_what_was_overtaken_is_made_of_the_newer_state(tmp_path: Path) -> None:
    with SqliteDirectory(tmp_path / "directory.db") as directory:
        overtaken = Raised(directory, ATTEMPTS - 1)
        assert commit_on_newest(directory, overtaken.propose, "in vain") == ATTEMPTS + 1
        assert directory.snapshot().counters["visits"].next == ATTEMPTS + 1


def test_one_that_is_always_overtaken_says_so(tmp_path: Path) -> None:
    with SqliteDirectory(tmp_path / "directory.db") as directory:
        always = Raised(directory, ATTEMPTS)
        with pytest.raises(Conflict, match=r"^no visit was counted: others kept changing the directory$"):
            commit_on_newest(directory, always.propose, "no visit was counted")
        assert directory.snapshot().counters["visits"].next == ATTEMPTS + 1, "only the others' are there"


def test_nothing_to_do_commits_nothing(tmp_path: Path) -> None:
    with SqliteDirectory(tmp_path / "directory.db") as directory:
        assert commit_on_newest(directory, lambda snapshot: (None, snapshot.version), "in vain") == 0
        assert directory.snapshot().version == 0
