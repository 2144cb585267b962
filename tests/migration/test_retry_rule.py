"""The one rule: which failure passes, and what follows it in which state."""

from datetime import UTC, datetime

import psycopg
import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.errors import NotGranted, OutcomeUnknown, Refused, Unavailable
from balancer.migration.machine import State, Track, is_final, path, row_of
from balancer.migration.retries import Answer, Difference, Failures, Overrun, answer, back_off
from balancer.nodes.session.connection import translate
from balancer.nodes.tablets.fence import Expired
from balancer.settings import MigrationSettings
from tests.support.manual_clock import ManualClock
from tests.support.servers import new_database

pytestmark = pytest.mark.quick

SETTINGS = MigrationSettings()
PASSING = [Unavailable("away"), OutcomeUnknown("lost"), Overrun("too long"), Expired("ran out")]


def ask(track: Track, state: State, error: Exception, failing_for: float = 0.0, restarts: int = 0) -> Answer:
    assert isinstance(error, Refused | Unavailable | OutcomeUnknown | Overrun | Difference)
    return answer(track, state, error, failing_for=failing_for, restarts=restarts, settings=SETTINGS)


@pytest.mark.parametrize("track", list(Track))
def test_no_passing_failure_ends_a_migration_at_once(track: Track) -> None:
    for state in path(track):
        if not is_final(state):
            assert all(ask(track, state, error) is not Answer.GIVE_UP for error in PASSING), state


@pytest.mark.parametrize("track", list(Track))
@pytest.mark.parametrize("error", [Refused("no"), Difference("not the same")])
def test_a_lasting_failure_ends_it_unless_there_is_no_way_back(track: Track, error: Exception) -> None:
    for state in path(track):
        if not is_final(state):
            assert (ask(track, state, error) is Answer.AGAIN) == row_of(track, state).again, state


@pytest.mark.parametrize("track", list(Track))
def test_every_passing_failure_has_a_limit_before_the_commit(track: Track) -> None:
    for state in path(track):
        if is_final(state) or row_of(track, state).again:
            continue
        lasting = ask(track, state, Overrun("again"), 1e9, SETTINGS.copy_attempts)
        assert lasting in (Answer.GIVE_UP, Answer.RETREAT)  # the number of fences is limited while catching up


def test_patience_counts_from_the_first_failure_and_not_from_the_beginning() -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    failures = Failures(clock, 120.0)
    clock.advance(3600.0)  # an hour of catching up, without any
    assert failures.add() == 0.0
    failures.begin_again()
    clock.advance(50.0)
    assert failures.add() == 50.0
    assert failures.count == 2
    failures.begin_again()
    clock.advance(600.0)
    assert failures.add() == 0.0


def test_the_pause_grows_up_to_its_limit() -> None:
    pauses = [back_off(number, SETTINGS) for number in range(1, 30)]
    assert pauses[:3] == [0.2, 0.4, 0.8]
    assert pauses == sorted(pauses)
    assert pauses[-1] == SETTINGS.retry_back_off_limit


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("40001", Unavailable),  # serialization failure
        ("40P01", NotGranted),  # deadlock
        ("55P03", NotGranted),  # lock timeout
        ("57014", NotGranted),  # statement timeout
        ("57P01", Unavailable),  # the server shuts down
        ("53300", Unavailable),  # too many connections
        ("53100", Refused),  # disk full
        ("42501", Refused),  # no privilege
        ("23505", Refused),  # a key that is there already
    ],
)
def test_what_a_server_says_is_passing_or_lasting(
    any_postgres: PostgresServer, code: str, kind: type[Exception]
) -> None:
    with new_database(any_postgres) as database, database.connect() as connection:
        with pytest.raises(psycopg.Error) as raised:
            connection.execute(f"DO $$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = '{code}'; END $$")
        assert type(translate("a", raised.value)) is kind
