"""Leaders come and go while nothing moves: the nodes have seen the newest, and nobody takes that for an old directory.

PostgreSQL 15: the embedded ones have no postgres_fdw, and forwarding is what tells the nodes of a new leader at once.
"""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.nodes.session.connection import Address
from balancer.planner.bundle_state import StateWord
from tests.daemon.test_daemon import Instance
from tests.support.fleet import Fleet, until
from tests.support.forward_login import PASSWORD, ROLE, with_login
from tests.support.servers import Database


@pytest.fixture(params=["sqlite", "zookeeper"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/shop.db"
    return f"zk://{request.getfixturevalue('zookeeper').address}/quiet-{uuid4().hex}"


def test_two_quiet_elections_with_forwarding_block_nobody(
    tmp_path: Path, url: str, postgres15: PostgresServer, database: Callable[[PostgresServer], Database]
) -> None:
    fleet = Fleet(tmp_path, url, {name: database(postgres15).dsn for name in ("a", "b")})
    for name, dsn in fleet.dsns.items():
        with_login(Address(name, dsn))
    (tmp_path / "forward").write_text(PASSWORD)
    fleet.login = f'forward_user = "{ROLE}"\nforward_password_file = "{tmp_path}/forward"\n'
    fleet.write("observe", **{"": "forwarding = true", "tablet_balancer_config": "enable_cell_balancer = false"})
    fleet.create(["a"])
    standing = Instance(fleet.write_daemon("standing"))
    leader = Instance(fleet.write_daemon("first"))
    leader.start()
    until(leader.leads, 60, "an election")
    standing.start()
    try:
        for number in range(2):
            former, leader = leader, Instance(fleet.write_daemon(f"next{number}"))
            former.stop()
            until(standing.leads, 60, "a handover")
            version = standing.daemon.directory().snapshot().version
            standing.ticks(3)
            assert standing.word() is StateWord.BALANCED, standing.sentence()
            leader.start()
            leader.ticks(3)
            assert leader.word() is StateWord.BALANCED, leader.sentence()
            assert leader.daemon.directory().snapshot().version == version, "the cluster was quiet"
            standing, leader = leader, standing
    finally:
        standing.stop()
        leader.stop()
