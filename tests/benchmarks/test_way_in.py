"""From one database to three balanced nodes with payments going on, and what the same costs as a maintenance window.

pgbench pays through PgBouncer while its tables are proposed (`init`) and converted; then the library takes its place.
Accounts and history have the account's number and are one sharded table; the history gets the primary key that `init`
asks for. Every payment writes to a teller and a branch: reference tables would send each of these writes to every node,
so the two are one whole table, and a payment is an atomic transaction. `WAY_IN_SCALE=50` is pgbench's scale.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.embedded.process import free_port
from tests.support.bouncers import running_pgbouncer
from tests.support.commands import Result, balancer, started
from tests.support.fleet import Process, until
from tests.support.servers import kept, new_folder, postgres
from tests.support.tables import show_table

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3000)]

SCALE = int(os.environ.get("WAY_IN_SCALE", "10"))
RATE = 200
"""Payments a second that pgbench tries: the two cores have other work as well."""
SETTINGS = {"max_prepared_transactions": 100, "max_wal_size": "4GB", "shared_buffers": "256MB"}
HISTORY_KEY = "ALTER TABLE pgbench_history ADD id uuid DEFAULT gen_random_uuid(), ADD PRIMARY KEY (aid, id)"
WHOLE = """
[tables.pgbench_branches]
roots = ["public.pgbench_branches", "public.pgbench_tellers"]
layout = "whole"
"""
WINDOW = """
BEGIN;
LOCK TABLE pgbench_accounts IN ACCESS EXCLUSIVE MODE;
CREATE TABLE fresh (LIKE pgbench_accounts INCLUDING DEFAULTS) PARTITION BY HASH (aid);
CREATE TABLE fresh_0 PARTITION OF fresh FOR VALUES WITH (MODULUS 1, REMAINDER 0);
INSERT INTO fresh SELECT * FROM pgbench_accounts;
ALTER TABLE fresh ADD PRIMARY KEY (aid);
ALTER TABLE pgbench_accounts RENAME TO former;
ALTER TABLE fresh RENAME TO pgbench_accounts;
COMMIT
"""
MONEY = """
SELECT (SELECT coalesce(sum(abalance), 0) FROM pgbench_accounts), (SELECT coalesce(sum(delta), 0) FROM pgbench_history),
       (SELECT count(*) FROM pgbench_accounts)
"""
OFFICES = "SELECT (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT sum(bbalance) FROM pgbench_branches)"


class Place:
    """Three servers, and the files of the cluster that is made of them."""

    def __init__(self, folder: Path, servers: dict[str, PostgresServer]) -> None:
        self.folder, self.servers = folder, servers
        self.passfile = folder / "pgpass"
        lines = [f"127.0.0.1:{one.port}:*:postgres:{one.password()}\n" for one in servers.values()]
        self.passfile.write_text("".join(lines))
        self.passfile.chmod(0o600)
        self.config = folder / "balancer.toml"
        self.url = f"sqlite://{folder}/directory.db"

    @property
    def variables(self) -> dict[str, str]:
        return {"PGPASSFILE": str(self.passfile)}

    def address(self, node: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.servers[node].port}/postgres"

    def balancer(self, *words: str) -> Result:
        done = balancer(*words, "--config", str(self.config), env=self.variables, timeout=1500)
        assert done.code == 0, (words, done.err)
        return done

    def query(self, node: str, statement: str) -> tuple[int, ...]:
        with psycopg.connect(self.servers[node].dsn(), autocommit=True) as connection:
            row = connection.execute(statement.encode()).fetchone()
            assert row is not None
            return tuple(int(value or 0) for value in row)

    def add_nodes(self) -> None:
        size = SCALE * 15 << 10
        bundle = self.folder / "bundles" / "bank.toml"
        text = bundle.read_text().replace('mode = "observe"', 'mode = "autonomous"')
        nodes = "".join(f'\n[nodes.{name}]\ndsn = "{self.address(name)}"\n' for name in ("second", "third"))
        policy = (
            f'\n[tablet_balancer_config]\nmin_tablet_size = "{size // 24}kB"\ndesired_tablet_size = "{size // 12}kB"\n'
            f'max_tablet_size = "{size // 6}kB"\nenable_cell_balancer = true\n'
            '\n[heat]\nenable = false\n[migration]\ncool_down = "1s"\nretire_grace = "0s"\nmoves_per_node = 2\n'
        )
        bundle.write_text(text + nodes + policy)
        for table in ("pgbench_accounts", "pgbench_branches"):
            self.balancer("table", "adopt", "bank", table)


def pgbench(server: PostgresServer, *arguments: str) -> list[str]:
    return [str(server.program("pgbench")), *arguments]


@contextmanager
def paying(place: Place, count: int) -> Iterator[list[dict[str, Any]]]:
    """The application with the library; what it said is in the list afterwards."""
    said: list[dict[str, Any]] = []
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                started(
                    "-m",
                    "tests.support.payments",
                    place.url,
                    str(place.passfile),
                    str(number),
                    str(SCALE),
                    stdout=subprocess.PIPE,
                )
            )
            for number in range(count)
        ]
        yield said
        for client in clients:
            client.send_signal(signal.SIGTERM)
        said += [json.loads(client.communicate(timeout=120)[0]) for client in clients]


def balanced(place: Place, process: Process) -> bool:
    """Nothing is left to do. By writes it is never even: every payment writes to the one tablet of the offices."""
    if not process.up() or not re.search("bundle bank: (balanced|blocked)", balancer_status(place)):
        return False
    rows = {node: place.query(node, MONEY)[2] for node in place.servers}
    return max(rows.values()) < 0.7 * 100_000 * SCALE  # a node may have the offices, and no accounts


def balancer_status(place: Place) -> str:
    return balancer("status", "bank", "--config", str(place.config), env=place.variables).out


@pytest.mark.parametrize("version", [15, 18])
def test_payments_go_on_from_one_database_to_three_nodes(version: int, tmp_path: Path) -> None:
    disk = new_folder(Path("/var/tmp"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, disk, ignore_errors=True)
        stack.enter_context(kept(disk))
        servers = {
            name: stack.enter_context(postgres(disk / name, number, SETTINGS))
            for name, number in {"first": version, "second": 18, "third": 15}.items()
        }
        place = Place(tmp_path, servers)
        first = servers["first"]
        subprocess.run(pgbench(first, "-i", "-q", "-s", str(SCALE), first.dsn()), check=True, capture_output=True)
        with psycopg.connect(first.dsn(), autocommit=True) as connection:
            connection.execute(HISTORY_KEY)
        bouncer = stack.enter_context(running_pgbouncer(disk / "bouncer", first))
        bouncer.file.write_text(f"[databases]\nbank = host=127.0.0.1 port={first.port} dbname=postgres\n")
        with psycopg.connect(bouncer.admin, autocommit=True, prepare_threshold=None) as admin:
            admin.execute("RELOAD")
        load = subprocess.Popen(
            pgbench(
                first,
                *("-n", "-c", "4", "-T", "3000", "-R", str(RATE), "-P", "1", "--max-tries=10", "--failures-detailed"),
                bouncer.dsn("bank"),
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        began = time.monotonic()
        try:
            shown = balancer("init", first.dsn(), "--folder", str(tmp_path), "--bundle", "bank", env=place.variables)
            assert shown.code == 0, shown.err
            with (tmp_path / "bundles" / "bank.toml").open("a") as file:
                file.write(WHOLE)
            with place.config.open("a") as file:
                file.write(f'tick = "1s"\n[http]\nlisten = "127.0.0.1:{free_port()}"\n')
            converted = {
                table: json.loads(place.balancer("table", "convert", "bank", table, "-o", "json").out)
                for table in ("pgbench_accounts", "pgbench_branches")
            }
        finally:
            load.send_signal(signal.SIGINT)
            _, said = load.communicate(timeout=60)
        at_once = time.monotonic() - began
        wrong = [line for line in said.splitlines() if re.search(r"ERROR|FATAL|aborted", line)]
        assert wrong == []
        with paying(place, 2) as paid:
            place.add_nodes()
            spread = time.monotonic()
            daemon = Process(place.config, place.variables, fresh=True)
            stack.callback(daemon.stop)
            until(daemon.up, 60, "the instance")
            until(lambda: balanced(place, daemon), 1500, "a balanced cluster")
            spread = time.monotonic() - spread
        moves = json.loads(place.balancer("moves", "--all", "--limit", "1000", "-o", "json").out)
        daemon.stop()
        window, filled = maintenance_window(servers["first"], disk)
        show(version, converted, paid, moves, (at_once, spread, window, filled))
        check_money(place)


def maintenance_window(first: PostgresServer, disk: Path) -> tuple[float, float]:
    """What the same conversion costs with the table locked, and a copy of all rows to other nodes costs at least."""
    with psycopg.connect(first.dsn(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE beside")
    subprocess.run(pgbench(first, "-i", "-q", "-s", str(SCALE), first.dsn("beside")), check=True, capture_output=True)
    with psycopg.connect(first.dsn("beside"), autocommit=True) as connection:
        began = time.perf_counter()
        connection.execute(WINDOW)
        window = time.perf_counter() - began
    began = time.perf_counter()
    two_thirds = "COPY (SELECT * FROM pgbench_accounts WHERE aid % 3 > 0) TO STDOUT BINARY"
    with (
        psycopg.connect(first.dsn("beside")) as reader,
        (disk / "rows").open("wb") as file,
        reader.cursor().copy(two_thirds) as rows,
    ):
        for block in rows:
            file.write(block)
    return window, time.perf_counter() - began


def show(
    version: int,
    converted: dict[str, dict[str, float]],
    paid: list[dict[str, Any]],
    moves: list[dict[str, Any]],
    seconds: tuple[float, float, float, float],
) -> None:
    at_once, spread, window, filled = seconds
    ended = [move for move in moves if move["state"] == "done"]
    pauses = sorted(move["write_pause"] for move in ended if move["operation"] == "move")
    payments, longest = sum(one["done"] for one in paid), max(one["longest"] for one in paid)
    failed = [text for one in paid for text in one["failed"]]
    longest_wait = max(one["pause_ms"] for one in converted.values())
    show_table(
        f"pgbench -s {SCALE}, PostgreSQL {version} to three nodes: {len(ended)} migrations ({len(pauses)} moves),"
        f" {payments} payments through the library, {len(failed)} failed",
        ("what", "others wait, ms", "takes, s"),
        [
            ("convert accounts and history", converted["pgbench_accounts"]["pause_ms"], at_once),
            ("convert branches and tellers", converted["pgbench_branches"]["pause_ms"], at_once),
            ("a move, median", pauses[len(pauses) // 2] * 1000, spread),
            ("a move, longest", pauses[-1] * 1000, spread),
            ("a payment, longest", longest * 1000, spread),
            ("window: CREATE TABLE, INSERT … SELECT", window * 1000, window),
            ("window: two thirds of the rows out, to a file", filled * 1000, filled),
        ],
    )
    print(f"a window keeps others out {window * 1000 / longest_wait:.0f} × as long as the longest conversion")
    assert failed == []


def check_money(place: Place) -> None:
    """Every payment is in an account, the history, a teller and a branch, or in none."""
    totals = [place.query(node, MONEY) for node in place.servers]
    accounts, history, rows = (sum(column) for column in zip(*totals, strict=True))
    with_offices = [
        place.query(node, OFFICES)
        for node in place.servers
        if place.query(node, "SELECT count(*) FROM pgbench_branches")[0] > 0
    ]
    assert (accounts, rows) == (history, 100_000 * SCALE)
    assert with_offices == [(history, history)]
