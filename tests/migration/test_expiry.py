"""Expired tablets leave with their rows, and nothing else does: judged, counted, archived, replaced by a refusal."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import psycopg
import pytest

from balancer.directory.contract import Directory, Leadership
from balancer.directory.invariants import violations
from balancer.directory.model import EXPIRY, Migration, Pause, Put, TabletState, Transaction
from balancer.errors import Refused
from balancer.features.repair.doctor import examine
from balancer.migration.begin import begin_expiry, begin_move
from balancer.migration.journal import read_detail
from balancer.migration.machine import State
from tests.support.cluster import Cluster
from tests.support.directed import Beside
from tests.support.expiring import KEPT, ROOTS, begin, days_ago, made, tablets
from tests.support.manual_clock import ManualClock
from tests.support.nemeses import until
from tests.support.spy import Spy

pytestmark = pytest.mark.always


@pytest.fixture
def cluster(tmp_path: Path, pair: dict[str, str]) -> Iterator[Cluster]:
    """Tablets of 14, 13, 12 and 11 to 6 days ago, the first three expired."""
    found = made(tmp_path, pair, tablets([14, 13, 12, 11, 5], ["a", "a", "b", "a", "a", "b"]))
    yield found
    found.close()


@pytest.fixture
def directory(cluster: Cluster) -> Directory:
    return cluster.directory()


@pytest.fixture
def leadership(cluster: Cluster, directory: Directory) -> Leadership:
    return cluster.become_leader(directory)


def expire(cluster: Cluster, directory: Directory, leadership: Leadership, *ids: int) -> Migration:
    return cluster.runner(directory, leadership).run(begin(directory, leadership, ids).id)


def rows(cluster: Cluster, age: int, root: str = "events") -> int:
    """Of a day, on all nodes."""
    query = f"SELECT count(*) FROM {root} WHERE day = '{days_ago(age)}'"
    return sum(int(str(cluster.query(node, query)[0][0])) for node in cluster.dsns)


def insert(cluster: Cluster, node: str, age: int, number: int = 100) -> None:
    with cluster.connect(node) as connection:
        connection.execute("INSERT INTO events VALUES (%s, %s)", (days_ago(age), number))


def refusal(cluster: Cluster, node: str, age: int) -> str:
    with pytest.raises(psycopg.Error) as refused:
        insert(cluster, node, age)
    assert refused.value.sqlstate == "TB007"
    return str(refused.value.diag.message_primary)


def tables(cluster: Cluster, node: str) -> set[str]:
    query = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    return {str(name) for (name,) in cluster.query(node, query)}


def test_what_has_expired_leaves_and_its_keys_are_refused_in_one_sentence(
    cluster: Cluster, directory: Directory, leadership: Leadership
) -> None:
    assert expire(cluster, directory, leadership, 1, 2).state == "done"
    assert [rows(cluster, 14, root) for root in ROOTS] == [0, 0]
    assert [rows(cluster, age) for age in (13, 12)] == [5, 5]
    assert tables(cluster, "a") == {f"{root}_t{n}" for root in ("events", "clicks") for n in (4, 5, 1000)}
    # Over the border between two nodes: the empty tablet goes along.
    assert expire(cluster, directory, leadership, 1000, 3).state == "done"
    first, second = list(directory.snapshot().tablets(1))[:2]
    assert (first.id, first.node, first.state) == (1001, "b", TabletState.EXPIRED)
    assert (second.id, list(violations(directory.snapshot()))) == (4, [])
    assert tables(cluster, "a") == {f"{root}_t{n}" for root in ("events", "clicks") for n in (4, 5)}
    assert refusal(cluster, "b", 400) == (
        f"events takes and changes no rows from before {days_ago(12)} any more: they have expired (expire_after = 10d)"
    )
    assert [rows(cluster, age) for age in (13, 12)] == [0, 5]
    told = [entry.reason for entry in directory.history(0, 100)]
    assert any("0 rows of tablet 1, 10 rows of tablet 2 of events have expired" in reason for reason in told)


def test_the_empty_tablet_moves_and_still_refuses(
    cluster: Cluster, directory: Directory, leadership: Leadership
) -> None:
    expire(cluster, directory, leadership, 1, 2)
    moved = cluster.runner(directory, leadership).run(begin_move(directory, leadership, 1000, "b").id)
    assert moved.state == "done"
    assert directory.snapshot().tablet(1000).state is TabletState.EXPIRED
    assert "have expired" in refusal(cluster, "b", 30)


def test_only_what_has_wholly_expired_is_taken(cluster: Cluster, directory: Directory, leadership: Leadership) -> None:
    for ids, why in (
        ((2,), "from the lowest key upwards"),
        ((1, 2, 3), "on different nodes"),
        ((1, 2, 4), "without a gap"),
    ):
        with pytest.raises(Refused, match=why):
            begin(directory, leadership, ids)
    expire(cluster, directory, leadership, 1, 2)
    expire(cluster, directory, leadership, 1000, 3)
    expire(cluster, directory, leadership, 1001, 4)
    with pytest.raises(Refused, match=f"tablet 5 of events has keys up to {days_ago(5)}"):
        begin(directory, leadership, (1002, 5))
    with pytest.raises(Refused, match="has no expire_after"):
        begin_expiry(directory, leadership, (1002, 5), expire_after=None)


def test_a_clock_that_runs_ahead_deletes_nothing(
    cluster: Cluster, directory: Directory, leadership: Leadership
) -> None:
    for ids in ((1, 2), (1000, 3), (1001, 4)):
        expire(cluster, directory, leadership, *ids)
    ahead = ManualClock(datetime.now(UTC) + timedelta(days=30))
    begun = begin_expiry(directory, leadership, (1002, 5), expire_after=KEPT, clock=ahead)
    ended = cluster.runner(directory, leadership).run(begun.id)
    assert (ended.state, ended.error.split(",")[0]) == (
        "failed",
        "tablet 5 has not expired by the clock of node a",
    )
    insert(cluster, "a", 6)


def test_other_bounds_than_the_directory_says_stop_it(
    cluster: Cluster, directory: Directory, leadership: Leadership
) -> None:
    with cluster.connect("a") as connection:
        connection.execute("ALTER TABLE events DETACH PARTITION events_t2")
        connection.execute(
            f"ALTER TABLE events ATTACH PARTITION events_t2 FOR VALUES FROM ('{days_ago(14)}', MINVALUE)"
            f" TO ('{days_ago(13)}', 7)".encode()
        )
    ended = expire(cluster, directory, leadership, 1, 2)
    assert (ended.state, rows(cluster, 14)) == ("failed", 5)
    assert "has other bounds than the directory says" in ended.error


def test_rows_outside_the_bounds_stop_it(cluster: Cluster, directory: Directory, leadership: Leadership) -> None:
    first, end = days_ago(14), days_ago(13)
    bounds = f"FOR VALUES FROM ('{first}', MINVALUE) TO ('{end}', MINVALUE)"
    lie = f"day IS NOT NULL AND id IS NOT NULL AND (day > '{first}' OR day = '{first}') AND day < '{end}'"
    with cluster.connect("a") as connection:  # as a restore with a broken catalog would leave it
        for statement in (
            "ALTER TABLE events DETACH PARTITION events_t2",
            f"INSERT INTO events_t2 VALUES ('{days_ago(1)}', 1)",
            f"ALTER TABLE events_t2 ADD CONSTRAINT lie CHECK ({lie}) NOT VALID",
            "UPDATE pg_constraint SET convalidated = true WHERE conname = 'lie'",
            f"ALTER TABLE events ATTACH PARTITION events_t2 {bounds}",
        ):
            connection.execute(statement.encode())
    ended = expire(cluster, directory, leadership, 1, 2)
    assert (ended.state, rows(cluster, 14)) == ("failed", 5)
    assert ended.error == "1 rows of public.events_t2 are outside its bounds: nothing of it is dropped"


def archive(tmp_path: Path, code: str) -> tuple[str, ...]:
    script = tmp_path / "archive.py"
    script.write_text(f"import json, os, sys\nfrom pathlib import Path\nhere = Path({str(tmp_path)!r})\n{code}")
    return (sys.executable, str(script), "--into", "a b; c")


def test_the_archive_command_gets_the_facts_and_must_succeed(
    tmp_path: Path, cluster: Cluster, directory: Directory, leadership: Leadership, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BALANCER_PASSWORD_A", "hush")
    note = "(here / 'facts').write_text(json.dumps([sys.argv[1:], [k for k in os.environ if k[:9] == 'BALANCER_']]))"
    cluster.settings = replace(cluster.settings, archive_command=archive(tmp_path, f"{note}; sys.exit(3)"))
    ended = expire(cluster, directory, leadership, 1, 2)
    assert ended.state == "failed"
    assert ended.error.endswith("ended with exit code 3: the tablet stays")
    insert(cluster, "a", 14)  # it stays, and takes rows again
    cluster.settings = replace(cluster.settings, archive_command=archive(tmp_path, note))
    again = expire(cluster, directory, leadership, 1, 2)
    assert (again.state, rows(cluster, 14)) == ("done", 0)
    arguments, secrets = json.loads((tmp_path / "facts").read_text())
    assert arguments[:5] == ["--into", "a b; c", "--table=events", "--tablet=2", "--node=a"]
    assert arguments[5].startswith("--dsn=postgresql://")
    assert cluster.dsns["a"].split("@")[0].rpartition(":")[2] not in arguments[5]
    assert arguments[6:8] == ["--partition=public.events_t2", "--partition=public.clicks_t2"]
    assert arguments[9:] == ["--rows=11", f"--migration={again.id}"]
    assert secrets == []


def test_a_trigger_that_was_switched_off_is_noticed_and_all_is_counted_again(
    tmp_path: Path, cluster: Cluster, directory: Directory, leadership: Leadership
) -> None:
    switch = f"""
import psycopg
seen = here / "seen"
if not seen.exists():
    with psycopg.connect({cluster.dsns["a"]!r}, autocommit=True) as c:
        c.execute("ALTER TABLE events_t2 DISABLE TRIGGER balancer_expired")
        c.execute("INSERT INTO events VALUES ('{days_ago(14)}', 100)")
        c.execute("ALTER TABLE events_t2 ENABLE ALWAYS TRIGGER balancer_expired")
seen.write_text(seen.read_text() + sys.argv[-2] if seen.exists() else sys.argv[-2])
"""
    cluster.settings = replace(cluster.settings, archive_command=archive(tmp_path, switch))
    ended = expire(cluster, directory, leadership, 1, 2)
    assert (ended.state, ended.detail["expiry"]["rows"]["2"]) == ("done", 11)
    assert (tmp_path / "seen").read_text() == "--rows=10--rows=11"


def test_a_row_forced_into_the_empty_tablet_by_an_open_transaction_is_kept(
    cluster: Cluster, directory: Directory, leadership: Leadership
) -> None:
    """It was open when the tablet's node was told where its keys are now, which waits for it, and commits then."""
    expire(cluster, directory, leadership, 1, 2)
    with cluster.connect("a") as writer, cluster.connect("a") as observer:

        def write() -> None:
            writer.execute("BEGIN")
            writer.execute("ALTER TABLE events_t1000 DISABLE TRIGGER balancer_expired")
            writer.execute("INSERT INTO events_t1000 VALUES (%s, 77)", (days_ago(20),))

        runner = cluster.runner(directory, leadership, Spy({"entered:retiring": write}))
        begun = begin(directory, leadership, (1000, 3))
        expiring = Beside(lambda: runner.run(begun.id))
        waiting = "SELECT FROM pg_locks WHERE relation = to_regclass('public.events_t1000') AND NOT granted"
        until(lambda: observer.execute(waiting.encode()).fetchone() is not None, "the waiting")
        writer.execute("COMMIT")
        done = expiring.result()
    assert done.state == "done"
    assert "rows of tablet 1000" in read_detail(done).kept
    assert cluster.query("a", f"SELECT id FROM balancer_kept_{done.id}.events_t1000") == [(77,)]


def test_a_hold_keeps_everything(cluster: Cluster, directory: Directory, leadership: Leadership) -> None:
    base = directory.snapshot().version
    directory.commit(Transaction((Put(Pause("shop", None, "ann", "audit", EXPIRY)),), base, "hold", "ann"))
    with pytest.raises(Refused, match="expiry in bundle shop is held"):
        begin(directory, leadership, (1, 2))


def test_foreign_keys_between_colocated_roots_are_no_obstacle(
    cluster: Cluster, directory: Directory, leadership: Leadership
) -> None:
    for node in cluster.dsns:
        with cluster.connect(node) as connection:
            connection.execute("ALTER TABLE clicks ADD CONSTRAINT of_event FOREIGN KEY (day, id) REFERENCES events")
    for ids in ((1, 2), (1000, 3)):
        ended = expire(cluster, directory, leadership, *ids)
        assert (ended.state, ended.error) == ("done", "")
    assert [rows(cluster, age, "clicks") for age in (14, 13, 12)] == [0, 0, 5]
    with cluster.connect("a") as connection, pytest.raises(psycopg.errors.ForeignKeyViolation):
        connection.execute("INSERT INTO clicks VALUES (%s, 77)", (days_ago(12),))


def test_an_operator_can_cancel_it_until_the_swap(
    cluster: Cluster, directory: Directory, leadership: Leadership
) -> None:
    before = [rows(cluster, age) for age in (14, 13)]
    expire(cluster, directory, leadership, 1)
    for number, state in enumerate((State.PLANNED, State.FENCING, State.VERIFYING, State.COPYING)):
        begun = begin(directory, leadership, (1000, 2))
        runner = cluster.runner(directory, leadership, spy := Spy())
        spy.work[f"entered:{state}"] = partial(runner.cancel, begun.id, "not today")
        done = runner.run(begun.id)
        assert (done.state, done.error) == ("cancelled", "not today")
        assert spy.states[spy.states.index(state) + 1] is State.CANCELLING
        insert(cluster, "a", 14, 100 + number)
        assert "have expired" in refusal(cluster, "a", 40)  # the empty one stays closed
    assert [rows(cluster, age) for age in (14, 13)] == [before[0] + 4, before[1]]
    assert [finding.text for finding in examine(directory, cluster.address)] == []
