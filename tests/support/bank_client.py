"""A teller of the bank: `python -m tests.support.bank_client URL PASSFILE SEED ACCOUNTS LOG`, until it is killed.

Moves money between random accounts, by atomic transactions and by messages in turn; now and then a message goes to an
account that does not exist, and must come back. Every transfer leaves its number in the notes of both accounts; the log
has what was begun and what became of it: a line before, a line after.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import psycopg

from balancer.client import Atomic, PoolSettings, RoutedConnection, Router
from balancer.errors import BalancerError, OutcomeUnknown

NOBODY = 0.05
PAY = "UPDATE orders SET n = n + %s, note = note || %s WHERE id = %s"


def main(url: str, passfile: str, seed: str, accounts: str, log: str) -> None:
    chance = Random(seed)
    with (
        Router.connect(url, PoolSettings(connection={"passfile": passfile}), samples=False) as router,
        Path(log).open("a", buffering=1) as told,
    ):
        number = 0
        while True:
            number += 1
            transfer = f"{seed}.{number}"
            payer, payee = chance.sample(range(1, int(accounts) + 1), 2)
            amount = chance.randrange(1, 100)
            if number % 2:
                told.write(f"begun {transfer} {payer} {payee} {amount}\n")
                told.write(f"{outcome(router, payment(transfer, {payer: -amount, payee: amount}))} {transfer}\n")
                continue
            transfer = f"#{transfer}"
            payee += int(accounts) if chance.random() < NOBODY else 0
            told.write(f"begun {transfer} {payer} {payee} {amount}\n")
            told.write(f"{sent(router, transfer, payer, payee, amount)} {transfer}\n")


def sent(router: Router, transfer: str, payer: int, payee: int, amount: int) -> str:
    """By a message; acknowledged when it is stored."""

    def pay(connection: RoutedConnection) -> None:
        changed = connection.execute(PAY, (-amount, f"{transfer};", payer))
        assert changed.rowcount == 1, f"account {payer} is not there"
        connection.send("orders", payee, "credit", {"amount": amount, "mark": f"{transfer};"})

    try:
        router.run("orders", payer, pay, patience=20)
    except OutcomeUnknown:
        return "unknown"
    except (BalancerError, psycopg.Error):
        return "refused"
    return "done"


def payment(transfer: str, changes: dict[int, int]) -> Callable[[Atomic], None]:
    def pay(tx: Atomic) -> None:
        for account, change in changes.items():
            changed = tx.on("orders", account).execute(PAY, (change, f"{transfer};", account))
            if changed.rowcount != 1:
                raise LookupError(f"account {account} is not there")

    return pay


def outcome(router: Router, pay: Callable[[Atomic], None]) -> str:
    try:
        router.run_atomic(pay, patience=20, lock_timeout=0.5)
    except OutcomeUnknown:
        return "unknown"
    except LookupError:
        return "missing"  # all accounts exist all the time: the books will say that this is a fault
    except (BalancerError, psycopg.Error):
        return "refused"
    return "done"


if __name__ == "__main__":
    main(*sys.argv[1:])
