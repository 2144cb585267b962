"""Ids: unique over processes, increasing within one, and telling where their row is."""

import threading

import pytest

from balancer.client import Router, RowId
from balancer.client.keys.ids import Ids
from balancer.client.keys.routes import Routes
from balancer.directory.model import Counter, Put, Transaction
from balancer.directory.snapshot import BLOCK, carried_over
from balancer.errors import Refused, UserError
from tests.support.shards import Shards


def test_two_processes_never_hand_out_the_same_id(routes: Routes) -> None:
    makers = [Ids(routes, "orders") for _ in range(4)]
    taken: list[list[int]] = [[] for _ in makers]
    threads = [
        threading.Thread(target=lambda ids=ids, into=into: into.extend(ids.take(2 * BLOCK + 1)))
        for ids, into in zip(makers, taken, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one for many in taken for one in many}) == 4 * (2 * BLOCK + 1)
    assert all(many == sorted(many) for many in taken)
    assert min(map(min, taken)) == 1


def test_a_block_is_taken_when_the_last_is_used_up_and_changes_nothing_in_the_map(routes: Routes) -> None:
    ids = Ids(routes, "orders")
    before = routes.directory.snapshot().version
    ids.take(BLOCK)
    assert (routes.directory.blocks()[1], ids.ready) == (1, False)
    ids.reserve()
    assert (routes.directory.blocks()[1], ids.ready) == (2, True)
    assert routes.directory.snapshot().version == before


def test_ids_go_on_after_those_that_the_map_says_are_taken(routes: Routes) -> None:
    directory = routes.directory
    before = Ids(routes, "orders").next()
    (counter,) = carried_over(directory.snapshot(), directory.blocks())
    assert counter == Counter("ids 1", before + BLOCK)
    directory.commit(Transaction((Put(counter),), directory.snapshot().version, "import", "test"))
    assert Ids(routes, "orders").next() > before + BLOCK


def test_ids_that_are_used_up_are_refused(routes: Routes) -> None:
    directory = routes.directory
    last = Counter("ids 1", (1 << 47) - BLOCK + 1)
    directory.commit(Transaction((Put(last),), directory.snapshot().version, "long ago", "test"))
    with pytest.raises(Refused, match="the ids of table orders are used up"):
        Ids(routes, "orders").next()


def test_tables_count_for_themselves(routes: Routes) -> None:
    assert Ids(routes, "orders").next() == Ids(routes, "events").next() == 1


def test_a_located_id_leads_to_the_node_of_its_key(shards: Shards, router: Router) -> None:
    ids = router.located_ids("orders")
    for user in range(50):
        made = ids.next_for(user)
        assert 0 < made < 1 << 63
        assert router.locate("orders", RowId(made)) == router.locate("orders", user)
    shards.switch(router.locate("orders", 7).tablet, "pg-b" if router.locate("orders", 7).node == "pg-a" else "pg-a")
    with router.transaction("orders", RowId(ids.next_for(7))) as connection:
        connection.execute("INSERT INTO orders VALUES (7, 1)")
    assert shards.count(7) == 1


def test_a_range_table_has_no_vbuckets(routes: Routes) -> None:
    with Router(routes, samples=False) as router, pytest.raises(UserError, match="not a hash table"):
        router.located_ids("events")
