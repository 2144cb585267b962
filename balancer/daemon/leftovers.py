"""Counts what dead migrations have left on the nodes, from time to time, for the metric and its alert.

Only looks: `balancer doctor` removes. The tick already reports whatever prevents a look (a node out of reach, one
without our schema), so it is ignored here.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import structlog

from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.migration.links import Addresses, Links
from balancer.nodes.connection import translated
from balancer.nodes.leftovers import find_leftovers
from balancer.nodes.schema import installed
from balancer.planner.metrics import Reporter
from balancer.polling.askers import SHARED

log = structlog.get_logger()

LOOK_SECONDS: Final = 600.0
"""An orphan slot takes hours to fill a disk; a look is a few catalogue queries on each node."""


class LeftoverWatch:
    """Used by one thread at a time for each bundle."""

    def __init__(self, snapshot: Callable[[], Snapshot], addresses: Addresses, reporter: Reporter) -> None:
        self._snapshot = snapshot
        self._addresses = addresses
        self._reporter = reporter

    def look(self, bundle: str, nodes: Iterable[str]) -> None:
        """Looks at every node of a bundle."""
        answers = SHARED.ask_all({node: partial(self._count, node) for node in nodes})
        counts: dict[str, int] = {}
        for node, answer in answers.items():
            if isinstance(answer, BalancerError):
                log.debug("cannot look for leftovers", node=node, error=str(answer))
            else:
                counts[node] = answer
        self._reporter.leftovers(bundle, counts)
        for node, count in counts.items():
            if count:
                log.warning("leftovers of migrations; `balancer doctor` shows them", node=node, count=count)

    def _count(self, node: str) -> int:
        links = Links(self._addresses, "leftovers")
        try:
            with translated(node):
                connection = links.control(node)
                with connection.cursor() as cursor:
                    if not installed(cursor):
                        return 0
                # Before and after: what begins or ends while we look is not a leftover.
                running = _running(self._snapshot())
                found = find_leftovers(connection)
        finally:
            links.close()
        running |= _running(self._snapshot())
        return sum(leftover.migration not in running for leftover in found)


def _running(snapshot: Snapshot) -> set[str]:
    return {migration.id for migration in snapshot.migrations.values() if not migration.finished}
