"""docs/applications.md: every block of Python is run as it stands, or at least parses."""

import ast
import asyncio
import re
from pathlib import Path

import pytest

from balancer.client.testing import PracticeCluster
from balancer.embedded.postgres import PostgresServer
from tests.support.servers import new_database
from tests.support.shards import Shards

PAGE = (Path(__file__).parents[2] / "docs" / "applications.md").read_text()
BLOCKS = re.findall(r"(?:<!-- (run[a-z ]*) -->\n)?```python\n(.*?)```", PAGE, re.DOTALL)


def marked(mark: str) -> list[str]:
    return [text for word, text in BLOCKS if word == mark]


@pytest.mark.quick
def test_every_block_parses() -> None:
    assert len(BLOCKS) == PAGE.count("```python") > 5
    for _, text in BLOCKS:
        ast.parse(text)


def test_blocks_run_in_their_order(shards: Shards) -> None:
    assert len(marked("run")) >= 2
    for text in marked("run"):
        exec(compile(text, "applications.md", "exec"), {"url": shards.url, "user_id": 42, "asyncio": asyncio})
    rows = [row for node in shards.dsns for row in shards.node(node).execute("SELECT n, note FROM orders ORDER BY n")]
    assert rows == [(1, "paid"), (2, "renamed"), (3, "")]


def test_a_block_on_plain_tables(postgres18: PostgresServer) -> None:
    (text,) = marked("run on plain tables")
    with new_database(postgres18) as plain:
        with plain.connect() as connection:
            connection.execute("CREATE TABLE orders (user_id bigint, n bigint)")
        exec(compile(text, "applications.md", "exec"), {"dsn": plain.dsn, "user_id": 42})
        with plain.connect() as connection:
            assert connection.execute("SELECT user_id, n FROM orders").fetchall() == [(42, 1)]


def test_a_block_that_is_a_test(balancer_cluster: PracticeCluster) -> None:
    (text,) = marked("run as a test")
    names: dict[str, object] = {}
    exec(compile(text, "applications.md", "exec"), names)
    test = names["test_orders_survive_a_move"]
    assert callable(test)
    test(balancer_cluster)
