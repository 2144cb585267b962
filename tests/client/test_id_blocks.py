"""Ids: unique over processes, increasing within one, and telling where their row is."""

import threading

import pytest

from balancer.client import Router, RowId
from balancer.client.id_blocks import FIRST_BLOCK, Ids
from balancer.client.routing import Routes
from balancer.errors import UserError
from tests.support.shards import Shards


def test_two_processes_never_hand_out_the_same_id(routes: Routes) -> None:
    makers = [Ids(routes, "orders") for _ in range(4)]
    taken: list[list[int]] = [[] for _ in makers]
    threads = [
        threading.Thread(target=lambda ids=ids, into=into: into.extend(ids.take(3 * FIRST_BLOCK)))
        for ids, into in zip(makers, taken, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one for many in taken for one in many}) == 4 * 3 * FIRST_BLOCK
    assert all(many == sorted(many) for many in taken)
    assert min(map(min, taken)) == 1


def test_a_block_needs_one_commit_and_a_busy_process_takes_larger_ones(routes: Routes) -> None:
    ids = Ids(routes, "orders")
    before = routes.directory.snapshot().version
    ids.take(FIRST_BLOCK)
    assert routes.directory.snapshot().version == before + 1
    ids.take(2 * FIRST_BLOCK)
    assert routes.directory.snapshot().version == before + 2
    assert ids.ready is False
    ids.reserve()
    assert ids.ready


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
