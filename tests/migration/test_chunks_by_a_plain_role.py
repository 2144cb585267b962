"""A role that is no superuser copies in chunks too: its replays pass the guard, and nobody else does."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from balancer.directory.model import MigrationMode
from balancer.embedded.postgres import PostgresServer
from balancer.features.repair.doctor import examine
from balancer.migration import replay
from balancer.migration.begin import begin_move
from tests.migration.test_owners_code_reads import made_by
from tests.support.cluster import AMPLE, Cluster
from tests.support.owned import plain_role
from tests.support.refusals import refused_with
from tests.support.servers import Database
from tests.support.spy import Spy

LEAF = "public.orders_t1"


@pytest.fixture
def granted(
    tmp_path: Path, postgres18: PostgresServer, plain_database: Callable[[PostgresServer], Database]
) -> Iterator[Cluster]:
    """Before 16 only a superuser makes subscriptions: both nodes are newer, on one server."""
    dsns = {node: plain_database(postgres18).dsn for node in ("a", "b")}
    with plain_role({"a": dsns["a"]}, "SELECT 1") as owner:
        role = f"balancer_{owner}"
        with psycopg.connect(dsns["b"], autocommit=True) as connection:
            connection.execute(f"GRANT ALL ON SCHEMA public TO {owner}".encode())
        made = made_by(owner, tmp_path, dsns, role)
        made.settings = replace(made.settings, **AMPLE, chunks_at_once=1)
        yield made
        made.close()
        for dsn in dsns.values():
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(f"DROP OWNED BY {role} CASCADE".encode())
        for dsn in dsns.values():
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(f"DROP OWNED BY {owner} CASCADE".encode())
        with psycopg.connect(dsns["a"], autocommit=True) as connection:
            connection.execute(f"DROP ROLE {role}".encode())


def test_changed_rows_are_exchanged_behind_the_guard(granted: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    original, answers = replay.replay, []

    def change(*given: Any, **named: Any) -> Any:
        granted.query("a", f"UPDATE {LEAF} SET n = n + 1 WHERE id % 7 = 0 RETURNING 1")
        result = original(*given, **named)
        with granted.connect("b") as connection:
            try:
                connection.execute(f"INSERT INTO {LEAF} VALUES (999, 0)".encode())
            except psycopg.Error as error:
                answers.append(refused_with(error))
            else:
                connection.execute(f"DELETE FROM {LEAF} WHERE id = 999".encode())  # before the guard
        return result

    monkeypatch.setattr(replay, "replay", change)
    seen: list[list[tuple[object, ...]]] = []
    look = f"SELECT id, n FROM {LEAF} ORDER BY id"
    spy = Spy({"entered:fencing": lambda: seen.append(granted.query("a", look))})
    directory = granted.directory()
    leadership = granted.become_leader(directory)
    begun = begin_move(directory, leadership, 1, "b", mode=MigrationMode.REPLICATE)
    done = granted.runner(directory, leadership, spy).run(begun.id)
    assert (done.state, done.error) == ("done", "")
    assert granted.query("b", look) == seen[0]
    assert answers == ["TB001"], "the guard stands again after the last replay"
    assert [finding.text for finding in examine(directory, granted.address)] == []
