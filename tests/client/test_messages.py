"""Messages to other keys: applied exactly once, in order, whoever dies when and wherever the tablets go meanwhile."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import sleep
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from balancer.client import AsyncRouter, Atomic, PoolSettings, Router
from balancer.clock import SystemClock
from balancer.errors import UserError
from balancer.features.messages import delivery
from balancer.features.messages.service import MessageService
from balancer.naming import Name, parse_name
from balancer.nodes.schema.proof import set_proof
from balancer.nodes.session.connection import Address
from tests.support.mailing import Mailing, mailings
from tests.support.opening import connect
from tests.support.running import until


@pytest.fixture(scope="module")
def mailing(tmp_path_factory: pytest.TempPathFactory, dsns: list[str]) -> Iterator[Mailing]:
    with mailings(tmp_path_factory.mktemp("mailing"), dsns) as made:
        yield made


@pytest.fixture
def pair(mailing: Mailing) -> tuple[int, int]:
    mailing.router._tickets.shunned.clear()  # what other tests have made unreachable
    payer, payee = mailing.users(2)
    return payer, payee


class Lost:
    """The connection breaks right before, or right after, the node has done what has this word in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, word: str, *, done: bool, until: str = "never") -> None:
        self.seen = 0
        self.mended = False
        perform = Router._perform

        def lose(router: Router, request: Any) -> object:
            if until in repr(request):
                self.mended = True
                router._tickets.shunned.clear()
            if self.mended or word not in repr(request):
                return perform(router, request)
            self.seen += 1
            if done:
                perform(router, request)
            request.loan.connection.close()
            raise psycopg.OperationalError("the connection is lost")

        monkeypatch.setattr(Router, "_perform", lose)
        self._mended = monkeypatch, perform

    def mend(self) -> None:
        monkeypatch, perform = self._mended
        monkeypatch.setattr(Router, "_perform", perform)


def test_a_message_is_applied_and_forgotten_by_its_sender(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    mailing.pay(payer, payee, mark="it's 100 %s")
    assert (mailing.book(payer), mailing.book(payee)) == ((95, ""), (105, "it's 100 %s"))
    assert mailing.outbox(payer) == []
    assert mailing.inbox(payee) == [("applied", None)]


def test_nothing_is_sent_by_a_transaction_that_fails(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair

    def fail() -> None:
        with mailing.router.transaction("orders", payer) as connection:
            connection.send("orders", payee, "credit", {"amount": 5, "mark": ""})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    mailing.look()
    assert mailing.book(payee) == (100, "")
    assert mailing.outbox(payer) == []


class Undone(Exception):
    """What an application catches around a savepoint."""


def by_block(connection: Any, work: Callable[[], object]) -> None:
    with suppress(Undone), connection.transaction():
        work()
        raise Undone


def by_text(connection: Any, work: Callable[[], object]) -> None:
    connection.execute("SAVEPOINT mine")
    work()
    connection.execute("ROLLBACK TO mine")


def by_another_cursor(connection: Any, work: Callable[[], object]) -> None:
    with psycopg.ClientCursor(connection) as cursor:
        cursor.execute("SAVEPOINT mine")
        work()
        cursor.execute("/* x */ ROLLBACK WORK TO SAVEPOINT mine; SELECT 1")


UNDO = pytest.mark.parametrize("undo", [by_block, by_text, by_another_cursor])


def check_only_the_second(mailing: Mailing, payer: int, payee: int) -> None:
    mailing.look()
    assert (mailing.book(payer), mailing.book(payee)) == ((99, ""), (101, "second"))
    assert mailing.outbox(payer) == []


@UNDO
@pytest.mark.parametrize("way", ["transaction", "run"])
def test_a_message_that_was_taken_back_by_a_savepoint_is_not_delivered(
    mailing: Mailing, pair: tuple[int, int], undo: Callable[..., None], way: str
) -> None:
    payer, payee = pair

    def work(connection: Any) -> None:
        def pay(amount: int, mark: str) -> None:
            connection.execute("UPDATE orders SET n = n - %s WHERE user_id = %s", (amount, payer))
            connection.send("orders", payee, "credit", {"amount": amount, "mark": mark})

        undo(connection, lambda: pay(50, "first"))
        pay(1, "second")

    if way == "run":
        mailing.router.run("orders", payer, work)
    else:
        with mailing.router.transaction("orders", payer) as connection:
            work(connection)
    check_only_the_second(mailing, payer, payee)


@UNDO
def test_a_message_of_an_atomic_transaction_that_was_taken_back_is_not_delivered(
    mailing: Mailing, pair: tuple[int, int], undo: Callable[..., None]
) -> None:
    payer, payee = pair
    with mailing.router.atomic() as tx:

        def pay(amount: int, mark: str) -> None:
            tx.on("orders", payer).execute("UPDATE orders SET n = n - %s WHERE user_id = %s", (amount, payer))
            tx.send("orders", payee, "credit", {"amount": amount, "mark": mark}, sender=("orders", payer))

        undo(tx.on("orders", payer), lambda: pay(50, "first"))
        pay(1, "second")
    check_only_the_second(mailing, payer, payee)


def test_a_message_that_was_taken_back_is_not_delivered_with_asyncio(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair

    async def work() -> None:
        async with (
            await AsyncRouter.connect(mailing.shards.url, PoolSettings(size=4), samples=False) as router,
            router.transaction("orders", payer) as connection,
        ):

            async def pay(amount: int, mark: str) -> None:
                await connection.execute("UPDATE orders SET n = n - %s WHERE user_id = %s", (amount, payer))
                await connection.send("orders", payee, "credit", {"amount": amount, "mark": mark})

            with suppress(Undone):
                async with connection.transaction():
                    await pay(50, "first")
                    raise Undone
            await pay(1, "second")

    asyncio.run(work())
    check_only_the_second(mailing, payer, payee)


def test_a_transfer_that_is_open_while_its_key_changes_can_still_be_reversed(
    mailing: Mailing, pair: tuple[int, int]
) -> None:
    """The target refuses it: it would be poorer than allowed."""
    payer, payee = pair
    (third,) = mailing.users(1)
    renamed = third + 3000
    with ThreadPoolExecutor(1) as threads:
        with mailing.router.transaction("orders", payer) as connection:
            connection.execute("UPDATE orders SET n = n + 95 WHERE user_id = %s", (payer,))
            connection.send("orders", payee, "credit", {"amount": -95, "mark": ""}, deliver=False)
            changing = threads.submit(mailing.router.rekey, "orders", payer, renamed, patience=5.0)
            sleep(0.5)  # it has looked, or it waits
        assert mailing.book(payee) == (100, "")
        until(lambda: mailing.look() is not None and states(mailing, payer) == ["failed"], "the message to be reversed")
        assert mailing.book(payer) == (100, "")
        with pytest.raises(psycopg.errors.SerializationFailure, match="not settled yet"):
            changing.result(30)


def states(mailing: Mailing, user: int) -> list[object]:
    return [state for state, *_ in mailing.outbox(user)]


@pytest.mark.parametrize("word", ["deliver_message", "settle_message"])
@pytest.mark.parametrize("done", [False, True])
def test_a_lost_answer_applies_it_once(
    mailing: Mailing, pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch, word: str, done: bool
) -> None:
    payer, payee = pair
    lost = Lost(monkeypatch, word, done=done)
    mailing.pay(payer, payee)
    assert lost.seen > 0
    lost.mend()
    mailing.look()
    assert (mailing.book(payer), mailing.book(payee)) == ((95, ""), (105, "x"))
    assert mailing.outbox(payer) == []


def test_what_was_applied_is_known_after_its_tablet_has_changed(
    mailing: Mailing, pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's tablet moves, is split, is merged between an apply and its lost answer; the sender's moves, too."""
    payer, payee = pair
    parts: list[int] = []

    def both_move() -> None:
        parts.append(mailing.away(payee))
        mailing.away(payer)

    def split() -> None:
        parts.extend(part.id for part in mailing.move.split(parts.pop()).targets)

    def merge() -> None:
        assert mailing.move.merge(parts).state == "done"

    for number, change in enumerate((both_move, split, merge), 1):
        mailing.router._tickets.shunned.clear()
        lost = Lost(monkeypatch, "deliver_message", done=True)
        mailing.pay(payer, payee)
        lost.mend()
        assert mailing.book(payee) == (100 + 5 * number, "x" * number)
        assert len(mailing.outbox(payer)) == 1
        change()
        mailing.caught_up()
        mailing.look()
        assert mailing.book(payee) == (100 + 5 * number, "x" * number), change.__name__
        assert (len(mailing.outbox(payer)), len(mailing.inbox(payee))) == (0, number)


def test_what_nobody_has_delivered_travels_with_its_sender(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    mailing.pay(payer, payee, deliver=False)
    mailing.move.split(mailing.away(payer))
    mailing.caught_up()
    assert mailing.book(payee) == (100, "")
    mailing.look()
    assert (mailing.book(payee), mailing.outbox(payer)) == ((105, "x"), [])


def test_the_order_of_one_sender_is_kept(mailing: Mailing, pair: tuple[int, int]) -> None:
    """A message that waits is not overtaken, neither by the sender's next nor by one of the same transaction."""
    payer, payee = pair
    mailing.pay(payer, payee, mark="a", deliver=False)
    with mailing.router.transaction("orders", payer) as connection:
        for mark in "bc":
            connection.send("orders", payee, "credit", {"amount": 0, "mark": mark})
    assert mailing.book(payee) == (100, "")
    while mailing.look().settled:
        pass
    mailing.pay(payer, payee, mark="d")
    assert mailing.book(payee)[1] == "abcd"


def test_two_of_one_transaction_are_delivered_in_their_order(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    with mailing.router.transaction("orders", payer) as connection:
        for mark in "ab":
            connection.send("orders", payee, "credit", {"amount": 0, "mark": mark})
    assert (mailing.book(payee)[1], mailing.outbox(payer)) == ("ab", [])


def test_senders_of_one_key_wait_for_each_other(mailing: Mailing, pair: tuple[int, int]) -> None:
    """Who sends later has the higher number, also where the one before is not committed yet."""
    payer, payee = pair
    with mailing.router.transaction("orders", payer) as connection:
        connection.send("orders", payee, "credit", {"amount": 0, "mark": "a"}, deliver=False)
        other = threading.Thread(target=mailing.pay, args=(payer, payee), kwargs={"mark": "b", "deliver": False})
        other.start()
        node = mailing.shards.node(mailing.router.locate("orders", payer).node)
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND classid = 1835365235"
        for _ in range(1000):
            if node.execute(waits).fetchone() == (1,):
                break
        else:
            pytest.fail("the second sender has not waited")
    other.join()
    while mailing.look().settled:
        pass
    assert mailing.book(payee)[1] == "ab"


def test_deliverers_that_race_apply_each_message_once_and_in_order(mailing: Mailing) -> None:
    """Senders deliver what the leader delivers, and two leaders do at the same time."""
    users = mailing.users(6)
    pairs = list(zip(users[:3], users[3:], strict=True))
    addresses = {node: Address(node, dsn) for node, dsn in mailing.shards.dsns.items()}
    services = [MessageService(mailing.move.leadership, addresses.__getitem__, SystemClock()) for _ in range(2)]
    over = threading.Event()

    def send(pair: tuple[int, int]) -> None:
        for number in range(60):
            mailing.pay(*pair, amount=1, mark=f"{number} ", deliver=number % 7 != 0)

    def serve(service: MessageService) -> None:
        with connect(addresses["pg-a"]) as first, connect(addresses["pg-b"]) as second:
            while not over.is_set():
                for link in (first, second):
                    link.execute("UPDATE balancer_outbox_1 SET message_due = message_sent WHERE message_tries = 0")
                service.look(mailing.shards.directory.snapshot())

    with ThreadPoolExecutor(5) as threads:
        serving = [threads.submit(serve, service) for service in services]
        try:
            list(threads.map(send, pairs))
        finally:
            over.set()
        for one in serving:
            one.result()
    for service in services:
        service.close()
    while mailing.look().settled:
        pass
    for payer, payee in pairs:
        assert mailing.book(payer)[0] == 40
        assert mailing.book(payee) == (160, "".join(f"{number} " for number in range(60)))


def test_a_message_that_is_refused_is_tried_again_then_given_back(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    mailing.pay(payer, payee, amount=-95, mark="x")  # leaves 5, and nobody may have less than 10
    assert (mailing.book(payer), mailing.book(payee)) == ((195, ""), (100, ""))
    assert mailing.look().outcomes == {"refused": 1}
    ((state, tries, reason),) = mailing.outbox(payer)
    assert (state, tries) == ("pending", 1)
    assert "rich" in str(reason)
    assert mailing.look().outcomes == {"failed": 1}
    ((state, _, reason),) = mailing.outbox(payer)
    assert state == "failed"
    assert "rich" in str(reason)
    assert mailing.inbox(payee) == [("failed", reason)]
    assert (mailing.book(payer), mailing.book(payee)) == ((100, "x"), (100, ""))
    mailing.look()
    assert mailing.book(payer) == (100, "x")


def test_what_can_be_applied_at_the_second_try_is(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    mailing.pay(payer, payee, amount=-95, deliver=False)
    mailing.pay(payer, payee, amount=0, mark="behind", deliver=False)
    assert mailing.look().outcomes == {"refused": 1}
    at = mailing.router.locate("orders", payer)
    mine = (
        f"UPDATE balancer_outbox_1_t{at.tablet} SET message_due = now() + %s * interval '1 s' WHERE message_number = %s"
    )
    for number, seconds in ((1, 60), (2, -60)):
        mailing.shards.node(at.node).execute(mine, (seconds, number))
    assert mailing.service.look(mailing.shards.directory.snapshot()).outcomes == {}
    assert mailing.book(payee) == (100, ""), "the one behind it waits"
    with mailing.router.transaction("orders", payee) as connection:
        connection.execute("UPDATE orders SET n = 200 WHERE user_id = %s", (payee,))
    while mailing.look().settled:
        pass
    assert mailing.book(payee) == (105, "xbehind")


def test_whoever_comes_late_for_what_was_given_up_changes_nothing(mailing: Mailing, pair: tuple[int, int]) -> None:
    """A deliverer that has read the message before it was given up comes afterwards, and could apply it by then."""
    payer, payee = pair
    mailing.pay(payer, payee, amount=-95)
    at = mailing.router.locate("orders", payer)
    node = mailing.shards.node(at.node)
    leaf = Name("public", f"balancer_outbox_1_t{at.tablet}")
    node.execute(f"UPDATE {leaf} SET message_due = now()")
    (letter,) = delivery.proven_letters(node, (at.tablet, at.epoch), leaf, ["user_id"], "orders")
    mailing.look()
    mailing.look()
    assert mailing.book(payer) == (100, "x")
    with mailing.router.transaction("orders", payee) as connection:
        connection.execute("UPDATE orders SET n = 200 WHERE user_id = %s", (payee,))
    there = mailing.router.locate("orders", payee)
    target = mailing.shards.node(there.node)
    with target.transaction(), target.cursor() as cursor:
        clock = delivery.clock_of(target)
        assert delivery.deliver_letter(cursor, letter, "orders", there.node, clock)[0] == "failed"
    with node.transaction(), node.cursor() as cursor:
        assert delivery.settle_failed(cursor, letter, "orders", "once more") is False
    assert mailing.book(payer) == (100, "x"), "it is given back once"
    assert mailing.book(payee) == (200, "")


def test_a_message_without_a_row_is_no_message_applied(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    with mailing.router.transaction("orders", payee) as connection:
        connection.execute("DELETE FROM orders WHERE user_id = %s", (payee,))
    mailing.pay(payer, payee)
    mailing.look()
    mailing.look()
    assert mailing.book(payer) == (100, "x")
    assert mailing.inbox(payee) == [("failed", "it changes no row")]


def test_without_a_reversal_it_is_only_said(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    with mailing.router.transaction("orders", payer) as connection:
        connection.send("orders", payee, "lasting", {"amount": -1000, "mark": ""})
    mailing.look()
    mailing.look()
    ((state, _, _),) = mailing.outbox(payer)
    assert (state, mailing.book(payer)) == ("failed", (100, ""))


def test_the_inbox_forgets_only_what_nobody_can_deliver_any_more(
    mailing: Mailing, pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    payer, payee = pair
    lost = Lost(monkeypatch, "deliver_message", done=True)
    mailing.pay(payer, payee)
    lost.mend()
    mailing.forget()
    mailing.forget()
    assert mailing.inbox(payee) == [("applied", None)], "its sender has not forgotten it"
    mailing.look()
    mailing.forget("2 hours")
    mailing.forget("2 hours")
    assert mailing.inbox(payee) == [("applied", None)], "somebody may have read it shortly before"
    mailing.away(payee)
    mailing.forget("0.5 seconds")
    assert mailing.inbox(payee) == [("applied", None)], "another server's clock has marked it"
    mailing.forget()
    assert mailing.inbox(payee) == []
    assert mailing.book(payee) == (105, "x")


@pytest.mark.parametrize("ticket", ["clock_timestamp() - interval '11 minutes'", "NULL"])
def test_a_delivery_without_a_valid_ticket_is_late(mailing: Mailing, pair: tuple[int, int], ticket: str) -> None:
    """Whoever comes when the inbox may have forgotten applies nothing."""
    payer, payee = pair
    mailing.pay(payer, payee, deliver=False)
    at = mailing.router.locate("orders", payee)
    call = (
        f"SELECT outcome FROM balancer.deliver_message('orders', '{{{payee}}}', gen_random_uuid(), 'credit',"
        f" '{{\"amount\": 5, \"mark\": \"\"}}', 'orders', '{{{payer}}}', current_user, '{at.node}', {ticket})"
    )
    with mailing.router.transaction("orders", payee) as connection:
        assert connection.execute(call).fetchone() == ("late",)
    other = call.replace(ticket, "clock_timestamp()").replace(at.node, "pg-elsewhere")
    with mailing.router.transaction("orders", payee) as connection:
        assert connection.execute(other).fetchone() == ("late",)
    assert mailing.book(payee) == (100, "")


def test_a_ticket_from_after_the_commit_is_not_used(
    mailing: Mailing, pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not say that the message was there after it: the leader delivers."""
    payer, payee = pair
    node = mailing.router.locate("orders", payee).node
    mailing.router._tickets.of.pop(node, None)
    lost = Lost(monkeypatch, "clock_timestamp", done=False, until="b'COMMIT'")
    mailing.pay(payer, payee)
    assert lost.seen > 0
    assert lost.mended
    assert mailing.book(payee) == (100, "")
    mailing.look()
    assert mailing.book(payee) == (105, "x")


def test_what_cannot_be_sent_is_one_sentence(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair

    def send(name: str, body: dict[str, Any], table: str = "orders", key: Any = payee) -> None:
        with mailing.router.transaction("orders", payer) as connection:
            connection.send(table, key, name, body)

    with pytest.raises(psycopg.errors.InvalidParameterValue, match="needs a value for: mark"):
        send("credit", {"amount": 1})
    with pytest.raises(psycopg.Error, match="table orders has no message debit"):
        send("debit", {})
    with pytest.raises(UserError, match="nowhere"):
        send("credit", {"amount": 1, "mark": ""}, table="nowhere")
    with pytest.raises(UserError, match="does not fit table orders"):
        send("credit", {"amount": 1, "mark": ""}, key="seven")
    with pytest.raises(UserError, match="plain values"):
        send("credit", {"amount": object(), "mark": ""})
    with mailing.router.atomic() as tx, pytest.raises(UserError, match="inside `transaction`"):
        tx.on("orders", payer).send("orders", payee, "credit", {"amount": 1, "mark": ""})
    assert mailing.outbox(payer) == []


def test_values_are_never_text_of_a_statement(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    hostile = "'); UPDATE orders SET n = 0; -- %(amount)s $1 {}"
    mailing.pay(payer, payee, mark=hostile)
    assert mailing.book(payee) == (105, hostile)
    mailing.pay(payer, payee, mark=hostile, deliver=False)
    mailing.look()
    assert mailing.book(payee) == (110, hostile * 2)


def test_roots_that_require_a_proof_take_messages(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    roots = [parse_name(root) for root in mailing.shards.directory.snapshot().table("orders").roots]
    assert len(roots) == 4
    for wanted in (True, False):
        for node in map(mailing.shards.node, mailing.shards.dsns):
            with node.transaction(), node.cursor() as cursor:
                assert set_proof(cursor, roots, wanted=wanted) == 4
        if wanted:
            mailing.pay(payer, payee)
            mailing.pay(payer, payee, deliver=False)
            due = "UPDATE balancer_outbox_1_t{0} SET message_due = message_sent".format
            at = mailing.router.locate("orders", payer)
            mailing.shards.node(at.node).execute(due(at.tablet).encode())
            assert mailing.service.look(mailing.shards.directory.snapshot()).outcomes["applied"] == 1
    assert (mailing.book(payee), mailing.outbox(payer)) == ((110, "xx"), [])


def test_a_key_whose_messages_wait_is_not_rekeyed(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    (third,) = mailing.users(1)
    mailing.pay(payer, payee, deliver=False)
    with pytest.raises(psycopg.errors.SerializationFailure, match="not settled yet"):
        mailing.router.rekey("orders", payer, third + 1000, patience=0.1)
    mailing.look()
    assert mailing.router.rekey("orders", payer, third + 1000) == 1
    assert mailing.book(third + 1000) == (95, "")
    assert mailing.router.rekey("orders", payee, third + 2000) == 1
    assert mailing.inbox(payee) == [("applied", None)], "it belongs to the key that the message was for"


def test_asyncio(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair

    async def pay() -> None:
        async with (
            await AsyncRouter.connect(mailing.shards.url, PoolSettings(size=4), samples=False) as router,
            router.transaction("orders", payer) as connection,
        ):
            await connection.execute("UPDATE orders SET n = n - 5 WHERE user_id = %s", (payer,))
            await connection.send("orders", payee, "credit", {"amount": 5, "mark": "x"})

    asyncio.run(pay())
    assert (mailing.book(payer), mailing.book(payee)) == ((95, ""), (105, "x"))
    assert mailing.outbox(payer) == []


def test_applications_that_want_their_rows_otherwise(mailing: Mailing, pair: tuple[int, int]) -> None:
    """What the library asks for itself it reads in its own way."""
    payer, payee = pair
    settings = PoolSettings(size=2, connection={"row_factory": dict_row})
    with Router.connect(mailing.shards.url, settings, samples=False) as router:
        with router.transaction("orders", payer, checked=True) as connection:
            connection.execute("UPDATE orders SET n = n - 5 WHERE user_id = %s", (payer,))
            assert isinstance(connection.send("orders", payee, "credit", {"amount": 5, "mark": "x"}), UUID)
        with router.atomic() as tx:
            tx.send("orders", payee, "credit", {"amount": 1, "mark": "y"}, sender=("orders", payer))
        assert mailing.book(payee) == (106, "xy")
        assert mailing.outbox(payer) == [], "both were delivered and settled at once"
        assert "pg-a" in router.token()
        assert router.rekey("orders", payer, payer + 500_000) == 1


@pytest.fixture
def three(mailing: Mailing, pair: tuple[int, int]) -> tuple[int, int, int]:
    """The home's user, a participant's on the other node, and a target on the home's."""
    (target,) = mailing.users(1)
    assert len({mailing.router.locate("orders", user).node for user in (pair[0], pair[1])}) == 2
    return (*pair, target)


def shift(tx: Atomic, home: int, sender: int, target: int) -> None:
    """Both pay 5: the participant sends all of it to the target."""
    for user in (home, sender):
        tx.on("orders", user).execute("UPDATE orders SET n = n - 5 WHERE user_id = %s", (user,))
    tx.send("orders", target, "credit", {"amount": 10, "mark": "x"}, sender=("orders", sender))


def test_a_message_is_part_of_an_atomic_transaction(mailing: Mailing, three: tuple[int, int, int]) -> None:
    home, sender, target = three
    with mailing.router.atomic() as tx:
        shift(tx, *three)
        assert len(tx.nodes) == 2
    assert [mailing.book(user) for user in three] == [(95, ""), (95, ""), (110, "x")]
    assert (mailing.outbox(sender), mailing.inbox(target)) == ([], [("applied", None)])
    with mailing.router.atomic() as tx:  # one node, an ordinary transaction
        tx.send("orders", target, "credit", {"amount": 1, "mark": "y"}, sender=("orders", home))
        tx.send("orders", target, "credit", {"amount": 1, "mark": "z"}, sender=("orders", (home,)))
    mailing.look()
    assert (mailing.book(target), mailing.outbox(home)) == ((112, "xyz"), [])


def test_a_message_of_an_atomic_transaction_that_is_not_committed_is_not_sent(
    mailing: Mailing, three: tuple[int, int, int]
) -> None:
    with pytest.raises(ZeroDivisionError), mailing.router.atomic() as tx:  # noqa: PT012 - the block is what fails
        shift(tx, *three)
        raise ZeroDivisionError
    with pytest.raises(UserError, match=r"sender=\(table, key\)"), mailing.router.atomic() as tx:
        tx.on("orders", three[0]).send("orders", three[2], "credit", {"amount": 1, "mark": ""})
    assert mailing.look().settled == 0
    assert [mailing.book(user) for user in three] == [(100, "")] * 3


def test_a_message_of_a_part_that_is_only_prepared_waits_for_it(
    mailing: Mailing, three: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is decided, but nobody can see the message yet: who delivered it now would have it forgotten too early."""
    _, sender, target = three
    perform = Router._perform

    def lose(router: Router, request: Any) -> object:
        if "COMMIT PREPARED" not in repr(request):
            return perform(router, request)
        return [psycopg.OperationalError("the connection is lost") for _ in request.orders]

    monkeypatch.setattr(Router, "_perform", lose)
    with mailing.router.atomic() as tx:
        shift(tx, *three)
    assert (mailing.inbox(target), mailing.book(target)) == ([], (100, ""))
    mailing.service.look(mailing.shards.directory.snapshot())
    mailing.forget("2 hours")
    assert mailing.inbox(target) == []
    node = mailing.shards.node(mailing.router.locate("orders", sender).node)
    prepared = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    (left,) = [str(gid) for (gid,) in node.execute(prepared).fetchall()]
    node.execute(f"COMMIT PREPARED '{left}'".encode())  # as the leader does
    mailing.look()
    mailing.look()
    assert (mailing.outbox(sender), mailing.book(target)) == ([], (110, "x"))


def test_atomic_with_asyncio(mailing: Mailing, three: tuple[int, int, int]) -> None:
    home, sender, target = three

    async def pay() -> None:
        async with (
            await AsyncRouter.connect(mailing.shards.url, PoolSettings(size=4), samples=False) as router,
            router.atomic() as tx,
        ):
            await (await tx.on("orders", home)).execute("UPDATE orders SET n = n - 5 WHERE user_id = %s", (home,))
            await tx.send("orders", target, "credit", {"amount": 5, "mark": "x"}, sender=("orders", sender))

    asyncio.run(pay())
    assert [mailing.book(user) for user in three] == [(95, ""), (100, ""), (105, "x")]
    assert (mailing.outbox(sender), mailing.inbox(target)) == ([], [("applied", None)])
