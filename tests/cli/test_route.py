"""`balancer route` and `balancer pgbouncer sync`, as a user runs them."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from balancer.directory.locate import locate_key
from balancer.directory.model import Put
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.features.pgbouncer.bouncer import Bouncer, read_targets
from tests.support.bouncers import PgBouncer, running_pgbouncer
from tests.support.commands import balancer_here as balancer
from tests.support.commands import started
from tests.support.directories import fill, moved, transaction


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"sqlite://{tmp_path}/directory.sqlite"
    with open_directory(made) as directory:
        fill(directory)
    return made


@pytest.fixture(scope="module")
def pgbouncer(server_folder: Path, postgres18: PostgresServer) -> Iterator[PgBouncer]:
    with running_pgbouncer(server_folder / "pgbouncer-cli", postgres18) as running:
        yield running


def test_route_tells_node_tablet_and_epoch(url: str) -> None:
    with open_directory(url) as directory:
        expected = locate_key(directory.snapshot(), "orders", -7)
    told = balancer("route", "-d", url, "orders", "--", "-7")
    assert told.code == 0, told.err
    assert told.out.startswith(f"node {expected.node}, tablet {expected.tablet}, epoch 1: postgresql://")
    document = json.loads(balancer("route", "-d", url, "-o", "json", "orders", "--", "-7").out)
    assert (document["node"], document["tablet"], document["epoch"]) == expected


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nowhere", "1"), "no table 'nowhere'"),
        (("orders", "x"), "'x' is not a value of type bigint"),
        (("orders", "1", "2"), "1 values, not 2"),
    ],
)
def test_a_wrong_question_is_answered_in_one_sentence(url: str, arguments: tuple[str, ...], sentence: str) -> None:
    told = balancer("route", "-d", url, *arguments)
    assert told.code == 2
    assert sentence in told.err
    assert "Traceback" not in told.err


def test_pgbouncer_sync_writes_the_aliases_once(url: str, pgbouncer: PgBouncer) -> None:
    arguments = ("pgbouncer", "sync", "-d", url, "--admin", pgbouncer.admin, "--file", pgbouncer.file)
    first = balancer(*arguments)
    assert first.code == 0, first.err
    assert first.out.startswith("12 aliases, 12 changed: events_t1001")
    assert balancer(*arguments, "-o", "json").out.split() == ["{", '"aliases":', "12,", '"changed":', "[]", "}"]
    assert read_targets(pgbouncer.file)["orders_t1"] == "host='pg-a' port='5432' dbname='shop'"


def test_pgbouncer_sync_says_what_it_needs(url: str, tmp_path: Path) -> None:
    told = balancer("pgbouncer", "sync", "-d", url, "--admin", "host=127.0.0.1 port=1")
    assert (told.code, told.err) == (2, "--admin and --file belong together\n")
    told = balancer("pgbouncer", "sync", "-d", url, "--admin", "host=127.0.0.1 port=1", "--file", tmp_path / "f")
    assert told.code == 3
    assert "PgBouncer's console cannot be reached" in told.err


def test_pgbouncer_sync_follows_and_leaves_nobody_paused(url: str, pgbouncer: PgBouncer) -> None:
    bouncer = Bouncer(pgbouncer.admin, pgbouncer.file)
    with open_directory(url) as directory:
        bouncer.sync(directory.snapshot())
        bouncer.hold(["orders_t2"])
        arguments = ["-d", url, "--admin", pgbouncer.admin, "--file", str(pgbouncer.file), "--follow"]
        with started("-m", "balancer", "pgbouncer", "sync", *arguments) as following:
            snapshot = directory.snapshot()
            directory.commit(transaction([Put(moved(snapshot.tablet(1), "pg-c"))], snapshot.version))
            until(lambda: "'pg-c'" in read_targets(pgbouncer.file)["orders_t1"])
            following.send_signal(signal.SIGINT)
            assert following.wait(60) == 130
    assert Bouncer(pgbouncer.admin, pgbouncer.file).resume_all() == []


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("dsn", ["host=h sslpassword=hush", "postgresql://u:hush@h/d", "postgresql://u:1/hush@h/d"])
def test_a_secret_that_was_stored_in_an_address_is_not_shown(url: str, dsn: str) -> None:
    with open_directory(url) as directory:
        snapshot = directory.snapshot()
        puts = [Put(replace(node, dsn=dsn)) for node in snapshot.nodes.values()]
        directory.commit(transaction(puts, snapshot.version))
    for output in ("text", "json"):
        told = balancer("route", "-d", url, "-o", output, "orders", "1")
        assert told.code == 0
        assert "hush" not in told.out + told.err
