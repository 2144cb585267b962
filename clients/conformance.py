"""Plays a client of docs/protocol.md in plain SQL and HTTP, and checks its numbered promises on a live cluster.

    python clients/conformance.py http://127.0.0.1:8080 orders 42 --token-file token --columns id --moves 2

The key must not exist in the table: rows of it are made and removed, with nothing but the key's column. With `--moves`
its tablet is moved so often, by the coordinator's commands, and the promises about moves are checked, too. Passwords
come from where libpq looks for them. Exit code 0: all kept; 1: the broken ones are named. Needs psycopg and nothing of
the library.
"""

import argparse
import json
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

Link = psycopg.Connection[Any]
WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
PATIENCE = 20.0
PACE = 0.01  # seconds between transactions of a writer: it is a check, not a load test


@dataclass(frozen=True)
class Said:
    """An answer of the coordinator's."""

    status: int
    headers: dict[str, str]
    body: Any


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


class Coordinator:
    """The HTTP half of the protocol."""

    def __init__(self, base: str, token: str) -> None:
        self._base = base.rstrip("/")
        self._token = token

    def ask(self, path: str, body: object = None, *, tag: str = "", token: bool = True) -> Said:
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self._token}"} if token and self._token else {}
        headers |= {"If-None-Match": tag} if tag else {}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, headers)  # noqa: S310 - the user's own address
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:  # noqa: S310
                return Said(answer.status, _lower(answer.headers), json.loads(answer.read() or "null"))
        except urllib.error.HTTPError as error:
            text = error.read()
            return Said(error.code, _lower(error.headers), json.loads(text) if text else None)

    def route(self, table: str, key: str, **how: Any) -> Said:
        return self.ask(f"/v1/route/{urllib.parse.quote(table)}?" + urllib.parse.urlencode({"key": key}), **how)


class Client:
    """Checks, one method for each promise; each returns nothing, or raises what it saw."""

    def __init__(self, coordinator: Coordinator, words: argparse.Namespace) -> None:
        self.http = coordinator
        self.table: str = words.table
        self.key: str = words.key
        self.root = sql.Identifier(*(words.root or words.table).split("."))
        self.column = sql.Identifier(words.columns)
        self.moves: int = words.moves

    # ---- the coordinator

    def c1_a_route(self) -> None:
        said = self.http.route(self.table, self.key)
        equal(said.status, 200)
        wanted = {"table", "tablet", "epoch", "node", "dsn", "state", "moving", "version"}
        equal(wanted - set(said.body), set())
        equal((said.body["table"], said.body["state"]), (self.table, "owned"))
        equal(bool(said.body["dsn"]), True)
        equal(self.http.route(self.table, self.key, token=False).body.get("dsn", ""), "")

    def c2_an_unchanged_directory_answers_304(self) -> None:
        said = self.http.route(self.table, self.key)
        equal(said.headers["etag"], f'"{said.body["version"]}"')
        for _ in range(50):  # a busy cluster changes now and then
            said = self.http.route(self.table, self.key)
            again = self.http.route(self.table, self.key, tag=said.headers["etag"])
            if again.status == 304:
                equal(again.body, None)
                return
        equal(again.status, 304)

    def c3_waiting_for_a_change(self) -> None:
        said = self.http.route(self.table, self.key)
        began = time.monotonic()
        path = f"/v1/route/{urllib.parse.quote(self.table)}?" + urllib.parse.urlencode({"key": self.key, "wait": 0.5})
        again = self.http.ask(path, tag=said.headers["etag"])
        if again.status == 304:
            equal(time.monotonic() - began >= 0.4, True)
        else:
            equal(again.body["version"] > said.body["version"], True)

    def c4_problems(self) -> None:
        for said, status in (
            (self.http.route("no such table", "1"), 404),
            (self.http.ask(f"/v1/route/{urllib.parse.quote(self.table)}?key=1&key=2&key=3&key=4&key=5"), 422),
        ):
            equal(said.status, status)
            equal(said.headers["content-type"].partition(";")[0], "application/problem+json")
            equal(bool(said.body["detail"]), True)

    # ---- the node

    def c5_the_owner_is_silent(self) -> None:
        with self.node() as (link, route):
            link.execute(WRITE)
            hold(link, route["tablet"], route["epoch"], writing=True)
            hold(link, route["tablet"], route["epoch"], writing=True)
            link.execute("COMMIT")

    def c6_a_reader_has_one_snapshot(self) -> None:
        with self.node() as (link, route), self.node() as (other, _), self.row(other):
            link.execute(READ)
            hold(link, route["tablet"], route["epoch"], writing=False)
            before = self.count(link)
            other.execute(WRITE)
            hold(other, route["tablet"], route["epoch"], writing=True)
            self.delete(other)
            other.execute("COMMIT")
            equal((before, self.count(link)), (1, 1))
            link.execute("COMMIT")
            equal(self.count(link), 0)

    def c8_wrong_epochs_are_refused(self) -> None:
        with self.node() as (link, route):
            wrong = [(route["tablet"], route["epoch"] + by) for by in (-1, 1)]
            for tablet, epoch in [*wrong, (1 << 40, 1)]:
                for opening, writing in ((WRITE, True), (READ, False)):
                    link.execute(opening)
                    refused(partial(hold, link, tablet, epoch, writing=writing), "40001", "TB002")
                    link.execute("ROLLBACK")

    def c9_a_row_of_another_node_is_refused(self) -> None:
        mine = self.http.route(self.table, self.key).body
        for number in range(10_000, 10_400):
            other = self.http.route(self.table, str(number)).body
            if other["node"] != mine["node"]:
                break
        else:
            raise Broken("no key of another node was found among 400: this check needs a table on two nodes")
        with self.node() as (link, _):
            link.execute(WRITE)
            error = refused(lambda: self.insert(link, str(number)), "23514", "")
            equal(error.diag.constraint_name, None)
            link.execute("ROLLBACK")

    def c10_a_failed_transaction_cannot_be_committed(self) -> None:
        with self.node() as (link, route):
            link.execute(WRITE)
            hold(link, route["tablet"], route["epoch"], writing=True)
            self.insert(link, self.key)
            refused(lambda: link.execute("SELECT 1 / 0"), "22012", "")
            equal(link.execute("COMMIT").statusmessage, "ROLLBACK")
            equal(self.count(link), 0)

    def c12_samples(self) -> None:
        key: list[int | str] = [int(self.key) if self.key.lstrip("-").isdigit() else self.key]
        report = {"table": self.table, "reporter": "conformance", "samples": [{"key": key, "weight": 2.0}]}
        said = self.http.ask("/v1/samples", report)
        equal((said.status, said.body), (202, {"taken": 1}))

    # ---- moves

    def c7_and_c11_moves(self) -> None:
        """A client by the book and one without the proof write to the key while its tablet is moved."""
        book, bare = Writer(self, proven=True), Writer(self, proven=False)
        first = self.http.route(self.table, self.key).body
        for turn in range(self.moves):
            book.start(turn)
            bare.start(turn)
            self.move()
            book.finish()
            bare.finish()
        equal(self.http.route(self.table, self.key).body["epoch"], first["epoch"] + self.moves)
        with self.node() as (link, route):
            found = self.count(link)
            self.http_says(first, route)
            link.execute(WRITE)
            hold(link, route["tablet"], route["epoch"], writing=True)
            self.delete(link)
            link.execute("COMMIT")
        equal(found, 1)  # the two writers take turns with one row: it is there once, wherever it is
        equal((book.failures, bare.failures), ([], []))
        print(
            f"  by the book: {book.done} transactions, {book.again} refusals; without proof: {bare.done}, {bare.again}"
        )
        equal(bool(book.done and bare.done), True)
        equal(bool(book.seen & {"TB001", "TB002"}), True)

    def http_says(self, before: Any, after: Any) -> None:
        equal(after["tablet"], before["tablet"])
        with psycopg.connect(before["dsn"], autocommit=True) as link:
            link.execute(WRITE)
            refused(lambda: hold(link, before["tablet"], before["epoch"], writing=True), "40001", "TB002")

    def move(self) -> None:
        """By the coordinator's own command, to the next node."""
        route = self.http.route(self.table, self.key).body
        nodes = [node["id"] for node in self.http.ask("/v1/nodes").body["items"]]
        target = nodes[(nodes.index(route["node"]) + 1) % len(nodes)]
        deadline = time.monotonic() + 60
        given = 0.0
        while self.http.route(self.table, self.key).body["node"] != target:
            if time.monotonic() > deadline:
                raise Broken(f"tablet {route['tablet']} was not moved to {target} within a minute")
            if time.monotonic() > given + 15:  # a busy machine may undo a move
                wish = {"verb": "move", "tablet": route["tablet"], "node": target}
                said = self.http.ask("/v1/commands?wait=10", wish)
                given = time.monotonic()
                if said.status not in (200, 202, 409):
                    raise Broken(f"the command was answered with {said.status}: {said.body}")
            time.sleep(0.05)

    # ---- statements

    @contextmanager
    def node(self) -> Iterator[tuple[Link, Any]]:
        route = self.http.route(self.table, self.key).body
        with psycopg.connect(route["dsn"], autocommit=True) as link:
            yield link, route

    @contextmanager
    def row(self, link: Link) -> Iterator[None]:
        self.insert(link, self.key)
        try:
            yield
        finally:
            self.delete(link)

    def insert(self, link: Link, key: str) -> None:
        link.execute(sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(self.root, self.column, sql.Literal(key)))

    def delete(self, link: Link) -> int:
        return link.execute(sql.SQL("DELETE FROM {} WHERE {} = {}").format(*self._named())).rowcount

    def count(self, link: Link) -> int:
        found = link.execute(sql.SQL("SELECT count(*) FROM {} WHERE {} = {}").format(*self._named())).fetchone()
        return int(found[0]) if found else 0

    def _named(self) -> tuple[sql.Composable, ...]:
        return self.root, self.column, sql.Literal(self.key)


class Writer:
    """Inserts or rewrites the key's one row in a loop; it must be there once after every success."""

    def __init__(self, client: Client, *, proven: bool) -> None:
        self._client = client
        self._proven = proven
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.done = self.again = 0
        self.seen: set[str] = set()
        self.failures: list[str] = []

    def start(self, turn: int) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def _work(self) -> None:
        try:
            while not self._stop.wait(PACE):
                self._once()
        except Exception as error:  # noqa: BLE001 - whatever it was, the promise is broken
            self.failures.append(repr(error))

    def _once(self) -> None:
        deadline, pause = time.monotonic() + PATIENCE, 0.005
        while True:
            with self._client.node() as (link, route):
                try:
                    link.execute(WRITE)
                    if self._proven:
                        hold(link, route["tablet"], route["epoch"], writing=True)
                    gone = self._client.delete(link)
                    self._client.insert(link, self._client.key)
                    link.execute("COMMIT")
                except psycopg.Error as error:
                    self._judge(error, deadline)
                else:
                    self.done += 1
                    if self._proven and gone != 1 and self.done > 1:
                        self.failures.append(f"{gone} rows were there, in a transaction that had proven its tablet")
                    return
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)

    def _judge(self, error: psycopg.Error, deadline: float) -> None:
        word = (error.diag.message_detail or "").partition(" ")[0]
        elsewhere = error.sqlstate == "23514" and not error.diag.constraint_name
        twice = error.sqlstate == "23505"  # the other writer was faster
        if error.sqlstate not in ("40001", "40P01", "55P03") and not elsewhere and not twice:
            raise error
        if time.monotonic() > deadline:
            raise error
        self.again += 1
        self.seen.add(word)


class Broken(Exception):
    """A promise is not kept."""


def hold(link: Link, tablet: int, epoch: int, *, writing: bool) -> None:
    link.execute(f"CALL balancer.hold({tablet:d}, {epoch:d}, {str(writing).lower()})".encode())


def equal(found: object, wanted: object) -> None:
    if found != wanted:
        raise Broken(f"found {found!r}, wanted {wanted!r}")


def refused(work: Callable[[], object], state: str, word: str) -> psycopg.Error:
    try:
        work()
    except psycopg.Error as error:
        equal(error.sqlstate, state)
        if word:
            equal((error.diag.message_detail or "").partition(" ")[0], word)
        return error
    raise Broken(f"it was not refused with {state} {word}".rstrip())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("coordinator", help="http://host:port")
    parser.add_argument("table")
    parser.add_argument("key", help="one that does not exist, of one column")
    parser.add_argument("--columns", default="id", help="the key's column")
    parser.add_argument("--root", default="", help="the table in SQL, if it has another name")
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--moves", type=int, default=0)
    words = parser.parse_args()
    token = words.token_file.read_text().strip() if words.token_file else ""
    client = Client(Coordinator(words.coordinator, token), words)
    broken = 0
    for name in [name for name in vars(Client) if name.startswith("c") and name[1].isdigit()]:
        if name.endswith("_moves") and not words.moves:
            print(f"not checked  {name}: give --moves")
            continue
        try:
            getattr(client, name)()
            print(f"kept    {name}")
        except (Broken, psycopg.Error, urllib.error.URLError, KeyError, TypeError, ValueError) as error:
            broken += 1
            print(f"broken  {name}: {type(error).__name__}: {error}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
