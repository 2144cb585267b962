"""What logs the changes of a tablet has the balancer's rights: neither an owner nor a stranger gets them by it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from balancer.migration import copy, reshard
from tests.support.cluster import Cluster
from tests.support.owned import move_or_split, owned_cluster, plain_role, run_as

pytestmark = pytest.mark.always

COLUMNS = "(id bigint NOT NULL, line bigint NOT NULL, n bigint, PRIMARY KEY (id, line))"
CAST = """
CREATE TABLE public.seen (who name); GRANT INSERT, SELECT ON public.seen TO PUBLIC;
CREATE TYPE public.boxed AS (value bigint);
CREATE FUNCTION public.unbox(public.boxed) RETURNS bigint LANGUAGE plpgsql AS
    $$BEGIN INSERT INTO public.seen VALUES (current_user); RETURN ($1).value; END$$;
CREATE CAST (public.boxed AS bigint) WITH FUNCTION public.unbox(public.boxed) AS ASSIGNMENT;
"""
COPIES = {"replicate": (copy, "_copy_chunk"), "split": (reshard, "_fill")}


@pytest.fixture
def owner(pair: dict[str, str]) -> Iterator[str]:
    with plain_role(pair, CAST) as role:
        yield role


@pytest.fixture
def cluster(tmp_path: Path, pair: dict[str, str], owner: str) -> Iterator[Cluster]:
    made = owned_cluster(tmp_path, pair, owner, columns=COLUMNS, root="public.orders")
    with made.connect("a") as connection:
        run_as(connection, owner, "INSERT INTO public.orders SELECT i, 1, i FROM generate_series(1, 50) i")
    yield made
    made.close()


def while_copying(monkeypatch: pytest.MonkeyPatch, what: str, act: Any) -> None:
    """Acts once, when changes are logged already."""
    module, name = COPIES[what]
    original = getattr(module, name)
    left = [act]

    def copy(*given: Any, **named: Any) -> Any:
        if left:
            left.pop()()
        return original(*given, **named)

    monkeypatch.setattr(module, name, copy)


@pytest.mark.parametrize("what", list(COPIES))
def test_a_cast_of_the_owners_own_type_does_not_run_as_the_balancer(
    cluster: Cluster, owner: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def change_type() -> None:
        with cluster.connect("a") as connection:
            run_as(
                connection,
                owner,
                "ALTER TABLE public.orders ALTER COLUMN line TYPE public.boxed USING ROW(line)::public.boxed",
                "INSERT INTO public.orders SELECT i, ROW(2)::public.boxed, i FROM generate_series(1, 50) i",
            )

    while_copying(monkeypatch, what, change_type)
    done = move_or_split(cluster, what, content=False)
    assert {who for (who,) in cluster.query("a", "SELECT who FROM public.seen")} <= {owner}
    assert done.state != "done"
    assert cluster.query("a", "SELECT count(*) FROM public.orders") == [(100,)]


@pytest.mark.parametrize("what", list(COPIES))
def test_nobody_may_use_what_logs_changes_for_a_table_of_his_own(
    cluster: Cluster, owner: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    refused: list[str] = []

    def borrow() -> None:
        with cluster.connect("a") as connection:
            run_as(connection, owner, "CREATE TABLE public.mine (id bigint, line public.boxed)")
            for (function,) in cluster.query(
                "a", "SELECT oid::regproc::text FROM pg_proc WHERE proname LIKE 'capture\\_m%'"
            ):
                try:
                    run_as(
                        connection,
                        owner,
                        f"CREATE TRIGGER t AFTER INSERT ON public.mine FOR EACH ROW EXECUTE FUNCTION {function}()",
                        "INSERT INTO public.mine VALUES (1, ROW(1)::public.boxed)",
                    )
                except psycopg.errors.InsufficientPrivilege as error:
                    refused.append(str(error.diag.message_primary))
                    connection.rollback()
            run_as(connection, owner, "DROP TABLE public.mine")  # its trigger would keep the function from going

    while_copying(monkeypatch, what, borrow)
    done = move_or_split(cluster, what)
    assert {who for (who,) in cluster.query("a", "SELECT who FROM public.seen")} <= {owner}
    assert len(refused) == 1
    assert (done.state, done.error) == ("done", "")


def test_a_key_that_gets_a_longer_type_does_not_make_writers_fail(
    tmp_path: Path, pair: dict[str, str], owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = "(id bigint NOT NULL, line varchar(3) NOT NULL, PRIMARY KEY (id, line))"
    cluster = owned_cluster(tmp_path, pair, owner, columns=columns, root="public.orders")

    def widen() -> None:
        with cluster.connect("a") as connection:
            run_as(
                connection,
                owner,
                "ALTER TABLE public.orders ALTER COLUMN line TYPE varchar(9)",
                "INSERT INTO public.orders SELECT i, 'longer' FROM generate_series(1, 50) i",
            )

    while_copying(monkeypatch, "replicate", widen)
    done = move_or_split(cluster, "replicate", content=False)
    assert done.state == "failed"
    assert cluster.query("a", "SELECT count(*) FROM public.orders") == [(50,)]
    cluster.close()


@pytest.mark.parametrize("what", list(COPIES))
def test_a_session_that_has_written_goes_on_when_its_key_gets_another_type(
    cluster: Cluster, owner: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def change_type() -> None:
        with cluster.connect("a") as connection:
            run_as(
                connection,
                owner,
                "UPDATE public.orders SET n = n + 1",
                "ALTER TABLE public.orders ALTER COLUMN line TYPE int",
                "UPDATE public.orders SET n = n + 1",
                "DELETE FROM public.orders WHERE id % 2 = 0",
            )

    while_copying(monkeypatch, what, change_type)
    done = move_or_split(cluster, what, content=False)
    assert done.state != "done"
    assert cluster.query("a", "SELECT count(*), sum(n)::int FROM public.orders") == [(25, 675)]
