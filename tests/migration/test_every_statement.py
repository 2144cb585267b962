"""What changes a node does so in a transaction that has itself checked the leader's epoch: read off the servers' logs.

The servers log every statement. A session of a migration that changes something without having called `balancer.enter`
in that very transaction is a way in for a leader that woke up late.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from balancer.directory.model import MigrationMode
from balancer.embedded.postgres import PostgresServer
from balancer.migration.begin import begin_move
from tests.support.cluster import Cluster, build, hash_table, hash_tablets, insert_rows
from tests.support.expiring import begin, made, tablets
from tests.support.resharding import begin_merge, begin_split
from tests.support.servers import new_database, postgres
from tests.support.spy import Spy

pytestmark = pytest.mark.always

LOUD = {
    "logging_collector": "on",
    "log_destination": "jsonlog",
    "log_statement": "all",
    "log_directory": "log",
    "log_rotation_age": 0,
    "log_rotation_size": 0,
}
CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'tablet-balancer m%'"
READS = ("SELECT", "SET", "RESET", "SHOW", "BEGIN", "COMMIT", "ROLLBACK", "COPY_OUT", "WITH")
EFFECTS = re.compile(
    r"pg_drop_replication_slot|pg_create_logical|setval|nextval|pg_terminate_backend|pg_cancel_backend|pg_advisory_lock\("
)
ALLOWED = {
    # PostgreSQL does not allow it in a transaction; it follows the check under a lock that a new leader waits for.
    "detach": re.compile(r"^ALTER TABLE \S+ DETACH PARTITION \S+ (CONCURRENTLY|FINALIZE)$"),
    # The readers' lock of that very command.
    "readers": re.compile(r"^SELECT pg_advisory_lock\(id \+ \$1\) FROM balancer\.tablets_of"),
    # A question for the catalog, planned before it is asked.
    "definitions": re.compile(
        r'^(PREPARE "balancer (definitions|ours)" AS SELECT|EXECUTE "balancer (definitions|ours)"$)'
    ),
    # Ends the sessions that a transaction would have to wait for; it looks at the epoch in the same statement.
    "evict": re.compile(
        r"^SELECT pg_terminate_backend\(pid\) FROM pg_stat_activity, balancer\.node WHERE leader_epoch <="
    ),
}


ALONE = ("definitions", "evict")


@pytest.fixture(scope="module")
def loud(server_folder: Path) -> Iterator[dict[str, PostgresServer]]:
    with ExitStack() as stack:
        yield {
            node: stack.enter_context(postgres(server_folder / f"loud-{version}", version, LOUD))
            for node, version in (("a", 15), ("b", 18))
        }


@pytest.fixture
def cluster(tmp_path: Path, loud: dict[str, PostgresServer]) -> Iterator[Cluster]:
    with ExitStack() as stack:
        dsns = {node: stack.enter_context(new_database(server)).dsn for node, server in loud.items()}
        tablets = hash_tablets(2, ["a"])
        made = build(tmp_path, dsns, hash_table(), tablets)
        insert_rows(made, tablets, range(200))
        yield made
        made.close()


def statements(server: PostgresServer) -> Iterator[tuple[str, str]]:
    """Session and statement, in order, of every session of a migration."""
    for file in sorted((server.data / "log").glob("*.json")):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            message = re.sub(r"^(statement|execute [^:]+): ", "", entry.get("message", ""), count=1)
            if message != entry.get("message") and entry.get("application_name", "").startswith("tablet-balancer mig"):
                yield entry["session_id"], message


def parts(message: str) -> list[str]:
    """Statements of a message, without their strings."""
    # Whether the schema is ours is asked by a block that only reads (`nodes.session.own_schema`).
    message = re.sub(r"DO \$own\$.*?\$own\$", "SELECT", message, flags=re.DOTALL)
    message = re.sub(r"--[^\n]*", "", message)
    bare = re.sub(r"\$([a-z]*)\$.*?\$\1\$|'(?:[^']|'')*'", "''", message, flags=re.DOTALL)
    return [" ".join(part.split()) for part in bare.split(";") if part.strip()]


def unchecked(server: PostgresServer) -> list[str]:
    """Statements that changed something without proof."""
    entered: set[str] = set()
    commands: set[str] = set()
    found = []
    for session, message in statements(server):
        for part in parts(message):
            word = part.split()[0].upper()
            if word in ("BEGIN", "COMMIT", "ROLLBACK"):
                entered.discard(session)
            if "balancer.enter(" in part:
                entered.add(session)
            if "pg_advisory_lock_shared" in part:
                commands.add(session)
            if "pg_advisory_unlock_shared" in part:
                commands.discard(session)
            reads = word in READS and not EFFECTS.search(part)
            reads = reads or (word == "COPY" and "TO STDOUT" in part)
            command = session in commands and (ALLOWED["detach"].match(part) or ALLOWED["readers"].match(part))
            if not (reads or session in entered or command or any(ALLOWED[one].match(part) for one in ALONE)):
                found.append(part)
    return found


@pytest.mark.parametrize("mode", list(MigrationMode))
@pytest.mark.parametrize("end", ["done", "cancelled", "again"])
def test_nothing_is_changed_without_proof(
    cluster: Cluster, loud: dict[str, PostgresServer], mode: MigrationMode, end: str
) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    spy = Spy()
    runner = cluster.runner(directory, leadership, spy)

    def run(migration: str) -> str:
        if end == "cancelled":
            spy.work["entered:verifying"] = lambda: runner.cancel(migration)
        if end == "again":
            spy.work["entered:committing"] = lambda: cluster.query("a", CUT)
        return runner.run(migration).state

    wanted = "cancelled" if end == "cancelled" else "done"
    assert run(begin_move(directory, leadership, 2, "b", mode=mode).id) == wanted
    split = begin_split(directory, leadership, 1, mode=mode)
    assert run(split.id) == wanted
    if end == "done":
        assert run(begin_merge(directory, leadership, [one.id for one in split.targets], mode=mode).id) == wanted
    for server in loud.values():
        seen = [part for _, message in statements(server) for part in parts(message)]
        assert sum("balancer.enter(" in part for part in seen) > 10, "the log was not read"
        assert unchecked(server) == []


def test_an_expiry_changes_nothing_without_proof(tmp_path: Path, loud: dict[str, PostgresServer]) -> None:
    with ExitStack() as stack:
        dsns = {node: stack.enter_context(new_database(server)).dsn for node, server in loud.items()}
        cluster = made(tmp_path, dsns, tablets([14, 13, 12, 5], ["a", "b", "b", "a", "b"]))
        directory = cluster.directory()
        leadership = cluster.become_leader(directory)
        ends = []
        for ids, command in (([1], ()), ([1000, 2], ()), ([1001, 3], ("/bin/false",))):
            cluster.settings = replace(cluster.settings, archive_command=command)
            ends.append(cluster.runner(directory, leadership).run(begin(directory, leadership, ids).id).state)
        cluster.close()
    assert ends == ["done", "done", "failed"]
    assert [part for server in loud.values() for part in unchecked(server)] == []
