"""A time-range table keeps itself: tablets ahead on both nodes, expired ones gone, and an operator's word over it."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from balancer.directory.model import TabletState
from balancer.embedded.postgres import PostgresServer
from balancer.policies.keyspace.keys import KeyType, encode_key
from tests.support.running import DAEMON, Running, quiet_logs, until
from tests.support.servers import new_database

BUNDLE = """
mode = "autonomous"
{nodes}
[tablet_balancer_config]
tablet_balancer_schedule = "{schedule}"

[migration]
retire_grace = "0s"
write_pause_budget = "2s"
fence_deadline = "5s"
moves_per_node = 2

[tables.events]
roots = ["public.events"]
layout = "range"
key = ["day", "id"]
splits = [{splits}]
every = "1d"
premake = "3d"
expire_after = "10d"
"""
TABLE = "CREATE TABLE events (day date, id bigint, PRIMARY KEY (day, id)) PARTITION BY RANGE (day, id)"


def day(number: int) -> date:
    return datetime.now(UTC).date() + timedelta(days=number)


def bound(number: int) -> bytes:
    return encode_key((KeyType.DATE, KeyType.BIGINT), (day(number),), prefix=True)


@pytest.fixture
def running(tmp_path: Path, postgres15: PostgresServer, postgres18: PostgresServer) -> Iterator[Running]:
    """Tablets up to 14 and 13 days ago, which have expired, and the rest."""
    with quiet_logs(), new_database(postgres15) as a, new_database(postgres18) as b:
        made = Running(tmp_path, {"a": a, "b": b})
        (tmp_path / "bundles").mkdir()
        made.config.write_text(DAEMON.format(folder=tmp_path, instance="none"))
        write(made, "hours > 25")
        (tmp_path / "events.sql").write_text(TABLE)
        done = made.balancer("table", "create", "shop", "events", "--definition", str(tmp_path / "events.sql"))
        assert done.code == 0, done.err
        with a.connect() as connection:
            connection.execute("INSERT INTO events SELECT %s, n FROM generate_series(1, 7) AS n", (day(-14),))
        yield made


def write(running: Running, schedule: str) -> None:
    nodes = "".join(f"[nodes.{name}]\ndsn = '{one.dsn}'\n" for name, one in running.databases.items())
    splits = ", ".join(f'"{day(number)}"' for number in (-14, -13))
    text = BUNDLE.format(nodes=nodes, schedule=schedule, splits=splits)
    (running.folder / "bundles" / "shop.toml").write_text(text)


def lowers(running: Running) -> dict[bytes, str]:
    """Where each tablet begins, and its node, if no migration is left."""
    snapshot = running.snapshot()
    if any(not one.finished for one in snapshot.migrations.values()):
        return {}
    return {tablet.bounds.lower: tablet.node for tablet in snapshot.tablets(1)}  # type: ignore[union-attr]


def test_an_operator_sees_holds_and_retires_what_has_expired(running: Running) -> None:
    shown = json.loads(running.balancer("expire", "shop", "--dry-run", "-o", "json").out)
    assert [(one["table"], one["tablet"], one["node"]) for one in shown] == [("events", 1, "a"), ("events", 2, "a")]
    assert shown[1]["keys_before"] == f"{day(-13)}T12:00:00+00:00"
    with running.daemon():
        assert running.balancer("expire", "shop", "--hold", "--reason", "audit").out.startswith("nothing expires in")
        assert "they are held" in running.balancer("expire", "shop", "--dry-run").out
        refused = running.balancer("expire", "shop")
        assert (refused.code, "is held" in refused.err) == (4, True)
        assert running.balancer("expire", "shop", "--release").code == 0
        started = json.loads(running.balancer("expire", "shop", "-o", "json").out)
        assert [one["table"] for one in started] == ["events"]
        until(lambda: running.snapshot().migrations[started[0]["migration"]].finished, "the expiry has ended")
        assert "0 tablets of bundle shop have expired" in running.balancer("expire", "shop", "--dry-run").out
        assert "nothing in bundle shop has expired" in running.balancer("expire", "shop").out
    assert "7 rows of tablet 2 of events have expired" in running.balancer("history").out
    assert running.balancer("expire", "shop", "--hold", "--release").code == 2


def test_tablets_are_made_ahead_on_both_nodes_and_expired_ones_go(running: Running) -> None:
    write(running, "")
    with running.daemon():
        until(lambda: {bound(number) for number in (1, 2, 3, 4)} <= lowers(running).keys(), "four days are cut off", 60)
        until(lambda: len({lowers(running).get(bound(number)) for number in (1, 2, 3)}) == 2, "both have some", 60)
        until(lambda: next(iter(running.snapshot().tablets(1))).state is TabletState.EXPIRED, "the oldest are gone", 60)
        where: dict[bytes, str] = {}  # looked at once: a moment later something may run again
        until(lambda: where.update(lowers(running)) or where, "nothing runs any more", 60)
    assert {b"", bound(-9)} <= where.keys()  # how far before it has expired depends on the hour
    with running.databases[where[bound(2)]].connect() as connection:
        connection.execute("INSERT INTO events VALUES (%s, 1)", (day(2),))
    assert running.rows("events") == [1]
