"""The leader keeps every node's roots as `require_proof` wants them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from balancer.clock import SystemClock
from balancer.daemon.housekeeping import ProofKeeper
from balancer.directory.configured import records_of
from balancer.directory.model import Node
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.features.tables.adopt import adopt, request_of
from balancer.features.tables.create import create
from balancer.nodes.schema.proof import unlike
from balancer.nodes.session.addresses import connected
from balancer.settings import Settings, load_settings
from tests.support.servers import Database

TABLE = """
[tables.orders]
roots = ["public.orders"]
layout = "hash"
key = ["id"]
tablets = 2
"""


@pytest.fixture
def databases(
    postgres15: PostgresServer, postgres18: PostgresServer, database: Callable[[PostgresServer], Database]
) -> dict[str, Database]:
    return {"a": database(postgres15), "b": database(postgres18)}


def configured(folder: Path, databases: dict[str, Database], *, on: bool) -> Settings:
    (folder / "bundles").mkdir(exist_ok=True)
    (folder / "balancer.toml").write_text(f'directory = "sqlite://{folder}/directory.db"\n')
    nodes = "".join(f"[nodes.{name}]\ndsn = '{found.dsn}'\n" for name, found in databases.items())
    (folder / "bundles" / "shop.toml").write_text(f"{nodes}{TABLE}require_proof = {str(on).lower()}\n")
    return load_settings(folder / "balancer.toml")


def closed(settings: Settings) -> dict[str, bool]:
    """Node → whether its root refuses; a root that is half of it is neither."""
    bundle = settings.bundle("shop")
    roots = request_of(bundle, "orders", "test").roots
    with connected(bundle, "test") as nodes:
        found = {node: not unlike(connection, roots, wanted=True) for node, connection in nodes.items()}
        assert all(unlike(connection, roots, wanted=False) for node, connection in nodes.items() if found[node])
    return found


@pytest.mark.parametrize("way", ["create", "adopt"])
def test_a_new_table_is_closed_and_follows_its_setting(
    tmp_path: Path, databases: dict[str, Database], way: str
) -> None:
    settings = configured(tmp_path, databases, on=True)
    bundle = settings.bundle("shop")
    request = request_of(bundle, "orders", "test")
    definition = "CREATE TABLE public.orders (id bigint PRIMARY KEY) PARTITION BY HASH (id)"
    records: list[Node] = records_of(bundle)
    with open_directory(settings.daemon.directory) as directory, connected(bundle, "test") as nodes:
        if way == "create":
            create(request, directory, nodes, records, "directory", tablets=2, definition=definition)
        else:
            nodes["a"].execute(definition.encode())
            leaf = "CREATE TABLE public.o PARTITION OF public.orders FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
            nodes["a"].execute(leaf.encode())
            adopt(request, directory, nodes, records, "directory")
        assert closed(settings) == {"a": True, "b": True}
        leadership = directory.campaign("test", 10.0)
        assert leadership is not None
        keeper = ProofKeeper(leadership.epoch, SystemClock())
        snapshot = directory.snapshot()
        assert keeper.keep(snapshot, settings) == 0
        nodes["b"].execute('DROP TRIGGER "!balancer_proof_truncate" ON public.orders')
        assert keeper.keep(snapshot, settings) == 0, "a node that was right is not asked at once"
        assert ProofKeeper(leadership.epoch, SystemClock()).keep(snapshot, settings) == 1
        assert closed(settings) == {"a": True, "b": True}
        off = configured(tmp_path, databases, on=False)
        assert keeper.keep(snapshot, off) == 2
        assert closed(off) == {"a": False, "b": False}
        assert keeper.keep(snapshot, settings) == 2


def test_a_node_out_of_reach_does_not_keep_the_others_from_it(tmp_path: Path, databases: dict[str, Database]) -> None:
    settings = configured(tmp_path, databases, on=False)
    bundle = settings.bundle("shop")
    with open_directory(settings.daemon.directory) as directory, connected(bundle, "test") as nodes:
        definition = "CREATE TABLE public.orders (id bigint PRIMARY KEY) PARTITION BY HASH (id)"
        request = request_of(bundle, "orders", "test")
        create(request, directory, nodes, records_of(bundle), "directory", tablets=2, definition=definition)
        on = configured(tmp_path, databases, on=True)
        broken = configured(tmp_path, {"a": Database(databases["a"].server, "nowhere"), "b": databases["b"]}, on=True)
        leadership = directory.campaign("test", 10.0)
        assert leadership is not None
        keeper = ProofKeeper(leadership.epoch, SystemClock())
        assert keeper.keep(directory.snapshot(), broken) == 1
        assert closed(on) == {"a": False, "b": True}
        assert keeper.keep(directory.snapshot(), on) == 1
        assert closed(on) == {"a": True, "b": True}
