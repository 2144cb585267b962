"""A node is reached from two places: by us, and by the server of another node. With TLS, SCRAM and several hosts."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from balancer.embedded import process
from balancer.embedded.postgres import PostgresServer
from balancer.features.forwarding import statements
from balancer.migration.begin import begin_move
from balancer.nodes.session.connection import Address
from tests.support.certificates import self_signed
from tests.support.cluster import Cluster, build, hash_table, hash_tablets, insert_rows
from tests.support.commands import balancer_here
from tests.support.servers import new_database, postgres
from tests.support.standby import make_standby

ODD = 'a\'b\\c "d" @/?#%&=+:;,$(){}[]<>|~`!^*-_.ü'
"""A password with every odd character."""


@dataclass
class Estate:
    """A primary and its standby that only take TLS and SCRAM; the authority's certificate is where only we read."""

    first: PostgresServer
    second: PostgresServer
    authority: Path
    databases: dict[str, str]

    def dsn(self, node: str, *servers: PostgresServer, **more: str) -> str:
        asked = servers or (self.first,)
        return make_conninfo(
            "",
            host=",".join("127.0.0.1" for _ in asked),
            port=",".join(str(one.port) for one in asked),
            dbname=self.databases[node],
            user="odd",
            sslmode="verify-full",
            **{"sslrootcert": str(self.authority), **more},
        )


@pytest.fixture(scope="module")
def estate(server_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    folder = server_folder / "peers"
    folder.mkdir()
    folder.chmod(0o755)
    ours = tmp_path_factory.mktemp("ours")
    ours.chmod(0o700)
    certificate, key = self_signed(ours)
    account = process.Account.choose()
    with ExitStack() as stack:
        # Not ours: the servers' account has a home of its own, where libpq looks for certificates.
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv("HOME", str(folder))
        first = stack.enter_context(postgres(folder / "first", 15))
        for source, name in ((certificate, "server.crt"), (key, "server.key")):
            to = Path(shutil.copy(source, first.data / name))
            to.chmod(0o600)
            if account:
                account.own(to)
        (first.data / "pg_hba.conf").write_text(
            "local all all scram-sha-256\nhost replication all 127.0.0.1/32 scram-sha-256\n"
            "hostssl all all 127.0.0.1/32 scram-sha-256\n"
        )
        with psycopg.connect(first.dsn(), autocommit=True) as link:
            link.execute("ALTER SYSTEM SET ssl = on")
            login = sql.SQL("CREATE ROLE odd SUPERUSER LOGIN REPLICATION PASSWORD {}")
            link.execute(login.format(sql.Literal(ODD)))
            link.execute("SELECT pg_reload_conf()")
        second = make_standby(first, folder / "second", 15)
        second.start()
        stack.callback(second.stop)
        yield Estate(first, second, certificate, {})


@pytest.fixture
def cluster(tmp_path: Path, estate: Estate, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Nodes a and b as the owner of the estate writes their addresses, with one host each at first."""
    monkeypatch.setenv("PGPASSWORD", ODD)
    tablets = hash_tablets(2, ["a"])
    with new_database(estate.first) as a, new_database(estate.first) as b:
        for node, own in (("a", a), ("b", b)):
            estate.databases[node] = str(psycopg.conninfo.conninfo_to_dict(own.dsn)["dbname"])
        made = build(tmp_path, {node: estate.dsn(node) for node in ("a", "b")}, hash_table(), tablets)
        insert_rows(made, tablets, range(100))
        yield made
        made.close()


def moved(cluster: Cluster) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    done = cluster.runner(directory, leadership).run(begin_move(directory, leadership, 1, "b").id)
    assert (done.state, done.mode, done.error) == ("done", "replicate", "")
    assert len(cluster.rows()["b"]) > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs an account of its own for the server")
def test_the_authority_of_our_host_is_not_looked_for_on_the_target(estate: Estate, cluster: Cluster) -> None:
    moved(cluster)


@pytest.mark.parametrize("standby_first", [False, True])
def test_of_several_hosts_the_stream_comes_from_the_one_that_takes_writes(
    estate: Estate, cluster: Cluster, standby_first: bool
) -> None:
    servers = (estate.second, estate.first) if standby_first else (estate.first, estate.second)
    cluster.dsns["a"] = estate.dsn("a", *servers)
    moved(cluster)


def test_a_service_file_is_ours_alone(
    tmp_path: Path, estate: Estate, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = psycopg.conninfo.conninfo_to_dict(cluster.dsns["a"])
    file = tmp_path / "services.conf"
    file.write_text("[shard-a]\n" + "".join(f"{name}={value}\n" for name, value in facts.items()))
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    cluster.dsns["a"] = "service=shard-a"
    moved(cluster)


def test_the_authority_is_where_the_target_s_server_has_it(
    estate: Estate, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named by `peer_sslrootcert`, and by `peer_dsn`."""
    there = str(estate.first.data / "server.crt")
    whole = Cluster.address
    files = (("sslrootcert", there),)
    monkeypatch.setattr(Cluster, "address", lambda self, node: replace(whole(self, node), peer_files=files))
    moved(cluster)


def test_a_peer_s_own_address_is_taken_as_it_is(
    estate: Estate, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = estate.dsn("a", sslrootcert=str(estate.first.data / "server.crt"))
    whole = Cluster.address

    def address(self: Cluster, node: str) -> Address:
        return replace(whole(self, node), peer_dsn=there if node == "a" else "")

    monkeypatch.setattr(Cluster, "address", address)
    moved(cluster)


@pytest.mark.parametrize("standby_first", [False, True])
def test_a_foreign_server_reaches_the_host_that_takes_writes(
    estate: Estate, cluster: Cluster, standby_first: bool
) -> None:
    """Also one that was made before, with a file of ours in it."""
    servers = (estate.second, estate.first) if standby_first else (estate.first, estate.second)
    address = Address("a", estate.dsn("a", *servers), forward_user="odd", forward_password=ODD)
    name = sql.Identifier(statements._server("a"))
    with cluster.connect("b") as link, link.transaction(), link.cursor() as cursor:
        cursor.execute("CREATE EXTENSION postgres_fdw")
        made = sql.SQL("CREATE SERVER {} FOREIGN DATA WRAPPER postgres_fdw OPTIONS (sslrootcert {})")
        cursor.execute(made.format(name, sql.Literal(str(estate.authority))))
        statements._set_server(cursor, "a", address, {statements._server("a")})
        statements._set_server(cursor, "a", address, {statements._server("a")})
        there = sql.SQL("CREATE FOREIGN TABLE there (id bigint) SERVER {} OPTIONS (table_name 'orders')")
        cursor.execute(there.format(name))
        written = "WITH one AS (INSERT INTO there VALUES (%s) RETURNING id) SELECT id FROM one"
        assert cursor.execute(written, (100000,)).fetchall() == [(100000,)]


def test_a_check_asks_the_host_that_takes_writes_whichever_comes_first(
    tmp_path: Path, estate: Estate, cluster: Cluster
) -> None:
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    dsn = estate.dsn("a", estate.second, estate.first)
    (bundles / "shop.toml").write_text(f'mode = "observe"\n[nodes.a]\ndsn = "{dsn}"\n')
    file = tmp_path / "balancer.toml"
    file.write_text(f'directory = "{cluster.url}"\n')
    found = balancer_here("node", "check", "--config", file)
    assert "the server is a standby" not in found.out + found.err
    assert "connection" not in found.out + found.err
