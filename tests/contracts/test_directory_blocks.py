"""Blocks of ids: each number once, for all processes, and after an export and an import."""

import json
import threading
from pathlib import Path

from balancer.client.keys.ids import Ids
from balancer.client.keys.routes import Routes
from balancer.directory.contract import Directory
from tests.support.commands import balancer_here
from tests.support.directories import Opener, fill


def test_each_number_is_given_once(directory: Directory, opener: Opener) -> None:
    fill(directory)
    taken: list[int] = []
    openers = [directory, opener(), opener()]
    threads = [
        threading.Thread(target=lambda one=one: taken.extend([one.take_block(1) for _ in range(20)])) for one in openers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(60))
    assert directory.take_block(2) == 0, "each table counts for itself"
    assert {table: count for table, count in directory.blocks().items() if count} == {1: 60, 2: 1}


def test_an_imported_directory_goes_on_after_the_ids_of_the_exported_one(
    directory: Directory, address: str, tmp_path: Path
) -> None:
    fill(directory)
    routes = Routes.open(address)
    other = f"sqlite://{tmp_path}/other.db"
    try:
        last = Ids(routes, "orders").take(3)[-1]
    finally:
        routes.close()
    file = tmp_path / "export.json"
    assert balancer_here("directory", "export", file, "--directory", address).code == 0
    assert [one["name"] for one in json.loads(file.read_text())["counters"]].count("ids 1") == 1
    imported = balancer_here("directory", "import", file, "--directory", other)
    assert imported.code == 0, imported.err
    routes = Routes.open(other)
    try:
        assert Ids(routes, "orders").next() > last
    finally:
        routes.close()
