"""`balancer init`, `table convert` and `table unconvert`, as a user calls them."""

import json
import os
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from balancer.embedded.postgres import PostgresServer
from tests.support.commands import balancer_here as balancer
from tests.support.servers import Database

TABLE = """
[migration]
write_pause_budget = "5s"
lock_timeout = "500ms"
fence_deadline = "30s"

[tables.orders]
roots = ["public.orders"]
layout = "hash"
key = ["user_id"]
"""


@pytest.fixture
def fresh(any_postgres: PostgresServer, database: Callable[[PostgresServer], Database]) -> Database:
    return database(any_postgres)


@pytest.fixture
def config(tmp_path: Path, fresh: Database) -> Path:
    (tmp_path / "bundles").mkdir()
    (tmp_path / "balancer.toml").write_text(f'directory = "sqlite://{tmp_path}/directory.db"\n')
    (tmp_path / "bundles" / "shop.toml").write_text(f"[nodes.a]\ndsn = '{fresh.dsn}'\n{TABLE}")
    return tmp_path / "balancer.toml"


def make_orders(fresh: Database) -> None:
    with fresh.connect() as connection:
        connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, user_id bigint NOT NULL, note text)")
        connection.execute("CREATE VIEW mine AS SELECT id FROM orders")
        connection.execute("INSERT INTO orders SELECT n, n, 'x' FROM generate_series(1, 50) AS n")


def test_a_table_is_shown_converted_and_brought_back(config: Path, fresh: Database) -> None:
    make_orders(fresh)
    refused = balancer("table", "convert", "shop", "orders", "--dry-run", "--config", config)
    assert (refused.code, len(refused.err.splitlines())) == (4, 1)
    assert "primary key orders_pkey of public.orders does not contain the key (user_id): --widen-keys" in refused.err
    shown = balancer("table", "convert", "shop", "orders", "--dry-run", "--widen-keys", "--config", config)
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert lines[2] == ('CREATE UNIQUE INDEX CONCURRENTLY "orders_t0_pkey" ON "public"."orders" ("id", "user_id");')
    assert "-- view public.mine will name the partitioned table" in lines
    assert lines[-1] == "-- table orders can be converted on node a; nothing was changed"
    common = ("shop", "orders", "--config", config, "--output", "json")
    done = balancer("table", "convert", *common, "--widen-keys")
    assert done.code == 0, done.err
    facts = json.loads(done.out)
    assert (facts["result"], facts["partitions"], facts["pause_ms"] > 0) == ("converted", ["orders_t0"], True)
    again = json.loads(balancer("table", "convert", *common).out)
    assert (again["result"], again["pause_ms"]) == ("converted", None)
    assert json.loads(balancer("table", "unconvert", *common, "--dry-run").out)["swap"] != []
    back = json.loads(balancer("table", "unconvert", *common).out)
    assert back["result"] == "plain again"
    with fresh.connect() as connection:
        assert connection.execute("SELECT count(*) FROM mine").fetchone() == (50,)
        assert connection.execute("SELECT relkind::text FROM pg_class WHERE relname = 'orders'").fetchone() == ("r",)
    assert balancer("table", "convert", "shop", "other", "--config", config).code == 2


def test_a_swap_that_does_not_fit_into_the_budget_is_undone(config: Path, fresh: Database) -> None:
    make_orders(fresh)
    bundle = config.parent / "bundles" / "shop.toml"
    bundle.write_text(
        bundle.read_text()
        .replace('"5s"', '"5ms"')
        .replace('"500ms"', '"5ms"\nretry_patience = "1s"\nretry_back_off = "200ms"')
    )
    refused = balancer("table", "convert", "shop", "orders", "--widen-keys", "--config", config)
    assert refused.code == 3, refused.err
    assert "write_pause_budget" in refused.err.splitlines()[-1]
    with fresh.connect() as connection:
        assert connection.execute("SELECT relkind::text FROM pg_class WHERE relname = 'orders'").fetchone() == ("r",)


def test_a_session_in_the_way_is_named(config: Path, fresh: Database) -> None:
    make_orders(fresh)
    bundle = config.parent / "bundles" / "shop.toml"
    bundle.write_text(bundle.read_text().replace('"500ms"', '"50ms"\nretry_patience = "1s"'))
    with fresh.connect(autocommit=False) as reader:
        reader.execute("SET application_name TO report")
        reader.execute("SELECT FROM orders")
        refused = balancer("table", "convert", "shop", "orders", "--widen-keys", "--config", config)
    assert (refused.code, "in the way: session" in refused.err, "(report, open for" in refused.err) == (3, True, True)


def pgbench(database: Database, *arguments: str) -> None:
    environment = {
        **os.environ,
        "PGHOST": "127.0.0.1",
        "PGPORT": str(database.server.port),
        "PGUSER": "postgres",
        "PGPASSWORD": database.server.password(),
    }
    program = str(database.server.program("pgbench"))
    subprocess.run([program, *arguments, database.name], env=environment, check=True, capture_output=True)


def test_init_proposes_files_that_are_accepted(fresh: Database, tmp_path: Path) -> None:
    pgbench(fresh, "-i", "-q")
    shown = json.loads(balancer("init", fresh.dsn, "--output", "json").out)
    assert shown["files"] == []
    [table] = shown["tables"]
    assert (table["roots"], table["key"]) == (["public.pgbench_accounts", "public.pgbench_history"], ["aid"])
    assert {left["table"] for left in shown["left"]} == {"public.pgbench_branches", "public.pgbench_tellers"}
    assert [text.split(":")[0] for text in shown["notes"]] == ["public.pgbench_history has no primary key"]
    folder = tmp_path / "proposed"
    written = balancer("init", fresh.dsn, "--folder", folder, "--bundle", "bank")
    assert written.code == 0, written.err
    text = (folder / "bundles" / "bank.toml").read_text()
    assert fresh.server.password() not in text + written.out
    assert tomllib.loads(text)["tables"]["pgbench_accounts"]["key"] == ["aid"]
    checked = balancer("config", "check", "--config", folder / "balancer.toml")
    assert checked.code == 0, checked.err
    again = balancer("init", fresh.dsn, "--folder", folder, "--bundle", "bank")
    assert (again.code, "already exists and is not overwritten" in again.err) == (4, True)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("postgresql://u:secret@/x?nonsense=1",), 2, "the DSN is not one that PostgreSQL's clients understand"),
        (("postgresql://127.0.0.1:1/x",), 3, "node first cannot be reached"),
        (("postgresql:///x", "--bundle", "../x"), 2, "is not a name; letters, digits, - and _ are allowed"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: tuple[str, ...], code: int, sentence: str) -> None:
    refused = balancer("init", *arguments)
    assert (refused.code, len(refused.err.splitlines())) == (code, 1), refused.err
    assert sentence in refused.err
    assert "secret" not in refused.err


def test_init_says_what_stands_in_the_way_and_changes_nothing(fresh: Database) -> None:
    with fresh.connect() as connection:
        connection.execute(
            """CREATE TABLE users (id bigint PRIMARY KEY);
               CREATE TABLE orders (id bigint, user_id bigint REFERENCES users, PRIMARY KEY (user_id, id));
               CREATE TABLE items (id bigint PRIMARY KEY, user_id bigint, order_id bigint,
                                   FOREIGN KEY (user_id, order_id) REFERENCES orders (user_id, id));
               CREATE TABLE "Odd" (id bigint);
               INSERT INTO orders SELECT n, n FROM generate_series(1, 0) AS n"""
        )
        connection.execute("ALTER TABLE orders ADD COLUMN filler text DEFAULT repeat('x', 1000)")
        connection.execute("INSERT INTO users SELECT 1")
        connection.execute("INSERT INTO orders SELECT n, 1 FROM generate_series(1, 2000) AS n")
    shown = json.loads(balancer("init", fresh.dsn, "--output", "json").out)
    [table] = shown["tables"]
    assert (table["roots"], table["key"], table["widen_keys"]) == (
        ["public.orders", "public.items"],
        ["user_id"],
        ["public.items"],
    )
    assert shown["left"] == []
    assert [one["roots"] for one in shown["references"]] == [["public.users"]]
    assert any('public."Odd" needs quotes' in text for text in shown["in_the_way"])
    with fresh.connect() as connection:
        assert connection.execute("SELECT to_regnamespace('balancer')").fetchone() == (None,)


def test_hostile_names_stay_names(fresh: Database, tmp_path: Path) -> None:
    with fresh.connect() as connection:
        connection.execute('CREATE TABLE t ("k""]\n[nodes.x]" bigint PRIMARY KEY)')
    folder = tmp_path / "proposed"
    assert balancer("init", fresh.dsn, "--folder", folder).code == 0
    read = tomllib.loads((folder / "bundles" / "main.toml").read_text())
    assert (list(read["nodes"]), read["tables"]["t"]["key"]) == (["first"], ['k"]\n[nodes.x]'])


def test_what_init_proposes_can_be_carried_out(fresh: Database, tmp_path: Path) -> None:
    with fresh.connect() as connection:
        connection.execute(
            """CREATE TABLE countries (id bigint PRIMARY KEY);
               CREATE TABLE cities (id bigint PRIMARY KEY, country_id bigint REFERENCES countries);
               CREATE TABLE orders (user_id bigint PRIMARY KEY, city_id bigint REFERENCES cities, filler text);
               INSERT INTO countries VALUES (1); INSERT INTO cities VALUES (1, 1);
               INSERT INTO orders SELECT n, 1, repeat('x', 1000) FROM generate_series(1, 500) AS n"""
        )
    proposed = balancer("init", fresh.dsn, "--folder", tmp_path, "--bundle", "shop")
    assert "table cities: public.cities, public.countries, everywhere" in proposed.out, proposed.err
    options = ("--config", tmp_path / "balancer.toml")
    password = {"BALANCER_PASSWORD_FIRST": fresh.server.password()}
    for command in ("config check", "table adopt shop cities", "table convert shop orders"):
        done = balancer(*command.split(), *options, env=password)
        assert done.code == 0, (command, done.err)
    with fresh.connect() as connection:
        assert connection.execute("SELECT count(*) FROM orders JOIN cities c ON city_id = c.id").fetchone() == (500,)


def test_init_says_what_a_reference_table_would_be_refused_for(fresh: Database) -> None:
    with fresh.connect() as connection:
        connection.execute(
            """CREATE TABLE cities (id bigint PRIMARY KEY); ALTER TABLE cities ENABLE ROW LEVEL SECURITY;
               CREATE TABLE orders (user_id bigint PRIMARY KEY, city_id bigint REFERENCES cities, filler text);
               INSERT INTO orders SELECT n, NULL, repeat('x', 1000) FROM generate_series(1, 500) AS n"""
        )
    shown = json.loads(balancer("init", fresh.dsn, "--output", "json").out)
    assert [one["table"] for one in shown["references"]] == ["cities"]
    assert any("public.cities has row level security" in text for text in shown["in_the_way"])


def test_a_table_with_a_serial_column_is_converted_and_made_on_a_second_node(
    fresh: Database, postgres18: PostgresServer, database: Callable[[PostgresServer], Database], tmp_path: Path
) -> None:
    with fresh.connect() as connection:
        connection.execute("CREATE TABLE orders (id bigserial, user_id bigint, PRIMARY KEY (user_id, id))")
        connection.execute("INSERT INTO orders (user_id) SELECT n FROM generate_series(1, 50) AS n")
    second = database(postgres18)
    (tmp_path / "bundles").mkdir()
    (tmp_path / "balancer.toml").write_text(f'directory = "sqlite://{tmp_path}/directory.db"\n')
    bundle = tmp_path / "bundles" / "shop.toml"
    nodes = "".join(f"[nodes.{name}]\ndsn = '{one.dsn}'\n" for name, one in {"a": fresh, "b": second}.items())
    bundle.write_text(nodes + TABLE)
    convert = ("table", "convert", "shop", "orders", "--config", tmp_path / "balancer.toml")
    refused = balancer(*convert)
    assert (refused.code, "say spread_sequences = true for the table" in refused.err) == (4, True), refused.err
    bundle.write_text(nodes + TABLE + "spread_sequences = true\n")
    done = balancer(*convert)
    assert done.code == 0, done.err
    numbers = []
    for one in (fresh, second, fresh, second):
        with one.connect() as connection:
            numbers += connection.execute("SELECT nextval('orders_id_seq') FROM generate_series(1, 3)").fetchall()
    assert len({*numbers}) == 12
    assert min(numbers) > (50,)
