"""A session on a node holds the lock that a new leader waits for: log and status say which one."""

import json

import psycopg

from balancer.nodes.schema.texts import LEADER_LOCK
from tests.daemon.test_daemon import Instance
from tests.support.fleet import Fleet, until
from tests.support.forked import run_forked


def test_a_leader_that_waits_for_a_lock_says_who_holds_it(fleet: Fleet) -> None:
    fleet.write("observe")
    with psycopg.connect(fleet.dsns["a"], autocommit=True, application_name="sitting there") as holder:
        holder.execute("SELECT pg_advisory_lock(%s, 0)", (LEADER_LOCK,))
        instance = Instance(fleet.config)
        instance.start()
        try:
            wanted = f"session {holder.info.backend_pid} (sitting there of role "
            until(lambda: wanted in in_the_way(fleet, "a"), 60, "the name of the holder")
            assert in_the_way(fleet, "b") == ""
            assert wanted in run_forked("balancer", "status", "--config", fleet.config).stdout
            holder.execute("SELECT pg_advisory_unlock(%s, 0)", (LEADER_LOCK,))
            until(lambda: in_the_way(fleet, "a") == "", 60, "the end of it")
        finally:
            instance.stop()


def in_the_way(fleet: Fleet, node: str) -> str:
    """As a command of its own says it: the log of this process is not part of that."""
    (shop,) = json.loads(run_forked("balancer", "status", "--config", fleet.config, "--output", "json").stdout)
    return next((str(row.get("in_the_way", "")) for row in shop["nodes"] if row["node"] == node), "")
