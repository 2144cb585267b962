"""A split goes through on an ordinary busy database, and whoever uses it meanwhile sees and writes what is right."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from balancer.directory.model import Migration
from balancer.embedded.postgres import PostgresServer
from balancer.features.repair.doctor import examine
from balancer.migration.progress import Observer, Progress
from balancer.settings import MigrationSettings
from tests.support.busy import ROWS, Load, Seen, busy, elsewhere, snapshots, statements, writers
from tests.support.cluster import Cluster, build, hash_table, hash_tablets, insert_rows
from tests.support.directed import Beside
from tests.support.resharding import begin_merge, begin_split
from tests.support.sampling import sampled
from tests.support.waiting import surely

ENDS = 90.0
"""Seconds after which a split is believed to starve: it takes a fraction of that."""
EVERYTHING = (
    Load("elsewhere", 4, elsewhere(0.3, 2.0)),
    Load("snapshots", 1, snapshots(0.3, 1.0)),
    Load("statements", 2, statements(0.1, 0.3)),
    Load("writers", 3, writers(0.02, 0.08)),
)
READERS_AND_WRITERS = (
    Load("snapshots", 3, snapshots(0.05, 0.4)),
    Load("statements", 1, statements(0.01, 0.1)),
    Load("writers", 4, writers(0.0, 0.02)),
    Load("writers on a snapshot", 2, writers(0.0, 0.02, "REPEATABLE READ")),
    Load("serializable writers", 1, writers(0.0, 0.02, "SERIALIZABLE")),
)


@pytest.fixture
def single(tmp_path: Path, any_postgres: PostgresServer, database: Any) -> Iterator[Cluster]:
    """One node, each version in turn, with the settings of a fresh installation."""
    tablets = hash_tablets(2, ["a"])
    made = build(tmp_path, {"a": database(any_postgres).dsn}, hash_table(), tablets)
    made.settings = MigrationSettings(retire_grace=0.0)
    insert_rows(made, tablets, range(ROWS))
    yield made
    made.close()


class Waits(Observer):
    """What it says that it waits for."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def progressed(self, migration: Migration, progress: Progress) -> None:
        self.words.append(progress.waiting_for)


class Resharding:
    """Splits and merges one tablet in turn."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._directory = cluster.directory()
        self._leadership = cluster.become_leader(self._directory)
        self._tablets = [2]
        self.waits = Waits()

    def run(self) -> Migration:
        begin = begin_split(self._directory, self._leadership, self._tablets[0]) if len(self._tablets) == 1 else None
        begun = begin or begin_merge(self._directory, self._leadership, self._tablets)
        done = self._cluster.runner(self._directory, self._leadership, self.waits).run(begun.id)
        assert (done.state, done.error) == ("done", "")
        self._tablets = [tablet.id for tablet in done.targets]
        return done

    def findings(self) -> list[str]:
        return [finding.text for finding in examine(self._directory, self._cluster.address)]


def right(cluster: Cluster, seen: Sequence[Seen]) -> None:
    assert [one.wrong for one in seen if one.wrong] == []
    assert {word for one in seen for word in one.refused} <= {"40001"}
    written = sum(one.written for one in seen)
    assert cluster.query("a", "SELECT count(*), sum(n)::int FROM orders") == [(ROWS, written)]


def test_a_split_ends_beside_everything_at_once(single: Cluster) -> None:
    resharding = Resharding(single)
    with (
        psycopg.connect(single.dsns["a"], application_name="pg_dump") as dump,
        busy(single.dsns["a"], EVERYTHING) as seen,
    ):
        dump.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        dump.execute("LOCK TABLE elsewhere IN ACCESS SHARE MODE")
        dump.execute("SELECT count(*) FROM elsewhere")
        for _ in range(2):
            assert Beside(resharding.run).result(ENDS).state == "done"
    right(single, list(seen.values()))
    assert [one.refused for one in seen.values() if one.refused] == []


ROUNDS = 25


@pytest.mark.parametrize("number", sampled(range(2), 1, "busy reshards"))
def test_whoever_reads_and_writes_while_tablets_are_split_and_merged_sees_and_writes_all(
    single: Cluster, number: int
) -> None:
    resharding = Resharding(single)
    with busy(single.dsns["a"], READERS_AND_WRITERS, str(number)) as seen:
        for _ in range(ROUNDS):
            resharding.run()
    right(single, list(seen.values()))
    assert resharding.findings() == []


def test_a_dump_of_the_table_is_named_and_disturbs_nobody(single: Cluster) -> None:
    resharding = Resharding(single)
    load = (Load("writers", 2, writers(0.0, 0.02)), Load("statements", 1, statements(0.01, 0.1)))
    with psycopg.connect(single.dsns["a"], application_name="pg_dump") as dump, busy(single.dsns["a"], load) as seen:
        dump.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        dump.execute("LOCK TABLE orders IN ACCESS SHARE MODE")
        pid = dump.info.backend_pid
        migration = Beside(resharding.run)
        named = f"SELECT pg_terminate_backend({pid}) ends it"
        assert surely(lambda: any(named in words for words in resharding.waits.words), ENDS, 0.05)
        before = {name: one.done for name, one in seen.items()}
        assert surely(lambda: all(seen[name].done > count + 20 for name, count in before.items()), ENDS, 0.05)
        assert not migration.over
        dump.rollback()
        assert migration.result(ENDS).state == "done"
    right(single, list(seen.values()))


def test_statements_longer_than_the_budget_are_named_with_their_length(single: Cluster) -> None:
    """Eight sessions of them leave no moment; an operator may allow one longer wait."""
    resharding = Resharding(single)
    load = (Load("reports", 8, statements(0.6, 0.9)),)
    with busy(single.dsns["a"], load) as seen:
        migration = Beside(resharding.run)
        said = "an attempt waits for"
        surely(lambda: migration.over or any(said in words for words in _retreats(single)), ENDS, 0.05)
        assert migration.over or any("write_pause_budget of" in words for words in _retreats(single))
    assert migration.result(ENDS).state == "done"
    right(single, list(seen.values()))


def test_a_swap_patience_lets_a_split_end_beside_them(single: Cluster) -> None:
    single.settings = replace(single.settings, swap_patience=0.9)
    with busy(single.dsns["a"], (Load("reports", 8, statements(0.6, 0.9)),)) as seen:
        assert Beside(Resharding(single).run).result(ENDS).state == "done"
    right(single, list(seen.values()))


def _retreats(cluster: Cluster) -> list[str]:
    records = cluster.directory().snapshot().migrations.values()
    return [str(record.detail.get("retreat", "")) for record in records]


def test_two_sessions_of_statements_of_a_second_do_not_starve_it(single: Cluster) -> None:
    began = time.monotonic()
    with busy(single.dsns["a"], (Load("reports", 2, statements(1.0, 1.0)),)) as seen:
        assert Beside(Resharding(single).run).result(ENDS).state == "done"
    print(f"{time.monotonic() - began:.1f} s")
    right(single, list(seen.values()))
