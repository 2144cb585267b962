"""A directory in which somebody has written what is not ours: one sentence from every command, never a traceback.

Exit code 1 (somebody must look) or 3 (try again), or the command does without what is poisoned; never 2, which means
that the user's own input is wrong.
"""

import json
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from balancer.directory.contract import Directory
from balancer.directory.open import open_directory
from balancer.embedded.zookeeper import ZooKeeperServer
from tests.support.commands import balancer_here as balancer
from tests.support.directories import fill
from tests.support.sampling import crossed

COMMANDS = (
    ("status",),
    ("tablets",),
    ("history",),
    ("moves",),
    ("route", "orders", "1"),
    ("directory", "check"),
    ("directory", "export"),
)

FEW = (("status",), ("history",), ("moves",))


def stored(text: bytes) -> bytes:
    return b"\x02\x00" + text


@cache
def endless() -> bytes:
    """Half a megabyte that stands for half a gigabyte."""
    stream, chunk = zlib.compressobj(9), bytes(1 << 24)
    return b"\x02\x01" + b"".join(stream.compress(chunk) for _ in range(32)) + stream.flush()


def columns(end: int, zeros: int) -> bytes:
    return zlib.compress(struct.pack("<III", 0, end, 0) + bytes(zeros))


def page(rows: int = 1, table: int = 1, fixed: bytes = b"x") -> bytes:
    return struct.pack("<BBBqqII", 2, 1, 0, table, 1, rows, len(fixed)) + fixed


DOCUMENTS: Mapping[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "another program's": lambda: b"hello",
    "not JSON": lambda: stored(b"{"),
    "not UTF-8": lambda: stored(b"\xff\xff"),
    "deep": lambda: stored(b"[" * 100_000),
    "rather deep": lambda: stored(b'{"a":' * 300 + b"1" + b"}" * 300),
    "a list": lambda: stored(b"[]"),
    "null": lambda: stored(b"null"),
    "wrong types": lambda: stored(b'{"id": [], "name": {}, "dsn": 7, "version": "x", "bundle": null}'),
    "negative": lambda: stored(
        b'{"version": -1, "first": -5, "next_page": -1, "transaction": "x", "importing": false, "id": -1, "next": -7}'
    ),
    "huge numbers": lambda: stored(b'{"version": 1e999, "first": 1e999, "next_page": NaN, "id": ' + b"9" * 4000 + b"}"),
    "an endless stream": endless,
    "a cut stream": lambda: b"\x02\x01" + zlib.compress(b"{}" * 1000)[:10],
    "not a stream": lambda: b"\x02\x01hello",
    "terminal": lambda: stored(json.dumps({"id": "\x1b[31m", "name": "\x1b]0;x\x07"}).encode()),
    "a page of four billion rows": lambda: page(
        2**32 - 1, fixed=zlib.compress(struct.pack("<III", 0, 0, 0) + bytes(9))
    ),
    "a page without rows": lambda: page(0, fixed=columns(9, 12)),
}


def check(address: str, commands: Sequence[tuple[str, ...]] = COMMANDS) -> None:
    for command in commands:
        result = balancer(*command, "--directory", address)
        assert result.code in (0, 1, 3), (command, result)
        assert "Traceback" not in result.err
        assert "\x1b" not in result.err + result.out
        assert len(result.err.splitlines()) <= (1 if command != ("directory", "check") else 10), (command, result.err)
        assert len(result.err) < 5000
        if result.code:
            assert result.err.strip() or command == ("directory", "check")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as opened:
        fill(opened)
    return tmp_path / "directory.db"


PLACES = {
    "root": "UPDATE root SET data = ?",
    "a bundle": "UPDATE record SET data = ? WHERE kind = 'bundle'",
    "a node": "UPDATE record SET data = ? WHERE kind = 'node' AND key = 'pg-a'",
    "a counter": "UPDATE record SET data = ? WHERE kind = 'counter'",
    "a page": "UPDATE page SET data = ? WHERE number = (SELECT min(number) FROM page)",
    "the log": "UPDATE log SET data = ?",
    "a note": "INSERT INTO note VALUES ('progress', 'x', ?)",
}


@pytest.mark.parametrize(("document", "place"), crossed(list(DOCUMENTS), list(PLACES), 3, "poisoned"))
def test_a_file_with_anything_in_it(file: Path, place: str, document: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(PLACES[place], (DOCUMENTS[document](),))
    check(f"sqlite://{file}")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE leader SET epoch = -5",
        "UPDATE leader SET name = x'ff00'",
        "UPDATE leader SET name = char(27) || '[31m'",
        "DELETE FROM leader",
        "DELETE FROM root",
        "UPDATE record SET kind = 'nothing' WHERE kind = 'bundle'",
        "UPDATE root SET data = 'text'",
    ],
)
def test_a_file_whose_tables_are_wrong(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = on")
        connection.execute(statement)
    check(f"sqlite://{file}")


@pytest.fixture
def in_zookeeper(zookeeper: ZooKeeperServer) -> Iterator[tuple[str, str, KazooClient, Directory]]:
    cluster = f"poisoned-{uuid4().hex}"
    address = f"zk://{zookeeper.address}/{cluster}"
    client = KazooClient(zookeeper.address)
    client.start()
    try:
        with open_directory(address) as directory:
            fill(directory)
            yield address, f"/{cluster}", client, directory
    finally:
        client.stop()
        client.close()


@pytest.mark.parametrize("place", ["root", "nodes/pg-a", "pages/1", "log/0000000001", "leader", "notes/progress/x"])
def test_znodes_with_anything_in_them(in_zookeeper: tuple[str, str, KazooClient, Directory], place: str) -> None:
    address, base, client, _ = in_zookeeper
    path = f"{base}/{place}"
    for make in DOCUMENTS.values():
        data = make()
        if client.exists(path):
            client.set(path, data)
        else:
            client.create(path, data, makepath=True)
        check(address, FEW)


def test_stray_znodes(in_zookeeper: tuple[str, str, KazooClient, Directory]) -> None:
    address, base, client, _ = in_zookeeper
    client.create(f"{base}/pages/stray", b"x")
    client.create(f"{base}/pages/-7", b"x")
    client.create(f"{base}/pages/\u0663", b"x")
    client.create(f"{base}/log/stray", b"x")
    client.create(f"{base}/stray", b"x")
    check(address)
    assert balancer("directory", "check", "--directory", address).code == 0
    client.create(f"{base}/nodes/copy", client.get(f"{base}/nodes/pg-a")[0])
    check(address)
    refused = balancer("status", "--directory", address)
    assert refused.code == 1
    assert refused.err == "the directory contains damaged data: the place of node 'copy' holds 'pg-a'\n"


def test_garbage_in_leader_makes_nobody_leader_and_ends_nobody(
    in_zookeeper: tuple[str, str, KazooClient, Directory],
) -> None:
    _, base, client, directory = in_zookeeper
    client.create(f"{base}/leader", b"\xff[[[", ephemeral=True)
    assert directory.campaign("one", timeout=0.5) is None
    assert directory.leader() == "somebody whose name cannot be read"
    client.delete(f"{base}/leader")
    assert directory.campaign("one", timeout=10) is not None
