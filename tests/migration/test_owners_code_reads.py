"""Nothing that reads or makes partitions outside of a migration runs code of their owner with the balancer's rights."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from balancer.clock import SystemClock
from balancer.directory.model import Node
from balancer.embedded.postgres import PostgresServer
from balancer.errors import BalancerError, Refused
from balancer.features.repair.doctor import examine
from balancer.features.repair.revive import copies_of, make_ready
from balancer.features.tables.adopt import TableRequest, adopt, inspect
from balancer.features.tables.create import create
from balancer.naming import Name, parse_name
from balancer.nodes.catalog.owners_code import check_readable
from balancer.nodes.catalog.preflight import Needs, TableNeeds, grant_script, preflight
from balancer.nodes.session.connection import Address, connect
from balancer.nodes.session.holder import NodeSessions
from balancer.planner.hot_keys import NodeSampler
from balancer.polling.poller import Poller
from tests.support.cluster import Cluster, build, range_table, range_tablets
from tests.support.commands import balancer_here
from tests.support.owned import plain_role, rights, run_as
from tests.support.sampling import crossed
from tests.support.servers import Database

pytestmark = pytest.mark.always

ROOT = "public.orders"
SPY = """
CREATE TABLE public.seen (who name, session name); GRANT INSERT, SELECT ON public.seen TO PUBLIC;
CREATE FUNCTION public.write_down() RETURNS void LANGUAGE sql VOLATILE AS
    $$INSERT INTO public.seen VALUES (current_user, session_user)$$;
CREATE FUNCTION public.spy(bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
    $$BEGIN PERFORM public.write_down(); RETURN $1; EXCEPTION WHEN read_only_sql_transaction THEN RETURN $1; END$$;
"""

ON_THE_LEAF = {
    "index expression": "CREATE INDEX ON public.orders_t1 ((n + public.spy(1)))",
    "index predicate": "CREATE INDEX ON public.orders_t1 (n) WHERE n > public.spy(1)",
    "statistics": "CREATE STATISTICS public.s ON ((n + public.spy(1))), id FROM public.orders_t1",
    "check": "ALTER TABLE public.orders_t1 ADD CHECK (n < public.spy(1) + 1000000)",
    "view in its place": "ALTER TABLE public.orders DETACH PARTITION public.orders_t1;"
    " ALTER TABLE public.orders_t1 RENAME TO hidden;"
    " CREATE VIEW public.orders_t1 AS SELECT id, public.spy(n) AS n FROM public.hidden",
    "view that folds": "ALTER TABLE public.orders DETACH PARTITION public.orders_t1;"
    " ALTER TABLE public.orders_t1 RENAME TO hidden;"
    " CREATE VIEW public.orders_t1 AS SELECT id, n FROM public.hidden WHERE n >= public.spy(-5)",
}


@pytest.fixture
def database(plain_database: Callable[[PostgresServer], Database]) -> Callable[[PostgresServer], Database]:
    return plain_database


@pytest.fixture(params=["postgres15", "postgres18"])
def dsns(request: pytest.FixtureRequest, pair: dict[str, str]) -> dict[str, str]:
    """Node a, which owns the tablets, is of this version."""
    return pair if request.param == "postgres15" else {"a": pair["b"], "b": pair["a"]}


@pytest.fixture
def owner(dsns: dict[str, str]) -> Iterator[str]:
    with plain_role(dsns, SPY) as role:
        yield role


def made_by(owner: str, folder: Path, dsns: dict[str, str], role: str = "") -> Cluster:
    """Two ranges on node a in a table of a plain role; the balancer is a superuser, or what the grant script makes."""
    for dsn in dsns.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            columns = "(id bigint NOT NULL, n bigint, PRIMARY KEY (id))"
            run_as(connection, owner, f"CREATE TABLE {ROOT} {columns} PARTITION BY RANGE (id)")
            if role:
                connection.execute(grant_script(role, [parse_name(ROOT)]).encode())
                connection.execute(f"ALTER ROLE {role} PASSWORD 'secret'".encode())
    login = {"user": role, "password": "secret"} if role else {}
    ours = {node: make_conninfo(dsn, **login) for node, dsn in dsns.items()}
    made = build(folder, ours, range_table((ROOT,)), range_tablets([1000], ["a"]), columns=None)
    made.dsns = dsns
    made.address = lambda node: Address(node, ours[node])  # type: ignore[method-assign]
    with made.connect("a") as connection:
        for leaf in ("orders_t1", "orders_t2"):
            connection.execute(f"ALTER TABLE public.{leaf} OWNER TO {owner}".encode())
        run_as(connection, owner, f"INSERT INTO {ROOT} SELECT i, i FROM generate_series(1, 500) i")
    return made


@pytest.fixture
def cluster(tmp_path: Path, dsns: dict[str, str], owner: str) -> Iterator[Cluster]:
    made = made_by(owner, tmp_path, dsns)
    yield made
    made.close()


@pytest.fixture
def granted(tmp_path: Path, dsns: dict[str, str], owner: str) -> Iterator[Cluster]:
    """The same, with a balancer that is no superuser."""
    role = f"balancer_{owner}"
    made = made_by(owner, tmp_path, dsns, role)
    yield made
    made.close()
    for dsn in dsns.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())


def seen(cluster: Cluster, owner: str) -> set[object]:
    """As whom the function ran, but for the owner itself: autovacuum runs it so."""
    return {
        row
        for node in cluster.dsns
        for row in cluster.query(node, f"SELECT who, session FROM public.seen WHERE who <> '{owner}'")
    }


def attack(cluster: Cluster, owner: str, statement: str) -> None:
    with cluster.connect("a") as connection:
        run_as(connection, owner, *statement.split(";"))
        connection.execute("TRUNCATE public.seen")


def sampler(cluster: Cluster) -> NodeSampler:
    return NodeSampler(cluster.address, cluster.directory().snapshot, SystemClock())


def split(cluster: Cluster) -> None:
    snapshot = cluster.directory().snapshot()
    with closing(sampler(cluster)) as asking:
        asking.split_keys(snapshot, snapshot.tablets(1)[:1], 2)


def ages(cluster: Cluster) -> None:
    with closing(sampler(cluster)) as asking:
        asking.ask(1)
        with cluster.connect("a") as connection:
            connection.execute("SELECT txid_current()")
        found = asking.ask(1)
    if found is None:
        raise Refused("the node cannot tell")


def copies(cluster: Cluster) -> None:
    snapshot = cluster.directory().snapshot()
    with closing(NodeSessions(cluster.address, "test")) as links:
        copies_of(links, snapshot, snapshot.tablet(1))


def take(cluster: Cluster) -> None:
    snapshot = cluster.directory().snapshot()
    tablet = replace(snapshot.tablet(1), epoch=snapshot.tablet(1).epoch + 1)
    with cluster.connect("a") as connection:
        attached = connection.execute(
            "SELECT FROM pg_inherits WHERE inhrelid = 'public.orders_t1'::regclass"
        ).fetchone()
        if attached is not None:
            connection.execute("ALTER TABLE public.orders DETACH PARTITION public.orders_t1")
    with closing(NodeSessions(cluster.address, "test")) as links:
        make_ready(links, snapshot.epoch, snapshot.tables[1], [tablet], empty=False)


READERS: dict[str, Callable[[Cluster], None]] = {"split": split, "ages": ages, "copies": copies, "take": take}


@pytest.mark.parametrize(("case", "reader"), crossed(list(ON_THE_LEAF), list(READERS), 2, "readers"))
def test_reading_a_partition_does_not_run_its_owners_code(cluster: Cluster, owner: str, case: str, reader: str) -> None:
    check_attack(cluster, owner, case, reader)


@pytest.mark.parametrize("case", ON_THE_LEAF)
def test_nor_does_a_balancer_that_is_no_superuser(granted: Cluster, owner: str, case: str) -> None:
    check_attack(granted, owner, case, "split")


def check_attack(cluster: Cluster, owner: str, case: str, reader: str) -> None:
    before = rights(cluster, owner)
    attack(cluster, owner, ON_THE_LEAF[case])
    text = ""
    try:
        READERS[reader](cluster)
    except BalancerError as error:
        text = str(error)
    assert seen(cluster, owner) == set()
    wanted = "the node cannot tell" if reader == "ages" else r"spy\(bigint\)|is not an ordinary table"
    assert re.search(wanted, text)
    assert rights(cluster, owner) == before


def test_ordinary_partitions_are_read(granted: Cluster, owner: str) -> None:
    attack(granted, owner, "CREATE INDEX ON public.orders_t1 ((n + 1)) WHERE n > 3")
    for reader in READERS.values():
        reader(granted)
    assert seen(granted, owner) == set()


def test_policies_of_an_owner_are_not_asked(granted: Cluster, owner: str) -> None:
    policy = "CREATE POLICY p ON public.orders_t1 USING (public.spy(n) = n)"
    force = (
        "ALTER TABLE public.orders_t1 ENABLE ROW LEVEL SECURITY; ALTER TABLE public.orders_t1 FORCE ROW LEVEL SECURITY"
    )
    attack(granted, owner, f"{policy}; {force}")
    for reader in (split, copies):
        with pytest.raises(Refused, match="row-level security"):
            reader(granted)
    assert seen(granted, owner) == set()


@pytest.mark.parametrize("case", ON_THE_LEAF)
def test_polls_and_reports_only_ask_the_catalog(cluster: Cluster, owner: str, case: str) -> None:
    attack(cluster, owner, ON_THE_LEAF[case])
    snapshot = cluster.directory().snapshot()
    poller = Poller("directory", SystemClock(), 5.0)
    with closing(poller):
        poller.poll(snapshot, {node: cluster.address(node) for node in cluster.dsns})
    found = [finding.text for finding in examine(cluster.directory(), cluster.address)]
    needs = Needs((TableNeeds((parse_name(ROOT),), ("id",)),))
    with connect(cluster.address("a")) as connection:
        said = [shortfall.text for shortfall in preflight(connection, needs)]
    assert seen(cluster, owner) == set()
    if "view" not in case:
        for texts in (found, said):
            assert any(text.startswith("public.orders_t1 uses function public.spy(bigint)") for text in texts), texts


def configured(cluster: Cluster, trust: bool) -> Path:
    """The cluster as an operator's files describe it."""
    folder = cluster.folder
    (folder / "bundles").mkdir(exist_ok=True)
    nodes = "".join(f'[nodes.{node}]\ndsn = "{dsn}"\n' for node, dsn in cluster.dsns.items())
    table = f'[tables.orders]\nroots = ["{ROOT}"]\nlayout = "range"\nkey = ["id"]\n'
    migration = f"[migration]\ntrust_table_owners = {str(trust).lower()}\n"
    (folder / "bundles" / "shop.toml").write_text(nodes + table + migration)
    (folder / "balancer.toml").write_text(f'directory = "{cluster.url}"\n')
    return folder / "balancer.toml"


def test_the_command_names_what_it_does_not_count(cluster: Cluster, owner: str) -> None:
    attack(cluster, owner, ON_THE_LEAF["index predicate"])
    refused = balancer_here("verify", "orders", "--count", "--config", configured(cluster, trust=False))
    assert refused.code == 1
    assert "its rows cannot be counted: public.orders_t1 uses function public.spy(bigint)" in refused.out
    assert seen(cluster, owner) == set()
    trusting = balancer_here("verify", "orders", "--count", "--config", configured(cluster, trust=True))
    assert (trusting.code, "2 tablets, 500 rows, nothing wrong" in trusting.out) == (0, True), trusting
    assert seen(cluster, owner) == {("postgres", "postgres")}, "which is what the setting allows"


def test_who_says_that_owners_are_trusted_is_not_refused(cluster: Cluster, owner: str) -> None:
    attack(cluster, owner, ON_THE_LEAF["index predicate"])
    plain = cluster.address
    cluster.address = lambda node: replace(plain(node), trusts_owners=True)  # type: ignore[method-assign]
    for reader in (split, ages, copies):
        reader(cluster)
    assert [text.text for text in examine(cluster.directory(), cluster.address) if "spy" in text.text] == []


def test_a_table_is_held_still_between_the_look_and_the_read(cluster: Cluster, owner: str) -> None:
    """An index that comes in between would be folded by the very next plan."""
    with connect(cluster.address("a")) as ours, ours.transaction(), ours.cursor() as cursor:
        check_readable(cursor, [Name("public", "orders_t1")], trusted=False)
        for statement in ON_THE_LEAF.values():
            with cluster.connect("a") as connection:
                connection.execute("SET lock_timeout TO '100ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    run_as(connection, owner, *statement.split(";"))
        with cluster.connect("a") as connection:  # writers go on
            run_as(connection, owner, f"INSERT INTO {ROOT} VALUES (900, 1)")


def request() -> TableRequest:
    return TableRequest("shop", "goods", (parse_name("public.goods"),), "hash", ("id",), "test")


GOODS = {
    "generated": "CREATE TABLE public.goods (id bigint PRIMARY KEY, g bigint GENERATED ALWAYS AS (id + public.spy(1))"
    " STORED) PARTITION BY HASH (id)",
    "index": "CREATE TABLE public.goods (id bigint PRIMARY KEY) PARTITION BY HASH (id);"
    " CREATE INDEX ON public.goods ((id + public.spy(1)))",
    "predicate": "CREATE TABLE public.goods (id bigint PRIMARY KEY) PARTITION BY HASH (id);"
    " CREATE INDEX ON public.goods (id) WHERE id > public.spy(1)",
}


@pytest.mark.parametrize("case", GOODS)
def test_neither_roots_nor_partitions_are_made_with_an_owners_code(
    tmp_path: Path, dsns: dict[str, str], owner: str, case: str
) -> None:
    """The root is on node a alone; the function on node b belongs to its owner, too."""
    cluster = Cluster(tmp_path, dsns, range_table())
    with cluster.connect("a") as connection:
        run_as(connection, owner, *GOODS[case].split(";"))
        connection.execute("TRUNCATE public.seen")
    records = [Node(node, "shop", dsn) for node, dsn in dsns.items()]
    with cluster.directory() as directory:
        for wanted in (["a", "b"], ["a"]):
            with ExitStack() as stack:
                nodes = {node: stack.enter_context(connect(cluster.address(node))) for node in wanted}
                with pytest.raises(Refused, match=r"public\.goods uses function public\.spy\(bigint\)"):
                    create(request(), directory, nodes, records, "directory", tablets=2)
    assert seen(cluster, owner) == set()


def test_adoption_says_what_a_move_would_refuse(tmp_path: Path, dsns: dict[str, str], owner: str) -> None:
    cluster = Cluster(tmp_path, dsns, range_table())
    with cluster.connect("a") as connection:
        run_as(connection, owner, *GOODS["predicate"].split(";"))
        run_as(connection, owner, "CREATE TABLE goods_1 PARTITION OF goods FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
        connection.execute("TRUNCATE public.seen")
    records = [Node("a", "shop", dsns["a"])]
    with connect(cluster.address("a")) as connection:
        notes = inspect(request(), {"a": connection}).notes
        assert any("public.goods uses function public.spy(bigint)" in note for note in notes)
        assert inspect(replace(request(), trusts_owners=True), {"a": connection}).notes == ()
        with cluster.directory() as directory:
            assert adopt(request(), directory, {"a": connection}, records, "directory").found.notes == notes
    assert seen(cluster, owner) == set()
