"""Questions to every tablet, many rows into a table, and rows whose key changes, while tablets move."""

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from balancer.client import Router, Shard, shard_steps, summed, top
from balancer.client.shard_steps import tablet_finder
from balancer.directory.locate import Location
from balancer.errors import Unavailable, UserError
from balancer.naming import Name
from balancer.nodes.schema.proof import set_proof
from tests.support.fleet import until
from tests.support.shards import Shards, user_of

COUNT = "SELECT count(*), sum(n) FROM {orders}"
ROWS = [(number, number % 7, f"note {number}") for number in range(2000)]


@pytest.fixture
def filled(shards: Shards, router: Router) -> Router:
    assert router.copy_into("orders", iter(ROWS), ["user_id", "n", "note"], batch=300) == len(ROWS)
    assert shards.count() == len(ROWS)
    return router


def whole(router: Router) -> tuple[object, ...]:
    return summed(router.map("orders", COUNT))


def test_every_tablet_answers_once(filled: Router, shards: Shards) -> None:
    answers = list(filled.map("orders", COUNT))
    assert sorted(answer.tablet for answer in answers) == sorted(tablet.id for tablet in shards.tablets())
    assert {answer.tablet: answer.node for answer in answers} == {one.id: one.node for one in shards.tablets()}
    assert summed(answers) == (2000, sum(row[1] for row in ROWS))


def test_a_moved_tablet_is_asked_where_it_went_and_its_former_owner_not_at_all(filled: Router, shards: Shards) -> None:
    before = whole(filled)
    other = next(node for node in shards.dsns if node != shards.tablet(1).node)
    moved = shards.tablet(1)
    shards.copy(1, other)
    fence = shards.fence(1)
    shards.seal(1, fence)
    after = shards.commit(1, other)
    shards.open(after)
    assert shards.node(moved.node).execute("SELECT count(*) > 0 FROM orders_t1").fetchone() == (True,)
    answers = list(filled.map("orders", COUNT))
    assert summed(answers) == before
    assert next(answer.node for answer in answers if answer.tablet == 1) == other


def test_a_former_owner_that_an_old_map_names_is_not_believed(
    filled: Router, shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still has the rows as they were; what was written since is at the new owner."""
    former, real = shards.tablet(1), tablet_finder
    other = next(node for node in shards.dsns if node != former.node)
    fence = shards.fence(1)
    shards.copy(1, other)
    shards.seal(1, fence)
    shards.open(shards.commit(1, other))
    shards.node(other).execute("INSERT INTO orders VALUES (%s, 1000000)", (user_of(shards, 1),))
    until(lambda: filled.snapshot.tablet(1).node == other, 10, "the router to know")
    asked: list[int] = []

    def old_map(newest: Any, tablet: int) -> Any:
        def find() -> tuple[int, Location]:
            asked.append(tablet)
            if asked.count(1) <= 2 and tablet == 1:  # once for the group, once by itself
                return 0, Location(former.node, 1, former.epoch)
            return real(newest, tablet)()

        return find

    monkeypatch.setattr(shard_steps, "tablet_finder", old_map)
    assert whole(filled) == (2001, sum(row[1] for row in ROWS) + 1_000_000)
    assert asked.count(1) >= 3, "the former owner was asked, and refused"


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message for each tablet: else those of a node are asked before a test can do anything between them."""
    monkeypatch.setattr(shard_steps, "MOST_TOGETHER", 1)


@pytest.mark.usefixtures("one_by_one")
def test_one_that_is_split_before_it_is_asked_answers_in_parts(filled: Router, shards: Shards) -> None:
    before = whole(filled)
    answers = filled.map("orders", COUNT, at_once=1)
    first = next(answers)
    untouched = next(tablet.id for tablet in reversed(shards.tablets()) if tablet.id != first.tablet)
    with shards.leading() as migrate:
        assert migrate.split(untouched).state == "done"
    found = [first, *answers]
    assert untouched not in {answer.tablet for answer in found}
    assert summed(found) == before


@pytest.mark.usefixtures("one_by_one")
def test_one_that_is_merged_with_one_that_has_answered_ends_the_question(filled: Router, shards: Shards) -> None:
    with shards.leading() as migrate:
        migrate.split(1)
        parts = [tablet.id for tablet in shards.tablets() if tablet.id > 4]
        until(lambda: filled.snapshot.find_tablet(parts[0]), 30, "the router to know them")
        asked = filled.map("orders", COUNT, at_once=1)
        while next(asked).tablet not in parts:
            pass
        assert migrate.merge(parts).state == "done"
    with pytest.raises(Unavailable, match=r"was merged with others .* tablets had answered"):
        list(asked)


def test_values_and_braces_of_a_statement(filled: Router) -> None:
    answers = filled.map("orders", "SELECT user_id, note FROM {public.orders} WHERE n = %s AND note LIKE '%%9'", (3,))
    rows = [row for answer in answers for row in answer.rows]
    assert sorted(rows) == [(one, note) for one, n, note in ROWS if n == 3 and note.endswith("9")]
    quoted = filled.map("orders", "SELECT '{{}}'::int[], %(what)s FROM {orders} LIMIT 1", {"what": "it's; DROP"})
    assert all(answer.rows == [([], "it's; DROP")] for answer in quoted)
    with pytest.raises(UserError, match=r"write \{public.orders\}, \{orders\}"):
        list(filled.map("orders", "SELECT * FROM {elsewhere}"))


@pytest.mark.parametrize("at_once", [1, 8], ids=["together", "one by one"])
def test_a_statement_may_have_comments_and_cannot_end_its_transaction(
    filled: Router, shards: Shards, at_once: int
) -> None:
    """What followed the end would be unproven, and could write."""
    commented = "SELECT count(*), 'a; COMMIT' FROM {orders} /* END; */ -- all; COMMIT"
    answers = list(filled.map("orders", commented, at_once=at_once))
    assert sum(answer.rows[0][0] for answer in answers) == len(ROWS)
    for text in ("COMMIT; DELETE FROM {orders}", "SELECT 1 FROM {orders}; /* so */ rollback; DELETE FROM {orders}"):
        with pytest.raises(UserError, match="leave COMMIT and ROLLBACK to the router"):
            list(filled.map("orders", text, at_once=at_once))
    assert shards.count() == len(ROWS)


@pytest.mark.parametrize("at_once", [0, -1])
def test_nobody_asks_no_tablet_at_a_time(router: Router, at_once: int) -> None:
    with pytest.raises(UserError, match=f"at_once is {at_once}; at least one tablet must be asked at a time"):
        list(router.map("orders", COUNT, at_once=at_once))


def test_an_error_of_the_statement_is_the_callers(filled: Router) -> None:
    with pytest.raises(psycopg.errors.UndefinedColumn):
        list(filled.map("orders", "SELECT nothing FROM {orders}"))
    assert whole(filled)[0] == 2000, "connections are as good as before"


def test_top_of_all_tablets(filled: Router) -> None:
    asked = filled.map("orders", "SELECT user_id FROM {orders} ORDER BY user_id DESC LIMIT 5")
    assert top(asked, 5, key=lambda row: row[0]) == [(number,) for number in range(1999, 1994, -1)]


def test_scan_streams_every_row_and_may_be_left_early(filled: Router) -> None:
    rows = filled.scan("orders", "SELECT user_id, n, note FROM {orders}")
    assert sorted(rows) == ROWS
    begun = filled.scan("orders", "SELECT user_id FROM {orders} CROSS JOIN generate_series(1, 200)", at_once=2)
    assert next(begun)
    begun.close()
    assert whole(filled)[0] == 2000


def test_each_may_write(filled: Router, shards: Shards) -> None:
    changed = filled.each(
        "orders",
        lambda shard, connection: connection.execute(shard.format("UPDATE {orders} SET n = n + 100")).rowcount,
        read_only=False,
    )
    assert sum(changed) == 2000
    assert shards.count() == 2000
    assert whole(filled) == (2000, sum(row[1] for row in ROWS) + 200_000)


@pytest.mark.parametrize("text", ["COMMIT", "COMMIT AND CHAIN", "ROLLBACK; BEGIN"])
def test_a_function_of_each_cannot_end_its_transaction_and_go_on(filled: Router, shards: Shards, text: str) -> None:
    """The tablet may be on its way then: what followed would be unproven."""

    def end(shard: Shard, connection: psycopg.Connection[Any]) -> None:
        with suppress(UserError):
            connection.execute(text.encode())
        connection.execute(shard.format("DELETE FROM {orders}"))

    with pytest.raises(UserError, match="leave COMMIT and ROLLBACK to the router"):
        list(filled.each("orders", end, read_only=False))
    assert shards.count() == len(ROWS)


def test_rows_that_a_switch_has_refused_are_sent_to_the_new_owner(shards: Shards, router: Router) -> None:
    other = next(node for node in shards.dsns if node != shards.tablet(1).node)

    def rows() -> object:
        for at, row in enumerate(ROWS):
            if at == 1000:
                shards.switch(1, other)
            yield row

    assert router.copy_into("orders", rows(), ["user_id", "n", "note"], batch=250) == 2000  # type: ignore[arg-type]
    assert whole(router) == (2000, sum(row[1] for row in ROWS))


def test_a_load_proves_every_tablet_that_it_writes_to(shards: Shards, router: Router) -> None:
    """Roots that take only proven writes take it."""
    for name in shards.dsns:
        with shards.node(name).transaction(), shards.node(name).cursor() as cursor:
            set_proof(cursor, [Name("public", "orders")], wanted=True)
    assert router.copy_into("orders", ROWS, ["user_id", "n", "note"], batch=500) == 2000
    assert shards.count() == 2000


def test_what_cannot_be_loaded_is_said(router: Router, shards: Shards) -> None:
    with pytest.raises(UserError, match="the rows lack user_id"):
        router.copy_into("orders", ROWS, ["n", "note"])
    with pytest.raises(UserError, match="has no root 'nothing'"):
        router.copy_into("orders", ROWS, ["user_id"], root="nothing")
    with pytest.raises(psycopg.errors.UniqueViolation):
        router.copy_into("orders", [*ROWS, ROWS[0]], ["user_id", "n", "note"])
    assert shards.count() in range(2000), "the batch of one node may be there, the other is not"


def test_a_key_changes_with_all_its_rows(shards: Shards, router: Router, tmp_path: Path) -> None:
    old = user_of(shards, 1)
    new = user_of(shards, next(one.id for one in shards.tablets() if one.node != shards.tablet(1).node))
    odd = "it's \"(,)\\ odd"
    with router.transaction("orders", old) as connection:
        for n in range(3):
            connection.execute("INSERT INTO orders VALUES (%s, %s, %s)", (old, n, odd))
        connection.execute("INSERT INTO items VALUES (%s, 1, '')", (old,))
    assert router.rekey("orders", old, new) == 4
    assert [shards.count(old), shards.count(old, "items")] == [0, 0]
    there = shards.node(router.locate("orders", new).node)
    rows = there.execute("SELECT n, note FROM orders WHERE user_id = %s ORDER BY n", (new,)).fetchall()
    assert rows == [(n, odd) for n in range(3)]
    assert shards.count(new, "items") == 1
    assert router.rekey("orders", old, new) == 0
    with router.transaction("orders", old) as connection:
        connection.execute("INSERT INTO orders VALUES (%s, 0, 'in the way')", (old,))
    with pytest.raises(psycopg.errors.UniqueViolation):
        router.rekey("orders", new, old)
    assert [shards.count(old), shards.count(new)] == [1, 3], "all or nothing"
    with pytest.raises(UserError, match="nothing would change"):
        router.rekey("orders", old, old)


def test_answers_add_up_in_any_order(filled: Router) -> None:
    answers = list(filled.map("orders", "SELECT count(*), max(n), NULL::int FROM {orders}"))
    random.Random(7).shuffle(answers)
    assert summed(answers)[0] == 2000
    assert summed(answers)[2] is None
    assert summed([]) == ()
