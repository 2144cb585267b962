"""The directory's tools, as a user runs them."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from balancer.directory.contract import Directory
from balancer.directory.history import records_of
from balancer.directory.model import Put
from tests.support.commands import balancer_here as balancer
from tests.support.directories import moved, transaction


def test_an_export_can_be_imported_elsewhere(directory: Directory, address: str, tmp_path: Path) -> None:
    file = tmp_path / "export.json"
    assert balancer("directory", "export", file, "--directory", address).code == 0
    other = f"sqlite://{tmp_path}/other.db"
    result = balancer("directory", "import", file, env={"BALANCER_DIRECTORY": other})
    assert (result.code, result.err) == (0, "")
    again = balancer("directory", "export", "--directory", other)
    before, after = json.loads(file.read_text()), json.loads(again.out)
    assert {**before, "version": 0} == {**after, "version": 0}
    assert balancer("directory", "check", "--directory", other).out.endswith("12 tablets, no violations\n")


def test_an_import_does_not_overwrite_without_force(directory: Directory, address: str, tmp_path: Path) -> None:
    file = tmp_path / "export.json"
    balancer("directory", "export", file, "--directory", address)
    refused = balancer("directory", "import", file, "--directory", address)
    assert refused.code == 4
    assert refused.err == "the directory is not empty; --force replaces everything in it\n"
    follower = directory.follow()
    before = directory.snapshot().version
    assert balancer("directory", "import", file, "--force", "--directory", address).code == 0
    assert follower.wait(before, 10).version == before + 1
    assert directory.history()[-1].reason == "imported from export.json"
    view = directory.snapshot()
    directory.commit(transaction([Put(moved(view.tablet(1), "pg-c"))], view.version))


def test_an_import_is_refused_while_somebody_leads(directory: Directory, address: str, tmp_path: Path) -> None:
    file = tmp_path / "export.json"
    balancer("directory", "export", file, "--directory", address)
    assert directory.campaign("daemon one", timeout=10) is not None
    refused = balancer("directory", "import", file, "--force", "--directory", address)
    assert (refused.code, refused.err) == (4, "daemon one leads; stop the daemons before an import\n")


def test_a_document_that_is_wrong_is_refused_with_a_sentence(
    directory: Directory, address: str, tmp_path: Path
) -> None:
    document = json.loads(balancer("directory", "export", "--directory", address).out)
    document["tablets"].pop(3)
    (tmp_path / "bad.json").write_text(json.dumps(document))
    other = f"sqlite://{tmp_path}/other.db"
    refused = balancer("directory", "import", tmp_path / "bad.json", "--directory", other)
    assert refused.code == 2
    assert "the document breaks 1 invariants: the tablets of table 'orders' would leave a gap" in refused.err


def test_a_check_prints_each_violation_and_exits_1(directory: Directory, address: str, tmp_path: Path) -> None:
    view = directory.snapshot()
    leadership = directory.campaign("vandal", timeout=10)
    assert leadership is not None
    broken = [record for record in records_of(view) if record.key != "pg-c"]
    directory.restore(broken, reason="vandalism", author="test", leader_epoch=leadership.epoch)
    with closing(sqlite3.connect(tmp_path / "directory.db")) as connection, connection:
        connection.execute("DELETE FROM page WHERE number = 2")
    result = balancer("directory", "check", "--directory", address)
    assert result.code == 1
    assert "the tablets of table 'events' leave a gap at the end" in result.err
    assert "names node 'pg-c', which does not exist" in result.err
    found = json.loads(balancer("directory", "check", "--directory", address, "-o", "json").out)
    assert found["violations"] == result.err.splitlines()


def test_the_history_is_filtered_and_shown_for_people_and_programs(directory: Directory, address: str) -> None:
    view = directory.snapshot()
    for tablet, node in ((1, "pg-c"), (2, "pg-a")):
        change = Put(moved(view.tablet(tablet), node))
        directory.commit(transaction([change], view.version, reason=f"tablet {tablet} was hot"))
    lines = balancer("history", "--directory", address).out.splitlines()
    assert lines[0].split("\t") == ["version", "at", "author", "epoch", "reason", "changes"]
    assert len(lines) == 4
    assert "bundle shop; node pg-a is active; node pg-b is active and 16 more" in lines[1]
    (only,) = json.loads(balancer("history", "--directory", address, "--text", "2 was", "-o", "json").out)
    assert only["reason"] == "tablet 2 was hot"
    assert only["changes"][0][0] == "tablet"
    by_node = json.loads(balancer("history", "--directory", address, "--node", "pg-c", "-o", "json", "-n", "1").out)
    assert [one["reason"] for one in by_node] == ["tablet 1 was hot"]
    by_tablet = json.loads(
        balancer("history", "--directory", address, "--tablet", "2", "--after", "1", "-o", "json").out
    )
    assert [one["version"] for one in by_tablet] == [3]
    assert "no such commits" in balancer("history", "--directory", address, "--author", "nobody").out
