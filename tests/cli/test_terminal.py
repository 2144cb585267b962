"""`balancer moves --watch` and `balancer move … --wait`, on a real terminal and without one, with a daemon at work."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from balancer.embedded.postgres import PostgresServer
from tests.support.running import Running, product, until
from tests.support.terminal import Terminal

BAR = re.compile("█+░* +[0-9]+%")
# Also on a machine that others keep busy, a switch must fit.
SLOW = '[migration]\nthrottle = "1MB"\nwrite_pause_budget = "5s"\nfence_deadline = "10s"\n'
CTRL_C = b"\x03"


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, postgres15: PostgresServer, postgres18: PostgresServer
) -> Iterator[Running]:
    """The last tablet of `events` has some megabytes, and they are copied slowly."""
    folder: Path = tmp_path_factory.mktemp("terminal")
    with product(folder, {"a": postgres15, "b": postgres18}) as made:
        file = folder / "bundles" / "shop.toml"
        file.write_text(file.read_text().replace("[migration]\n", SLOW))
        with made.databases[last(made)[1]].connect() as connection:
            connection.execute(
                "INSERT INTO events SELECT id, repeat(md5(id::text), 30) FROM generate_series(1000, 4999) AS id"
            )
        with made.daemon():
            yield made


def last(running: Running) -> tuple[str, str, str]:
    """The large tablet, its node, and the other one."""
    table = running.snapshot().table("events")
    tablet = running.snapshot().tablets(table.id)[-1]
    return str(tablet.id), tablet.node, "b" if tablet.node == "a" else "a"


def finished(running: Running) -> bool:
    return all(record.finished for record in running.snapshot().migrations.values())


def test_watching_shows_a_bar_that_grows_and_stays_when_nothing_runs(running: Running) -> None:
    tablet, _, target = last(running)
    assert running.balancer("move", tablet, target).code == 0
    with Terminal("moves", "--watch", "--config", running.config) as terminal:
        terminal.until(lambda text: len(set(BAR.findall(text))) >= 2, "a bar grows")
        idle = re.compile(f"idle; last: move of {tablet} done [0-9.]+ m?s ago")
        terminal.until(idle.search, "it says what was last")
        terminal.until(lambda text: len(set(idle.findall(text))) >= 2, "it stays")
        terminal.press(CTRL_C)
        assert terminal.end() == 130
    assert "copying" in terminal.text
    assert last(running)[1] == target


def test_waiting_shows_the_bar_and_then_how_it_ended(running: Running) -> None:
    tablet, _, target = last(running)
    with Terminal("move", tablet, target, "--wait", "--config", running.config, columns=100) as terminal:
        terminal.until(BAR.search, "a bar is shown")
        assert terminal.end() == 0
    assert "done" in terminal.text
    assert last(running)[1] == target


@pytest.mark.parametrize("command", ["move", "moves"])
def test_ctrl_c_leaves_the_migration_running_and_says_so(running: Running, command: str) -> None:
    tablet, _, target = last(running)
    if command == "moves":
        assert running.balancer("move", tablet, target).code == 0
    words = ("move", tablet, target, "--wait") if command == "move" else ("moves", "--watch")
    with Terminal(*words, "--config", running.config) as terminal:
        terminal.until(BAR.search, "a bar is shown")
        terminal.press(CTRL_C)
        assert terminal.end() == 130
    (record,) = [record for record in running.snapshot().migrations.values() if not record.finished]
    expected = (
        f"migration {record.id} continues: `balancer moves` shows it"
        if command == "move"
        else "running migrations continue"
    )
    assert expected in terminal.text
    assert "Traceback" not in terminal.text
    until(lambda: finished(running), "the migration ends")
    assert running.snapshot().migrations[record.id].state == "done"


def test_waiting_ends_at_its_time_and_the_migration_goes_on(running: Running) -> None:
    tablet, _, target = last(running)
    waited = running.balancer("move", tablet, target, "--wait", "--timeout", "1ms")
    assert (waited.code, "has not ended within 1 ms and continues: `balancer moves` shows it" in waited.err) == (
        3,
        True,
    )
    until(lambda: finished(running), "the migration ends")
    assert last(running)[1] == target


def test_a_node_is_drained_with_a_dry_run_and_a_limit(running: Running) -> None:
    dry = running.balancer("drain", "b", "--dry-run")
    assert (dry.code, dry.out.startswith("would be done: node b is draining:")) == (0, True)
    assert running.snapshot().nodes["b"].state == "active"
    waited = running.balancer("drain", "b", "--wait", "--timeout", "1ms")
    assert (waited.code, "it is still being drained" in waited.err) == (3, True), waited.err
    assert "tablets have left" in waited.err
    assert running.snapshot().nodes["b"].state == "draining"
    assert running.balancer("undrain", "b").code == 0


def test_without_a_terminal_there_are_plain_lines(running: Running) -> None:
    tablet, source, target = last(running)
    done = running.balancer("move", tablet, target, "--wait")
    assert done.code == 0, done.err
    assert "\x1b" not in done.out + done.err
    lines = done.err.splitlines()
    assert all(re.fullmatch("migration m[0-9a-f]{12}: [a-z_]+", line) for line in lines)
    assert any(line.endswith(": copying") for line in lines)
    header, row = done.out.splitlines()
    assert header.split("\t")[:3] == ["id", "what", "table"]
    assert row.split("\t")[3:7] == [tablet, source, target, "done"]


def test_watching_without_a_terminal_prints_the_list_again_and_again(running: Running) -> None:
    tablet, _, target = last(running)
    assert running.balancer("move", tablet, target).code == 0
    watched = running.balancer("moves", "--watch")
    assert watched.code == 0
    assert "\x1b" not in watched.out
    lists = watched.out.strip().split("\n\n")
    assert len(lists) >= 2
    assert lists[-1] == "no migration is running"
    assert any(BAR.search(text) for text in lists)


@pytest.mark.parametrize("columns", [80, 200])
def test_tables_fit_the_terminal_they_are_on(running: Running, columns: int) -> None:
    with Terminal("moves", "--all", "--config", running.config, columns=columns) as terminal:
        assert terminal.end() == 0
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.text).replace("\r", "").splitlines()
    record = next(iter(running.snapshot().migrations.values()))
    assert any(line.startswith(record.id) for line in lines), "ids are whole"
    assert max(len(line) for line in lines if "at work for" not in line) <= columns
