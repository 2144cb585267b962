"""The example projects, run as servers of their own while their tablets are moved again and again: no request fails."""

import os
import random
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from balancer.client.testing import PracticeCluster
from balancer.embedded.process import free_port
from tests.support.commands import balancer_here
from tests.support.fleet import CLIENT
from tests.support.nemeses import until
from tests.support.sampling import SEED

EXAMPLES = Path(__file__).parents[2] / "examples"
MOVES = 20 if SEED == "all" else 8
USERS = 16
CLIENTS = 3
PACE = 0.15
"""Seconds between two rounds of a client: some dozens of requests a second, and a server that keeps up."""


@pytest.fixture
def shop(balancer_cluster: PracticeCluster) -> PracticeCluster:
    balancer_cluster.create_table("orders", (EXAMPLES / "orders.sql").read_text(), key=["user_id"], tablets=2)
    return balancer_cluster


@contextmanager
def served(command: list[str], folder: Path, environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """A server of its own; its last words are shown where it does not start."""
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def answers(url: str, process: subprocess.Popen[str], log: Path) -> bool:
    assert process.poll() is None, log.read_text()[-3000:]
    try:
        CLIENT.get(url, timeout=2)
    except httpx.TransportError:
        return False
    return True


class Customers:
    """Clients that place, change and read orders without a pause; what was acknowledged, and everything that failed."""

    def __init__(self, base: str, change: dict[str, Any]) -> None:
        self.base = base
        self.change = change
        self.stop = threading.Event()
        self.failures: list[str] = []
        self.acknowledged: dict[int, set[int]] = {user: set() for user in range(USERS)}
        self.requests = 0
        self.nodes: set[str] = set()
        self._seed = random.SystemRandom().randrange(1_000_000)
        print(f"seed {self._seed}")

    def shop(self, number: int) -> None:
        chance = random.Random(self._seed + number)
        with httpx.Client(base_url=self.base, timeout=30) as client:
            while not self.stop.is_set():
                try:
                    self._one(client, chance.randrange(number, USERS, CLIENTS), chance)
                except Exception as error:
                    self.failures.append(repr(error))
                    return
                time.sleep(PACE)

    def _one(self, client: httpx.Client, user: int, chance: random.Random) -> None:
        """A user has one client: what that has seen acknowledged must be what it reads."""
        made = self._said(client.post(f"/users/{user}/orders", json={"amount": 1}), 201)
        self.acknowledged[user].add(made["id"])
        self.nodes.add(made["node"])
        found = self._said(client.get(f"/users/{user}/orders"), 200)
        orders = found["orders"] if isinstance(found, dict) else found
        if {order["id"] for order in orders} != self.acknowledged[user]:
            self.failures.append(f"user {user} has other orders than were acknowledged")
        some = chance.choice(sorted(self.acknowledged[user]))
        self._said(client.patch(f"/users/{user}/orders/{some}", json=self.change), 200)

    def _said(self, response: httpx.Response, status: int) -> Any:
        self.requests += 1
        if response.status_code != status:
            self.failures.append(
                f"{response.request.method} {response.url}: {response.status_code} {response.text[:300]}"
            )
        return response.json()

    def while_tablets_move(self, shop: PracticeCluster) -> None:
        threads = [threading.Thread(target=self.shop, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            for turn in range(MOVES):
                shop.move("orders", turn % USERS)
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()
        print(f"{self.requests} requests during {MOVES} moves, on nodes {sorted(self.nodes)}")
        assert self.failures == []
        assert self.nodes == set(shop.dsns)
        rows = [row for node in shop.dsns for row in shop.execute(node, "SELECT user_id, id FROM orders")]
        assert sorted(rows) == sorted((user, made) for user, ids in self.acknowledged.items() for made in ids)


def environment(shop: PracticeCluster, **words: str) -> dict[str, str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "BALANCER_DIRECTORY": shop.url, **words}


class TestDjango:
    def test_no_request_fails_while_tablets_move(self, shop: PracticeCluster, tmp_path: Path) -> None:
        folder, log = EXAMPLES / "django_shop", tmp_path / "log"
        words = environment(shop, SHOP_ACCOUNTS=str(tmp_path / "accounts.sqlite3"))
        self.change_the_schema(shop, folder, words, tmp_path)
        port = free_port()
        command = [sys.executable, "manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"]
        with served(command, folder, words, log) as process:
            base = f"http://127.0.0.1:{port}"
            until(lambda: answers(f"{base}/users/1/orders", process, log), "the server's first answer")
            Customers(base, {"note": "x"}).while_tablets_move(shop)
            self.look_at_the_admin(base, shop, folder, words)

    def change_the_schema(self, shop: PracticeCluster, folder: Path, words: dict[str, str], place: Path) -> None:
        """As a team does: `migrate` for the ordinary database, `shard_ddl` and `balancer ddl` for the cluster."""
        manage(folder, words, "migrate", "--verbosity", "0")
        with closing(sqlite3.connect(words["SHOP_ACCOUNTS"])) as accounts:
            tables = {name for (name,) in accounts.execute("SELECT name FROM sqlite_master")}
        assert "auth_user" in tables
        assert "orders" not in tables
        assert manage(folder, words, "makemigrations", "--check", "--dry-run").strip() == "No changes detected"
        change = place / "change.sql"
        change.write_text(manage(folder, words, "shard_ddl", "shop", "0002"))
        assert 'ALTER TABLE "orders" ADD COLUMN "note"' in change.read_text()
        config = str(shop.write_configuration(place / "config"))
        done = balancer_here("ddl", "apply", "practice", str(change), "--config", config)
        assert done.code == 0, done.err
        for node in shop.dsns:
            assert shop.execute(
                node, "SELECT attname::text FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attname = 'note'"
            )

    def look_at_the_admin(self, base: str, shop: PracticeCluster, folder: Path, words: dict[str, str]) -> None:
        """Every page says which shard it looks at."""
        manage(
            folder,
            {**words, "DJANGO_SUPERUSER_PASSWORD": "x"},
            "createsuperuser",
            "--noinput",
            "--username=a",
            "--email=a@example.org",
        )
        with httpx.Client(base_url=base, follow_redirects=True, timeout=30) as client:
            page = client.get("/admin/login/")
            token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)
            assert token is not None
            form = {"username": "a", "password": "x", "csrfmiddlewaretoken": token[1], "next": "/admin/shop/order/"}
            asked = client.post("/admin/login/", data=form)
            assert 'name="_shard"' in asked.text, asked.text[:500]
            listed = client.get("/admin/shop/order/?_shard=3")
            assert f"table orders, key 3: node {shop.owner('orders', 3)}, tablet" in listed.text
            ids = shop.execute(shop.owner("orders", 3), "SELECT id FROM orders WHERE user_id = 3")
            assert f"{len(ids)} orders" in listed.text
            opened = client.get(f"/admin/shop/order/{ids[0][0]}/change/")
            assert "table orders, key 3: node" in opened.text
            assert client.get("/admin/shop/order/?_shard=three").status_code == 400


def manage(folder: Path, words: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments], cwd=folder, env=words, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestFastApi:
    def test_no_request_fails_while_tablets_move(self, shop: PracticeCluster, tmp_path: Path) -> None:
        port, log = free_port(), tmp_path / "log"
        command = [sys.executable, "-m", "uvicorn", "main:app", "--port", str(port), "--log-level", "warning"]
        with served(command, EXAMPLES / "fastapi_shop", environment(shop), log) as process:
            base = f"http://127.0.0.1:{port}"
            until(lambda: answers(f"{base}/users/1/orders", process, log), "the server's first answer")
            Customers(base, {"amount": 2}).while_tablets_move(shop)
            refused = CLIENT.get(f"{base}/users/one/orders")
            assert refused.status_code == 422
            assert "user_id" in refused.json()["detail"]
