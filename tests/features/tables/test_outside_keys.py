"""A table whose foreign keys tie it to rows that stay behind is not taken over, and a dry run says the same."""

from collections.abc import Callable

import pytest

from balancer.directory.contract import Directory
from balancer.directory.model import Node
from balancer.errors import Refused
from balancer.features.tables.adopt import TableRequest, adopt, inspect
from balancer.features.tables.create import create
from balancer.naming import Name, parse_name
from balancer.nodes.session.connection import Connection

Nodes = dict[str, Connection]
ORDERS = """
    CREATE TABLE orders (id bigint PRIMARY KEY, other bigint) PARTITION BY HASH (id);
    CREATE TABLE orders_1 PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0);
"""


def wanted(*roots: str, others: frozenset[Name] = frozenset()) -> TableRequest:
    return TableRequest("shop", "orders", tuple(map(parse_name, roots)), "hash", ("id",), "test", others)


def refused(action: Callable[[], object], directory: Directory, nodes: Nodes) -> str:
    """Why; nothing may have happened."""
    with pytest.raises(Refused) as caught:
        action()
    assert directory.snapshot().version == 0
    assert nodes["b"].execute("SELECT to_regclass('orders')").fetchone() == (None,)
    return str(caught.value)


@pytest.mark.parametrize("home", ["a", "b"])
@pytest.mark.parametrize("referenced", ["orders", "orders_1"])
def test_a_key_from_a_table_that_would_stay_behind(
    nodes: Nodes, directory: Directory, records: list[Node], home: str, referenced: str
) -> None:
    nodes[home].execute(ORDERS + f'CREATE TABLE audit (n int, "order" bigint REFERENCES {referenced} (id))')
    request = wanted("orders")
    for action in (lambda: inspect(request, nodes), lambda: adopt(request, directory, nodes, records, "shop")):
        with pytest.raises(Refused, match=rf"on node {home}: foreign key audit_order_fkey of public.audit points to"):
            action()
    assert directory.snapshot().version == 0


def test_a_key_between_colocated_roots_that_does_not_pair_their_keys(
    nodes: Nodes, directory: Directory, records: list[Node]
) -> None:
    nodes["a"].execute(ORDERS + "ALTER TABLE orders ADD CONSTRAINT parent FOREIGN KEY (other) REFERENCES orders (id)")
    text = refused(lambda: adopt(wanted("orders"), directory, nodes, records, "shop"), directory, nodes)
    assert "foreign key parent of public.orders points to rows of other tablets" in text


def test_a_key_to_another_sharded_table(nodes: Nodes, directory: Directory, records: list[Node]) -> None:
    for connection in nodes.values():
        connection.execute("CREATE TABLE users (id bigint PRIMARY KEY) PARTITION BY HASH (id)")
    nodes["a"].execute(ORDERS + "ALTER TABLE orders ADD CONSTRAINT who FOREIGN KEY (other) REFERENCES users (id)")
    request = wanted("orders", others=frozenset({Name("public", "users")}))
    text = refused(lambda: inspect(request, nodes), directory, nodes)
    assert "foreign key who of public.orders points to public.users, which is another sharded table" in text


def test_a_key_to_a_table_that_is_not_on_the_other_node(nodes: Nodes, directory: Directory) -> None:
    nodes["a"].execute(
        ORDERS + "CREATE TABLE kinds (id bigint PRIMARY KEY);"
        "ALTER TABLE orders ADD CONSTRAINT kind FOREIGN KEY (other) REFERENCES kinds (id)"
    )
    text = refused(lambda: inspect(wanted("orders"), nodes), directory, nodes)
    assert text == 'table orders cannot be made on node b: node b refuses: relation "public.kinds" does not exist'
    nodes["b"].execute("CREATE TABLE kinds (id bigint PRIMARY KEY)")
    assert len(inspect(wanted("orders"), nodes).tablets) == 1
    assert nodes["b"].execute("SELECT to_regclass('orders')").fetchone() == (None,)


def test_a_definition_with_such_a_key_makes_nothing(nodes: Nodes, directory: Directory, records: list[Node]) -> None:
    definition = ORDERS.split(";", maxsplit=1)[0] + "; CREATE TABLE audit (n int, o bigint REFERENCES orders (id))"
    with pytest.raises(Refused, match=r"foreign key audit_o_fkey of public\.audit"):
        create(wanted("orders"), directory, nodes, records, "shop", tablets=2, definition=definition)
    for connection in nodes.values():
        assert connection.execute("SELECT to_regclass('orders')").fetchone() == (None,)


def test_keys_among_colocated_roots_are_welcome(nodes: Nodes, directory: Directory, records: list[Node]) -> None:
    nodes["a"].execute(
        ORDERS + "CREATE TABLE items (id bigint REFERENCES orders, n int, PRIMARY KEY (id, n)) PARTITION BY HASH (id);"
        "CREATE TABLE items_1 PARTITION OF items FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
    )
    assert len(adopt(wanted("orders", "items"), directory, nodes, records, "shop").tablets) == 1
