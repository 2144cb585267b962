"""PgBouncer around a switch: its clients wait while their tablet changes hands, instead of meeting the fence.

The runner reports each state in its own thread and deliberately waits for the answer here: writers must be held back
before the fence is raised and let through after the target has opened. Every other way out of a switch lets them
through too. An unreachable PgBouncer never stops a migration: then its clients meet the fence, an error they may retry.
"""

from collections.abc import Callable

import structlog
from psycopg.conninfo import make_conninfo

from balancer.client.pgbouncer import Bouncer, Per, Sync
from balancer.directory.model import Migration, MigrationKind, MigrationMode
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.migration.machine import State, row_of, track_of
from balancer.migration.observer import Observer
from balancer.settings.files import PgBouncerSettings

log = structlog.get_logger()


class BouncerSwitch(Observer):
    """Tells PgBouncer."""

    def __init__(self, bouncer: Bouncer, snapshot: Callable[[], Snapshot]) -> None:
        self._bouncer = bouncer
        self._snapshot = snapshot

    def recover(self) -> None:
        """For a new leader: resumes what a predecessor left paused, and writes the file again."""
        self._carefully(self._recover, "recovering")

    def entered(self, migration: Migration, state: State) -> None:
        if state is State.FENCING and _is_short(migration):
            self._carefully(
                lambda: self._bouncer.hold(self._bouncer.names(self._snapshot(), migration)), "pausing", migration
            )
        elif state in (State.CATCHING_UP, State.CANCELLING):  # the ways back from a fence
            self._carefully(
                lambda: self._bouncer.release(self._bouncer.names(self._snapshot(), migration)), "resuming", migration
            )

    def left(self, migration: Migration, state: State) -> None:
        if state is State.OPENING:
            self._carefully(lambda: self._follow(migration), "switching", migration)

    def finished(self, migration: Migration) -> None:
        self._carefully(lambda: self._follow(migration), "finishing", migration)

    def _recover(self) -> None:
        resumed = self._bouncer.resume_all()
        if resumed:
            log.warning("PgBouncer had been left paused and was resumed", aliases=resumed)
        self._bouncer.sync(self._snapshot())

    def _follow(self, migration: Migration) -> None:
        try:
            self._bouncer.sync(self._snapshot())
        finally:
            self._bouncer.release(self._bouncer.names(self._snapshot(), migration))

    def _carefully(self, act: Callable[[], object], what: str, migration: Migration | None = None) -> None:
        try:
            act()
        except BalancerError as error:
            log.warning(f"{what} PgBouncer failed", error=str(error), migration=migration.id if migration else None)


def bouncing_of(settings: PgBouncerSettings | None, snapshot: Callable[[], Snapshot]) -> BouncerSwitch | None:
    """The observer that the configuration asks for; None if no PgBouncer is configured."""
    return BouncerSwitch(bouncer_of(settings), snapshot) if settings else None


def bouncer_of(settings: PgBouncerSettings) -> Bouncer:
    """The PgBouncer of a configuration."""
    password = settings.admin.password
    secret = {"password": password.get_secret_value()} if password else {}
    admin = make_conninfo(settings.admin.text, **secret)
    return Bouncer(admin, settings.file, Per(settings.per), settings.options)


class BouncerFollower:
    """Keeps a PgBouncer in step with the directory, with or without an instance: `balancer pgbouncer sync --follow`.

    It hears of a fence when the journal does, some milliseconds before it is raised: clients are nearly always held
    back in time. Where "nearly" is not enough, the leading instance does it (`BouncerSwitch`).
    """

    def __init__(self, bouncer: Bouncer) -> None:
        self._bouncer = bouncer
        self._held: set[str] = set()
        bouncer.resume_all()

    def follow(self, snapshot: Snapshot) -> Sync:
        """Brings PgBouncer in line with a snapshot."""
        names = self._bouncer.names
        held = {name for one in snapshot.migrations.values() if _holds(one) for name in names(snapshot, one)}
        fresh, self._held = held - self._held, held
        try:
            self._bouncer.hold(sorted(fresh))
            return self._bouncer.sync(snapshot)
        finally:
            self._bouncer.release(sorted(set(self._bouncer.held) - held))


def _holds(migration: Migration) -> bool:
    track = track_of(migration.operation, migration.mode)
    return not migration.finished and _is_short(migration) and row_of(track, State(migration.state)).writers_held


def _is_short(migration: Migration) -> bool:
    """Whether writers are held back for milliseconds: a pause for a whole copy would stop readers as well."""
    return migration.operation is MigrationKind.MOVE and migration.mode is MigrationMode.REPLICATE
