"""An expiry that is killed at any word to a node: every key has an answer, and a successor brings it to its end."""

import json
import subprocess
from pathlib import Path

import psycopg
import pytest

from balancer.directory.invariants import violations
from balancer.directory.model import Migration, RangeBounds
from balancer.migration.machine import State
from balancer.migration.progress import Observer
from balancer.migration.runner import recover
from tests.support.cluster import Cluster
from tests.support.expiring import ROOTS, begin, bound, days_ago, made, tablets
from tests.support.forked import run_forked
from tests.support.sampling import sampled

WORDS = 388
"""Of an expiry over two nodes; `test_all_words_are_known` says if they have become more."""
ROWS = 5


def killed(cluster: Cluster, migration: str, number: int) -> subprocess.CompletedProcess[str]:
    return run_forked("tests.support.expiring", cluster.folder, json.dumps(cluster.dsns), migration, str(number))


def answer(cluster: Cluster, age: int) -> str:
    """What an INSERT of that day meets on the node that the directory names, undone if it was taken."""
    key = bound(age)
    found = [
        t for t in cluster.tablets() if isinstance(t.bounds, RangeBounds) and t.bounds.lower <= key < t.bounds.upper
    ]
    with psycopg.connect(cluster.dsns[found[0].node]) as connection:
        try:
            connection.execute("INSERT INTO events VALUES (%s, 1000)", (days_ago(age),))
        except psycopg.Error as error:
            return str(error.sqlstate)
        finally:
            connection.rollback()
    return "taken"


def count(cluster: Cluster, age: int) -> list[int]:
    """Rows of a day in each root, over all nodes."""
    query = f"SELECT count(*) FROM {{}} WHERE day = '{days_ago(age)}'"
    return [sum(int(str(cluster.query(node, query.format(root))[0][0])) for node in cluster.dsns) for root in ROOTS]


def left_over(cluster: Cluster) -> list[object]:
    """Tables in public that are no partitions, and our triggers on tablets that have not expired."""
    query = """
        SELECT relname FROM pg_class
        WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND NOT relispartition
        UNION ALL SELECT tgrelid::regclass::text FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid
        WHERE tgname ~ 'balancer' AND pg_get_expr(c.relpartbound, c.oid) !~ '[(]MINVALUE, MINVALUE[)] TO'
    """
    return [name for node in cluster.dsns for (name,) in cluster.query(node, query)]


def test_killed_anywhere_no_key_is_without_an_answer(tmp_path: Path, pair: dict[str, str]) -> None:
    ages = list(range(59, 10, -1))
    cells = sampled(range(1, WORDS + 1), 6, "words of an expiry")
    for chunk in range(0, len(cells), 40):  # SAMPLE_SEED=all has more words than there are days
        folder = tmp_path / str(chunk)
        folder.mkdir()
        for dsn in pair.values():
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("DROP TABLE IF EXISTS events, clicks; DROP SCHEMA IF EXISTS balancer CASCADE")
        # The empty tablet and what goes next are on one node and on two in turn.
        cluster = made(folder, pair, tablets(ages, ["a", "a", "b", "b"] * 13), ROWS)
        directory = cluster.directory()
        leadership = cluster.become_leader(directory)
        cluster.runner(directory, leadership).run(begin(directory, leadership, [1]).id)
        leadership.resign()
        try:
            for place, number in enumerate(cells[chunk : chunk + 40]):
                one_cell(cluster, ages[place], number)
        finally:
            cluster.close()


def one_cell(cluster: Cluster, age: int, number: int) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    ids = [tablet.id for tablet in list(directory.snapshot().tablets(1))[:2]]
    begun = begin(directory, leadership, ids)
    leadership.resign()
    ended = killed(cluster, begun.id, number)
    where = f"word {number}, tablets {ids}: {ended.stderr[-500:]}"
    assert ended.returncode in (-9, 0), where
    assert count(cluster, age) in ([ROWS] * 2, [0] * 2), where
    assert answer(cluster, age) in ("taken", "TB007"), where
    assert (count(cluster, age - 1), answer(cluster, age - 1)) == ([ROWS] * 2, "taken"), where
    again = cluster.become_leader(directory)
    for record in recover(directory, again):
        cluster.runner(directory, again).run(record.id)
    assert directory.snapshot().migrations[begun.id].state == "done", where
    assert list(violations(directory.snapshot())) == []
    assert (count(cluster, age), answer(cluster, age)) == ([0] * 2, "TB007"), where
    assert (count(cluster, age - 1), answer(cluster, age - 1)) == ([ROWS] * 2, "taken"), where
    assert left_over(cluster) == [], where
    told = f"{2 * ROWS} rows of tablet {ids[-1]} of events have expired"
    assert any(told in entry.reason for entry in directory.history(0, 2000)), where
    again.resign()


def test_all_words_are_known(tmp_path: Path, pair: dict[str, str]) -> None:
    cluster = made(tmp_path, pair, tablets([14, 13, 12], ["a", "b", "a", "b"]), ROWS)
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    cluster.runner(directory, leadership).run(begin(directory, leadership, [1]).id)
    begun = begin(directory, leadership, [1000, 2])
    leadership.resign()
    ended = killed(cluster, begun.id, 0)
    cluster.close()
    assert WORDS - 20 <= int(ended.stdout) <= WORDS, ended.stderr


class Interrupted(BaseException):
    """The process ends here."""


class EndsAfterSwap(Observer):
    """At the one word of which the node knows and the directory does not."""

    def left(self, migration: Migration, state: State) -> None:
        if state is State.SWAPPING:
            raise Interrupted


def test_a_swap_that_has_happened_is_gone_on_from(tmp_path: Path, pair: dict[str, str]) -> None:
    cluster = made(tmp_path, pair, tablets([14, 13], ["a", "a", "b"]), ROWS)
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    begun = begin(directory, leadership, [1, 2])
    with pytest.raises(Interrupted):
        cluster.runner(directory, leadership, EndsAfterSwap()).run(begun.id)
    # The rows are off the root, detached and whole; the directory still has their tablet, and a key has its answer.
    assert (count(cluster, 14), answer(cluster, 14)) == ([0] * 2, "TB007")
    assert cluster.query("a", "SELECT count(*) FROM events_t2") == [(ROWS,)]
    leadership.resign()
    again = cluster.become_leader(directory)
    for record in recover(directory, again):
        cluster.runner(directory, again).run(record.id)
    assert directory.snapshot().migrations[begun.id].state == "done"
    assert (left_over(cluster), list(violations(directory.snapshot()))) == ([], [])
    cluster.close()
