"""The commands that look at a running cluster and steer it, as a user calls them, with a daemon that leads."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from balancer.directory.locate import locate_key
from balancer.embedded.postgres import PostgresServer
from tests.support.commands import started
from tests.support.quoted_commands import readable
from tests.support.running import ROWS, Running, product, until
from tests.support.sampling import sampled


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, postgres15: PostgresServer, postgres18: PostgresServer
) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("running")
    with product(folder, {"a": postgres15, "b": postgres18}) as made, made.daemon():
        until(lambda: made.published("status").get("shop"), "the leader has reported")
        yield made


def documents(running: Running, *arguments: str) -> Any:
    shown = running.balancer(*arguments, "--output", "json")
    assert shown.code == 0, shown.err
    return json.loads(shown.out)


def of_table(running: Running, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = documents(running, "tablets", "--table", table)
    return found


def other(node: str) -> str:
    return "b" if node == "a" else "a"


def test_status_says_how_the_bundle_is(running: Running) -> None:
    (shop,) = documents(running, "status")
    assert (shop["bundle"], shop["mode"], shop["leader"], shop["warning"]) == ("shop", "observe", "one", "")
    assert shop["word"] in ("balanced", "blocked")
    assert shop["age_seconds"] < 30
    assert sum(node["tablets"] for node in shop["nodes"]) == running.snapshot().tablet_count()
    text = running.balancer("status", "shop").out
    assert text.startswith(f"bundle shop: {shop['word']} - ")
    assert "schedule: always open" in text
    assert running.balancer("status", "shopp").code == 2
    assert "blocked - the mode is observe" in text
    assert running.balancer("status", "--check").code == 1


def test_a_draining_node_says_how_much_is_left(running: Running) -> None:
    assert running.balancer("drain", "b", "--reason", "new disk").code == 0
    try:
        text = running.balancer("status").out
        assert "tablets left to move" in text
        assert "safe to remove" not in text
    finally:
        assert running.balancer("undrain", "b").code == 0


def test_tablets_are_listed_with_their_keys(running: Running) -> None:
    rows = of_table(running, "events")
    assert [(row["part"], row["lower"], row["upper"]) for row in rows] == [
        ("(-infinity, 100)", None, ["100"]),
        ("[100, 200)", ["100"], ["200"]),
        ("[200, infinity)", ["200"], None),
    ]
    mine = documents(running, "tablets", "--node", "a", "--bundle", "shop")
    assert {row["node"] for row in mine} == {"a"}
    limited = running.balancer("tablets", "--limit", "2")
    assert len(limited.out.splitlines()) == 3
    assert "--limit" in limited.err
    assert running.balancer("tablets", "--table", "nothing").code == 2


def test_a_move_is_waited_for_and_shown(running: Running) -> None:
    tablet = of_table(running, "orders")[0]
    target = other(tablet["node"])
    assert running.balancer("pin", str(tablet["tablet"]), "--until", "1h", "--reason", "audit").code == 0
    assert "audit" in running.balancer("tablets", "--table", "orders").out
    dry = running.balancer("move", str(tablet["tablet"]), target, "--dry-run")
    words = f"move of tablet {tablet['tablet']} of orders from {tablet['node']} to {target}"
    assert (dry.code, dry.out) == (0, f"would be done: {words}\n")
    done = running.balancer("move", str(tablet["tablet"]), target, "--wait")
    assert done.code == 0, done.err
    assert f"orders\t{tablet['tablet']}\t{tablet['node']}\t{target}\tdone" in done.out
    assert of_table(running, "orders")[0]["node"] == target
    assert running.rows("orders") == list(range(1, ROWS + 1))
    again = running.balancer("move", str(tablet["tablet"]), target)
    assert (again.code, again.err) == (4, f"tablet {tablet['tablet']} is on node {target} already\n")
    assert running.balancer("moves").out == "no migration is running\n"
    (newest,) = documents(running, "moves", "--all", "--limit", "1")
    assert (newest["tablets"], newest["state"]) == ([tablet["tablet"]], "done")
    assert running.balancer("unpin", str(tablet["tablet"])).code == 0


def test_a_range_is_split_at_keys_and_merged_again(running: Running) -> None:
    middle = of_table(running, "events")[1]["tablet"]
    wrong = running.balancer("split", str(middle), "--at", "seven")
    assert wrong.code == 2
    assert "'seven' cannot be a key of this table" in wrong.err
    outside = running.balancer("split", str(middle), "--at", "300", "--dry-run")
    assert (outside.code, outside.err) == (4, f"every key must lie strictly inside tablet {middle}\n")
    split = running.balancer("split", str(middle), "--at", "150", "--at", "120", "--wait")
    assert split.code == 0, split.err
    parts = of_table(running, "events")
    assert [row["part"] for row in parts[1:4]] == ["[100, 120)", "[120, 150)", "[150, 200)"]
    merged = running.balancer("merge", *(str(row["tablet"]) for row in parts[1:4]), "--wait", "--output", "json")
    assert merged.code == 0, merged.err
    assert json.loads(merged.out)["state"] == "done"
    assert len(of_table(running, "events")) == 3
    assert running.rows("events") == list(range(1, ROWS + 1))


def test_a_plan_that_is_asked_for_can_be_questioned(running: Running) -> None:
    shown = running.balancer("plan", "shop", "--replan")
    assert shown.code == 0, shown.err
    assert "of 100 now" in shown.out
    plan = documents(running, "plan")
    assert plan["explainable"]
    assert documents(running, "plan", "--id", plan["id"])["created"] == plan["created"]
    tablet = of_table(running, "orders")[0]
    explained = documents(running, "explain", "tablet", str(tablet["tablet"]))
    assert explained["sentences"][0].startswith(f"tablet {tablet['tablet']} of table orders is on {tablet['node']}")
    assert "node a is active" in running.balancer("explain", "node", "a").out
    # The leader may have stored a newer one meanwhile.
    answer = documents(running, "why-not", str(tablet["tablet"]), other(tablet["node"]), "--id", plan["id"])
    assert (answer["plan"], bool(answer["reason"])) == (plan["id"], True)
    here = running.balancer("why-not", str(tablet["tablet"]), tablet["node"])
    assert here.out.startswith("not planned (same-node)")
    assert running.balancer("explain", "action", "999").code == 2
    assert running.balancer("explain", "node", "z").code == 2
    assert running.balancer("why-not", "x", "a").code == 2
    assert running.balancer("plan", "--id", "nothing").code == 2


def test_a_round_is_shown_before_and_refused_where_nothing_is_started(running: Running) -> None:
    before = len(running.snapshot().migrations)
    shown = documents(running, "run-now", "shop", "--dry-run")
    assert shown["bundle"] == "shop"
    assert "of 100 now" in running.balancer("run-now", "--dry-run").out
    refused = running.balancer("run-now", "shop")
    assert (refused.code, "observe" in refused.err) == (4, True)
    assert running.balancer("run-now", "nobody").code == 2
    assert len(running.snapshot().migrations) == before


def test_a_table_is_doubled_and_halved_under_its_budgets(running: Running) -> None:
    before = of_table(running, "orders")
    preview = documents(running, "table", "double", "shop", "orders", "--dry-run")
    assert (preview["before"], preview["after"]) == (len(before), 2 * len(before))
    doubled = running.balancer("table", "double", "shop", "orders", "--wait")
    assert doubled.code == 0, doubled.err
    assert doubled.out.endswith(f"doubling the vbuckets of orders: {len(before)} of {len(before)} vbuckets done\n")
    assert {row["modulus"] for row in of_table(running, "orders")} == {8}
    assert running.rows("orders") == list(range(1, ROWS + 1))
    halved = running.balancer("table", "halve", "shop", "orders", "--wait", "--now", "--output", "json")
    assert halved.code == 0, halved.err
    assert json.loads(halved.out)["done"] == 2 * len(before)
    assert {row["modulus"] for row in of_table(running, "orders")} == {4}
    assert running.rows("orders") == list(range(1, ROWS + 1))
    refused = running.balancer("table", "double", "shop", "events")
    assert refused.code == 4
    assert "events is a range table" in refused.err


def test_verify_finds_a_node_that_contradicts_the_directory(running: Running) -> None:
    good = running.balancer("verify", "orders", "--count")
    assert good.code == 0, good.out + good.err
    assert good.out.endswith(f"4 tablets, {ROWS} rows, nothing wrong\n")
    tablet = of_table(running, "events")[0]
    with running.databases[tablet["node"]].connect() as connection:
        epoch = "UPDATE balancer.tablet SET epoch = epoch + %s WHERE id = %s"
        connection.execute(epoch, (1, tablet["tablet"]))
        try:
            bad = running.balancer("verify", str(tablet["tablet"]))
        finally:
            connection.execute(epoch, (-1, tablet["tablet"]))
    assert bad.code == 1
    assert f"and only {tablet['epoch']} in the directory" in bad.out
    claim = "INSERT INTO balancer.tablet (id, epoch, state, schemas, partitions) VALUES (%s, 9, 'owned', '{}', '{}')"
    with running.databases[other(tablet["node"])].connect() as connection:
        connection.execute(claim, (tablet["tablet"],))
        try:
            claimed = running.balancer("verify", "events")
        finally:
            connection.execute("DELETE FROM balancer.tablet WHERE id = %s AND epoch = 9", (tablet["tablet"],))
    assert claimed.code == 1
    assert f"tablet {tablet['tablet']} is claimed here with epoch 9" in claimed.out
    assert running.balancer("verify", "nothing").code == 2
    assert running.balancer("doctor").out == "nothing is wrong\n"


def test_verify_checks_rows_too_once_or_until_it_is_interrupted(running: Running) -> None:
    good = running.balancer("verify", "events", "--deep")
    assert (good.code, good.out) == (0, "nothing is wrong\n"), good.err
    tablet = of_table(running, "events")[0]
    stray = "CREATE TABLE restored PARTITION OF events FOR VALUES FROM (150) TO (151)"
    free = other(locate_key(running.snapshot(), "events", 150).node)
    command = ("-m", "balancer", "verify", "events", "--watch", "--output", "json", "--config", str(running.config))
    with running.databases[free].connect() as connection, started(*command, stdout=subprocess.PIPE) as watching:
        connection.execute(stray)
        try:
            bad = running.balancer("verify", "events", "--deep", "--output", "json")
            assert bad.code == 1
            (found,) = json.loads(bad.out)["findings"]
            assert (found["kind"], found["node"], found["root"]) == ("strays", free, "public.events")
            assert watching.stdout is not None
            assert json.loads(watching.stdout.readline())["event"] == "found"
        finally:
            connection.execute("DROP TABLE restored")
        assert json.loads(watching.stdout.readline())["event"] == "gone"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 1, "something was found"
    assert running.balancer("verify", str(tablet["tablet"]), "--deep").code == 0
    assert "no bundle has been checked yet" in running.balancer("verify").out


def test_hot_shows_what_the_leader_saw(running: Running) -> None:
    shown = running.balancer("hot")
    assert shown.code == 0
    assert shown.out == "nothing is read or written\n" or shown.out.startswith("tablet\ttable\tpart")


def test_waiting_for_a_migration_that_fails_ends_with_1(running: Running) -> None:
    tablet = of_table(running, "events")[0]
    number, target = tablet["tablet"], other(tablet["node"])
    with running.databases[target].connect() as connection:
        connection.execute(f"CREATE TABLE events_t{number} (in_the_way int)")
        try:
            failed = running.balancer("move", str(number), target, "--wait")
        finally:
            connection.execute(f"DROP TABLE events_t{number}")
    assert failed.code == 1, failed.out
    assert "failed" in failed.out
    assert "is failed: " in failed.err
    assert of_table(running, "events")[0]["node"] == tablet["node"]
    assert running.rows("events") == list(range(1, ROWS + 1))


def test_a_tablet_whose_migrations_keep_failing_is_quarantined_until_it_is_released(running: Running) -> None:
    tablet = of_table(running, "events")[1]
    number, target = str(tablet["tablet"]), other(tablet["node"])

    def state() -> str:
        return str(next(row for row in of_table(running, "events") if row["tablet"] == tablet["tablet"])["state"])

    def ticked() -> None:
        before = documents(running, "status")[0]["at"]
        until(lambda: documents(running, "status")[0]["at"] > before, "a tick")

    with running.databases[target].connect() as connection:
        connection.execute(f"CREATE TABLE events_t{number} (in_the_way int)")
        try:
            for _ in range(3):
                assert running.balancer("move", number, target, "--wait").code == 1
        finally:
            connection.execute(f"DROP TABLE events_t{number}")
    until(lambda: state() == "quarantined", "the tablet is quarantined")
    refused = running.balancer("move", number, target)
    assert refused.code == 4
    assert refused.err == (
        f"tablet {number} is quarantined: look at its last migrations with `balancer moves --all`,"
        f" then `balancer release {number}`\n"
    )
    released = running.balancer("release", number)
    assert (released.code, released.out) == (0, f"tablet {number} may be migrated again; 3 failures are forgiven\n")
    ticked()
    ticked()
    assert state() == "owned"
    assert running.balancer("release", number).out == f"tablet {number} is not quarantined\n"
    moved = running.balancer("move", number, target, "--wait")
    assert moved.code == 0, moved.err


def test_what_people_are_told_to_type_and_only_reads_works(running: Running) -> None:
    """Alerts, documents and messages quote them; each run tries others."""
    assert running.balancer("plan", "shop", "--replan").code == 0
    tablet = str(running.snapshot().tablets(1)[0].id)
    lines = readable({"TABLET": tablet, "NODE": "a", "BUNDLE": "shop", "TABLE": "orders"})
    assert len(lines) > 15
    for words in sampled(lines, 6, "quoted commands"):
        done = running.balancer(*words)
        assert done.code in (0, 1), (words, done.err)  # 1: a check has found something
        assert "Traceback" not in done.err
