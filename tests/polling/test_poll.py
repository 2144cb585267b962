"""One poll sees every partition's size, rows and counters, the server's facts, and what the node claims."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from balancer.naming import Name
from balancer.nodes.schema.install import OwnedTablet, OwnState, install_schema, write_tablets
from balancer.nodes.session.connection import Address, Connection, Timeouts
from balancer.polling.node_poll import Claim, NodePoll, PartitionStats, poll_node, read_partitions
from tests.nodes.conftest import address as address
from tests.nodes.conftest import connection as connection
from tests.nodes.conftest import shared as shared
from tests.support.opening import connect

ODD = "it's {} %s \" \\ odd"
ROOTS = [Name("public", "orders"), Name("public", "Items"), Name("public", "not there")]


@pytest.fixture
def tables(connection: Connection) -> Connection:
    connection.execute(
        """
        CREATE TABLE orders (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
        CREATE TABLE low PARTITION OF orders FOR VALUES FROM (MINVALUE) TO (100);
        CREATE TABLE high PARTITION OF orders FOR VALUES FROM (100) TO (MAXVALUE);
        CREATE TABLE "Items" (id int) PARTITION BY RANGE (id);
        CREATE TABLE items_low PARTITION OF "Items" FOR VALUES FROM (MINVALUE) TO (100);
        """
    )
    return connection


def until(connection: Connection, reached: Callable[[NodePoll], bool]) -> NodePoll:
    """The first poll that shows it: counters arrive some time after the transaction."""
    for _ in range(100):
        poll = poll_node(connection, ROOTS)
        if reached(poll):
            return poll
        time.sleep(0.1)
    raise AssertionError(f"not seen within ten seconds: {poll}")


def by_name(poll: NodePoll) -> dict[str, PartitionStats]:
    return {partition.name: partition for partition in poll.partitions}


def test_partitions_are_measured(tables: Connection, address: Address) -> None:
    with connect(address) as writer:
        writer.execute("ALTER TABLE low ALTER note SET STORAGE EXTERNAL")
        writer.execute("INSERT INTO orders SELECT n, repeat('x', 5000) FROM generate_series(0, 49) n")
        writer.execute("UPDATE orders SET note = note WHERE id < 10")
        writer.execute("DELETE FROM orders WHERE id = 0")
        writer.execute("SET enable_seqscan = off")
        writer.execute("SELECT * FROM orders WHERE id = 7")
    poll = until(tables, lambda poll: by_name(poll)["low"].deleted == 1)
    low, high = by_name(poll)["low"], by_name(poll)["high"]
    assert (low.inserted, low.updated, low.deleted, low.rows) == (50, 10, 1, 49)
    assert low.index_reads >= 1
    assert low.heap_bytes > 0
    assert low.toast_bytes >= 49 * 5000
    assert low.index_bytes > 0
    assert (high.inserted, high.heap_bytes, high.root, low.root) == (0, 0, 0, 0)
    assert by_name(poll)["items_low"].root == 1
    sizes = tables.execute(
        "SELECT pg_relation_size('low') + pg_relation_size(reltoastrelid) + pg_relation_size('low_pkey')"
        " FROM pg_class WHERE relname = 'low'"
    ).fetchone()
    assert sizes == (low.bytes,)


def test_the_databases_size_is_measured_or_summed_up(tables: Connection, address: Address) -> None:
    whole = poll_node(tables, ROOTS)
    assert tables.execute("SELECT pg_database_size(current_database())").fetchone() == (whole.facts.database_bytes,)
    others = whole.facts.database_bytes - whole.partitions.bytes()
    with connect(address) as writer:
        writer.execute("INSERT INTO orders SELECT n, repeat('x', 1000) FROM generate_series(0, 4999) n")
    summed = poll_node(tables, ROOTS, others)
    assert summed.facts.database_bytes == others + summed.partitions.bytes()
    assert summed.facts.database_bytes > whole.facts.database_bytes + 4_000_000


def test_the_servers_facts_are_there(tables: Connection) -> None:
    slot = f"slot_{tables.info.dbname}"
    tables.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    try:
        tables.execute("CREATE TABLE wal AS SELECT generate_series(1, 1000)")
        facts = poll_node(tables, ROOTS).facts
    finally:
        tables.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    assert facts.version == tables.info.server_version
    assert not facts.in_recovery
    assert facts.now > facts.started
    assert facts.database_bytes > 1_000_000
    assert 0 < facts.connections < facts.max_connections
    mine = next(found for found in facts.slots if found.name == slot)
    assert mine.logical
    assert not mine.active
    assert mine.retained_bytes > 10_000
    assert mine.wal_status == "reserved"


def test_claims_are_read_once_our_schema_is_there(tables: Connection) -> None:
    poll = poll_node(tables, ROOTS)
    assert (poll.identity, len(poll.claims)) == (None, 0)
    install_schema(tables, "shop", "a")
    with tables.cursor() as cursor:
        write_tablets(
            cursor, [OwnedTablet(1, 2, OwnState.OWNED, ()), OwnedTablet(2, 3, OwnState.MOVED, (), moved_to="b")]
        )
    poll = poll_node(tables, ROOTS)
    assert poll.identity is not None
    assert poll.identity.node == "a"
    assert set(poll.claims) == {Claim(1, 2, OwnState.OWNED, None), Claim(2, 3, OwnState.MOVED, "b")}


def test_a_locked_partition_does_not_hold_up_the_poll(tables: Connection, address: Address) -> None:
    tables.execute("INSERT INTO orders SELECT generate_series(1, 50)")
    tables.execute("VACUUM ANALYZE low")
    with connect(address, timeouts=Timeouts(lock=0.5)) as other, tables.transaction():
        tables.execute("LOCK TABLE low IN ACCESS EXCLUSIVE MODE")
        assert by_name(poll_node(other, ROOTS))["low"].heap_bytes == 8192


def test_a_default_partition_is_seen(tables: Connection) -> None:
    assert poll_node(tables, ROOTS).defaults == ()
    tables.execute('CREATE TABLE "the {} rest" PARTITION OF "Items" DEFAULT')
    install_schema(tables, "shop", "a")
    assert poll_node(tables, ROOTS).defaults == ((Name("public", "Items"), Name("public", "the {} rest")),)


def test_what_the_node_has_said_before_is_not_sent_again(tables: Connection, address: Address) -> None:
    install_schema(tables, "shop", "a")
    with tables.cursor() as cursor:
        write_tablets(cursor, [OwnedTablet(1, 2, OwnState.OWNED, ())])
    first = poll_node(tables, ROOTS)
    again = poll_node(tables, ROOTS, None, first)
    assert again.partitions is first.partitions
    assert again.claims is first.claims
    with connect(address) as writer:
        writer.execute("INSERT INTO orders VALUES (1), (200)")
        writer.execute("SELECT pg_stat_force_next_flush()" if writer.info.server_version >= 150000 else "SELECT 1")
    grown = poll_node(tables, ROOTS, None, first)
    assert grown.partitions.named is first.partitions.named, "the names are the same"
    assert by_name(grown)["low"].heap_bytes == by_name(grown)["high"].heap_bytes == 8192
    assert list(grown.partitions) == list(poll_node(tables, ROOTS, None, None).partitions)
    tables.execute(f'CREATE TABLE "{ODD.replace(chr(34), chr(34) * 2)}" PARTITION OF "Items" DEFAULT'.encode())
    with tables.cursor() as cursor:
        write_tablets(cursor, [OwnedTablet(2, 3, OwnState.MOVED, (), moved_to="b")])
    named = poll_node(tables, ROOTS, None, grown)
    plain = poll_node(tables, ROOTS)
    assert sorted(by_name(named)) == sorted(by_name(plain)) == sorted(["high", ODD, "items_low", "low"])
    assert list(named.partitions) == list(plain.partitions)
    assert list(named.claims) == list(plain.claims)
    tables.execute("DROP TABLE low, high")
    fewer = poll_node(tables, ROOTS, None, named)
    assert sorted(by_name(fewer)) == sorted([ODD, "items_low"])


@pytest.mark.parametrize("beginning", ["", "0" * 64], ids=["none", "one with a tail"])
def test_a_digest_that_is_none_is_not_sent_to_the_node(tables: Connection, beginning: str) -> None:
    """It is a node's own word: nothing of it may become part of a statement."""
    word = beginning + "'; DROP TABLE low; --"
    first = poll_node(tables, ROOTS)
    for wicked in (
        replace(first, partitions=replace(first.partitions, names_digest=word)),
        replace(first, partitions=replace(first.partitions, numbers_digest=word)),
        replace(first, claims=replace(first.claims, digest=word)),
    ):
        assert list(poll_node(tables, ROOTS, None, wicked).partitions) == list(first.partitions)


def test_an_answer_that_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="1 partitions have names, and 0 have numbers"):
        read_partitions(ROOTS, ("n", "f", [0], ["low"], ""), None)
    with pytest.raises(ValueError, match="do not fit together"):
        read_partitions(ROOTS, ("n", "f", [0], ["low", "high"], ""), None)
