"""A server with a standby that can be left behind, and then takes over without what came since: a failover as managers
do it with asynchronous replication."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from balancer.embedded.postgres import PostgresServer
from tests.support.servers import postgres
from tests.support.standby import make_standby, wait_until


class Lagging:
    """The primary of one node, and its standby. `dsns` says where each node is: a failover changes it."""

    def __init__(self, primary: PostgresServer, second: PostgresServer, dsns: dict[str, str], node: str) -> None:
        self._primary, self._second = primary, second
        self._dsns, self._node = dsns, node
        self._name = psycopg.conninfo.conninfo_to_dict(dsns[node])["dbname"]

    def leave_behind(self) -> None:
        """The standby replays what there is so far, and no more: nothing newer reaches it."""
        self._follow()
        self._second.stop()

    def fail_over(self) -> None:
        """The primary dies; the standby takes over with what it has."""
        self._primary.kill()
        self._second.start()
        with psycopg.connect(self._second.dsn(), autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, 60)")
        self._dsns[self._node] = self._second.dsn(str(self._name))

    def fail_over_without_loss(self) -> None:
        """The same once it has replayed everything."""
        self._follow()
        self.fail_over()

    def split(self) -> None:
        """The standby is promoted beside the primary, which nobody has told: both take writes."""
        self._follow()
        with psycopg.connect(self._second.dsn(), autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, 60)")

    def come_back(self) -> None:
        """The standby that was left behind follows again."""
        self._second.start()

    def both_hosts(self) -> str:
        """An address that names the primary first, and then the standby."""
        first, second = (psycopg.conninfo.conninfo_to_dict(one.dsn()) for one in (self._primary, self._second))
        words = {name: f"{first[name]},{second[name]}" for name in ("host", "port")}
        return psycopg.conninfo.make_conninfo(self._primary.dsn(str(self._name)), **words)

    def _follow(self) -> None:
        with (
            psycopg.connect(self._primary.dsn(), autocommit=True) as primary,
            psycopg.connect(self._second.dsn(), autocommit=True) as second,
        ):
            row = primary.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            assert row is not None
            wanted = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
            wait_until(lambda: second.execute(wanted, (row[0],)).fetchone() == (True,))


@contextmanager
def primary_and_standby(folder: Path, version: int) -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """Both run until the block ends, whichever of them is the primary then."""
    folder.mkdir()
    folder.chmod(0o755)
    with postgres(folder / "primary", version) as primary:
        second = make_standby(primary, folder / "standby", version)
        second.start()
        try:
            yield primary, second
        finally:
            second.stop()
