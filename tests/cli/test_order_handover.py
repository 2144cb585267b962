"""An order outlives the leader who was given it: the next one goes on with what is left."""

from pathlib import Path

from balancer.embedded.postgres import PostgresServer
from balancer.planner import orders
from tests.support.running import ROWS, Running, product, until


def done(running: Running, order: str) -> int:
    snapshot = running.snapshot()
    found = orders.progress(snapshot.plans[order], snapshot)["done"]
    assert isinstance(found, int)
    return found


def test_a_new_leader_goes_on_with_an_order(
    tmp_path: Path, postgres15: PostgresServer, postgres18: PostgresServer
) -> None:
    with product(tmp_path, {"a": postgres15, "b": postgres18}) as running:
        bundle = tmp_path / "bundles" / "shop.toml"
        bundle.write_text(bundle.read_text().replace("moves_per_node = 2", "moves_per_node = 1\nmoves_total = 1"))
        with running.daemon("one"):
            given = running.balancer("table", "double", "shop", "orders")
            assert given.code == 0, given.err
            (order,) = orders.open_orders(running.snapshot(), "shop")
            until(lambda: done(running, order.id) >= 1, "the first vbucket is split")
        assert 1 <= done(running, order.id) < 4
        assert f"order {order.id}: doubling the vbuckets of orders: " in running.balancer("status").out
        with running.daemon("two"):
            until(lambda: running.snapshot().plans[order.id].state == orders.DONE, "the order is done")
        assert done(running, order.id) == 4
        assert running.snapshot().plans[order.id].document["not_started"] == []
        assert running.rows("orders") == list(range(1, ROWS + 1))
