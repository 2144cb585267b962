"""A day's work with marked secrets, and then every place where text leaves is read: none of the marks is in it.

Every secret has a mark at each end, so that a part of it is found as well. What may hold one: the files to which an
operator wrote it, the environment of the process, and PgBouncer's own list of users, which this software neither reads
nor writes.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import psycopg
import pytest
from kazoo.client import KazooClient
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from balancer.directory.contract import Directory
from balancer.directory.credentials import Credentials, Scheme
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.embedded.zookeeper import ZooKeeperServer
from tests.support.bouncers import PgBouncer, running_pgbouncer
from tests.support.commands import Result
from tests.support.commands import balancer_here as balancer
from tests.support.fleet import CLIENT, Fleet, Process, owners, until
from tests.support.servers import Database

pytestmark = pytest.mark.always

ODD = "@ / ? # ' \" % \\"
NODES = ("a", "b", "c")
PLACES = (
    "status",
    "overview",
    "nodes",
    "tables",
    "tablets",
    "hot",
    "plans",
    "schedules",
    "heatmap",
    "migrations",
    "history",
)
COMMANDS = (
    ("status",),
    ("tablets",),
    ("hot",),
    ("moves",),
    ("history",),
    ("plan", "shop"),
    ("explain", "tablet", "1"),
    ("explain", "node", "a"),
    ("why-not", "1", "b"),
    ("verify", "orders"),
    ("verify", "orders", "--count"),
    ("doctor",),
    ("node", "list"),
    ("node", "check"),
    ("config", "show"),
    ("config", "check"),
    ("directory", "check"),
    ("route", "orders", "7"),
    ("schedule", "show", "shop"),
    ("pgbouncer", "sync"),
    ("forward", "shop"),
    ("pause", "shop"),
    ("resume", "shop"),
    ("tablet", "lost", "1", "--dry-run"),
)
ONLY_TEXT = (("node", "grant-script", "shop"), ("directory", "export"))


def marked(name: str) -> str:
    """A secret of this name, and its two marks."""
    return f"mark-{name}-head{ODD}mark-{name}-tail"


class MarkedFleet(Fleet):
    """A fleet whose directory wants a password."""

    def directory(self) -> Directory:
        us = Credentials(Scheme.DIGEST, "balancer", marked("zookeeper"))
        return open_directory(self.url, lease=2.0, credentials=us)


@pytest.fixture
def fleet(
    tmp_path: Path,
    postgres18: PostgresServer,
    zookeeper: ZooKeeperServer,
    database: Callable[[PostgresServer], Database],
) -> Iterator[MarkedFleet]:
    dsns = {name: database(postgres18).dsn for name in NODES}
    made = MarkedFleet(tmp_path, f"zk://{zookeeper.address}/secret{uuid4().hex[:8]}", dsns)
    made.bundle |= {
        "tablet_balancer_config": "enable_cell_balancer = true",
        "placement": "dimensions = { tablets = 1.0 }",
        "migration": 'retire_grace = "100ms"\nmoves_per_node = 2\nmoves_total = 4\ncool_down = "0s"',
    }
    made.write("observe")
    made.create(["a"], rows=300)
    with logins(dsns) as roles:
        made.dsns = {node: login_dsn(dsn, node, roles[node]) for node, dsn in dsns.items()}
        (tmp_path / "password-a").write_text(marked("a") + "\n")
        yield made


@contextmanager
def logins(dsns: dict[str, str]) -> Iterator[dict[str, str]]:
    """A superuser per node with a marked password; from then on the servers log every statement."""
    roles = {node: f"marked_{uuid4().hex[:8]}" for node in dsns}
    admin = psycopg.connect(dsns["a"], autocommit=True)
    with closing(admin):
        for node, role in roles.items():
            password = marked(node).replace("'", "''")
            admin.execute("SET log_statement TO 'none'")
            admin.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{password}'".encode())
            admin.execute(
                f"ALTER ROLE {role} SET log_statement TO 'all'; ALTER ROLE {role} SET log_duration TO on".encode()
            )
        yield roles
        for node, role in roles.items():
            with psycopg.connect(dsns[node], autocommit=True) as connection:
                connection.execute(f"REASSIGN OWNED BY {role} TO postgres; DROP OWNED BY {role}".encode())
        for role in roles.values():
            admin.execute(f"DROP ROLE {role}".encode())


def login_dsn(dsn: str, node: str, role: str) -> str:
    """The address as an operator might write it: of node c with its password inside, against our advice."""
    known = conninfo_to_dict(dsn)
    inside = f":{quote(marked(node), safe='')}" if node == "c" else ""
    return f"postgresql://{role}{inside}@{known['host']}:{known['port']}/{known['dbname']}"


def configured(fleet: MarkedFleet, bouncer: PgBouncer) -> dict[str, str]:
    """Writes the files; returns the environment of the processes."""
    folder = fleet.folder
    fleet.write_daemon()
    text = fleet.config.read_text().replace('token = "correct-horse"', f'token_file = "{folder}/token"')
    console = make_conninfo("", host="127.0.0.1", port=bouncer.port, user="postgres", dbname="pgbouncer")
    fleet.config.write_text(
        f'{text}\n[directory_security]\nuser = "balancer"\npassword_file = "{folder}/zookeeper"\n'
        f'[pgbouncer]\nadmin = "{console}"\nfile = "{bouncer.file}"\n[log]\nlevel = "debug"\nformat = "json"\n'
    )
    (folder / "token").write_text(marked("token").replace(" ", "").replace('"', "").replace("\\", "") + "\n")
    (folder / "zookeeper").write_text(marked("zookeeper") + "\n")
    fleet.write("autonomous")
    bundle = folder / "bundles" / "shop.toml"
    address = f'dsn = "{fleet.dsns["a"]}"'
    bundle.write_text(bundle.read_text().replace(address, f'{address}\npassword_file = "{folder}/password-a"'))
    return {"BALANCER_PASSWORD_B": marked("b"), "PGPASSWORD": bouncer.password, "BALANCER_CONFIG": str(fleet.config)}


def test_no_mark_of_a_secret_leaves(
    fleet: MarkedFleet, postgres18: PostgresServer, zookeeper: ZooKeeperServer, server_folder: Path
) -> None:
    logged = postgres18.log.stat().st_size
    texts: dict[str, str] = {}
    with running_pgbouncer(server_folder / f"bouncer-{uuid4().hex[:8]}", postgres18) as bouncer:
        environment = configured(fleet, bouncer)
        process = Process(fleet.config, environment, fresh=True)
        try:
            until(process.leads, 180, "an election")
            with fleet.directory() as directory:
                until(lambda: owners(directory.snapshot())["a"] < 4, 120, "the spreading of tablets")
            texts |= commands(fleet, environment)
            texts |= answers(process)
            texts |= processes()
            texts |= mistakes(fleet, environment)
        finally:
            texts["exit code"] = str(process.stop())
        texts["the daemon's log"] = process.log.read_text()
        texts["PgBouncer's aliases"] = bouncer.file.read_text()
    with postgres18.log.open("rb") as log:
        log.seek(logged)
        texts["the servers' log"] = log.read().decode(errors="replace")
    texts |= stored(zookeeper, fleet.url.rpartition("/")[2])
    check_that_work_was_done(texts)
    marks = [f"mark-{name}-{end}" for name in (*NODES, "sslpassword", "zookeeper", "token") for end in ("head", "tail")]
    found = [
        f"{mark} in {place}: …{text[max(0, text.index(mark) - 150) :][:300]}…"
        for place, text in texts.items()
        for mark in (*marks, bouncer.password)
        if mark in text
    ]
    assert found == []


def check_that_work_was_done(texts: dict[str, str]) -> None:
    """A sweep of empty rooms would find nothing, either."""
    assert "CREATE PUBLICATION" in texts["the servers' log"]
    assert "migration begun" in texts["the daemon's log"]
    assert "orders_t" in texts["PgBouncer's aliases"]
    assert len(texts) > 60
    assert texts["exit code"] == "0"
    done = [place for place, text in texts.items() if place.startswith("balancer ") and text.startswith("0 ")]
    assert len(done) > 35, [text[:200] for place, text in texts.items() if place not in done and "balancer" in place]


def commands(fleet: MarkedFleet, environment: dict[str, str]) -> dict[str, str]:
    every = [(*command, *form) for command in COMMANDS for form in ((), ("--output", "json"))]
    found = {}
    for command in [*every, *ONLY_TEXT]:
        found[f"balancer {' '.join(command)}"] = told(balancer(*command, "--config", fleet.config, env=environment))
    return found


def told(result: Result) -> str:
    return f"{result.code} {result.out}{result.err}"


def mistakes(fleet: MarkedFleet, environment: dict[str, str]) -> dict[str, str]:
    """What goes wrong with a secret in hand: a wrong one, an address that is none, a directory that lets nobody in."""
    bundle = fleet.folder / "bundles" / "shop.toml"
    right = bundle.read_text()
    found = {}
    wrong = {**environment, "BALANCER_PASSWORD_B": marked("b") + "x"}
    found["a wrong password"] = told(balancer("node", "check", "--config", fleet.config, env=wrong))
    secret = quote(marked("sslpassword"), safe="")
    other = fleet.folder / "other"
    (other / "bundles").mkdir(parents=True)
    (other / "balancer.toml").write_text(fleet.config.read_text())
    for name, old, new in (
        ("a wrong address", "postgresql://", "postgresql//"),
        ("an option with a secret", '"\npassword_file', f'?sslpassword={secret}"\npassword_file'),
        ("an unknown option", '"\npassword_file', f'?sslpasswort={secret}"\npassword_file'),
        ("a broken file", "[nodes.c]", f'token = "{secret}\n[nodes.c]'),
    ):
        assert old in right
        (other / "bundles" / "shop.toml").write_text(right.replace(old, new))
        found[name] = told(balancer("config", "check", "--config", other / "balancer.toml", env=environment))
    assert all(text[0] in "1234" for text in found.values()), found
    return found


def answers(process: Process) -> dict[str, str]:
    token = (process.log.parent / "token").read_text().strip()
    found = {}
    for name in ("/", "/metrics", "/healthz", "/readyz", "/v1/openapi.json", *(f"/v1/{place}" for place in PLACES)):
        for headers in ({}, {"Authorization": f"Bearer {token}"}):
            answer = CLIENT.get(process.url + name, headers=headers)
            found[f"GET {name}{' with the token' if headers else ''}"] = answer.text + json.dumps(dict(answer.headers))
    wrong = CLIENT.post(
        f"{process.url}/v1/commands", json={"verb": "pause"}, headers={"Authorization": f"Bearer {token}x"}
    )
    assert wrong.status_code == 401
    found["a wrong token"] = wrong.text
    route = CLIENT.get(f"{process.url}/v1/route/orders?key=7", headers={"Authorization": f"Bearer {token}"})
    assert route.status_code == 200
    found["a route with the token"] = route.text
    return found


def processes() -> dict[str, str]:
    """What `ps` shows to everybody."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                found[f"process {entry}"] = Path(f"/proc/{entry}/cmdline").read_text(errors="replace")
            except OSError:
                continue  # it has ended
    return found


def stored(zookeeper: ZooKeeperServer, cluster: str) -> dict[str, str]:
    """Every znode, packed or not, and the history in it."""
    client = KazooClient(zookeeper.address, auth_data=[("digest", f"balancer:{marked('zookeeper')}")])
    client.start()
    try:
        return {path: client.get(path)[0].decode(errors="replace") for path in below(client, f"/{cluster}")}
    finally:
        client.stop()
        client.close()


def below(client: KazooClient, path: str) -> Iterator[str]:
    yield path
    for name in client.get_children(path):
        yield from below(client, f"{path}/{name}")
