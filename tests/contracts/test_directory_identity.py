"""A directory's identity: made once, the same for all, kept by an import, and another one in every directory."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from balancer.directory.contract import Directory
from balancer.directory.history import export_document, import_document
from balancer.directory.identity import identity_of, made_identity, with_identity
from balancer.directory.model import Counter, Record
from balancer.directory.open import open_directory
from tests.support.directories import Opener


def test_all_who_make_one_at_once_get_the_same(opener: Opener) -> None:
    instances = [opener() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda one: made_identity("test", one), instances))
    assert len(found) == 1
    assert {identity_of(one.snapshot()) for one in instances} == found
    assert made_identity("later", opener()) in found


def test_two_directories_have_two(directory: Directory, tmp_path: Path) -> None:
    with open_directory(f"sqlite://{tmp_path}/other.db") as other:
        assert made_identity("test", directory) != made_identity("test", other)


def test_a_restored_backup_is_the_same_directory(opener: Opener, tmp_path: Path) -> None:
    directory = opener()
    identity = made_identity("test", directory)
    records = import_document(export_document(directory.snapshot()))
    with open_directory(f"sqlite://{tmp_path}/place.db") as empty:
        restore(empty, lambda: with_identity(records, empty.snapshot()))
        assert identity_of(empty.snapshot()) == identity


def test_a_backup_from_before_there_were_any_leaves_the_directory_its_own(opener: Opener) -> None:
    directory = opener()
    identity = made_identity("test", directory)
    restore(directory, lambda: with_identity([Counter("tablet", 9)], directory.snapshot()))
    assert identity_of(directory.snapshot()) == identity
    assert directory.snapshot().counters["tablet"].next == 9


def restore(directory: Directory, records: Callable[[], list[Record]]) -> None:
    leadership = directory.campaign("test", 10.0)
    assert leadership is not None
    directory.restore(records(), reason="test", author="test", leader_epoch=leadership.epoch)
