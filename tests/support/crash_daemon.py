"""A daemon in miniature, as a process of its own that a test can kill: leads, recovers, runs one migration.

`python -m tests.support.crash_daemon <plan.json>`. At the point that the plan names it leaves a file `reached` and then
kills itself, stops itself, or waits for a file `go`, while the test kills somebody else.
"""

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Migration, MigrationKind, MigrationMode
from balancer.directory.open import open_directory
from balancer.errors import BalancerError, Fenced, Unavailable
from balancer.migration.begin import begin_move
from balancer.migration.begin_reshard import begin_merge, begin_split
from balancer.migration.machine import State
from balancer.migration.observer import Observer
from balancer.migration.recovery import recover
from balancer.migration.runner import Runner
from balancer.nodes.connection import Address
from balancer.settings import MigrationSettings


@dataclass(frozen=True)
class Plan:
    """What the process is to do, and where it is to stop."""

    folder: str
    directory: str
    dsns: dict[str, str]
    settings: dict[str, float]
    operation: str = ""  # empty: only recover
    mode: str = "replicate"
    tablets: tuple[int, ...] = ()
    target: str = ""
    point: str = ""  # entered:<state> or left:<state>
    action: str = ""  # kill, stop, hold
    lease: float = 2.0

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


class Failpoint(Observer):
    """Stops at a named point, once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._armed = bool(plan.point)

    def entered(self, migration: Migration, state: State) -> None:
        self._at(f"entered:{state}")

    def left(self, migration: Migration, state: State) -> None:
        self._at(f"left:{state}")

    def _at(self, point: str) -> None:
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


def lead(plan: Plan) -> int:
    """Leads until everything is finished; 0 then, 3 if somebody else leads now."""
    directory = open_directory(plan.directory, lease=plan.lease)
    with directory:
        leadership = directory.campaign(f"daemon {os.getpid()}", 30.0)
        if leadership is None:
            return 4
        runner = Runner(
            directory,
            leadership,
            lambda node: Address(node, plan.dsns[node]),
            MigrationSettings(**plan.settings),  # type: ignore[arg-type]
            observer=Failpoint(plan),
        )
        try:
            for record in recover(directory, leadership):
                runner.run(record.id)
            if plan.operation:
                migration = begin(plan, directory, leadership)
                runner.run(migration.id)
        except Fenced:
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


def main() -> None:
    document = json.loads(Path(sys.argv[1]).read_text())
    document["tablets"] = tuple(document["tablets"])
    try:
        code = lead(Plan(**document))
    except Unavailable as error:
        print(error, file=sys.stderr)
        code = 5
    except BalancerError as error:
        print(error, file=sys.stderr)
        code = 6
    os._exit(code)  # the leadership's thread must not outlive a leader that gives up


if __name__ == "__main__":
    main()
