"""`balancer ddl`: whatever a statement's words are, the bundle's tables and tablets are the same ones afterwards."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.identity import identity_of
from balancer.directory.model import Pause, Put
from balancer.directory.open import open_directory
from balancer.errors import Refused
from balancer.features.ddl.apply import ChangeRunner, changes_of
from balancer.nodes.session.addresses import addresses_of
from balancer.settings import load_settings
from tests.features.ddl.test_ddl import apply, config, databases, look, paused  # noqa: F401
from tests.support.commands import balancer_here as balancer
from tests.support.directories import migration, transaction
from tests.support.servers import Database

TAKEN_AWAY = {
    "CREATE TABLE other (n int); DROP TABLE other, orders": "table public.orders",
    "DROP TABLE IF EXISTS p0": "tablet public.p0",
    "DROP SCHEMA public CASCADE": "table public.orders",
    "ALTER SCHEMA public RENAME TO elsewhere": "table public.orders",
    "ALTER TABLE orders * RENAME TO elsewhere": "table public.orders",
    "ALTER INDEX orders RENAME TO elsewhere": "table public.orders",
    'ALTER TABLE orders RENAME U&"\\0069d" TO elsewhere': "table public.orders",
}


def test_a_statement_that_takes_a_table_or_tablet_away_is_refused(config: Path, databases: list[Database]) -> None:  # noqa: F811
    """In words that name something else first, or do not name it at all. Its rows would be gone."""
    before = [look(database) for database in databases]
    change = config.parent / "away.sql"
    for text, what in TAKEN_AWAY.items():
        change.write_text(text)
        code, _, err = apply(config, change)
        assert (code, f"it would drop, rename, detach or add {what}" in err) == (2, True), (text, err)
        assert [look(database) for database in databases] == before, text
    assert not paused(config)


def test_no_tablet_comes_by_a_statement(config: Path, databases: list[Database]) -> None:  # noqa: F811
    with databases[0].connect() as connection:
        connection.execute("ALTER TABLE orders DETACH PARTITION p0; DROP TABLE p0")
    change = config.parent / "new.sql"
    change.write_text("CREATE TABLE p0 PARTITION OF orders FOR VALUES WITH (MODULUS 2, REMAINDER 0)")
    code, _, err = apply(config, change)
    assert (code, "add tablet public.p0" in err) == (2, True), err


def runner(config: Path, directory: Directory, tell: Callable[[str], None]) -> ChangeRunner:  # noqa: F811
    addresses = addresses_of([load_settings(config).bundle("shop")], identity_of(directory.snapshot()))
    return ChangeRunner(directory, "shop", addresses, "directory", SystemClock(), patience=10.0, tell=tell)


def test_who_has_lost_its_turn_does_not_go_on_with_a_change_that_another_has_taken_back(
    config: Path,  # noqa: F811
    databases: list[Database],  # noqa: F811
) -> None:
    """A restart of the first node ends the session by which others wait. Half of the change would be there again, under
    a note that says it runs, with nothing held."""
    before = [look(database) for database in databases]
    with open_directory(f"sqlite://{config.parent}/directory.db") as directory:

        def tell(text: str) -> None:
            if text.startswith("step 2 on node a:"):
                with databases[0].connect() as connection:
                    connection.execute(
                        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND application_name = 'tablet-balancer ddl turn'"
                    )
                with closing(runner(config, directory, lambda _: None)) as other:
                    assert other.take_back().state == "undone"

        lost = pytest.raises(Refused, match=r"another process has ended change \w+ of bundle shop: it is undone")
        with closing(runner(config, directory, tell)) as first, lost:
            first.apply("ALTER TABLE orders ADD COLUMN x int; ALTER TABLE orders ADD COLUMN y int", "ann")
        assert [look(database) for database in databases] == before
        assert [one.state for one in changes_of(directory)] == ["undone"]


def test_an_index_that_was_there_is_neither_taken_nor_dropped(config: Path, databases: list[Database]) -> None:  # noqa: F811
    """PostgreSQL itself names a leaf's part of an index of the root as we name ours: p0_n_idx."""
    with databases[0].connect() as connection, databases[1].connect() as other:
        connection.execute("CREATE INDEX ON orders (n); CREATE INDEX p1_by_id_n ON p1 (n, id)")
        other.execute("CREATE INDEX ON orders (n)")
    before = [look(database) for database in databases]
    change = config.parent / "index.sql"
    change.write_text("CREATE INDEX n_idx ON orders (n, id); CREATE INDEX by_id_n ON orders (id, n)")
    code, _, err = apply(config, change)
    assert code == 0, err
    change.write_text("DROP INDEX n_idx; DROP INDEX by_id_n")
    code, _, err = apply(config, change)
    assert code == 0, err
    assert [look(database) for database in databases] == before


def test_no_migration_begins_in_a_bundle_that_is_held(config: Path, databases: list[Database]) -> None:  # noqa: F811
    """Its leader has looked for the hold before it was there, or an operator says `balancer move`."""
    with open_directory(f"sqlite://{config.parent}/directory.db") as directory:
        refused: list[str] = []
        early = directory.snapshot()

        def tell(text: str) -> None:
            if text.startswith("step 1 on node a:"):
                with pytest.raises(Refused) as caught:
                    directory.commit(transaction([Put(migration(early.tablet(1), "b", "planned"))], early.version))
                refused.append(str(caught.value))

        with closing(runner(config, directory, tell)) as first:
            ended = first.apply("ALTER TABLE orders ADD COLUMN x int", "ann")
        assert ended.state == "done"
        assert f"held by schema change {ended.id}" in refused[0]


def test_a_hold_whose_change_is_forgotten_is_taken_away_by_undo(config: Path) -> None:  # noqa: F811
    """As after `directory recover`, which knows no notes: `balancer resume` does not take it away."""
    with open_directory(f"sqlite://{config.parent}/directory.db") as directory:
        held = Pause("shop", None, "ann", "schema change forgotten")
        directory.commit(transaction([Put(held)], directory.snapshot().version))
    ended = balancer("ddl", "apply", "shop", "--undo", "--config", config)
    assert (ended.code, "which is no longer known: it continues now" in ended.err) == (4, True), ended.err
    assert not paused(config)
