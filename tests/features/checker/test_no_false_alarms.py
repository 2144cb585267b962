"""A sound cluster under load, whose tablets move, split and merge all the time, has no findings."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from functools import partial

import psycopg

from balancer.client import Atomic, PoolSettings, Router
from balancer.directory.model import Migration
from balancer.errors import BalancerError
from balancer.policies.check_options import CheckOptions, IdColumn, Invariant, OrphanRule
from tests.features.checker.conftest import USERS
from tests.support.checking import anomalies, checker_of, run_round
from tests.support.shards import Leader, Shards

SEED = random.SystemRandom().randrange(1_000_000)
ROUNDS, MIGRATIONS = 4, 5  # at least
PACE = 0.01
"""Seconds between two transactions of a writer: at full speed they would take the processors from the checks."""
OPTIONS = CheckOptions(
    orphans=(OrphanRule("items", ("user_id", "n"), "orders"),),
    ids=(IdColumn("orders", "n"),),
    invariants=(
        Invariant("items have an order", "orders", "SELECT n FROM {items} EXCEPT SELECT n FROM {orders}"),
        Invariant("as many items as orders", "orders", "SELECT FROM {orders} HAVING count(*) > 1000000"),
        Invariant("nothing is lost", "orders", sum="SELECT count(*) FROM {items}", equals=Decimal(120)),
    ),
)


@contextmanager
def movers(shards: Shards) -> Iterator[list[str]]:
    """Moves, splits and merges, one after another, for the length of a block."""
    done: list[str] = []
    stop = threading.Event()
    chance = random.Random(SEED)

    def work(leader: Leader) -> None:
        while not stop.is_set():
            tablet = chance.choice(shards.tablets())
            target = chance.choice([node for node in shards.dsns if node != tablet.node])
            word = chance.choice(["move", "move", "split", "merge"])
            try:
                done.append(f"{word} {_act(leader, shards, word, tablet.id, target).state}")
            except BalancerError as error:
                done.append(f"{word} refused: {error}")

    with shards.leading() as leader:
        thread = threading.Thread(target=work, args=(leader,))
        thread.start()
        try:
            yield done
        finally:
            stop.set()
            thread.join(120)


def _act(leader: Leader, shards: Shards, word: str, tablet: int, target: str) -> Migration:
    if word == "split":
        return leader.split(tablet)
    if word == "merge":
        mine = shards.tablet(tablet)
        bounds = mine.bounds
        twin = [
            other.id
            for other in shards.tablets()
            if other.node == mine.node
            and other.bounds.modulus == bounds.modulus  # type: ignore[union-attr]
            and abs(other.bounds.remainder - bounds.remainder) == bounds.modulus // 2  # type: ignore[union-attr]
        ]
        if twin:
            return leader.merge(sorted([tablet, *twin], key=lambda number: shards.tablet(number).bounds.remainder))  # type: ignore[union-attr]
    return leader(tablet, target)


@contextmanager
def application(shards: Shards) -> Iterator[list[int]]:
    """An item of one user becomes another's, in one transaction over two nodes: their sum never changes."""
    stop = threading.Event()
    count = [0]
    login = PoolSettings(size=4)

    def work(number: int) -> None:
        chance = random.Random(SEED + number)
        with Router.connect(shards.url, login, samples=False) as router:
            ids = router.ids("orders")
            while not stop.is_set():
                one, other = chance.sample(USERS, 2)
                try:
                    router.run_atomic(partial(_swap, one=one, other=other, n=ids.next()))
                    count[0] += 1
                except (BalancerError, psycopg.Error) as error:
                    print(f"writer: {error}")
                stop.wait(PACE)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        yield count
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)


def _swap(tx: Atomic, one: int, other: int, n: int) -> None:
    """A row leaves one user and comes to another, who gets an order for it."""
    first, second = tx.on("orders", one), tx.on("orders", other)
    some = "SELECT ctid FROM items WHERE user_id = %s LIMIT 1"
    gone = first.execute(f"DELETE FROM items WHERE ctid = ({some}) AND user_id = %s RETURNING n".encode(), (one, one))
    if gone.fetchone() is not None:
        for root in ("orders", "items"):
            second.execute(f"INSERT INTO {root} VALUES (%s, %s, 'bought')".encode(), (other, n))


def test_moves_splits_and_merges_under_load_give_no_false_alarm(shards: Shards) -> None:
    print(f"seed {SEED}")
    options = replace(OPTIONS)
    with application(shards) as written, movers(shards) as done, checker_of(shards, options, trusted=True) as checker:
        while len(checker.book.past) < ROUNDS or sum("done" in one for one in done) < MIGRATIONS:
            book = run_round(checker)
            assert anomalies(book) == []
    print(f"{written[0]} transactions, migrations: {done}; not looked at: {book.round and book.round.why}")
    assert written[0] > 20
    assert sum(past.unchecked for past in book.past) <= 5 * len(book.past), book.round
