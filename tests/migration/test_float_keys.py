"""A key that is a float8: two keys that print alike in the application's session are still two keys."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from balancer.features.repair.doctor import examine
from balancer.migration.begin import begin_move
from tests.support.cluster import Cluster, build, hash_table, hash_tablets
from tests.support.resharding import begin_split
from tests.support.spy import Spy

COLUMNS = '(id bigint NOT NULL, "f %s {}" float8 NOT NULL, n bigint, PRIMARY KEY (id, "f %s {}"))'


@pytest.fixture(params=["15 to 18", "18 to 15"])
def floats(request: pytest.FixtureRequest, tmp_path: Path, pair: dict[str, str]) -> Iterator[Cluster]:
    """Databases that print floats with five digits, unless a session says otherwise."""
    dsns = pair if request.param == "15 to 18" else {"a": pair["b"], "b": pair["a"]}
    for dsn in dsns.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET extra_float_digits = -10')
    made = build(tmp_path, dsns, hash_table(), hash_tablets(2, ["a"]), columns=COLUMNS)
    with made.connect("a") as connection:
        connection.execute("INSERT INTO orders SELECT i, 1.00000001, 0 FROM generate_series(1, 300) AS i")
    yield made
    made.close()


def change_keys(cluster: Cluster) -> None:
    with cluster.connect("a") as connection:
        connection.execute('UPDATE orders SET "f %s {}" = 1.00000002 WHERE id <= 100')
        assert connection.execute('SELECT DISTINCT "f %s {}"::text FROM orders').fetchall() == [("1",)]


@pytest.mark.parametrize(
    ("what", "point"), [("move", "left:copying"), ("split", "left:copying"), ("split", "entered:swapping")]
)
def test_a_key_that_changes_in_its_last_digits_is_not_lost(floats: Cluster, what: str, point: str) -> None:
    directory = floats.directory()
    leadership = floats.become_leader(directory)
    begun = begin_move(directory, leadership, 2, "b") if what == "move" else begin_split(directory, leadership, 2)
    spy = Spy({point: lambda: change_keys(floats)})
    done = floats.runner(directory, leadership, spy).run(begun.id)
    assert (done.state, done.error) == ("done", "")
    exact = 'SELECT id, float8send("f %s {}"), n FROM orders'
    rows = sorted(row for node in "ab" for row in floats.query(node, exact))
    changed, same = floats.query("a", "SELECT float8send(1.00000002), float8send(1.00000001)")[0]
    assert rows == [(i, changed if i <= 100 else same, 0) for i in range(1, 301)]
    assert examine(directory, floats.address) == []
