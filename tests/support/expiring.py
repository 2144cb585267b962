"""A table with a tablet for each day, on two nodes, some of which have expired; and processes that are killed.

Run as `python -m tests.support.expiring FOLDER DSNS MIGRATION N`: leads, continues the migration, and is killed at its
N-th message to a node, as in `ddl_killed`; prints how many there were, if it survives.
"""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import KeyColumn, Layout, Migration, RangeBounds, Table, Tablet
from balancer.migration.begin import begin_expiry
from balancer.policies.keyspace.keys import HIGHEST, LOWEST, KeyType, encode_key
from balancer.settings import MigrationSettings
from tests.support.cluster import AMPLE, Cluster, build
from tests.support.ddl_killed import killed_at

DAY = 86400.0
KEPT = 10 * DAY
"""What `expire_after` is in these tests."""
ROOTS = ("public.events", "public.clicks")
EVENTS = Table(
    1, "events", "shop", Layout.RANGE, (KeyColumn("day", KeyType.DATE), KeyColumn("id", KeyType.BIGINT)), ROOTS
)
COLUMNS = "(day date NOT NULL, id bigint NOT NULL, note text, PRIMARY KEY (day, id))"
SETTINGS = MigrationSettings(**{**AMPLE, "retire_grace": 0.0, "retry_back_off": 0.05})


def today() -> date:
    return datetime.now(UTC).date()


def days_ago(number: int) -> date:
    return today() - timedelta(days=number)


def bound(number: int) -> bytes:
    """The lower bound of the day this many days ago."""
    return encode_key(EVENTS.key_types, (days_ago(number),), prefix=True)


def tablets(ages: Sequence[int], nodes: Sequence[str]) -> list[Tablet]:
    """Cut at the beginnings of the days this many days ago, oldest first."""
    edges = [LOWEST, *map(bound, ages), HIGHEST]
    return [Tablet(n + 1, 1, RangeBounds(edges[n], edges[n + 1]), nodes[n]) for n in range(len(edges) - 1)]


def made(folder: Path, dsns: dict[str, str], found: Sequence[Tablet], rows: int = 5) -> Cluster:
    """The cluster, with this many rows in each root of each tablet that has a beginning and an end."""
    cluster = Cluster(folder, dsns, EVENTS)
    for node in dsns:
        with cluster.connect(node) as connection:
            for root in ROOTS:
                connection.execute(f"CREATE TABLE {root} {COLUMNS} PARTITION BY RANGE (day, id)".encode())
    cluster = build(folder, dsns, EVENTS, found, None)
    cluster.settings = SETTINGS
    for tablet in found:
        fill(cluster, tablet, rows)
    return cluster


def fill(cluster: Cluster, tablet: Tablet, rows: int) -> None:
    assert isinstance(tablet.bounds, RangeBounds)
    for age in range(60):
        if tablet.bounds.lower != LOWEST and tablet.bounds.lower <= bound(age) < tablet.bounds.upper:
            for root in ROOTS:
                with cluster.connect(tablet.node) as connection:
                    connection.execute(
                        f"INSERT INTO {root} SELECT %s, n FROM generate_series(1, %s) AS n".encode(),
                        (days_ago(age), rows),
                    )
            return


def begin(directory: Directory, leadership: Leadership, ids: Sequence[int]) -> Migration:
    return begin_expiry(directory, leadership, ids, expire_after=KEPT, reason="a test")


def main() -> None:
    folder, dsns, migration, number = sys.argv[1:]
    cluster = Cluster(Path(folder), json.loads(dsns), EVENTS)
    cluster.settings = SETTINGS
    told = killed_at(int(number), "tablet-balancer migration")
    directory = cluster.directory()
    cluster.runner(directory, cluster.become_leader(directory)).run(migration)
    print(told())


if __name__ == "__main__":
    main()
