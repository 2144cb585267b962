"""Messages whose ends contradict each other, planted on real servers; and none found while messages and tablets go."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.features.checker import loop, messages
from balancer.policies.check_options import CheckKind, CheckOptions
from balancer.policies.checking import Anomaly
from tests.support.checking import anomalies, checked, checker_of, run_round
from tests.support.mailing import Mailing, mailings, switch_messages_on
from tests.support.servers import new_database

MESSAGES = CheckOptions(kinds=(CheckKind.MESSAGES,))
ENOUGH = 2
SEED = random.SystemRandom().randrange(1_000_000)


@pytest.fixture(scope="module")
def mailing(
    tmp_path_factory: pytest.TempPathFactory, postgres15: PostgresServer, postgres18: PostgresServer
) -> Iterator[Mailing]:
    with ExitStack() as stack:
        dsns = [stack.enter_context(new_database(server)).dsn for server in (postgres15, postgres18)]
        yield stack.enter_context(mailings(tmp_path_factory.mktemp("mailing"), dsns))


@pytest.fixture
def pair(mailing: Mailing) -> Iterator[tuple[int, int]]:
    payer, payee = mailing.users(2)
    yield payer, payee
    for root in ("outbox", "inbox"):
        for name in mailing.shards.dsns:
            mailing.shards.node(name).execute(f"DELETE FROM balancer_{root}_1")


def at(mailing: Mailing, user: int, statement: str) -> None:
    """On the node that owns the user, `{}` being its tablet."""
    where = mailing.router.locate("orders", user)
    done = mailing.shards.node(where.node).execute(statement.format(where.tablet))
    assert done.rowcount > 0, f"nothing was planted: {statement}"


def given_up(mailing: Mailing, payer: int, payee: int) -> UUID:
    """A message that is refused twice, and so given up and reversed."""
    mailing.pay(payer, payee, amount=-1000, mark="", deliver=False)
    mailing.look()
    mailing.look()
    assert [row[0] for row in mailing.outbox(payer)] == ["failed"]
    assert [row[0] for row in mailing.inbox(payee)][-1] == "failed"
    return ident(mailing, payer)


def ident(mailing: Mailing, user: int) -> UUID:
    found = mailing._mail("outbox", user, "message_id", "message_number")[-1][0]
    assert isinstance(found, UUID)
    return found


def named(mailing: Mailing, found: list[Anomaly], user: int, which: str, message: UUID, count: int = 1) -> Anomaly:
    """The only finding, at the user's tablet, with everything that a person needs."""
    (one,) = found
    where = mailing.router.locate("orders", user)
    assert (one.kind, one.table, one.count) == (CheckKind.MESSAGES, "orders", count)
    assert (one.tablet, one.node, one.root) == (where.tablet, where.node, f"public.balancer_{which}_1")
    assert str(message) in one.text
    assert one.advice
    return one


def test_what_is_applied_pending_given_up_or_dismissed_is_no_finding(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    mailing.pay(payer, payee)
    given_up(mailing, payer, payee)
    mailing.pay(payer, payee, deliver=False)
    assert checked(mailing.shards, MESSAGES) == []
    assert len(mailing.outbox(payer)) == 2, "it only reads"


def test_a_message_that_was_reversed_and_its_target_does_not_know(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    message = given_up(mailing, payer, payee)
    at(mailing, payee, "DELETE FROM balancer_inbox_1_t{}")
    one = named(mailing, checked(mailing.shards, MESSAGES), payer, "outbox", message)
    assert "do not know" in one.text
    assert "balancer messages dismiss" in one.advice


def test_a_message_that_was_reversed_and_applied(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    message = given_up(mailing, payer, payee)
    at(mailing, payee, "UPDATE balancer_inbox_1_t{} SET message_outcome = 'applied'")
    one = named(mailing, checked(mailing.shards, MESSAGES), payer, "outbox", message)
    assert "have applied them" in one.text


def test_a_message_that_its_target_will_forget_too_early(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    mailing.pay(payer, payee, deliver=False)
    message = ident(mailing, payer)
    at(mailing, payer, "CREATE TABLE kept AS SELECT * FROM balancer_outbox_1_t{}")
    mailing.look()
    mailing.forget("2 hours")
    assert checked(mailing.shards, MESSAGES) == []
    # As a node does that has lost its last seconds.
    at(mailing, payer, "INSERT INTO balancer_outbox_1_t{} SELECT * FROM kept")
    mailing.shards.node(mailing.router.locate("orders", payer).node).execute("DROP TABLE kept")
    one = named(mailing, checked(mailing.shards, MESSAGES), payer, "outbox", message)
    assert "applied twice" in one.text
    assert "message_gone = NULL" in one.advice


def test_a_message_that_was_given_up_and_never_reversed(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    message = given_up(mailing, payer, payee)
    at(mailing, payer, "DELETE FROM balancer_outbox_1_t{}")
    mailing.forget()
    one = named(mailing, checked(mailing.shards, MESSAGES), payee, "inbox", message)
    assert "not reversed" in one.text
    assert "message_dismissed" in one.advice
    at(mailing, payee, "UPDATE balancer_inbox_1_t{} SET message_dismissed = true")
    assert checked(mailing.shards, MESSAGES) == []
    assert mailing.forget() == 1, "somebody has looked at it"
    assert mailing.inbox(payee) == []


def test_a_message_that_nobody_delivers(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    mailing.pay(payer, payee, deliver=False)
    at(mailing, payer, "UPDATE balancer_outbox_1_t{} SET message_sent = message_sent - interval '61 minutes'")
    one = named(mailing, checked(mailing.shards, MESSAGES), payer, "outbox", ident(mailing, payer))
    assert "nobody has tried" in one.text
    assert checked(mailing.shards, replace(MESSAGES, message_age=7200.0)) == []


def test_a_message_whose_handler_is_gone(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    mailing.pay(payer, payee, deliver=False)
    at(mailing, payer, "UPDATE balancer_outbox_1_t{} SET message_sent = message_sent - interval '2 minutes'")
    where = mailing.shards.node(mailing.router.locate("orders", payer).node)
    try:
        where.execute("DELETE FROM balancer.message_handler")
        one = named(mailing, checked(mailing.shards, MESSAGES), payer, "outbox", ident(mailing, payer))
        assert "'credit'" in one.text
        assert "[tables.NAME.messages]" in one.advice
        where.execute("DELETE FROM balancer.message_table")
        assert checked(mailing.shards, MESSAGES) == [], "a node that nobody has told of messages yet"
    finally:
        switch_messages_on(mailing.shards)


def test_a_message_whose_target_is_gone(mailing: Mailing, pair: tuple[int, int]) -> None:
    payer, payee = pair
    for _ in range(2):
        mailing.pay(payer, payee, deliver=False)
    at(mailing, payer, "UPDATE balancer_outbox_1_t{} SET message_target = 'customers'")
    one = named(mailing, checked(mailing.shards, MESSAGES), payer, "outbox", ident(mailing, payer), count=2)
    assert "'customers'" in one.text
    assert "balancer messages enable" in one.advice


def test_pages_of_an_outbox_are_one_finding(
    mailing: Mailing, pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    payer, payee = pair
    monkeypatch.setattr(messages, "PAGES", 1)
    for _ in range(60):
        mailing.pay(payer, payee, amount=0, mark="y" * 300, deliver=False)
    at(mailing, payer, "UPDATE balancer_outbox_1_t{} SET message_sent = message_sent - interval '61 minutes'")
    (one,) = checked(mailing.shards, MESSAGES)
    assert one.count == 60


def test_a_node_out_of_reach_clears_nothing_and_finds_nothing(
    mailing: Mailing, pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    payer, payee = pair
    given_up(mailing, payer, payee)
    away = mailing.router.locate("orders", payee).node
    with checker_of(mailing.shards, MESSAGES) as checker:
        monkeypatch.setitem(mailing.shards.dsns, away, "host=/nowhere dbname=none")
        book = run_round(checker)
    assert anomalies(book) == []
    assert book.round is not None
    assert book.round.why, "it is said"


@pytest.mark.parametrize("between", ["states_of", "outcomes_of"])
def test_what_is_settled_between_the_two_reads_is_no_finding(
    mailing: Mailing, pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    """One is dismissed, the other delivered and marked, before each reading of the other end."""
    payer, payee = pair
    monkeypatch.setattr(loop, "confirmed", lambda first, _: first)
    given_up(mailing, payer, payee)
    mailing.pay(payer, payee, deliver=False)
    read = getattr(messages, between)

    def late(*arguments: Any) -> Any:
        mailing.look()
        dismiss(mailing, payer)
        mailing.forget("2 hours")
        return read(*arguments)

    monkeypatch.setattr(messages, between, late)
    assert checked(mailing.shards, MESSAGES) == []
    assert mailing.outbox(payer) == []


def dismiss(mailing: Mailing, user: int) -> int:
    """As `balancer messages dismiss` does it: the inbox first."""
    rows = mailing._mail("outbox", user, "message_state, message_id, message_key[1]", "message_number")
    failed = [(message, target) for state, message, target in rows if state == "failed"]
    for message, target in failed:
        for owner, work in ((int(str(target)), _NOTE), (user, _DISMISS)):
            where = mailing.router.locate("orders", owner)
            mailing.shards.node(where.node).execute(work.format(where.tablet), (message,))
    return len(failed)


_NOTE = "UPDATE balancer_inbox_1_t{} SET message_dismissed = true WHERE message_id = %s"
_DISMISS = "DELETE FROM balancer_outbox_1_t{} WHERE message_id = %s AND message_state = 'failed'"


class Traffic:
    """Messages that are applied or given up, then dismissed, and tablets that move meanwhile, in threads."""

    def __init__(self, mailing: Mailing, users: list[int]) -> None:
        self._mailing = mailing
        self._users = users
        self._chance = random.Random(SEED)
        self._stop = threading.Event()
        self.errors: list[BaseException] = []
        self.counts = {"sent": 0, "dismissed": 0, "moved": 0}
        self._threads = [threading.Thread(target=self._repeat, args=(one,)) for one in (self._send, self._serve)]

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _repeat(self, work: Callable[[], None]) -> None:
        try:
            while not self._stop.is_set():
                work()
        except BaseException as error:
            self.errors.append(error)

    def _send(self) -> None:
        payer, payee = self._chance.sample(self._users, 2)
        amount, deliver = self._chance.choice([0, 0, -1000]), self._chance.random() < 0.5
        self._mailing.pay(payer, payee, amount=amount, mark="", deliver=deliver)
        self.counts["sent"] += 1
        self._stop.wait(0.05)  # the leader of this test must keep up

    def _serve(self) -> None:
        mailing = self._mailing
        for _ in range(3):
            mailing.look()
        mailing.forget("2 hours")
        for user in self._users:
            self.counts["dismissed"] += dismiss(mailing, user)
        mailing.away(self._chance.choice(self._users))
        self.counts["moved"] += 1


def test_no_finding_while_messages_are_delivered_and_tablets_move(
    mailing: Mailing, pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even at the first look: the second is for what is not ours."""
    monkeypatch.setattr(loop, "confirmed", lambda first, _: first)
    print(f"seed {SEED}")
    found: list[Anomaly] = []
    with Traffic(mailing, [*pair, *mailing.users(4)]) as traffic, checker_of(mailing.shards, MESSAGES) as checker:
        for _ in range(1000):
            assert checker.begin() == ()
            while checker.book.running is not None:
                step = checker.step()
                found += step.look.anomalies
                assert step.look.unchecked == ""
            if traffic.errors or min(traffic.counts.values()) >= ENOUGH:
                break
    assert traffic.errors == []
    assert found == []
    assert min(traffic.counts.values()) >= ENOUGH, traffic.counts
