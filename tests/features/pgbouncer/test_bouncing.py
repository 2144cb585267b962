"""Unmodified applications behind PgBouncer while tablets move: a pause, not an error."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.features.pgbouncer.bouncer import Bouncer, BouncerSwitch, Per
from tests.support.bouncers import PgBouncer, running_pgbouncer
from tests.support.sampling import SEED
from tests.support.shards import Shards, databases, new_shards, user_of

MOVES = 10 if SEED == "all" else 5


@pytest.fixture(scope="module")
def pgbouncer(server_folder: Path, postgres18: PostgresServer) -> Iterator[PgBouncer]:
    with running_pgbouncer(server_folder / "pgbouncer-daemon", postgres18) as running:
        yield running


@pytest.fixture
def shards(tmp_path: Path, postgres18: PostgresServer) -> Iterator[Shards]:
    with databases(postgres18) as dsns, new_shards(tmp_path, dsns) as made:
        yield made


def test_pgbench_through_pgbouncer_fails_no_transaction_during_moves(
    shards: Shards, pgbouncer: PgBouncer, postgres18: PostgresServer, tmp_path: Path
) -> None:
    bouncer = Bouncer(pgbouncer.admin, pgbouncer.file, Per.TABLET)
    watch = BouncerSwitch(bouncer, shards.directory.snapshot)
    watch.recover()
    user = user_of(shards, 1)
    shards.node("pg-a").execute("INSERT INTO orders VALUES (%s, 0)", (user,))
    script = tmp_path / "bench.sql"
    # A reader that found the tablet absent would see no row, and \\gset would fail its transaction.
    script.write_text(
        f"BEGIN;\nUPDATE orders SET note = note WHERE user_id = {user} AND n = 0;\n"
        f"SELECT 1 / count(*) AS found FROM orders WHERE user_id = {user} \\gset\n"
        f"INSERT INTO items VALUES ({user}, nextval('made'));\nCOMMIT;\n"
    )
    for place, node in enumerate(shards.dsns):
        shards.node(node).execute(f"CREATE SEQUENCE made START {place + 1} INCREMENT 2")
    # At full speed the clients would take the processors from the moves.
    paced = ["-c", "4", "-j", "2", "-R", "150", "-T", "600"]
    arguments = ["-n", *paced, "-P", "1", "-f", str(script), pgbouncer.dsn("orders_t1")]
    with (
        shards.leading(watch) as move,
        subprocess.Popen(
            [str(postgres18.program("pgbench")), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PGOPTIONS": ""},
        ) as bench,
    ):
        states = [move(1, "pg-b" if shards.tablet(1).node == "pg-a" else "pg-a").state for _ in range(MOVES)]
        bench.terminate()
        output = bench.communicate()[0]
    made = shards.count(user, "items")
    print(f"{MOVES} moves, {made} transactions")
    assert states == ["done"] * MOVES
    assert "ERROR" not in output, output
    assert "aborted" not in output, output
    assert made > 100
    assert bouncer.resume_all() == []


def test_a_new_leader_lets_go_of_what_its_predecessor_left_paused(shards: Shards, pgbouncer: PgBouncer) -> None:
    dead = Bouncer(pgbouncer.admin, pgbouncer.file)
    dead.sync(shards.directory.snapshot())
    dead.hold(["orders_t1"])
    BouncerSwitch(Bouncer(pgbouncer.admin, pgbouncer.file), shards.directory.snapshot).recover()
    assert Bouncer(pgbouncer.admin, pgbouncer.file).resume_all() == []


def test_a_pgbouncer_out_of_reach_stops_no_move(shards: Shards, tmp_path: Path) -> None:
    gone = Bouncer("host=127.0.0.1 port=1 dbname=pgbouncer", tmp_path / "databases.ini")
    with shards.leading(BouncerSwitch(gone, shards.directory.snapshot)) as move:
        assert move(1, "pg-b").state == "done"
