"""A client that stops while it sends a message, to be killed there.

`python -m tests.support.message_victim URL PASSWORD WORD PAYER PAYEE` pays by a message, and stops, having said so,
right after it has sent the request that contains WORD. With the word `nothing` it never commits.
"""

import sys

from balancer.client import PoolSettings
from tests.support.atomic_victim import NOTHING, StandingRouter, stand


def main(url: str, password: str, word: str, payer: str, payee: str) -> None:
    routes = PoolSettings(connection={"password": password})
    with StandingRouter.connect(url, routes, samples=False) as router:
        with router.transaction("orders", int(payer)) as connection:
            connection.execute("UPDATE orders SET n = n - 5 WHERE id = %s", (payer,))
            connection.send("orders", int(payee), "credit", {"amount": 5})
            StandingRouter.word = word
            if word == NOTHING:
                stand()
        stand()


if __name__ == "__main__":
    main(*sys.argv[1:])
