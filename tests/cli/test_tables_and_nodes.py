"""`balancer table` and `balancer node`, as a user calls them, on a node of each version."""

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from balancer.embedded.postgres import PostgresServer
from tests.support.commands import balancer_here as balancer
from tests.support.servers import Database

TABLE = """
[tables.orders]
roots = ["public.orders"]
layout = "hash"
key = ["id"]
tablets = 4
"""


@pytest.fixture
def databases(
    postgres15: PostgresServer, postgres18: PostgresServer, database: Callable[[PostgresServer], Database]
) -> list[Database]:
    return [database(postgres15), database(postgres18)]


@pytest.fixture
def config(tmp_path: Path, databases: list[Database]) -> Path:
    (tmp_path / "bundles").mkdir()
    (tmp_path / "balancer.toml").write_text(f'directory = "sqlite://{tmp_path}/directory.db"\n')
    nodes = "".join(f"[nodes.{name}]\ndsn = '{db.dsn}'\n" for name, db in zip("ab", databases, strict=True))
    (tmp_path / "bundles" / "shop.toml").write_text(nodes + TABLE)
    return tmp_path / "balancer.toml"


def partitioned(database: Database, *leaves: tuple[int, int]) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY) PARTITION BY HASH (id)")
        for modulus, remainder in leaves:
            bound = f"FOR VALUES WITH (MODULUS {modulus}, REMAINDER {remainder})"
            connection.execute(f"CREATE TABLE p{remainder} PARTITION OF orders {bound}")


def test_adopting_shows_first_and_then_does(config: Path, databases: list[Database]) -> None:
    partitioned(databases[0], (2, 0), (2, 1))
    shown = balancer("table", "adopt", "shop", "orders", "--dry-run", "--config", config)
    assert shown.code == 0, shown.err
    assert shown.out.splitlines() == [
        "part\tnode\tpartitions",
        "FOR VALUES WITH (MODULUS 2, REMAINDER 0)\ta\tpublic.p0",
        "FOR VALUES WITH (MODULUS 2, REMAINDER 1)\ta\tpublic.p1",
        "2 tablets of orders, hash by (id integer)",
        "node b has no roots yet; they will be made there",
    ]
    done = balancer("table", "adopt", "shop", "orders", "--config", config)
    assert (done.code, done.out) == (0, "adopted table orders with 2 tablets\n")
    listed = json.loads(balancer("node", "list", "--config", config, "--output", "json").out)
    assert [(row["node"], row["health"], row["tablets"], row["reason"]) for row in listed] == [
        ("a", "good", 2, None),
        ("b", "good", 0, None),
    ]
    with databases[0].connect() as connection:
        connection.execute("UPDATE balancer.tablet SET epoch = 0 WHERE id = 1")
    listed = json.loads(balancer("node", "list", "--config", config, "--output", "json").out)
    assert (listed[0]["health"], "an old copy" in listed[0]["reason"]) == ("quarantined", True)


def test_a_refusal_is_one_sentence_and_exit_4(config: Path, databases: list[Database]) -> None:
    partitioned(databases[0], (2, 0))
    refused = balancer("table", "adopt", "shop", "orders", "--config", config)
    assert refused.code == 4
    assert len(refused.err.splitlines()) == 1
    assert "leaves a gap after public.p0 on node a" in refused.err
    assert balancer("table", "adopt", "shop", "nothing", "--config", config).code == 2


def test_creating_makes_the_table_everywhere(config: Path, databases: list[Database], tmp_path: Path) -> None:
    definition = tmp_path / "orders.sql"
    definition.write_text("CREATE TABLE orders (id int PRIMARY KEY) PARTITION BY HASH (id)")
    made = balancer("table", "create", "shop", "orders", "--definition", definition, "--config", config)
    assert (made.code, made.out) == (0, "created table orders with 4 tablets\n"), made.err
    for database in databases:
        with database.connect() as connection:
            count = connection.execute("SELECT count(*) FROM pg_inherits WHERE inhparent = 'orders'::regclass")
            assert count.fetchone() == (2,)
    assert balancer("table", "create", "shop", "orders", "--config", config).code == 4


def test_checking_names_what_is_missing_and_the_script_grants_it(config: Path, databases: list[Database]) -> None:
    partitioned(databases[1], (1, 0))
    assert balancer("node", "check", "--config", config).out == "every node has what it needs\n"
    role = f"role_{databases[1].name}"
    with databases[1].connect() as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
        try:
            environment = {"BALANCER_PASSWORD_B": "secret"}
            bundle = config.parent / "bundles" / "shop.toml"
            bundle.write_text(bundle.read_text().replace(databases[1].dsn, limited(databases[1], role)))
            found = balancer("node", "check", "--node", "b", "--config", config, "--output", "json", env=environment)
            assert found.code == 1
            remedies = {row["subject"]: row["remedy"] for row in json.loads(found.out)}
            assert remedies["pg_monitor"] == f'GRANT pg_monitor TO "{role}"'
            script = balancer("node", "grant-script", "shop", "--role", role, "--config", config)
            connection.execute(script.out.encode())
            again = balancer("node", "check", "--node", "b", "--config", config, env=environment)
            assert (again.code, again.out) == (0, "every node has what it needs\n")
        finally:
            connection.execute(f"REASSIGN OWNED BY {role} TO postgres")
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")


def limited(database: Database, role: str) -> str:
    port = psycopg.conninfo.conninfo_to_dict(database.dsn)["port"]
    return f"postgresql://{role}@127.0.0.1:{port}/{database.name}"


def test_a_node_that_is_down_is_shown_and_the_rest_too(config: Path, databases: list[Database]) -> None:
    partitioned(databases[1], (1, 0))
    assert balancer("table", "adopt", "shop", "orders", "--config", config).code == 0
    bundle = config.parent / "bundles" / "shop.toml"
    bundle.write_text(bundle.read_text().replace(databases[0].dsn, "postgresql://u@127.0.0.1:1/x"))
    listed = json.loads(balancer("node", "list", "shop", "--config", config, "--output", "json").out)
    assert [row["health"] for row in listed] == ["unreachable", "good"]
    assert listed[0]["reason"] == "connection refused"
    checked = balancer("node", "check", "--config", config)
    assert checked.code == 1
    assert balancer("table", "adopt", "shop", "orders", "--config", config).code == 3


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("ALTER TABLE orders ADD extra int", "public.orders differs between the nodes: column extra is integer on b"),
        ("ALTER TABLE orders ENABLE ROW LEVEL SECURITY", "row level security is enabled on b and off on a"),
        ("CREATE TABLE audit (o int REFERENCES orders)", "foreign key audit_o_fkey of public.audit points to"),
    ],
)
def test_what_a_move_would_refuse_is_found_before(
    config: Path, databases: list[Database], statement: str, finding: str
) -> None:
    partitioned(databases[0], (2, 0), (2, 1))
    assert balancer("table", "adopt", "shop", "orders", "--config", config).code == 0
    commands = [("node", "check"), ("doctor",)] + [("verify", "orders")] * ("audit" not in statement)
    for command in commands:
        assert balancer(*command, "--config", config).code == 0
    with databases[1].connect() as connection:
        connection.execute(statement.encode())
    for command in commands:
        found = balancer(*command, "--config", config)
        assert found.code == 1, command
        assert finding in found.out


def test_what_an_adoption_notes_is_part_of_its_document(config: Path, databases: list[Database]) -> None:
    with databases[0].connect() as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, picture oid) PARTITION BY HASH (id)")
        connection.execute("CREATE TABLE o PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    done = balancer("table", "adopt", "shop", "orders", "--config", config, "--output", "json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert (document["result"], document["tablets"]) == ("adopted", 1)
    assert ["is of type oid" in note for note in document["notes"]] == [True]


def test_a_default_partition_is_found_by_everybody(config: Path, databases: list[Database]) -> None:
    bundle = config.parent / "bundles" / "shop.toml"
    bundle.write_text(bundle.read_text().replace('"hash"', '"range"'))
    with databases[0].connect() as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        connection.execute("CREATE TABLE p PARTITION OF orders FOR VALUES FROM (MINVALUE) TO (MAXVALUE)")
    assert balancer("table", "adopt", "shop", "orders", "--config", config).code == 0
    with databases[1].connect() as connection:
        connection.execute("CREATE TABLE rest PARTITION OF orders DEFAULT")
    for command in (("node", "check"), ("doctor",), ("verify", "orders")):
        found = balancer(*command, "--config", config)
        assert (found.code, "the DEFAULT partition public.rest" in found.out) == (1, True), command
    listed = json.loads(balancer("node", "list", "--config", config, "--output", "json").out)
    assert [row["health"] for row in listed] == ["good", "quarantined"]


def test_a_schema_of_somebody_else_under_our_name_is_refused_in_one_sentence(
    config: Path, databases: list[Database]
) -> None:
    partitioned(databases[0], (2, 0), (2, 1))
    assert balancer("table", "adopt", "shop", "orders", "--config", config).code == 0
    with databases[1].connect() as connection:
        connection.execute("DROP SCHEMA balancer CASCADE")
        connection.execute("CREATE ROLE squatter")
        connection.execute("CREATE SCHEMA balancer AUTHORIZATION squatter")
        connection.execute("CREATE VIEW balancer.node AS SELECT 1 / 0 AS node")
    try:
        sentence = "refuses: schema balancer belongs to squatter, not to tablet-balancer's role postgres"
        listed = json.loads(balancer("node", "list", "--config", config, "--output", "json").out)
        assert [(row["health"], sentence in (row["reason"] or "")) for row in listed] == [
            ("good", False),
            ("unreachable", True),
        ]
        checked = json.loads(balancer("node", "check", "--config", config, "--output", "json").out)
        assert [row["node"] for row in checked if row["level"] == "error" and sentence in row["text"]] == ["b"]
        examined = balancer("doctor", "--config", config)
        assert (examined.code, sentence in examined.out) == (1, True)
        adopted = balancer("table", "adopt", "shop", "orders", "--config", config)
        assert (adopted.code, sentence in adopted.err, len(adopted.err.splitlines())) == (4, True, 1)
    finally:
        with databases[1].connect() as connection:
            connection.execute("DROP OWNED BY squatter CASCADE")
            connection.execute("DROP ROLE squatter")
