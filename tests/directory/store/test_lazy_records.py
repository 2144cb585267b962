"""Records of what is over are read late, and say the same as ever."""

import json
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Command, CommandState, Put, Record, RecordKind, Remove
from balancer.directory.open import open_directory
from balancer.directory.store import codec
from balancer.directory.store.codec import lazily, pack_record, to_document
from balancer.errors import Damaged
from tests.support.directories import fill, migration, transaction

HEAVY = {"code": "x", "text": "y" * 5000}
"""Of a record that would be compressed."""


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.quick), "zookeeper"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/directory.db"
    return f"zk://{request.getfixturevalue('zookeeper').address}/lazy-{uuid4().hex}"


@pytest.fixture
def records(url: str) -> list[Record]:
    """What a directory has: migrations that run and that have ended, commands that wait and that were answered."""
    with open_directory(url) as directory:
        view = fill(directory)
        ended = replace(migration(view.tablet(1), "pg-b", "done"), id="ended", finished=True, detail=HEAVY)
        running = replace(migration(view.tablet(2), "pg-c", "copying"), id="running", detail=HEAVY)
        done = Command("done", "plan", {"text": "y" * 5000}, "ann", 1.0, CommandState.DONE)
        refused = Command("refused", "plan", {}, "ann", 1.0, CommandState.REFUSED, "no")
        waiting = Command("waiting", "plan", {}, "ann", 1.0)
        made: list[Record] = [ended, running, done, refused, waiting]
        directory.commit(transaction([*map(Put, made)], view.version))
        return made


def found(directory: Directory) -> list[Record | None]:
    view = directory.snapshot()
    return [
        *(view.find(RecordKind.MIGRATION, key) for key in ("ended", "running")),
        *(view.find(RecordKind.COMMAND, key) for key in ("done", "refused", "waiting")),
    ]


def test_what_is_over_is_decoded_when_it_is_asked_for(
    url: str, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []
    read = codec.read_record

    def noted(kind: RecordKind, key: str, data: bytes) -> Record:
        decoded.append(key)
        return read(kind, key, data)

    monkeypatch.setattr(codec, "read_record", noted)
    with open_directory(url) as directory:
        view = directory.snapshot()
        assert decoded == []
        assert set(view.migrations) == {"ended", "running"}
        assert (view.migration_of(2), view.migration_of(1)) == (view.migrations["running"], None)
        directory.commit(transaction([Put(replace(view.commands["waiting"], state=CommandState.DONE))], view.version))
        assert decoded == []
        assert view.migrations["ended"] == records[0]
        assert found(directory)[:4] == records[:4]
        assert sorted(decoded) == ["done", "ended", "refused"], "each once, also by later snapshots"


def test_they_are_changed_and_removed_like_any_other(url: str, records: list[Record]) -> None:
    with open_directory(url) as directory, open_directory(url) as other:
        view = directory.snapshot()
        follower = other.follow()
        directory.commit(
            transaction(
                [Remove(RecordKind.MIGRATION, "ended"), Put(Command("done", "plan", {}, "bob", 2.0))], view.version
            )
        )
        for seen in (directory.snapshot(), follower.wait(view.version, 10)):
            assert set(seen.migrations) == {"running"}
            assert seen.commands["done"].author == "bob"
            assert len(seen.commands) == 3
        assert view.migrations["ended"] == records[0], "a snapshot never changes"


@pytest.mark.quick
@pytest.mark.parametrize("size", [10, 5000])
def test_software_that_does_not_know_the_mark_reads_them_as_ever(size: int) -> None:
    """That of 0.1.0 and 0.2.0: the rest is compressed where the second byte is 1, and plain JSON otherwise."""
    record = Command("c", "plan", {"text": "y" * size}, "ann", 1.0, CommandState.DONE)
    data = pack_record(record)
    assert data[0] == 2
    assert data[1] != 1
    assert json.loads(data[2:]) == json.loads(json.dumps(to_document(record)))


@pytest.mark.quick
def test_one_that_is_damaged_says_so_and_hinders_no_other() -> None:
    good = Command("good", "plan", {}, "ann", 1.0, CommandState.DONE)
    other = pack_record(replace(good, id="other"))
    held = {"good": pack_record(good), "bad": b"\2\2{", "copy": other}
    lazy = lazily({RecordKind.COMMAND: held})[RecordKind.COMMAND]
    assert lazy["good"] == good
    for name in ("bad", "copy"):
        with pytest.raises(Damaged):
            lazy[name]
    with pytest.raises(KeyError):
        lazy["none"]
