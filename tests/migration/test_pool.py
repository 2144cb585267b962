"""Migrations under one leadership: their threads end with it, whatever they are in; pauses and windows do not mix."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from balancer.clock import SystemClock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Migration
from balancer.errors import Refused, Unavailable, UserError
from balancer.migration import pool as pool_module
from balancer.migration.begin import begin_move
from balancer.migration.pool import MigrationPool
from balancer.migration.progress import Observer, Progress
from balancer.nodes.session.connection import Address
from balancer.settings import MigrationSettings
from tests.daemon.conftest import _logs_apart as _logs_apart
from tests.daemon.conftest import directory as directory
from tests.daemon.conftest import leadership as leadership
from tests.support.cluster import Cluster, build, hash_table, hash_tablets, insert_rows
from tests.support.fleet import until
from tests.support.servers import Database

pytestmark = pytest.mark.quick


class Waits(Observer):
    """Remembers what each migration waits for."""

    def __init__(self) -> None:
        self.waiting: dict[str, str] = {}

    def progressed(self, migration: Migration, progress: Progress) -> None:
        self.waiting[migration.id] = progress.waiting_for if progress.paused else ""


class Asked:
    """Addresses: out of reach, or an error that nobody expects."""

    def __init__(self, error: Exception) -> None:
        self.error, self.times = error, threading.Semaphore(0)

    def __call__(self, node: str) -> Address:
        self.times.release()
        raise self.error


def made(directory: Directory, leadership: Leadership, addresses: Asked) -> MigrationPool:
    def settings_of(bundle: str) -> MigrationSettings:
        raise UserError(f"there is no bundle {bundle!r}")

    return MigrationPool(
        directory,
        leadership,
        addresses=addresses,
        settings_of=settings_of,
        observer=Observer(),
        clock=SystemClock(),
    )


def test_threads_end_with_the_leadership(directory: Directory, leadership: Leadership) -> None:
    asked = Asked(Unavailable("out of reach"))
    pool = made(directory, leadership, asked)
    for tablet in (1, 4):
        pool.start(begin_move(directory, leadership, tablet, "pg-b"))
    assert asked.times.acquire(timeout=60)
    assert len(pool.running()) == 2
    leadership.resign()
    pool.close(20.0)
    assert not pool.running()
    pool.start(replace(next(iter(directory.snapshot().migrations.values()))))
    assert not pool.running(), "a closed pool starts nothing"


def test_a_defect_does_not_leave_a_migration_to_nobody(
    directory: Directory, leadership: Leadership, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "DEFECT_SECONDS", 0.05)
    asked = Asked(ZeroDivisionError("a defect"))
    pool = made(directory, leadership, asked)
    pool.start(begin_move(directory, leadership, 1, "pg-b"))
    for _ in range(3):
        assert asked.times.acquire(timeout=60)
    leadership.resign()
    pool.close(20.0)
    assert not pool.running()


def test_what_is_journaled_is_taken_over_although_its_bundle_left_the_configuration(
    directory: Directory, leadership: Leadership
) -> None:
    begin_move(directory, leadership, 1, "pg-b")
    pool = made(directory, leadership, Asked(Unavailable("out of reach")))
    assert pool.recover() == 1
    assert len(pool.running()) == 1
    leadership.resign()
    pool.close(20.0)


@pytest.fixture
def cluster(tmp_path: Path, postgres18: object, database: object) -> Iterator[Cluster]:
    dsns: dict[str, str] = {}
    for name in ("a", "b"):
        new: Database = database(postgres18)  # type: ignore[operator]
        dsns[name] = new.dsn
    folder = tmp_path / "cluster"
    folder.mkdir()
    tablets = hash_tablets(2, ["a"])
    made = build(folder, dsns, hash_table(), tablets)
    insert_rows(made, tablets, range(2000))
    yield made
    made.close()


def test_a_window_holds_and_frees_what_operators_did_not_pause(cluster: Cluster) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    waits = Waits()
    slow = replace(cluster.settings, throttle=20_000)
    pool = MigrationPool(
        directory,
        leadership,
        addresses=cluster.address,
        settings_of=lambda _: slow,
        observer=waits,
        clock=SystemClock(),
    )
    migration = begin_move(directory, leadership, 1, "b", code="load").id
    pool.start(directory.snapshot().migrations[migration])
    held = frozenset({migration})
    pool.park("shop", held)
    until(lambda: "window" in waits.waiting.get(migration, ""), 20, "parking")
    pool.steer("pause", migration)
    until(lambda: "operator" in waits.waiting.get(migration, ""), 20, "an operator's pause")
    pool.park("shop", frozenset())
    until(lambda: "operator" in waits.waiting.get(migration, ""), 20, "an operator's pause")
    pool.park("shop", held)
    pool.steer("resume", migration)
    pool.park("shop", held)
    until(lambda: "window" in waits.waiting.get(migration, ""), 20, "parking again")
    pool.park("shop", frozenset())
    until(lambda: waits.waiting.get(migration) == "", 20, "going on")
    pool.steer("cancel", migration)
    until(lambda: not pool.running(), 30, "the end")
    assert directory.snapshot().migrations[migration].state == "cancelled"
    with pytest.raises(Refused, match="does not run"):
        pool.steer("resume", migration)
    leadership.resign()
    pool.close(10.0)
