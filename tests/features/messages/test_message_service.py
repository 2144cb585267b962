"""The leader rolls messages forward: what killed clients have left, what it was about to do itself when it died."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from balancer.client import PoolSettings, Router
from balancer.embedded.postgres import PostgresServer
from balancer.features.messages import delivery, service
from balancer.nodes.schema import leader_transaction
from tests.daemon.test_daemon import instance
from tests.support.commands import balancer_here
from tests.support.fleet import Fleet, until
from tests.support.forked import forked_beside
from tests.support.mailing import Mailing, mailings
from tests.support.shards import databases

CREDIT = "UPDATE orders SET n = n + (%(amount)s)::bigint WHERE id = %(id)s"
MESSAGES = f'apply = "{CREDIT}"\nreverse = "{CREDIT}"\nattempts = 20'
DIED = {"nothing": False, "b'COMMIT'": True, "deliver_message": True, "settle_message": True}
"""After what it has sent the client dies → whether the message is sent."""


class Died(BaseException):
    """The process ends here."""


@pytest.fixture(scope="module")
def dsns(postgres18: PostgresServer) -> Iterator[list[str]]:
    with databases(postgres18) as made:
        yield made


@pytest.fixture(scope="module")
def mailing(tmp_path_factory: pytest.TempPathFactory, dsns: list[str]) -> Iterator[Mailing]:
    with mailings(tmp_path_factory.mktemp("mailing"), dsns) as made:
        yield made


STEPS = (
    "clock_of", "waiting", "proven_letters", "deliver_letter", "leave_others_code", "forget_session", "put_off",
    "fail_letter", "settle_failed", "settle_applied",
)  # fmt: skip


@pytest.mark.parametrize("after", [False, True])
def test_a_leader_that_dies_at_any_step_leaves_nothing_half_done(
    mailing: Mailing, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Before and after each statement; after those that are the last of a transaction, also after its commit."""
    payer, payee = mailing.users(2)
    sent = 0
    for step in STEPS:
        mailing.pay(payer, payee, deliver=False)
        mailing.pay(payer, payee, amount=-1000, mark="", deliver=False)  # is refused, then given up
        sent += 1
        for count in range(3):  # it dies the first time, the second time, …
            with monkeypatch.context() as patch, suppress(Died):
                _dies(patch, step, count, after=after)
                mailing.look()
    for _ in range(10):
        mailing.look()
    assert mailing.book(payee) == (100 + 5 * sent, "x" * sent)
    assert mailing.book(payer)[0] == 100 - 5 * sent
    assert {state for state, _, _ in mailing.outbox(payer)} == {"failed"}
    assert sorted(str(outcome) for outcome, _ in mailing.inbox(payee)) == ["applied"] * sent + ["failed"] * sent


def _dies(patch: pytest.MonkeyPatch, step: str, count: int, *, after: bool) -> None:
    real = getattr(delivery, step)
    calls = 0

    def dying(*arguments: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if calls <= count:
            return real(*arguments, **named)
        if after:
            real(*arguments, **named)
        raise Died

    patch.setattr(delivery, step, dying)


@pytest.mark.parametrize("commit", [1, 2, 3, 4, 5, 6, 7, 8])
def test_a_leader_that_dies_right_after_a_commit(
    mailing: Mailing, monkeypatch: pytest.MonkeyPatch, commit: int
) -> None:
    payer, payee = mailing.users(2)
    mailing.pay(payer, payee, deliver=False)
    mailing.pay(payer, payee, amount=-1000, mark="", deliver=False)
    left = commit
    real = leader_transaction.node_transaction

    @contextmanager
    def dying(*arguments: object, **named: object) -> Iterator[object]:
        nonlocal left
        with real(*arguments, **named) as cursor:  # type: ignore[arg-type]
            yield cursor
        left -= 1
        if left == 0:
            raise Died

    with monkeypatch.context() as patch, suppress(Died):
        patch.setattr(service, "node_transaction", dying)
        for _ in range(6):
            mailing.look()
    for _ in range(6):
        mailing.look()
    assert (mailing.book(payee), mailing.book(payer)) == ((105, "x"), (95, ""))
    assert sorted(str(outcome) for outcome, _ in mailing.inbox(payee)) == ["applied", "failed"]


def test_what_killed_clients_left_is_delivered_once(fleet: Fleet, postgres18: PostgresServer) -> None:
    fleet.write("autonomous", **{"tables.orders.messages.credit": MESSAGES})
    password = postgres18.password()
    places = ("shop", "orders", "--config", fleet.config, "-o", "json")
    dry = balancer_here("messages", "enable", *places, "--dry-run")
    assert json.loads(dry.out)["tablets"] == 8
    with instance(fleet) as running:
        until(lambda: running.owners() == {"a": 4, "b": 4}, 60, "the balance")
        for again in range(2):
            enabled = balancer_here("messages", "enable", *places)
            assert json.loads(enabled.out)["tablets"] == 8, enabled.err
            if not again:
                disabled = balancer_here("messages", "disable", *places)
                assert json.loads(disabled.out)["had_messages"] is True, disabled.err
        with Router.connect(fleet.url, PoolSettings(connection={"password": password}), samples=False) as router:
            users = {"a": list[int](), "b": list[int]()}
            for number in range(1, 1000):
                users[router.locate("orders", number).node].append(number)
            pairs = dict(zip(DIED, zip(users["a"], users["b"], strict=False), strict=False))
            with ExitStack() as stack:
                for word, pair in pairs.items():
                    arguments = ("tests.support.message_victim", fleet.url, password, word, *map(str, pair))
                    victim, printed = stack.enter_context(forked_beside(*arguments))
                    assert printed.readline() == "standing\n"
                    victim.kill()

            def balance(number: int) -> int:
                with router.transaction("orders", number, read_only=True) as connection:
                    row = connection.execute("SELECT n FROM orders WHERE id = %s", (number,)).fetchone()
                    return int(row[0]) if row else -1

            wanted = {word: (-5, 5) if sent else (0, 0) for word, sent in DIED.items()}
            until(lambda: {w: (balance(a), balance(b)) for w, (a, b) in pairs.items()} == wanted, 30, "the deliveries")
            until(lambda: running.metric("balancer_messages_pending", bundle="shop", node="a") == 0, 30, "the metric")
            delivered = running.metric("balancer_messages_delivered_total", outcome="applied") or 0
            assert delivered >= 1
            _deal_with_messages(fleet, router, users)
            for command in (("doctor",), ("verify", "orders")):
                done = balancer_here(*command, "--config", fleet.config)
                assert done.code == 0, done.out + done.err


def _deal_with_messages(fleet: Fleet, router: Router, users: dict[str, list[int]]) -> None:
    """What nobody can apply, because the row is not there: it is shown, given up by hand, and dismissed."""

    def messages(*words: str) -> list[dict[str, Any]]:
        done = balancer_here("messages", *words, "--config", fleet.config, "-o", "json")
        assert done.code == 0, done.err
        found = json.loads(done.out)
        return found if isinstance(found, list) else [found]

    sender, absent = users["a"][10], 10_000_000
    with router.transaction("orders", sender) as connection:
        sent = connection.send("orders", absent, "credit", {"amount": 7})
    ((shown),) = [row for row in messages("list") if row["id"] == str(sent)]
    assert (shown["state"], shown["sender"], shown["key"]) == ("pending", str(sender), str(absent))
    assert messages("give-up", str(sent), "--dry-run")[0]["done"] is False
    messages("retry", str(sent))
    messages("give-up", str(sent))
    until(lambda: [row["id"] for row in messages("list", "--failed")] == [str(sent)], 30, "its failure")
    with router.transaction("orders", sender, read_only=True) as connection:
        row = connection.execute("SELECT n FROM orders WHERE id = %s", (sender,)).fetchone()
        assert row == (7,), "its reversal"
    refused = balancer_here("messages", "retry", str(sent), "--config", fleet.config)
    assert (refused.code, "is pending" in refused.err) == (2, True)
    messages("dismiss", str(sent))
    looked = balancer_here("verify", "orders", "--deep", "--config", fleet.config)
    assert looked.code == 0, f"its target was told, else it would seem never to be reversed: {looked.out}{looked.err}"
    for words in (("disable", "shop", "orders", "--dry-run"), ("disable", "shop", "orders")):
        refused = balancer_here("messages", *words, "--config", fleet.config)
        assert (refused.code == 0, "so that none is applied twice" in refused.err) == (False, True), refused.err
    assert messages("list") == []
    assert balancer_here("messages", "retry", "seven", "--config", fleet.config).code == 2
