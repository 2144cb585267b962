"""A router in a process that was forked: it sends nothing on connections that another process uses."""

import os

import pytest

from balancer.client import Router
from balancer.errors import UserError
from tests.support.shards import Shards, user_of


def test_a_router_from_before_a_fork_is_refused_and_the_parents_goes_on(shards: Shards, router: Router) -> None:
    user = user_of(shards, 1)
    with router.transaction("orders", user) as connection:
        connection.execute("INSERT INTO orders VALUES (%s, 1, 'parent')", (user,))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing was refused"
        try:
            try:
                with router.transaction("orders", user) as connection:
                    connection.execute("UPDATE orders SET note = 'child' WHERE user_id = %s", (user,))
            except UserError as error:
                said = str(error)
            router.close()
        except BaseException as error:
            said = repr(error)
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        assert "make a router after the fork" in answer.read()
    with router.transaction("orders", user) as connection:
        assert connection.execute("SELECT note FROM orders WHERE user_id = %s", (user,)).fetchone() == ("parent",)


def test_a_router_made_after_a_fork_works(shards: Shards) -> None:
    user = user_of(shards, 1)
    child = os.fork()
    if child == 0:
        try:
            with Router.connect(shards.url, samples=False) as mine, mine.transaction("orders", user) as connection:
                connection.execute("INSERT INTO orders VALUES (%s, 1, 'child')", (user,))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert shards.count(user) == 1


def test_its_close_in_a_child_leaves_the_parents_sessions(shards: Shards) -> None:
    with Router.connect(shards.url, samples=False) as router:
        user = user_of(shards, 1)
        with router.transaction("orders", user) as connection:
            pid = connection.info.backend_pid
        child = os.fork()
        if child == 0:
            try:
                router.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        with router.transaction("orders", user) as connection:
            assert connection.info.backend_pid == pid
        with pytest.raises(UserError):
            router.transaction("nothing", user).__enter__()
