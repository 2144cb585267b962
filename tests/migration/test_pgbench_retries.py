"""pgbench as it comes, with nothing but `--max-tries`, while all its partitions move: no client aborts, sums are right.

It writes through `balancer_all`, so it needs postgres_fdw: PostgreSQL 15 on both nodes. Its one retry rule is that of
most applications: 40001 and 40P01.
"""

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from balancer.directory.model import KeyColumn, Layout, Table, Tablet
from balancer.embedded.postgres import PostgresServer
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import KeyType
from tests.support.cluster import AMPLE, Cluster, adopt
from tests.support.directed import complaints
from tests.support.nemeses import until
from tests.support.sampling import SEED
from tests.support.servers import Database
from tests.support.workloads.trial import forwarding, leading

PARTITIONS = 16 if SEED == "all" else 8
CHUNK = 1 << 18  # of 1.6 MB
ACCOUNTS = Table(1, "accounts", "shop", Layout.HASH, (KeyColumn("aid", KeyType.INTEGER),), ("public.pgbench_accounts",))
SCRIPT = """
\\set aid random(1, 100000 * :scale)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE balancer_all.pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (1, 1, :aid, :delta, CURRENT_TIMESTAMP);
END;
"""


@pytest.fixture
def bank(
    tmp_path: Path, postgres15: PostgresServer, database: Callable[[PostgresServer], Database]
) -> Iterator[Cluster]:
    pgbench = str(postgres15.program("pgbench"))
    dsns = {node: database(postgres15).dsn for node in ("a", "b")}
    options = ["--initialize", f"--partitions={PARTITIONS}", "--partition-method=hash", "--quiet"]
    for node, dsn in dsns.items():
        steps = "--init-steps=dtgvp" if node == "a" else "--init-steps=dtp"
        subprocess.run([pgbench, *options, steps, dsn], check=True, capture_output=True)
    with psycopg.connect(dsns["b"], autocommit=True) as connection:
        for number in range(1, PARTITIONS + 1):
            connection.execute(f"DROP TABLE pgbench_accounts_{number}".encode())
    tablets = [
        Tablet(number, 1, Leaf(PARTITIONS, number - 1), "a", partitions=(f"pgbench_accounts_{number}",))
        for number in range(1, PARTITIONS + 1)
    ]
    made = adopt(tmp_path, dsns, ACCOUNTS, tablets)
    made.settings = replace(made.settings, **AMPLE, chunk_size=CHUNK)
    yield made
    made.close()


def test_pgbench_survives_the_moves_of_all_its_partitions(bank: Cluster, postgres15: PostgresServer) -> None:
    script = bank.folder / "pay.sql"
    script.write_text(SCRIPT)
    watch = forwarding(bank)
    command = [str(postgres15.program("pgbench")), "--no-vacuum", f"--file={script}", "--client=4", "--max-tries=10"]
    command += ["--rate=100"]  # as much as a tablet has to bear; without it pgbench takes the processors from the moves
    pgbench = subprocess.Popen(
        [*command, "--time=600", "--progress=1", bank.dsns["a"]], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    states = []
    try:
        until(lambda: bank.query("a", "SELECT count(*) > 100 FROM pgbench_history") == [(True,)], "a start")
        with leading(bank, watch) as mover:
            for number in range(1, PARTITIONS + 1):
                states.append(mover.move(number, "b").state)
                if pgbench.poll() is not None:
                    break
    finally:
        alive = pgbench.poll() is None
        # It has no other end than its time. Stopped first, so that no commit is half-way between the nodes.
        pgbench.send_signal(signal.SIGSTOP)
        busy = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench' AND state = 'active'"
        until(lambda: bank.query("a", busy) == [(0,)], "the end of its statements")
        pgbench.kill()
        _, errors = pgbench.communicate(timeout=30)
    text = errors.decode()
    assert "aborted" not in text, re.findall(r".*aborted.*|.*ERROR.*", text)[:3]
    assert alive
    assert states == ["done"] * PARTITIONS
    history = bank.query("a", "SELECT aid, sum(delta)::int FROM pgbench_history GROUP BY 1 HAVING sum(delta) <> 0")
    found = [row for node in bank.dsns for row in bank.query(node, "SELECT aid, abalance FROM pgbench_accounts")]
    assert len(found) == 100_000
    assert {aid: balance for aid, balance in found if balance} == {row[0]: row[1] for row in history}
    assert complaints(bank) == []
