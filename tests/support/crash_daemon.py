"""A daemon in miniature, as a process of its own that a test can kill: leads, recovers, runs one migration.

`python -m tests.support.crash_daemon` starts a nursery (`crash_nursery` talks to it): it has imported everything, and
forks a daemon for each plan, which then starts work at once. At the point that the plan names the daemon leaves a file
`reached` and then kills itself, stops itself, or waits for a file `go`, while the test kills another victim.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import psycopg

from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Migration, MigrationKind, MigrationMode
from balancer.directory.open import open_directory
from balancer.errors import BalancerError, Fenced, Unavailable
from balancer.migration import context
from balancer.migration.begin import begin_move
from balancer.migration.machine import State
from balancer.migration.progress import Observer
from balancer.migration.runner import Runner, recover
from balancer.nodes.schema.leader_transaction import node_command, node_transaction
from balancer.nodes.session.connection import Address, Connection, Cursor
from balancer.settings import MigrationSettings
from tests.support.mutants import mutate_from_environment
from tests.support.resharding import begin_merge, begin_split


@dataclass(frozen=True)
class Plan:
    """What the process should do, and where it should stop."""

    folder: str
    directory: str
    dsns: dict[str, str]
    settings: dict[str, float]
    operation: str = ""  # empty: only recover
    mode: str = "replicate"
    tablets: tuple[int, ...] = ()
    target: str = ""
    point: str = ""  # entered:<state>, inside:<state> or left:<state>
    step: int = 1  # inside: after how many of the state's transactions on nodes
    delay: float = 0.0  # inside: if not 0, this many seconds after that transaction began, wherever it is then
    action: str = ""  # kill, stop, hold
    cancel: str = ""  # the state at whose beginning an operator cancels the migration
    spoil: str = ""  # the state at whose beginning somebody changes the first tablet's definition
    lease: float = 10.0
    blind: bool = False  # it does not check its own clock, as if it had slept right after checking

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


def read_plan(path: Path) -> Plan:
    document = json.loads(path.read_text())
    document["tablets"] = tuple(document["tablets"])
    return Plan(**document)


class Failpoint(Observer):
    """Stops at a named point, once; meddles with the migration on the way there."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._armed = bool(plan.point)
        self._lock = threading.Lock()
        self._state: State | None = None
        self._steps = 0
        self.runner: Runner | None = None

    def entered(self, migration: Migration, state: State) -> None:
        self._state, self._steps = state, 0
        self._at(f"entered:{state}")
        if state == self._plan.cancel and self.runner is not None:
            self.runner.cancel(migration.id)
        if state == self._plan.spoil:
            _spoil(self._plan)

    def left(self, migration: Migration, state: State) -> None:
        self._at(f"inside:{state}")  # it had fewer transactions than the plan counts
        self._at(f"left:{state}")

    def finished(self, migration: Migration) -> None:
        self._at(f"entered:{migration.state}")

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Wraps each transaction on a node."""
        self._steps += 1
        point = f"inside:{self._state}" if self._steps >= self._plan.step else ""
        if point and self._plan.delay:
            timer = threading.Timer(self._plan.delay, self._at, (point,))
            timer.daemon = True
            timer.start()
        yield
        if not self._plan.delay:
            self._at(point)

    def _at(self, point: str) -> None:
        with self._lock:
            if not self._armed or point != self._plan.point:
                return
            self._armed = False
        folder = Path(self._plan.folder)
        (folder / "reached").write_text(point)
        if self._plan.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._plan.action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        while self._plan.action == "hold" and not (folder / "go").exists():
            time.sleep(0.01)


def _spoil(plan: Plan) -> None:
    name = f"public.orders_t{plan.tablets[0]}"
    with psycopg.connect(plan.dsns["a"], autocommit=True) as connection:
        connection.execute(f"ALTER TABLE {name} ADD CONSTRAINT spoiled CHECK (n > -1)".encode())


def _watch_steps(failpoint: Failpoint) -> None:
    """The steps' transactions on nodes are counted where the steps' context opens them."""

    @contextmanager
    def transaction(*arguments: Any, **options: Any) -> Iterator[Cursor]:
        with failpoint.acting(), node_transaction(*arguments, **options) as cursor:
            yield cursor

    @contextmanager
    def command(*arguments: Any, **options: Any) -> Iterator[Connection]:
        with failpoint.acting(), node_command(*arguments, **options) as connection:
            yield connection

    context.node_transaction = transaction  # type: ignore[attr-defined]
    context.node_command = command  # type: ignore[attr-defined]


class Blind:
    """A leadership that its holder never doubts: only the directory and the nodes can stop it."""

    def __init__(self, real: Leadership) -> None:
        self.epoch = real.epoch
        self.resign = real.resign

    def held(self) -> bool:
        return True

    def check(self) -> None:
        return


def lead(plan: Plan) -> int:
    """Leads until everything is finished; returns 0 then, 3 if somebody else leads now."""
    failpoint = Failpoint(plan)
    _watch_steps(failpoint)
    with open_directory(plan.directory, lease=plan.lease) as directory:
        won = directory.campaign(f"daemon {os.getpid()}", 30.0)
        if won is None:
            return 4
        leadership: Leadership = Blind(won) if plan.blind else won
        failpoint.runner = runner = Runner(
            directory,
            leadership,
            lambda node: Address(node, plan.dsns[node]),
            MigrationSettings(**plan.settings),  # type: ignore[arg-type]
            observer=failpoint,
        )
        try:
            for record in recover(directory, leadership):
                runner.run(record.id)
            if plan.operation:
                migration = begin(plan, directory, leadership)
                runner.run(migration.id)
        except Fenced as error:
            print(error, flush=True)
            return 3
    return 0


def begin(plan: Plan, directory: Directory, leadership: Leadership) -> Migration:
    """Journals the plan's migration."""
    mode = MigrationMode(plan.mode)
    match MigrationKind(plan.operation):
        case MigrationKind.MOVE:
            return begin_move(directory, leadership, plan.tablets[0], plan.target, mode=mode)
        case MigrationKind.SPLIT:
            return begin_split(directory, leadership, plan.tablets[0], mode=mode)
        case MigrationKind.MERGE:
            return begin_merge(directory, leadership, plan.tablets, mode=mode)
        case MigrationKind.EXPIRE:
            raise AssertionError("expiry has crash tests of its own")


def run_plan(file: Path) -> NoReturn:
    """In the forked process: everything it says goes into `daemon/daemon.log` next to the plan."""
    code = 7
    try:
        nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(file.with_name("daemon.log"), _APPEND, 0o644)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = lead(read_plan(file))
    except Unavailable as error:
        print(error, flush=True)
        code = 5
    except BalancerError as error:
        print(error, flush=True)
        code = 6
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)  # the leadership's thread must not outlive a leader that gives up


_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def serve() -> None:
    """Answers `start FILE` with a process id, `poll ID` with how it ended or with nothing; ends when its input does."""
    living: set[int] = set()
    try:
        while line := sys.stdin.readline():
            word, _, rest = line.strip().partition(" ")
            if word == "start":
                pid = os.fork()
                if pid == 0:
                    run_plan(Path(rest))
                living.add(pid)
                answer = str(pid)
            else:
                ended, status = os.waitpid(int(rest), os.WNOHANG)
                living.discard(ended)
                answer = str(os.waitstatus_to_exitcode(status)) if ended else ""
            print(answer, flush=True)
    finally:
        for pid in living:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    mutate_from_environment()
    serve()
