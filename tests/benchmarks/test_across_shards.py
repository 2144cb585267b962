"""What work over several nodes costs, beside the same by hand in the same run: two-phase commit, questions, loading."""

import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import psycopg
import pytest

from balancer.client import PoolSettings, Router
from balancer.clock import SystemClock
from balancer.embedded.postgres import PostgresServer
from balancer.features.messages.service import MessageService
from balancer.nodes.session.connection import Address
from tests.support.mailing import switch_messages_on
from tests.support.servers import new_folder, postgres
from tests.support.shards import Shards, databases, new_shards, user_of
from tests.support.tables import show_table

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

ROUNDS = 400
ROWS = 400_000
AT_ONCE = 8


@pytest.fixture(scope="module")
def servers() -> Iterator[list[PostgresServer]]:
    """Two, on a disk and with fsync: what a commit waits for is most of what is measured."""
    folder = new_folder(None)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield [
            stack.enter_context(postgres(folder / name, 18, {"fsync": "on", "max_prepared_transactions": 50}))
            for name in ("a", "b")
        ]


@pytest.fixture
def shards(tmp_path: Path, servers: list[PostgresServer]) -> Iterator[Shards]:
    with ExitStack() as stack:
        dsns = [stack.enter_context(databases(server, 1))[0] for server in servers]
        yield stack.enter_context(new_shards(tmp_path, dsns, tablets=64))


@pytest.fixture
def router(shards: Shards) -> Iterator[Router]:
    with Router.connect(shards.url, PoolSettings(size=AT_ONCE), samples=False) as opened:
        yield opened


def medians(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Milliseconds of each, taken in turns: the machine's moods meet all of them."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, work in ways.items():
            began = time.perf_counter()
            work()
            taken[name].append((time.perf_counter() - began) * 1000)
    return {name: statistics.median(values[20:]) for name, values in taken.items()}


def test_atomic_beside_two_phase_commit_by_hand(shards: Shards, router: Router) -> None:
    users = user_of(shards, 1), user_of(shards, 2)
    places = [router.locate("orders", user).node for user in users]
    assert places[0] != places[1]
    insert = "INSERT INTO orders VALUES (%s, %s)"
    numbers = count()

    def atomic() -> None:
        n = next(numbers)
        with router.atomic() as tx:
            for user in users:
                tx.on("orders", user).execute(insert, (user, n))

    links = [psycopg.connect(shards.dsns[place], autocommit=True) for place in places]

    def by_hand(parts: int) -> None:
        """Every participant prepared, as textbooks have it; or all but the first, without a decision."""
        n = next(numbers)
        for link, user in zip(links, users, strict=True):
            link.execute("BEGIN")
            link.execute(insert, (user, n))
        for number, link in enumerate(links[-parts:]):
            link.execute(f"PREPARE TRANSACTION 'p{n}-{number}'".encode())
        if parts == 1:
            links[0].execute("COMMIT")
        for number, link in enumerate(links[-parts:]):
            link.execute(f"COMMIT PREPARED 'p{n}-{number}'".encode())

    def single() -> None:
        with router.transaction("orders", users[0]) as connection:
            connection.execute(insert, (users[0], next(numbers)))

    found = medians(
        {
            "router.atomic, two nodes": atomic,
            "by hand, both prepared": lambda: by_hand(2),
            "by hand, one prepared, no decision kept": lambda: by_hand(1),
            "router.transaction, one node": single,
        }
    )
    base = found["by hand, both prepared"]
    show_table(
        "two inserts on two nodes, fsync on",
        ["how", "ms (median)", "times by hand"],
        [(name, taken, taken / base) for name, taken in found.items()],
    )
    for link in links:
        link.close()


def test_map_beside_bare_queries(shards: Shards, router: Router) -> None:
    router.copy_into("orders", ((number, 0, "") for number in range(20_000)), ["user_id", "n", "note"])
    tablets = [(tablet.node, f"SELECT count(*), sum(n) FROM orders_t{tablet.id}") for tablet in shards.tablets()]
    local = threading.local()
    stack = ExitStack()

    def ask(question: tuple[str, str]) -> object:
        node, statement = question
        links = local.__dict__.setdefault("links", {})
        if node not in links:
            links[node] = stack.enter_context(psycopg.connect(shards.dsns[node], autocommit=True))
        return links[node].execute(statement).fetchall()

    with stack, ThreadPoolExecutor(AT_ONCE) as threads:
        found = medians(
            {
                "router.map": lambda: list(
                    router.map("orders", "SELECT count(*), sum(n) FROM {orders}", at_once=AT_ONCE)
                ),
                "bare queries": lambda: list(threads.map(ask, tablets)),
            }
        )
    base = found["bare queries"]
    show_table(
        f"64 tablets asked, {AT_ONCE} at a time",
        ["how", "ms (median)", "times bare"],
        [(name, taken, taken / base) for name, taken in found.items()],
    )


def test_copy_into_beside_bare_copy(shards: Shards, router: Router) -> None:
    rows = [(number, 0, "x" * 100) for number in range(ROWS)]
    owned = router.group("orders", [row[0] for row in rows])
    groups = {node: [rows[at] for at in places] for node, places in owned.items()}

    def clear() -> None:
        for node in shards.dsns:
            shards.node(node).execute("TRUNCATE orders")
            shards.node(node).execute("CHECKPOINT")

    def bare(node: str) -> None:
        with (
            psycopg.connect(shards.dsns[node]) as link,
            link.cursor() as cursor,
            cursor.copy("COPY orders (user_id, n, note) FROM STDIN") as copy,
        ):
            for row in groups[node]:
                copy.write_row(row)

    timings: dict[str, list[float]] = {"router.copy_into": [], "bare COPY to each node": []}
    for _ in range(3):
        clear()
        began = time.perf_counter()
        router.copy_into("orders", rows, ["user_id", "n", "note"])
        timings["router.copy_into"].append(time.perf_counter() - began)
        clear()
        began = time.perf_counter()
        with ThreadPoolExecutor(len(groups)) as threads:
            list(threads.map(bare, groups))
        timings["bare COPY to each node"].append(time.perf_counter() - began)
    base = statistics.median(timings["bare COPY to each node"])
    show_table(
        f"{ROWS:,} rows to two nodes, grouped beforehand for bare COPY",
        ["how", "rows/s", "speed by bare"],
        [(name, ROWS / statistics.median(taken), base / statistics.median(taken)) for name, taken in timings.items()],
    )


def test_messages_beside_two_updates_by_hand(shards: Shards, router: Router) -> None:
    """The same two changes on two nodes: by a message, and committed by hand one after the other, without a promise."""
    switch_messages_on(shards)
    users = user_of(shards, 1), user_of(shards, 2)
    places = [router.locate("orders", user).node for user in users]
    assert places[0] != places[1]
    for user in users:
        with router.transaction("orders", user) as connection:
            connection.execute("INSERT INTO orders VALUES (%s, 1000000)", (user,))
    change = "UPDATE orders SET n = n + %s WHERE user_id = %s"

    def message(deliver: bool) -> None:
        with router.transaction("orders", users[0]) as connection:
            connection.execute(change, (-1, users[0]))
            connection.send("orders", users[1], "credit", {"amount": 1, "mark": ""}, deliver=deliver)

    def routed() -> None:
        for user in users:
            with router.transaction("orders", user) as connection:
                connection.execute(change, (0, user))

    links = [psycopg.connect(shards.dsns[place], autocommit=True) for place in places]

    def by_hand() -> None:
        for link, user in zip(links, users, strict=True):
            with link.transaction():
                link.execute(change, (0, user))

    found = medians(
        {
            "a message, delivered and settled": lambda: message(True),
            "two of router.transaction": routed,
            "by hand": by_hand,
        }
    )
    delay = found["a message, delivered and settled"] - medians({"stored": lambda: message(False)})["stored"]
    base = found["by hand"]
    rows = [(name, taken, taken / base) for name, taken in found.items()]
    rows.append(("of the message, after it is stored: its delay", delay, delay / base))
    show_table("one thread, two nodes, fsync on", ["how", "ms (median)", "times by hand"], rows)
    for link in links:
        link.close()
    _show_rates(shards, router)


def _show_rates(shards: Shards, router: Router) -> None:
    """How many a second by several senders, and by the leader alone from an outbox that is full."""
    senders = [user_of(shards, number) for number in range(3, 3 + AT_ONCE)]
    targets = [user_of(shards, number) for number in range(20, 20 + AT_ONCE)]
    for user in (*senders, *targets):
        with router.transaction("orders", user) as connection:
            connection.execute("INSERT INTO orders VALUES (%s, 1000000)", (user,))

    def send(number: int, deliver: bool) -> None:
        for _ in range(ROUNDS // 4):
            with router.transaction("orders", senders[number]) as connection:
                body = {"amount": 1, "mark": ""}
                connection.send("orders", targets[number], "credit", body, deliver=deliver)

    rates: list[tuple[str, float]] = []
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for name, deliver in ((f"{AT_ONCE} senders deliver", True), (f"{AT_ONCE} senders only store", False)):
            began = time.perf_counter()
            list(threads.map(send, range(AT_ONCE), [deliver] * AT_ONCE))
            rates.append((name, AT_ONCE * (ROUNDS // 4) / (time.perf_counter() - began)))
    for node in shards.dsns:
        shards.node(node).execute("UPDATE balancer_outbox_1 SET message_due = message_sent")
    addresses = {node: Address(node, dsn) for node, dsn in shards.dsns.items()}
    with shards.leading() as leader:
        service = MessageService(leader.leadership, addresses.__getitem__, SystemClock())
        began, settled = time.perf_counter(), 0
        while done := service.look(shards.directory.snapshot()).settled:
            settled += done
        rates.append(("the leader delivers them", settled / (time.perf_counter() - began)))
        service.close()
    assert settled >= AT_ONCE * (ROUNDS // 4)
    show_table("messages a second", ["how", "a second"], rates)
