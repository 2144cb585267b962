"""A role that can connect, and nothing more, holds a tablet's advisory lock: clients are told to try again, moves name
the session, and end it where that is allowed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from balancer.directory.model import Migration
from balancer.migration.begin import begin_move
from balancer.nodes.schema.texts import WRITERS
from tests.support.cluster import Cluster, build, hash_table, hash_tablets
from tests.support.owned import plain_role
from tests.support.refusals import refused_with
from tests.support.spy import Spy

Holder = psycopg.Connection[tuple[object, ...]]


@pytest.fixture(params=["15 to 18", "18 to 15"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path, pair: dict[str, str]) -> Iterator[Cluster]:
    dsns = pair if request.param == "15 to 18" else {"a": pair["b"], "b": pair["a"]}
    made = build(tmp_path, dsns, hash_table(("orders",)), hash_tablets(2, ["a"]))
    made.settings = replace(made.settings, blocker_age=0.2, retry_patience=5.0)
    yield made
    made.close()


@pytest.fixture
def holder(cluster: Cluster) -> Iterator[Holder]:
    """A session of a role without rights, outside of a transaction."""
    with plain_role(cluster.dsns) as role:
        with psycopg.connect(cluster.dsns["a"], autocommit=True) as superuser:
            superuser.execute(f"ALTER ROLE {role} LOGIN PASSWORD 'holder'".encode())
        session = psycopg.connect(
            cluster.dsns["a"], user=role, password="holder", autocommit=True, application_name="starving"
        )
        yield session
        session.close()


class Waiting(Spy):
    """What the move says that it waits for."""

    def __init__(self) -> None:
        super().__init__({})
        self.texts: set[str] = set()

    def progressed(self, migration: Migration, progress: object) -> None:
        self.texts.add(str(getattr(progress, "waiting_for", "")))


def move(cluster: Cluster, waiting: Waiting) -> Migration:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    done = cluster.runner(directory, leadership, waiting).run(begin_move(directory, leadership, 2, "b").id)
    leadership.resign()
    return done


def test_clients_are_told_to_try_again(cluster: Cluster, holder: Holder) -> None:
    holder.execute("SELECT pg_advisory_lock(%s)", (WRITERS + 2,))
    with cluster.connect("a") as client, pytest.raises(psycopg.errors.SerializationFailure) as refused:
        client.execute("CALL balancer.hold(2, 1, true)")
    assert refused_with(refused.value) == "TB001"


@pytest.mark.parametrize("mode", ["", "_shared"])
def test_the_session_is_named(cluster: Cluster, holder: Holder, mode: str) -> None:
    holder.execute(f"SELECT pg_advisory_lock{mode}({WRITERS + 2})".encode())
    cluster.settings = replace(cluster.settings, fence_attempts=3)
    waiting = Waiting()
    assert move(cluster, waiting).state != "done"
    wanted = f"session {holder.info.backend_pid} (starving of role {holder.info.user}, holds an advisory lock"
    assert any(wanted in text for text in waiting.texts), waiting.texts


@pytest.mark.parametrize("mode", ["", "_shared"])
def test_the_session_is_ended_where_that_is_allowed(cluster: Cluster, holder: Holder, mode: str) -> None:
    cluster.settings = replace(cluster.settings, terminate_blockers=True)
    holder.execute(f"SELECT pg_advisory_lock{mode}({WRITERS + 2})".encode())
    done = move(cluster, Waiting())
    assert (done.state, done.error) == ("done", "")
    with pytest.raises(psycopg.OperationalError):
        holder.execute("SELECT 1")


def test_locks_of_an_application_are_not_in_the_way_whatever_their_numbers(cluster: Cluster, holder: Holder) -> None:
    for number in (-(1 << 63), -1, 0, (1 << 63) - 1, -8_070_450_532_247_928_832):
        holder.execute("SELECT pg_advisory_lock(%s)", (number,))
    assert move(cluster, Waiting()).state == "done"
