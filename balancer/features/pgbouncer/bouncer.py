"""PgBouncer fed from the directory: database aliases in a file that it includes, and pauses around a switch.

For applications that cannot use the library. `balancer pgbouncer sync` and the daemon call this. The file is ours alone
(`%include databases.ini` in pgbouncer.ini); it is replaced by a rename, so PgBouncer never reads half of it. A pause
outlives its session, so every way out of here ends in RESUME, and `resume_all` comes first when we start: it releases
what a predecessor left paused.

PgBouncer around a switch: its clients wait while their tablet changes hands, instead of meeting the fence.

The runner reports each state in its own thread and deliberately waits for the answer here: writers must be held back
before the fence is raised and let through after the target has opened. Every other way out of a switch lets them
through too. An unreachable PgBouncer never stops a migration: then its clients meet the fence, an error they may retry.
"""

import os
import re
import select
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import psycopg
import structlog
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus

from balancer.clock import SystemClock
from balancer.directory.model import Migration, MigrationKind, MigrationMode, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Unavailable, UserError
from balancer.migration.machine import State, row_of, track_of
from balancer.migration.progress import Observer
from balancer.settings.files import PgBouncerSettings

PAUSE_PATIENCE = 2.0
"""Seconds to wait for the running transactions of an alias; later ones wait for us meanwhile."""
_FORWARDED = ("host", "port", "dbname")
"""What goes into the file from a node's DSN: no users and no secrets, those belong to the clients and PgBouncer."""
_HEADER = ";; written by tablet-balancer; changes by hand are lost\n[databases]\n"

_clock = SystemClock()


class Per(StrEnum):
    """What gets an alias."""

    TABLET = "tablet"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Sync:
    """What a synchronisation did."""

    aliases: int
    changed: tuple[str, ...]
    """Aliases that now lead elsewhere, or are new or gone."""


def aliases(snapshot: Snapshot, per: Per, options: str = "") -> dict[str, str]:
    """Alias → PgBouncer's connection string. A tablet's is `<table>_t<id>`, a node's is its id.

    PgBouncer's names have letters, digits and `_.-`; other characters become `_`. `options` is added to each target,
    such as `pool_size=20`.
    """
    nodes = {name: _target(node.dsn, options) for name, node in snapshot.nodes.items()}
    if per is Per.NODE:
        named = {alias_name(name): target for name, target in nodes.items()}
        if len(named) < len(nodes):
            raise UserError(
                "two nodes have ids that PgBouncer cannot tell apart: its names have letters, digits and _.-"
            )
        return named
    return {
        tablet_alias(snapshot, tablet): nodes[tablet.node]
        for table in snapshot.tables
        for tablet in snapshot.tablets(table)
    }


def tablet_alias(snapshot: Snapshot, tablet: Tablet) -> str:
    """The alias of a tablet."""
    return alias_name(f"{snapshot.tables[tablet.table].name}_t{tablet.id}")


def alias_name(text: str) -> str:
    """As PgBouncer's configuration can write it."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text)


def _target(dsn: str, options: str) -> str:
    try:
        parameters = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise UserError("a node's address in the directory is not a connection string") from None
    # A line end would begin another alias, in a file that PgBouncer trusts.
    if not all(str(value).isprintable() for value in parameters.values()):
        raise UserError("a node's address in the directory has a line end or another control character in it")
    # The port is always written: PgBouncer shows its default as if it had been written.
    parameters.setdefault("port", "5432")
    words = [f"{name}={_quoted(str(parameters[name]))}" for name in _FORWARDED if parameters.get(name)]
    return " ".join([*words, options]).strip()


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def render(targets: Mapping[str, str]) -> str:
    """The file's text: sorted, so that equal contents are equal bytes."""
    return _HEADER + "".join(f"{name} = {target}\n" for name, target in sorted(targets.items()))


def read_targets(file: Path) -> dict[str, str]:
    """What one of our files says; empty if there is none yet."""
    try:
        text = file.read_text()
    except FileNotFoundError:
        return {}
    pairs = (line.split(" = ", 1) for line in text.splitlines() if " = " in line and not line.startswith(";"))
    return {line[0]: line[1] for line in pairs}


def write_file(file: Path, text: str) -> None:
    """Replaces the file at once and durably; its owner and rights stay as they were."""
    fresh = file.with_name(f".{file.name}.new")
    with fresh.open("w") as output:
        output.write(text)
        output.flush()
        os.fsync(output.fileno())
    if file.exists():
        status = file.stat()
        os.chown(fresh, status.st_uid, status.st_gid)
        fresh.chmod(status.st_mode & 0o777)
    else:
        fresh.chmod(0o644)
    fresh.replace(file)


class Bouncer:
    """One PgBouncer: its admin console, and the file it includes. May be used from several threads."""

    def __init__(self, admin: str, file: Path, per: Per = Per.TABLET, options: str = "") -> None:
        """`admin` is the DSN of its console (`dbname=pgbouncer`); its user must be in `admin_users`."""
        self._admin = admin
        self._file = file
        self._per = per
        self._options = options
        self._lock = threading.RLock()
        self._held: set[str] = set()

    def sync(self, snapshot: Snapshot) -> Sync:
        """Makes the file say what the directory says. Aliases that lead elsewhere are paused while they change."""
        wanted = aliases(snapshot, self._per, self._options)
        with self._lock:
            known = read_targets(self._file)
            changed = sorted(name for name in wanted.keys() | known.keys() if wanted.get(name) != known.get(name))
            if changed:
                with self._paused([name for name in changed if name in wanted and name in known]):
                    self._rewrite(wanted)
        return Sync(len(wanted), tuple(changed))

    def names(self, snapshot: Snapshot, migration: Migration) -> list[str]:
        """The aliases whose clients a move affects: the tablets', or those of the nodes they are on."""
        if self._per is Per.NODE:
            return [alias_name(migration.source_node)]
        found = [snapshot.find_tablet(number) for number in migration.sources]
        return [tablet_alias(snapshot, tablet) for tablet in found if tablet is not None]

    def hold(self, names: Sequence[str], patience: float = PAUSE_PATIENCE) -> None:
        """Holds these aliases' clients back until `release`: transactions end first, new ones wait.

        `Unavailable` if transactions do not end in time: then nobody is held back.
        """
        with self._lock:
            try:
                self._pause(names, patience)
            except BaseException:
                self._resume(set(names) - self._held)
                raise
            self._held.update(names)

    def release(self, names: Sequence[str]) -> None:
        """Lets them continue. Skips names that are not held."""
        with self._lock:
            let_on = self._held.intersection(names)
            self._resume(let_on)
            self._held -= let_on

    @property
    def held(self) -> frozenset[str]:
        """The aliases whose clients we hold back now."""
        return frozenset(self._held)

    def resume_all(self) -> list[str]:
        """Resumes every paused alias, no matter who paused it; returns them. For recovery."""
        with self._lock, self._console() as console:
            self._held.clear()
            ours = read_targets(self._file)
            paused = [name for name in _paused(console) if name in ours]
            for name in paused:
                _execute(console, f"RESUME {_identifier(name)}", PAUSE_PATIENCE)
        return paused

    @contextmanager
    def _paused(self, names: Sequence[str]) -> Iterator[None]:
        """Briefly; those that are held stay held."""
        passing = set(names) - self._held
        try:
            self._pause(sorted(passing), PAUSE_PATIENCE)
            yield
        finally:
            self._resume(passing)

    def _pause(self, names: Sequence[str], patience: float) -> None:
        if names:
            with self._console() as console:
                already = set(_paused(console))
                for name in names:
                    if name not in already:
                        _execute(console, f"PAUSE {_identifier(name)}", patience)

    def _resume(self, names: set[str]) -> None:
        if names:
            with self._console() as console:
                for name in names.intersection(_paused(console)):
                    _execute(console, f"RESUME {_identifier(name)}", PAUSE_PATIENCE)

    def _rewrite(self, targets: Mapping[str, str]) -> None:
        write_file(self._file, render(targets))
        with self._console() as console:
            _execute(console, "RELOAD", PAUSE_PATIENCE)
            # RELOAD succeeds even if the files cannot be read: the old aliases would stay, and lead astray.
            known = {row["name"]: row for row in _databases(console)}
        for name, target in targets.items():
            shown = known.get(name)
            if shown is None or not target.startswith(_target_of(shown)):
                raise Unavailable(f"PgBouncer has not taken over alias {name}: its log says why")

    @contextmanager
    def _console(self) -> Iterator[psycopg.Connection[Any]]:
        # A connection for each visit: the only way to end one that waits in a PAUSE is to close it.
        try:
            console = psycopg.connect(self._admin, autocommit=True, connect_timeout=5)
        except psycopg.Error as error:
            raise Unavailable(f"PgBouncer's console cannot be reached: {_one_line(error)}") from None
        try:
            yield console
        except psycopg.Error as error:
            raise Unavailable(f"PgBouncer's console refused: {_one_line(error)}") from error
        finally:
            console.close()


def _execute(console: psycopg.Connection[Any], statement: str, patience: float) -> None:
    """A console command. It has no timeouts of its own, so the socket is watched here."""
    link = console.pgconn
    link.send_query(statement.encode())
    link.flush()
    deadline = _clock.monotonic() + patience
    while link.is_busy():
        left = deadline - _clock.monotonic()
        if left <= 0 or not select.select([link.socket], [], [], left)[0]:
            raise Unavailable(f"PgBouncer has not finished {statement} within {patience:g} s")
        link.consume_input()
    while (result := link.get_result()) is not None:
        if result.status == ExecStatus.FATAL_ERROR:
            raise Unavailable(f"PgBouncer refused {statement}: {result.get_error_message()}")


def _one_line(error: psycopg.Error) -> str:
    return " ".join(str(error).split())


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _databases(console: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    cursor = console.execute("SHOW DATABASES")
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _target_of(shown: Mapping[str, Any]) -> str:
    """The beginning of the target that a row of SHOW DATABASES stands for."""
    values = (("host", shown["host"]), ("port", shown["port"]), ("dbname", shown["database"]))
    return " ".join(f"{name}={_quoted(str(value))}" for name, value in values if value)


def _paused(console: psycopg.Connection[Any]) -> list[str]:
    return [row["name"] for row in _databases(console) if int(row["paused"])]


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
