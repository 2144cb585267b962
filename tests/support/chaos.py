"""`make chaos`: what an application and an operator do, in any order, on a real small cluster, as hypothesis chooses.

Users have money. Whatever is done (payments by messages and by atomic transactions, savepoints that are rolled back,
keys that change, sessions that end, moves, splits and merges, also beside each other), each user is there exactly once,
and when every message is settled nobody has made or lost any. What breaks that is shrunk to its shortest story.
`python -m tests.support.chaos SECONDS`; `CHAOS_SEED=7` begins with that seed.
"""

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import psycopg
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from balancer.directory.model import Tablet
from balancer.errors import Unavailable
from balancer.policies.keyspace.hash_leaves import Leaf
from tests.support.mailing import POOR, Mailing, mailings
from tests.support.servers import kept, new_database, new_folder, postgres

STEPS = 20
AT_ONCE = 4
"""Stories on one cluster, by one seed."""
NUMBER = st.integers(0, 1_000_000)
AMOUNT = st.integers(1, 30)
ENDED = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'balancer client'"


class Undone(Exception):
    """What an application catches around a savepoint."""


class Chaos(RuleBasedStateMachine):
    """One story. The cluster goes on from story to story; the users are new in each."""

    mailing: ClassVar[Mailing]
    _hypothesis_internal_use_seed: ClassVar[int]

    @initialize()
    def begin(self) -> None:
        self.users = self.mailing.users(4)
        self.total = 100 * len(self.users)
        self.issued: set[int] = set()

    # --- an application

    @rule(payer=NUMBER, payee=NUMBER, amount=AMOUNT, deliver=st.booleans())
    def pay(self, payer: int, payee: int, amount: int, deliver: bool) -> None:
        """A debit here, and a message that is a credit there."""
        self._pay(self._user(payer), self._user(payee), amount, deliver=deliver)

    @rule(payer=NUMBER, payee=NUMBER, amount=AMOUNT, by_text=st.booleans())
    def pay_and_think_again(self, payer: int, payee: int, amount: int, by_text: bool) -> None:
        """What was sent below a savepoint is taken back; the rest of the block is committed."""
        mine, other = self._user(payer), self._user(payee)
        with self.mailing.router.transaction("orders", mine) as connection:

            def send() -> None:
                self._debit(connection, mine, amount)
                connection.send("orders", other, "credit", {"amount": amount, "mark": ""})

            if by_text:
                with psycopg.ClientCursor(connection) as cursor:
                    cursor.execute("SAVEPOINT mine")
                    with suppress(psycopg.errors.CheckViolation):
                        send()
                    cursor.execute("ROLLBACK TO mine")
            else:
                with suppress(Undone, psycopg.errors.CheckViolation), connection.transaction():
                    send()
                    raise Undone

    @rule(payer=NUMBER, payee=NUMBER, amount=AMOUNT)
    def transfer(self, payer: int, payee: int, amount: int) -> None:
        """Both halves in one atomic transaction."""
        mine, other = self._user(payer), self._user(payee)

        def both(tx: Any) -> None:
            self._debit(tx.on("orders", mine), mine, amount)
            self._debit(tx.on("orders", other), other, -amount)

        with suppress(psycopg.errors.CheckViolation):
            self.mailing.router.run_atomic(both)

    @rule(user=NUMBER)
    def rekey(self, user: int) -> None:
        """A key changes; refused while messages of it wait."""
        at = user % len(self.users)
        fresh = self.mailing.newest = self.mailing.newest + 1 + user % 7
        with suppress(psycopg.errors.SerializationFailure):
            assert self.mailing.router.rekey("orders", self.users[at], fresh, patience=1.0) == 1
            self.users[at] = fresh

    @rule(count=st.integers(1, 50))
    def take_ids(self, count: int) -> None:
        ids = self.mailing.router.ids("orders")
        for _ in range(count):
            number = ids.next()
            assert number not in self.issued, "an id was handed out twice"
            self.issued.add(number)

    # --- an operator, and the world

    @rule(tablet=NUMBER)
    def move(self, tablet: int) -> None:
        self._move(self._tablet(tablet))

    @rule(tablet=NUMBER, payer=NUMBER, payee=NUMBER)
    def move_beside_payments(self, tablet: int, payer: int, payee: int) -> None:
        self._beside(lambda: self._move(self._tablet(tablet)), payer, payee)

    @rule(tablet=NUMBER, payer=NUMBER, payee=NUMBER)
    def split_beside_payments(self, tablet: int, payer: int, payee: int) -> None:
        if len(self._tablets()) < 12:
            self._beside(lambda: self.mailing.move.split(self._tablet(tablet).id), payer, payee)

    @rule(tablet=NUMBER, payer=NUMBER, payee=NUMBER)
    def merge_beside_payments(self, tablet: int, payer: int, payee: int) -> None:
        pairs = list(self._pairs())
        if pairs:
            self._beside(lambda: self.mailing.move.merge(pairs[tablet % len(pairs)]), payer, payee)

    @rule()
    def deliver(self) -> None:
        """The leader's look at what nobody has delivered."""
        self.mailing.look()

    @rule(node=NUMBER)
    def end_sessions(self, node: int) -> None:
        names = sorted(self.mailing.shards.dsns)
        self.mailing.shards.node(names[node % len(names)]).execute(ENDED)

    # --- what must hold

    @rule()
    def check(self) -> None:
        """Settled, everybody is there once, and the money is all there."""
        for _ in range(20):
            if not self._pending():
                break
            self.mailing.look()
        assert not self._pending(), "messages that nobody can settle"
        names = self.mailing.shards.dsns
        rows = [
            (int(str(user)), int(str(n)))
            for name in names
            for user, n in self.mailing.shards.node(name).execute("SELECT user_id, n FROM orders").fetchall()
            if int(str(user)) in self.users
        ]
        assert sorted(user for user, _ in rows) == sorted(self.users), "a user is missing, or there twice"
        assert sum(n for _, n in rows) == self.total, "money was made or lost"
        assert all(n >= POOR for _, n in rows)

    def teardown(self) -> None:
        if hasattr(self, "users"):
            self.check()

    # --- helpers

    def _user(self, number: int) -> int:
        return self.users[number % len(self.users)]

    def _tablets(self) -> list[Tablet]:
        return self.mailing.shards.tablets()

    def _tablet(self, number: int) -> Tablet:
        tablets = self._tablets()
        return tablets[number % len(tablets)]

    def _pairs(self) -> Iterator[list[int]]:
        """Siblings on one node."""
        leaves = {one.bounds: one for one in self._tablets() if isinstance(one.bounds, Leaf)}
        for leaf, one in leaves.items():
            half = leaf.modulus // 2
            other = leaves.get(Leaf(leaf.modulus, leaf.remainder + half)) if leaf.remainder < half else None
            if other is not None and other.node == one.node:
                yield [one.id, other.id]

    def _pending(self) -> int:
        counted = "SELECT count(*) FROM balancer_outbox_1 WHERE message_state = 'pending'"
        return sum(int(str(row[0])) for row in self.mailing._all(counted))

    def _pay(self, payer: int, payee: int, amount: int, *, deliver: bool = True) -> None:
        def work(connection: Any) -> None:
            self._debit(connection, payer, amount)
            connection.send("orders", payee, "credit", {"amount": amount, "mark": ""}, deliver=deliver)

        with suppress(psycopg.errors.CheckViolation):  # nobody may be that poor
            self.mailing.router.run("orders", payer, work)

    def _debit(self, connection: Any, user: int, amount: int) -> None:
        done = connection.execute("UPDATE orders SET n = n - %s WHERE user_id = %s", (amount, user))
        assert done.rowcount == 1, f"user {user} was not found"

    def _move(self, tablet: Tablet) -> None:
        names = sorted(self.mailing.shards.dsns)
        target = next(name for name in names if name != tablet.node)
        self.mailing.move(tablet.id, target)

    def _beside(self, work: Callable[[], object], payer: int, payee: int) -> None:
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(work)
            for number in range(8):
                with suppress(Unavailable):  # its patience may end on a busy machine: nothing was done
                    self._pay(self._user(payer + number), self._user(payee), 1 + number)
            running.result(120)


@contextmanager
def cluster(folder: Path, dsns: list[str]) -> Iterator[None]:
    """The one that stories are told on."""
    with mailings(folder, dsns) as made:
        Chaos.mailing = made
        yield


def tell(examples: int, seed: int, steps: int = STEPS) -> None:
    """So many stories."""
    Chaos._hypothesis_internal_use_seed = seed
    run_state_machine_as_test(
        Chaos,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def main(seconds: float) -> int:
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))
    folder, until, stories = new_folder(None), time.monotonic() + seconds, 0
    with kept(folder), postgres(folder / "a", 15) as first, postgres(folder / "b", 18) as second:
        while time.monotonic() < until:
            with (
                new_database(first) as here,
                new_database(second) as there,
                tempfile.TemporaryDirectory() as place,
                cluster(Path(place), [here.dsn, there.dsn]),
            ):
                began = time.monotonic()
                print(f"CHAOS_SEED={seed}", flush=True)
                tell(AT_ONCE, seed)
                stories += AT_ONCE
                print(
                    f"    {AT_ONCE} stories in {time.monotonic() - began:.0f} s: nothing lost, nothing made", flush=True
                )
            seed += 1
    print(f"{stories} stories: no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0))
