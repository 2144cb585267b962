"""Clients that stop in the middle of an atomic transaction: in this process, or in one that is going to be killed.

`python -m tests.support.atomic_victim URL PASSWORD WORD ID ID` inserts a row of each id into `orders`, and stops,
having said so, right after it has sent the request that contains WORD. With the word `nothing` it never commits.
"""

import sys
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import psycopg

from balancer.client import Isolation, PoolSettings, Router
from balancer.client.atomic import AtomicSteps
from balancer.client.transaction.steps import Request

NOTHING = "nothing"


class Standing:
    """An atomic transaction whose client stops right after it has sent something."""

    def __init__(
        self, router: Router, word: str, pair: tuple[int, int], statement: str = "INSERT INTO orders VALUES (%s, 1)"
    ) -> None:
        self._router = router
        self.steps = AtomicSteps(
            router._routes, router._ended, isolation=Isolation.READ_COMMITTED, patience=10, lock=2.0
        )
        for user in pair:
            loan = router._drive(self.steps.join("orders", user))
            loan.connection.execute(statement, (user,))
        self._work = self.steps.commit()
        request = next(self._work)
        while word not in repr(request):
            request = self._work.send(router._perform(request))
        self._answer = router._perform(request)

    def go_on(self) -> None:
        self._router._drive(self._rest())

    def _rest(self) -> Generator[Request, Any, None]:
        with suppress(StopIteration):
            request = self._work.send(self._answer)
            while True:
                try:
                    answer = yield request
                except psycopg.Error as error:
                    request = self._work.throw(error)
                else:
                    request = self._work.send(answer)


class StandingRouter(Router):
    word = NOTHING

    def _perform(self, request: Request) -> Any:
        answer = super()._perform(request)
        if self.word in repr(request):
            stand()
        return answer


def stand() -> None:
    print("standing", flush=True)
    time.sleep(600)


def main(url: str, password: str, word: str, *ids: str) -> None:
    routes = PoolSettings(connection={"password": password})
    with StandingRouter.connect(url, routes, samples=False) as router, router.atomic() as tx:
        for number in map(int, ids):
            tx.on("orders", number).execute("INSERT INTO orders (id, note) VALUES (%s, 'atomic')", (number,))
        StandingRouter.word = word
        if word == NOTHING:
            stand()
    stand()


if __name__ == "__main__":
    main(*sys.argv[1:])
