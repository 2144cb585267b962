"""A session on a node holds the lock that a new leader waits for: log and status say which one."""

import psycopg

from balancer.nodes.schema import LEADER_LOCK
from tests.daemon.test_daemon import Instance
from tests.support.commands import balancer_here
from tests.support.fleet import Fleet, until


def test_a_leader_that_waits_for_a_lock_says_who_holds_it(fleet: Fleet) -> None:
    fleet.write("observe")
    with psycopg.connect(fleet.dsns["a"], autocommit=True, application_name="sitting there") as holder:
        holder.execute("SELECT pg_advisory_lock(%s, 0)", (LEADER_LOCK,))
        instance = Instance(fleet.config)
        instance.start()
        try:
            wanted = f"session {holder.info.backend_pid} (sitting there of role "
            until(lambda: wanted in _remarks(fleet), 60, "the name of the holder")
            holder.execute("SELECT pg_advisory_unlock(%s, 0)", (LEADER_LOCK,))
            until(lambda: wanted not in _remarks(fleet), 60, "the end of it")
        finally:
            instance.stop()


def _remarks(fleet: Fleet) -> str:
    return " ".join(balancer_here("status", "--config", fleet.config, "--output", "json").out.split())
