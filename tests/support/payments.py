"""pgbench's payments through the library: `python -m tests.support.payments URL PASSFILE SEED SCALE`, until SIGTERM.

What pgbench calls TPC-B, with the account and its history on the account's owner, teller and branch where their whole
table is: one atomic transaction each. Prints the result as JSON.
"""

import json
import signal
import sys
import threading
import time
from random import Random

import psycopg

from balancer.client import Atomic, PoolSettings, Router
from balancer.errors import BalancerError

PER_SECOND = 50
"""As many as one client pays: a split or a move also needs machines with time to spare."""
ACCOUNT = "UPDATE pgbench_accounts SET abalance = abalance + %s WHERE aid = %s"
HISTORY = "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (%s, %s, %s, %s, CURRENT_TIMESTAMP)"
TELLER = "UPDATE pgbench_tellers SET tbalance = tbalance + %s WHERE tid = %s"
BRANCH = "UPDATE pgbench_branches SET bbalance = bbalance + %s WHERE bid = %s"


def pay(tx: Atomic, chance: Random, scale: int) -> None:
    aid, tid, bid = (chance.randrange(1, count * scale + 1) for count in (100_000, 10, 1))
    delta = chance.randrange(-5000, 5001)
    account = tx.on("pgbench_accounts", aid)
    assert account.execute(ACCOUNT, (delta, aid)).rowcount == 1, f"account {aid} is not there"
    account.execute(HISTORY, (tid, bid, aid, delta))
    office = tx.on("pgbench_branches")
    assert office.execute(TELLER, (delta, tid)).rowcount == 1, f"teller {tid} is not there"
    assert office.execute(BRANCH, (delta, bid)).rowcount == 1, f"branch {bid} is not there"


def main(url: str, passfile: str, seed: str, scale: str) -> None:
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    chance, done, longest, failed = Random(seed), 0, 0.0, []
    with Router.connect(url, PoolSettings(connection={"passfile": passfile}), samples=False) as router:
        due = time.monotonic()
        while not over.wait(max(0.0, due - time.monotonic())):
            due = max(due + 1 / PER_SECOND, time.monotonic() - 1)
            began = time.perf_counter()
            try:
                router.run_atomic(lambda tx: pay(tx, chance, int(scale)))
                done += 1
            except (BalancerError, psycopg.Error) as error:
                failed.append(f"{type(error).__name__}: {error}")
            longest = max(longest, time.perf_counter() - began)
    print(json.dumps({"done": done, "longest": longest, "failed": failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
