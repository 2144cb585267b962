"""Applications go on while tablets really move: no error is seen, no write is lost or doubled, none goes astray."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from balancer.client import PoolSettings, Router
from tests.support.nemeses import until, waits_for_lock
from tests.support.shards import Shards, user_of

THREADS = 16
USERS = 64
PACE = 0.08
"""Seconds between two transactions of a thread: two hundred per second in all, and a server that keeps up."""


class Writer(threading.Thread):
    """Inserts rows of random users, one transaction each, until told to stop; keeps what was acknowledged."""

    def __init__(self, router: Router, number: int, stop: threading.Event) -> None:
        super().__init__()
        self._router = router
        self._number = number
        self._halt = stop
        self.acknowledged: list[tuple[int, int]] = []
        self.errors: list[Exception] = []
        self.longest = 0.0

    def run(self) -> None:
        for n in count():
            if self._halt.is_set():
                return
            row = ((self._number + n * 7) % USERS, self._number * 1_000_000 + n)
            began = time.monotonic()
            try:
                with self._router.transaction("orders", row[0]) as connection:
                    connection.execute("INSERT INTO orders VALUES (%s, %s)", row)
                    connection.execute("INSERT INTO items VALUES (%s, %s)", row)
            except Exception as error:
                self.errors.append(error)
                return
            self.longest = max(self.longest, time.monotonic() - began)
            self.acknowledged.append(row)
            time.sleep(PACE)


@contextmanager
def writing(shards: Shards, threads: int) -> Iterator[list[Writer]]:
    """Writes go on during the block; after it, nobody has seen an error and every acknowledged row is there once."""
    stop = threading.Event()
    with Router.connect(shards.url, PoolSettings(size=threads)) as router:
        writers = [Writer(router, number, stop) for number in range(threads)]
        for writer in writers:
            writer.start()
        try:
            yield writers
        finally:
            stop.set()
            for writer in writers:
                writer.join()
    assert [writer.errors for writer in writers if writer.errors] == []
    acknowledged = sorted(row for writer in writers for row in writer.acknowledged)
    longest = max(writer.longest for writer in writers)
    print(f"{len(acknowledged)} transactions of {threads} threads, longest {longest * 1000:.0f} ms")
    for root in ("orders", "items"):
        found = sorted(
            row
            for node in shards.dsns
            for row in shards.node(node).execute(f"SELECT user_id, n FROM {root}").fetchall()
        )
        assert found == acknowledged, f"every acknowledged write is in {root} exactly once"


def test_sixteen_threads_write_while_every_tablet_is_moved_twice(shards: Shards) -> None:
    with shards.leading() as move, writing(shards, THREADS):
        moves = [
            move(tablet.id, "pg-b" if tablet.node == "pg-a" else "pg-a")
            for _ in range(2)
            for tablet in shards.tablets()
        ]
    assert [moved.state for moved in moves] == ["done"] * 8
    assert {tablet.epoch for tablet in shards.tablets()} == {3}


def test_threads_write_while_a_tablet_is_split_and_merged_again(shards: Shards) -> None:
    with shards.leading() as leader, writing(shards, 4):
        split = leader.split(1)
        assert split.state == "done", split.error
        assert len(shards.tablets()) == 5
        merged = leader.merge([tablet.id for tablet in split.targets])
        assert merged.state == "done", merged.error
    assert len(shards.tablets()) == 4


def test_readers_see_their_rows_in_every_transaction_while_the_tablet_moves_back_and_forth(shards: Shards) -> None:
    """A reader that came to a former owner would see nothing, silently: it never does."""
    user = user_of(shards, 1)
    stop = threading.Event()
    seen: list[object] = []

    def read(router: Router) -> None:
        while not stop.is_set():
            with router.transaction("orders", user, read_only=True) as connection:
                first = connection.execute("SELECT count(*) FROM orders WHERE user_id = %s", (user,)).fetchone()
                time.sleep(0.002)
                second = connection.execute("SELECT count(*) FROM orders WHERE user_id = %s", (user,)).fetchone()
                seen.append((first, second))

    shards.node("pg-a").execute("INSERT INTO orders VALUES (%s, 1), (%s, 2)", (user, user))
    with Router.connect(shards.url) as router, shards.leading() as move:
        readers = [threading.Thread(target=read, args=(router,)) for _ in range(3)]
        for reader in readers:
            reader.start()
        for target in ("pg-b", "pg-a"):
            assert move(1, target).state == "done"
        stop.set()
        for reader in readers:
            reader.join()
    assert set(seen) == {((2,), (2,))}


STOPPED_CLIENT = """
import sys
from balancer.client import Router
url, user = sys.argv[1], int(sys.argv[2])
with Router.connect(url, samples=False) as router:
    router.locate("orders", user)
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(10, 20):
        with router.transaction("orders", user) as connection:
            connection.execute("INSERT INTO orders VALUES (%s, %s)", (user, n))
    print("written", flush=True)
"""


def test_a_client_that_was_stopped_during_a_move_writes_nothing_to_the_old_owner(shards: Shards) -> None:
    user = user_of(shards, 1)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED_CLIENT, shards.url, str(user)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        os.kill(client.pid, signal.SIGSTOP)
        client.stdin.write("\n")  # the first thing it does when it wakes up: it has not heard of the move
        client.stdin.flush()
        with shards.leading() as move:
            assert move(1, "pg-b").state == "done"
        os.kill(client.pid, signal.SIGCONT)
        assert client.stdout.readline() == "written\n"
    assert client.returncode == 0
    assert shards.node("pg-a").execute("SELECT count(*) FROM orders WHERE user_id = %s", (user,)).fetchone() == (0,)
    assert shards.node("pg-b").execute("SELECT count(*) FROM orders WHERE user_id = %s", (user,)).fetchone() == (10,)


def test_no_move_passes_an_open_block(shards: Shards) -> None:
    """The other half: a block holds its tablet, written to or not. The move waits or gives up; later it succeeds."""
    user = user_of(shards, 1)
    with Router.connect(shards.url, samples=False) as router, shards.leading() as move:
        with router.transaction("orders", user) as connection:
            connection.execute("SELECT 1")
            mover = threading.Thread(target=lambda: move(1, "pg-b"))
            mover.start()
            until(lambda: waits_for_lock(shards.node("pg-a")), "the fence's wait for the block")
            assert shards.tablet(1).node == "pg-a"
            connection.execute("INSERT INTO orders VALUES (%s, 1)", (user,))
        mover.join()
        if shards.tablet(1).node == "pg-a":
            assert move(1, "pg-b").state == "done"
    assert shards.node("pg-b").execute("SELECT count(*) FROM orders").fetchone() == (1,)
