"""Code that an owner brings while a migration runs, after the first look at it, does not run as the balancer."""

from pathlib import Path

import pytest

from balancer.directory.model import Migration, MigrationMode
from balancer.migration.begin import begin_move
from balancer.migration.machine import State
from balancer.migration.progress import Observer
from tests.migration.test_chunks_owners import SPY
from tests.support.cluster import Cluster
from tests.support.expiring import begin, made, tablets
from tests.support.owned import owned_cluster, plain_role, run_as
from tests.support.resharding import begin_split

pytestmark = pytest.mark.always

LATE = {
    "index": "CREATE INDEX bad ON public.orders_t2 (id, (id + public.spy(1)))",
    "statistics": "CREATE STATISTICS public.bad ON id, (id + public.spy(1)) FROM public.orders_t2",
}
AFTER = [
    ("replicate", State.PREPARING),
    ("replicate", State.COPYING),
    ("replicate", State.CATCHING_UP),
    ("read-only", State.FENCING),
    ("read-only", State.COPYING),
    ("split", State.PREPARING),
    ("split", State.COPYING),
    ("split", State.CATCHING_UP),
]


class Owner(Observer):
    """Brings it when the migration has left a state; and writes a little, so that there is something to replay."""

    def __init__(self, cluster: Cluster, role: str, state: State, statement: str) -> None:
        self._cluster, self._role, self._state, self._statement = cluster, role, state, statement

    def left(self, migration: Migration, state: State) -> None:
        if state is self._state:
            self._state = State.FAILED
            with self._cluster.connect("a") as connection:
                run_as(connection, self._role, "SET lock_timeout TO '5s'", self._statement)
                if migration.mode is MigrationMode.REPLICATE:
                    run_as(connection, self._role, "UPDATE public.orders SET n = n + 1")


@pytest.mark.parametrize("case", list(LATE))
@pytest.mark.parametrize(("what", "state"), AFTER, ids=[f"{what}, after {state}" for what, state in AFTER])
def test_what_comes_after_a_state(
    tmp_path: Path, server_folder: Path, pair: dict[str, str], what: str, state: State, case: str
) -> None:
    folder = server_folder / f"seen-{tmp_path.name}"
    folder.mkdir()
    folder.chmod(0o777)  # servers may run as another user
    with plain_role(pair, SPY.format(file=folder / "who")) as role:
        columns = "(id bigint NOT NULL, n bigint, PRIMARY KEY (id))"
        cluster = owned_cluster(tmp_path, pair, role, columns=columns, root="public.orders")
        with cluster.connect("a") as connection:
            run_as(connection, role, "INSERT INTO public.orders SELECT i, i FROM generate_series(1, 50) i")
        directory = cluster.directory()
        leadership = cluster.become_leader(directory)
        begun = (
            begin_split(directory, leadership, 2)
            if what == "split"
            else begin_move(directory, leadership, 2, "b", mode=MigrationMode(what))
        )
        done = cluster.runner(directory, leadership, Owner(cluster, role, state, LATE[case])).run(begun.id)
        leadership.resign()
        cluster.close()
        assert not (folder / "who").exists()
        named = "function public.spy(bigint)" in done.error or "definition of public.orders_t2" in done.error
        assert named or (what == "read-only" and done.state == "done")  # the source is not read any more


@pytest.mark.parametrize("case", list(LATE))
def test_the_rows_of_an_expired_tablet_are_not_counted_by_its_owners_code(
    tmp_path: Path, server_folder: Path, pair: dict[str, str], case: str
) -> None:
    folder = server_folder / f"seen-{tmp_path.name}"
    folder.mkdir()
    folder.chmod(0o777)  # servers may run as another user
    with plain_role(pair, SPY.format(file=folder / "who")) as role:
        cluster = made(tmp_path, pair, tablets([14, 13, 12, 11, 5], ["a", "a", "b", "a", "a", "b"]))
        with cluster.connect("a") as connection:
            connection.execute(f"ALTER TABLE public.events_t2 OWNER TO {role}".encode())
            run_as(connection, role, LATE[case].replace("orders_t2", "events_t2"))
        directory = cluster.directory()
        leadership = cluster.become_leader(directory)
        done = cluster.runner(directory, leadership).run(begin(directory, leadership, (1, 2)).id)
        leadership.resign()
        there = cluster.query("a", "SELECT to_regclass('public.events_t2') IS NOT NULL")
        cluster.close()
        assert not (folder / "who").exists()
        assert (done.state, there) == ("failed", [(True,)])
        assert "function public.spy(bigint)" in done.error
