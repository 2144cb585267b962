"""Turns what migrations report into metrics and log lines."""

import structlog

from balancer.directory.model import Migration
from balancer.migration.machine import State
from balancer.migration.observer import Observer, Progress
from balancer.planner.metrics import Reporter

log = structlog.get_logger()


class MigrationMetrics(Observer):
    """Called from the migrations' own threads; does nothing that could hold one up."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def entered(self, migration: Migration, state: State) -> None:
        log.debug("state entered", state=state)

    def left(self, migration: Migration, state: State) -> None:
        if state is State.VERIFYING and not migration.error:
            self._reporter.verified(migration.bundle, True)

    def progressed(self, migration: Migration, progress: Progress) -> None:
        self._reporter.waits(migration, progress.reason, progress.waited)

    def finished(self, migration: Migration) -> None:
        self._reporter.waits(migration, "", 0.0)
        detail = migration.detail
        self._reporter.finished(
            migration,
            migration.state,
            seconds=migration.updated - migration.created,
            moved=float(detail.get("size", 0)),
            pause=detail.get("pause"),
        )
        if migration.detail.get("different"):
            self._reporter.verified(migration.bundle, False)
