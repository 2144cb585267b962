"""Each kind of finding, by the very defect planted on real servers: named with tablet, node, root, count and advice."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from decimal import Decimal

import psycopg
import pytest

from balancer.directory.snapshot import BLOCK
from balancer.nodes.schema.install import OwnedTablet, OwnState
from balancer.nodes.session.connection import Connection
from balancer.policies.check_options import CheckKind, CheckOptions, IdColumn, Invariant, OrphanRule
from balancer.policies.checking import Anomaly
from tests.support.checking import anomalies, checked, checker_of, run_round
from tests.support.shards import Shards, leaves, record, user_of

ORPHANS = OrphanRule("items", ("user_id", "n"), "orders")


def only(found: list[Anomaly]) -> Anomaly:
    (one,) = found
    return one


def of(*kinds: CheckKind) -> CheckOptions:
    return CheckOptions(kinds=kinds)


@contextmanager
def replica(node: Connection) -> Iterator[Connection]:
    """Writes as replication does: triggers, and so foreign keys, are off."""
    node.execute("SET session_replication_role = replica")
    yield node
    node.execute("RESET session_replication_role")


def test_a_sound_cluster_has_no_findings(shards: Shards) -> None:
    options = CheckOptions(orphans=(ORPHANS,))
    with checker_of(shards, options) as checker:
        book = run_round(checker)
    assert anomalies(book) == []
    assert book.round is not None
    assert book.round.why == ()
    assert book.round.rows >= 2 * 2 * 60, "every row of both roots was read for its bounds"
    assert set(book.ended) == set(map(str, CheckKind))
    assert [past.anomalies for past in book.past] == [0]


@contextmanager
def row_out_of_bounds(shards: Shards, tablet: int, root: int) -> Iterator[int]:
    """A row in a partition whose bounds do not have it: as PostgreSQL has it after a wrong ATTACH."""
    node, leaf = shards.node(shards.tablet(tablet).node), leaves(tablet)[root]
    name = ("orders", "items")[root]
    stranger = user_of(shards, tablet % 8 + 1)
    bounds = shards.tablet(tablet).bounds
    node.execute(f"ALTER TABLE {name} DETACH PARTITION {leaf}")
    node.execute(f"INSERT INTO {leaf} VALUES (%s, 99, 'planted'), (%s, 98, 'planted')", (stranger, stranger))
    arguments = f"'{name}'::regclass, {bounds.modulus}, {bounds.remainder}, user_id"  # type: ignore[union-attr]
    check = f"CHECK (satisfies_hash_partition({arguments})) NOT VALID"
    node.execute(f"ALTER TABLE {leaf} ADD CONSTRAINT believed {check}")
    node.execute("UPDATE pg_constraint SET convalidated = true WHERE conname = 'believed'")
    if node.info.server_version >= 180000:
        node.execute("UPDATE pg_constraint SET conenforced = true WHERE conname = 'believed'")
    values = f"FOR VALUES WITH (MODULUS {bounds.modulus}, REMAINDER {bounds.remainder})"  # type: ignore[union-attr]
    node.execute(f"ALTER TABLE {name} ATTACH PARTITION {leaf} {values}")
    node.execute(f"ALTER TABLE {leaf} DROP CONSTRAINT believed")
    try:
        yield stranger
    finally:
        node.execute(f"DELETE FROM {leaf} WHERE n >= 98")


@pytest.mark.parametrize(("tablet", "root"), [(1, 0), (2, 1)], ids=["postgres15", "postgres18"])
def test_rows_outside_of_their_leafs_bounds(shards: Shards, tablet: int, root: int) -> None:
    options = of(CheckKind.BOUNDS)
    with row_out_of_bounds(shards, tablet, root) as stranger:
        found = only(checked(shards, options))
    owner = shards.tablet(tablet).node
    assert (found.kind, found.tablet, found.node, found.count) == (CheckKind.BOUNDS, tablet, owner, 2)
    assert found.root == f"public.{('orders', 'items')[root]}"
    assert f"({stranger})" in found.text
    assert "balancer route orders KEY" in found.advice
    assert checked(shards, options) == []


def test_a_node_that_claims_what_another_owns(shards: Shards) -> None:
    options = of(CheckKind.MAP)
    stranger = next(node for node in shards.dsns if node != shards.tablet(3).node)
    record(shards.node(stranger), OwnedTablet(3, 1, OwnState.OWNED, leaves(3)))
    found = only(checked(shards, options))
    assert (found.kind, found.tablet, found.node, found.table) == (CheckKind.MAP, 3, stranger, "orders")
    assert "claimed here with epoch 1" in found.text
    assert found.advice == f"balancer doctor --node {stranger}"
    shards.node(stranger).execute("DELETE FROM balancer.tablet WHERE id = 3")
    assert checked(shards, options) == []


def test_a_tablet_that_is_not_attached_on_its_owner(shards: Shards) -> None:
    node, leaf = shards.node(shards.tablet(4).node), leaves(4)[1]
    node.execute(f"ALTER TABLE items DETACH PARTITION {leaf}")
    found = only(checked(shards, of(CheckKind.MAP)))
    assert (found.tablet, found.node) == (4, shards.tablet(4).node)
    assert f"partition {leaf} of tablet 4 is not attached" in found.text.replace("Name", "")
    bounds = shards.tablet(4).bounds
    values = f"FOR VALUES WITH (MODULUS {bounds.modulus}, REMAINDER {bounds.remainder})"  # type: ignore[union-attr]
    node.execute(f"ALTER TABLE items ATTACH PARTITION {leaf} {values}")


def test_rows_of_one_key_on_two_nodes(shards: Shards) -> None:
    """A partition that somebody has restored and attached by hand, where its keys are not owned."""
    options = of(CheckKind.STRAYS)
    tablet = shards.tablet(5)
    stranger = next(node for node in shards.dsns if node != tablet.node)
    node, user = shards.node(stranger), user_of(shards, 5)
    values = f"FOR VALUES WITH (MODULUS {tablet.bounds.modulus}, REMAINDER {tablet.bounds.remainder})"  # type: ignore[union-attr]
    node.execute(f"CREATE TABLE restored PARTITION OF orders {values}")
    try:
        empty = only(checked(shards, options))
        assert (empty.tablet, empty.count) == (5, 0), "it takes rows, and has none yet"
        node.execute("INSERT INTO orders VALUES (%s, 1, 'twice')", (user,))
        found = only(checked(shards, options))
        assert (found.tablet, found.node, found.root, found.count) == (5, stranger, "public.orders", 1)
        assert f"tablet 5 of node {tablet.node}" in found.text
        assert "of 1 keys that were looked up 1 are there, too" in found.text
        assert "DETACH PARTITION public.restored" in found.advice
    finally:
        node.execute("DROP TABLE restored")
    assert checked(shards, options) == []


def test_colocated_rows_without_their_parents(shards: Shards) -> None:
    options = replace(of(CheckKind.ORPHANS), orphans=(ORPHANS,))
    tablet, user = shards.tablet(6), user_of(shards, 6)
    node = shards.node(tablet.node)
    node.execute("INSERT INTO items VALUES (%s, 50, 'an orphan'), (%s, 51, 'another')", (user, user))
    found = only(checked(shards, options))
    assert (found.tablet, found.node, found.root, found.count) == (6, tablet.node, "public.items", 2)
    assert f"({user},50)" in found.text
    assert "bring the rows of public.orders back" in found.advice
    node.execute("DELETE FROM items WHERE n >= 50")
    assert checked(shards, options) == []


def test_orphans_of_a_foreign_key_that_was_not_enforced(shards: Shards) -> None:
    """Nobody has to declare it: rows that came with triggers off were not checked."""
    options = of(CheckKind.ORPHANS)
    tablet, user = shards.tablet(7), user_of(shards, 7)
    for name in shards.dsns:
        shards.node(name).execute(
            "ALTER TABLE items ADD CONSTRAINT of_an_order FOREIGN KEY (user_id, n) REFERENCES orders (user_id, n)"
        )
    try:
        assert checked(shards, options) == []
        with replica(shards.node(tablet.node)) as node:
            node.execute("INSERT INTO items VALUES (%s, 50, 'an orphan')", (user,))
        found = only(checked(shards, options))
        assert (found.tablet, found.node, found.root, found.count) == (7, tablet.node, "public.items", 1)
        shards.node(tablet.node).execute("DELETE FROM items WHERE n >= 50")
    finally:
        for name in shards.dsns:
            shards.node(name).execute("ALTER TABLE items DROP CONSTRAINT of_an_order")


def test_sequences_that_hand_out_the_same_numbers(shards: Shards) -> None:
    options = of(CheckKind.SEQUENCES)
    add = "ALTER TABLE orders ADD COLUMN number bigint NOT NULL DEFAULT 0"
    for place, name in enumerate(shards.dsns):
        node = shards.node(name)
        node.execute(add)
        node.execute(f"CREATE SEQUENCE numbers INCREMENT BY 3 START WITH {place + 1}".encode())
        node.execute("ALTER TABLE orders ALTER COLUMN number SET DEFAULT nextval('numbers')")
    try:
        assert checked(shards, options) == [], "each node has a remainder of its own"
        shards.node("pg-c").execute("ALTER SEQUENCE numbers RESTART WITH 1")
        found = only(checked(shards, options))
        assert (found.table, found.root, found.node) == ("orders", "public.orders", "pg-a, pg-c")
        assert "public.numbers" in found.text
        assert "INCREMENT BY 3" in found.advice
    finally:
        for name in shards.dsns:
            shards.node(name).execute("ALTER TABLE orders DROP COLUMN number")
            shards.node(name).execute("DROP SEQUENCE numbers")


def test_ids_that_the_directory_will_hand_out_again(shards: Shards) -> None:
    """As after the import of an old export: blocks that were taken since are taken a second time."""
    options = replace(of(CheckKind.IDS), ids=(IdColumn("orders", "n"),))
    assert checked(shards, options) == []
    tablet, user = shards.tablet(2), user_of(shards, 2)
    node = shards.node(tablet.node)
    node.execute("INSERT INTO orders VALUES (%s, %s)", (user, 3 * BLOCK))
    found = only(checked(shards, options))
    assert (found.tablet, found.node, found.root) == (2, tablet.node, "public.orders")
    assert str(3 * BLOCK) in found.text
    node.execute("DELETE FROM orders WHERE n > 1000")
    assert checked(shards, options) == []


@pytest.fixture
def auditor(shards: Shards) -> Iterator[str]:
    """A role that may read and nothing else."""
    for name in shards.dsns:
        with suppress(psycopg.errors.DuplicateObject):  # roles are the server's, and two nodes share one
            shards.node(name).execute("CREATE ROLE auditor")
        shards.node(name).execute("GRANT pg_read_all_data TO auditor")
    yield "auditor"
    for name in shards.dsns:
        with suppress(psycopg.errors.UndefinedObject):
            shards.node(name).execute("REVOKE pg_read_all_data FROM auditor; DROP OWNED BY auditor")
    for name in shards.dsns:
        with suppress(psycopg.errors.UndefinedObject, psycopg.errors.DependentObjectsStillExist):
            shards.node(name).execute("DROP ROLE auditor")


def test_an_invariant_of_the_applications_own(shards: Shards, auditor: str) -> None:
    promise = Invariant("no notes are empty", "orders", "SELECT user_id, n FROM {orders} WHERE note = ''")
    options = replace(of(CheckKind.INVARIANTS), role=auditor, invariants=(promise,))
    assert checked(shards, options) == []
    tablet, user = shards.tablet(8), user_of(shards, 8)
    shards.node(tablet.node).execute("INSERT INTO orders VALUES (%s, 70, ''), (%s, 71, '')", (user, user))
    found = only(checked(shards, options))
    assert (found.tablet, found.node, found.root, found.count) == (8, tablet.node, "public.orders", 2)
    assert "'no notes are empty' does not hold on tablet 8" in found.text
    assert f"({user},70)" in found.text
    shards.node(tablet.node).execute("DELETE FROM orders WHERE n >= 70")
    assert checked(shards, options) == []


def test_a_sum_over_all_shards_that_must_not_change(shards: Shards, auditor: str) -> None:
    total = Invariant("rows are forever", "orders", sum="SELECT count(*) FROM {orders}")
    options = replace(of(CheckKind.SUMS), role=auditor, invariants=(total,))
    tablet, user = shards.tablet(1), user_of(shards, 1)
    with checker_of(shards, options) as checker:
        assert anomalies(run_round(checker)) == []
        assert list(checker.book.sums.values()) == ["120"]
        shards.node(tablet.node).execute("INSERT INTO orders VALUES (%s, 80, 'planted')", (user,))
        found = only(anomalies(run_round(checker)))
        assert "is 121 over all tablets of table orders, and was 120" in found.text
        shards.node(tablet.node).execute("DELETE FROM orders WHERE n >= 80")
        assert anomalies(run_round(checker)) == []
    fixed = replace(options, invariants=(replace(total, equals=Decimal("119.0")),))
    assert "must be 119.0" in only(checked(shards, fixed)).text


def test_what_cannot_be_looked_at_is_said_and_clears_nothing(shards: Shards) -> None:
    promise = Invariant("slow", "orders", "SELECT pg_sleep(5) FROM {orders}")
    options = replace(of(CheckKind.INVARIANTS), statement_timeout=0.05, invariants=(promise,))
    with checker_of(shards, options, trusted=True) as checker:
        book = run_round(checker)
    assert anomalies(book) == []
    assert book.round is not None
    assert len(book.round.unchecked["invariants"]) == 8
    assert "did not answer within the time allowed" in book.round.why[0]
