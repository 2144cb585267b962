"""Reads from a real standby: only what is young enough and has seen enough; the owner answers otherwise."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from balancer.client import Router
from balancer.client.messages import RoutedConnection
from balancer.client.sqlalchemy import session
from balancer.directory.model import Put, Transaction
from balancer.embedded.postgres import PostgresServer
from balancer.errors import UserError
from tests.support.servers import postgres
from tests.support.shards import Shards, databases, new_shards, user_of
from tests.support.standby import standby, wait_until


@dataclass(frozen=True)
class Pair:
    """A primary and its standby, the node pg-a; pg-b has none."""

    shards: Shards
    primary: PostgresServer
    standby: PostgresServer
    router: Router

    def at_standby(self, statement: str) -> object:
        dbname = conninfo_to_dict(self.shards.dsns["pg-a"])["dbname"]
        with psycopg.connect(self.standby.dsn(str(dbname)), autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchone() if found.description else None

    def pause(self) -> None:
        self.at_standby("SELECT pg_wal_replay_pause()")
        wait_until(lambda: self.at_standby("SELECT pg_get_wal_replay_pause_state()") == ("paused",))

    def resume(self) -> None:
        self.at_standby("SELECT pg_wal_replay_resume()")
        self.caught_up()

    def caught_up(self) -> None:
        end = self.shards.node("pg-a").execute("SELECT pg_current_wal_flush_lsn()").fetchone()
        assert end is not None
        wait_until(lambda: self.at_standby(f"SELECT pg_last_wal_replay_lsn() >= '{end[0]}'") == (True,))

    def read(self, user: int, **how: object) -> tuple[bool, int]:
        """Whether a standby answered, and the number of rows that it has."""
        with self.router.transaction("orders", user, read_only=True, replica=True, **how) as connection:  # type: ignore[arg-type]
            row = connection.execute(
                "SELECT pg_is_in_recovery(), count(*) FROM orders WHERE user_id = %s", (user,)
            ).fetchone()
            assert row is not None
            assert connection.location == self.router.locate("orders", user)
            return row[0], row[1]

    def write(self, user: int, n: int) -> None:
        with self.router.transaction("orders", user) as connection:
            connection.execute("INSERT INTO orders VALUES (%s, %s)", (user, n))


@pytest.fixture
def pair(server_folder: Path, tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        primary = stack.enter_context(postgres(server_folder / f"primary-{tmp_path.name}", 18))
        shards = stack.enter_context(new_shards(tmp_path, stack.enter_context(databases(primary))))
        shards.node("pg-a").execute("VACUUM")  # else a first look at the catalog writes hints into the log, unflushed
        other = stack.enter_context(standby(primary, server_folder / f"standby-{tmp_path.name}", 18))
        both = make_conninfo(shards.dsns["pg-a"], host="127.0.0.1,127.0.0.1", port=f"{other.port},{primary.port}")
        snapshot = shards.directory.snapshot()
        change = Put(replace(snapshot.nodes["pg-a"], dsn=both))
        shards.directory.commit(Transaction((change,), snapshot.version, "standby", "test"))
        router = stack.enter_context(Router.connect(shards.url, samples=False))
        yield Pair(shards, primary, other, router)


def test_a_standby_answers_if_it_is_young_and_has_seen_enough(pair: Pair) -> None:
    mine, other = user_of(pair.shards, 1), user_of(pair.shards, 2)
    pair.write(mine, 1)
    pair.caught_up()
    assert pair.read(mine, max_lag="30s") == (True, 1)
    assert pair.read(other) == (False, 0), "a node without a standby"
    pair.pause()
    pair.write(mine, 2)
    token = pair.router.token()
    assert pair.read(mine, max_lag=30.0) == (True, 1), "old, but younger than was asked for"
    assert pair.read(mine, max_lag=30.0, token=token) == (False, 2), "it has not replayed what the caller has seen"
    pair.resume()
    assert pair.read(mine, max_lag=30.0, token=token) == (True, 2)


def test_a_token_knows_what_sessions_of_sqlalchemy_have_written(pair: Pair) -> None:
    """Their connections are in pools of their own."""
    user = user_of(pair.shards, 1)
    pair.write(user, 1)
    pair.caught_up()
    assert pair.read(user, max_lag=30.0) == (True, 1)
    pair.pause()
    with Router.connect(pair.shards.url, samples=False) as other:
        with session(other, "orders", user) as orders:
            orders.execute(sqlalchemy.text("INSERT INTO orders VALUES (:user, 2)"), {"user": user})
        token = other.token()
    assert pair.read(user, max_lag=30.0, token=token) == (False, 2)
    pair.resume()


def test_a_standby_that_lags_behind_is_not_asked(pair: Pair) -> None:
    mine = user_of(pair.shards, 1)
    pair.write(mine, 1)
    pair.caught_up()
    assert pair.read(mine, max_lag=30.0) == (True, 1), "a position is known that it has replayed"
    pair.pause()
    pair.write(mine, 2)
    assert pair.read(mine, max_lag=0.0) == (False, 2), "every position is too old by then"
    wait_until(lambda: pair.read(mine, max_lag=0.2) == (False, 2))
    pair.resume()
    wait_until(lambda: pair.read(mine, max_lag=5.0) == (True, 2))


def test_a_moved_tablet_is_read_where_it_is(pair: Pair) -> None:
    mine = user_of(pair.shards, 1)
    pair.write(mine, 1)
    pair.caught_up()
    pair.pause()  # it still believes that it has the tablet
    pair.shards.switch(1, "pg-b")
    pair.write(mine, 2)
    assert pair.read(mine, max_lag=30.0) == (False, 2)
    pair.resume()
    assert pair.read(mine, max_lag=30.0) == (False, 2)


def test_a_tablet_that_was_away_is_told_by_its_epoch(pair: Pair) -> None:
    """The standby's rows are those of before, and by its position alone it would be young enough."""
    mine = user_of(pair.shards, 1)
    pair.write(mine, 1)
    pair.caught_up()
    assert pair.read(mine, max_lag=60.0) == (True, 1)
    pair.pause()
    pair.shards.switch(1, "pg-b")
    pair.write(mine, 2)
    pair.shards.switch(1, "pg-a")
    wait_until(lambda: pair.router.locate("orders", mine) == ("pg-a", 1, 3))
    assert pair.read(mine, max_lag=60.0) == (False, 2)
    pair.resume()
    assert pair.read(mine, max_lag=60.0) == (True, 2)


def test_a_promoted_standby_is_followed(pair: Pair) -> None:
    mine = user_of(pair.shards, 1)
    pair.write(mine, 1)
    pair.caught_up()
    assert pair.read(mine, max_lag=30.0) == (True, 1)
    pair.primary.kill()
    pair.at_standby("SELECT pg_promote()")
    pair.write(mine, 2)
    assert pair.read(mine, max_lag=30.0) == (False, 2)


def test_what_is_refused(pair: Pair) -> None:
    with pytest.raises(UserError, match="replica=True is for reading"):
        pair.router.transaction("orders", 1, replica=True)
    with pytest.raises(UserError, match="is not a duration"):
        pair.router.transaction("orders", 1, read_only=True, replica=True, max_lag="soon")
    with pytest.raises(UserError, match="not a token"):
        pair.router.transaction("orders", 1, read_only=True, replica=True, token="pg-a=x")


def test_a_snapshot_is_not_older_than_what_the_standby_shows(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standby catches up after its transaction has begun, and before it is asked what it has replayed."""
    mine = user_of(pair.shards, 1)
    pair.write(mine, 1)
    pair.caught_up()
    pair.pause()
    pair.write(mine, 2)
    token = pair.router.token()
    begin = RoutedConnection.wait

    def begun(connection: RoutedConnection, work: Any, *arguments: Any, **options: Any) -> Any:
        done = begin(connection, work, *arguments, **options)
        if connection.lent and connection.opening is None and connection.info.port == pair.standby.port:
            monkeypatch.undo()
            pair.resume()
        return done

    monkeypatch.setattr(RoutedConnection, "wait", begun)
    assert pair.read(mine, max_lag=30.0, token=token)[1] == 2
