"""pgbench on both nodes while the partitions of its accounts move around: no balance is lost or doubled.

The table is pgbench's own, adopted: its partitions keep their names. Each node's pgbench pays into whatever account is
there; every payment that was made is in that node's history, in the same transaction.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from balancer.directory.model import KeyColumn, Layout, Table, Tablet
from balancer.embedded.postgres import PostgresServer
from balancer.features.repair.doctor import examine
from balancer.migration.begin import begin_move
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.keys import KeyType
from tests.support.cluster import Cluster, adopt
from tests.support.resharding import begin_merge, begin_split

ACCOUNTS = Table(1, "orders", "shop", Layout.HASH, (KeyColumn("aid", KeyType.INTEGER),), ("public.pgbench_accounts",))
PAY = """
    CREATE FUNCTION pay(account int, amount int) RETURNS int LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE pgbench_accounts SET abalance = abalance + amount WHERE aid = account;
        IF NOT FOUND THEN
            RETURN 0;
        END IF;
        INSERT INTO pgbench_history (aid, delta, mtime) VALUES (account, amount, now());
        RETURN 1;
    EXCEPTION WHEN serialization_failure THEN
        RETURN 0;
    END $$
"""
COUNT = 20_000
RATE = 300
"""Payments a second and node: at full speed the clients would take the processors from the moves."""
SCRIPT = f"""
\\set aid random(1, {COUNT})
\\set delta random(-5000, 5000)
SELECT pay(:aid, :delta);
"""


@pytest.fixture
def bank(tmp_path: Path, pair: dict[str, str], postgres15: PostgresServer) -> Iterator[Cluster]:
    pgbench = str(postgres15.program("pgbench"))
    options = ["--initialize", "--partitions=4", "--partition-method=hash", "--quiet"]
    for node, dsn in pair.items():
        subprocess.run([pgbench, *options, "--init-steps=dtp", dsn], check=True, capture_output=True)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(PAY)
            if node == "a":
                fill = "INSERT INTO pgbench_accounts (aid, bid, abalance) SELECT n, 1, 0 FROM generate_series(1, %s) n"
                connection.execute(fill, (COUNT,))
            if node == "b":
                for number in range(1, 5):
                    connection.execute(f"DROP TABLE pgbench_accounts_{number}")
    tablets = [
        Tablet(number, 1, Leaf(4, number - 1), "a", partitions=(f"pgbench_accounts_{number}",))
        for number in range(1, 5)
    ]
    made = adopt(tmp_path, pair, ACCOUNTS, tablets)
    yield made
    made.close()


def test_no_balance_is_lost_or_doubled(bank: Cluster, postgres15: PostgresServer) -> None:
    script = bank.folder / "pay.sql"
    script.write_text(SCRIPT)
    command = [str(postgres15.program("pgbench")), "--no-vacuum", f"--file={script}", "--client=2", "--time=600"]
    command += [f"--rate={RATE}"]
    running = [
        subprocess.Popen([*command, dsn], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for dsn in bank.dsns.values()
    ]
    directory = bank.directory()
    leadership = bank.become_leader(directory)
    runner = bank.runner(directory, leadership)
    try:
        for tablet, node in ((1, "b"), (3, "b"), (1, "a"), (2, "b")):
            done = runner.run(begin_move(directory, leadership, tablet, node).id)
            assert (done.state, done.error) == ("done", "")
        halves = runner.run(begin_split(directory, leadership, 3).id).targets
        assert runner.run(begin_merge(directory, leadership, [half.id for half in halves]).id).state == "done"
    finally:
        for process in running:
            alive = process.poll() is None
            process.terminate()
            _, errors = process.communicate()
            assert alive, errors.decode()
    paid: dict[int, int] = {}
    balances: dict[int, int] = {}
    for node in bank.dsns:
        for aid, total in bank.query(node, "SELECT aid, sum(delta) FROM pgbench_history GROUP BY 1"):
            paid[int(str(aid))] = paid.get(int(str(aid)), 0) + int(str(total))
        for aid, balance in bank.query(node, "SELECT aid, abalance FROM pgbench_accounts"):
            assert int(str(aid)) not in balances
            balances[int(str(aid))] = int(str(balance))
    assert len(balances) == COUNT
    assert {aid: balance for aid, balance in balances.items() if balance} == {a: s for a, s in paid.items() if s}
    assert all(bank.query(node, "SELECT count(*) > 0 FROM pgbench_history") == [(True,)] for node in bank.dsns)
    assert examine(directory, bank.address) == []
