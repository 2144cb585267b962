"""Groups of bundles, each with its own directory, on several hosts: the story of one that dies and comes back."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from balancer.directory.contract import Directory
from balancer.directory.model import Migration
from balancer.directory.notes import INSTANCES, InstanceNote, read_instances
from balancer.policies.leader_choice import Contender, wanted_leader
from tests.support.commands import balancer_here
from tests.support.fleet import Fleet, application, owners
from tests.support.forked import Forked
from tests.support.waiting import surely

LEADERSHIP = '[leadership]\nspread = true\nsettle = "1s"\nlead_at_least = "1s"\n'
SLOW = 'retire_grace = "100ms"\ncool_down = "0s"\nthrottle = "60kB"\nwrite_pause_budget = "10s"\nfence_deadline = "20s"'
ALONE, TOGETHER = "balancer", "tests.support.host"


class Host:
    """The instances of one host: processes of their own (ALONE), or one process (TOGETHER)."""

    def __init__(self, name: str, configs: Sequence[Path], program: str) -> None:
        self.name = name
        self.log = configs[0].parents[1] / f"{name}.log"
        alone: list[list[str | Path]] = [["run", "--config", config] for config in configs]
        commands = [[*configs]] if program == TOGETHER else alone
        with self.log.open("a") as log:
            self._processes = [Forked(program, command, stdout=log, stderr=log) for command in commands]

    def kill(self) -> None:
        """SIGKILL."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(20)

    def stop(self) -> None:
        """SIGTERM."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(60)


def make_groups(folder: Path, server: str, hosts: Sequence[str], dsn: Callable[[], str]) -> dict[str, Fleet]:
    """By the host that should lead it, a group: two nodes and a table. That of the second host has rows to move."""
    found: dict[str, Fleet] = {}
    run, number = uuid4().hex[:8], 0
    while len(found) < len(hosts):
        path, number = f"groups{run}/g{number}", number + 1
        wanted = str(wanted_leader(path, map(Contender, hosts)))
        if wanted in found:
            continue
        (folder / wanted).mkdir()
        dsns = {name: dsn() for name in ("a", "b")}
        fleet = found[wanted] = Fleet(folder / wanted, f"zk://{server}/{path}", dsns, tablets=2)
        fleet.bundle |= {
            "tablet_balancer_config": "enable_cell_balancer = true",
            "placement": "dimensions = { tablets = 1.0 }",
        }
        fleet.write("observe", migration=SLOW)
        fleet.create(["a"], rows=2000 if wanted == hosts[1] else 0)
        for host in hosts:
            file = fleet.write_daemon(host, tick="1s", session_timeout="5s")
            file.write_text(file.read_text() + LEADERSHIP)
        fleet.write_daemon()
    return found


@contextmanager
def running(groups: Mapping[str, Fleet], program: str) -> Iterator[Callable[[str], Host]]:
    """Starts hosts; stops what is still running at the end."""
    hosts: dict[str, Host] = {}

    def start(name: str) -> Host:
        hosts[name] = Host(name, [fleet.folder / f"{name}.toml" for fleet in groups.values()], program)
        return hosts[name]

    try:
        yield start
    except BaseException:
        for host in hosts.values():
            print(f"what {host.name} said last:\n{host.log.read_text()[-5000:]}")  # shown with the failure
        raise
    finally:
        for host in hosts.values():
            host.stop()


def until(condition: Callable[[], object], what: str) -> None:
    assert surely(condition, 40, pause=0.2), f"{what} did not happen"


def tell(groups: Mapping[str, Fleet], program: str) -> None:
    """Hosts share the groups; the second one dies in the middle of a move, comes back, and gets its group back when the
    move, which another one continues, has ended. Nothing that was acknowledged is lost."""
    hosts = sorted(groups)
    first, second, *_ = hosts
    with ExitStack() as stack:
        directories = {name: stack.enter_context(fleet.directory()) for name, fleet in groups.items()}
        start = stack.enter_context(running(groups, program))
        fleet, directory = groups[second], directories[second]

        def led() -> dict[str, str | None]:
            return {wanted: one.leader() for wanted, one in directories.items()}

        start(first)
        until(lambda: set(led().values()) == {first}, "one host leads all groups")
        started = {name: start(name) for name in hosts[1:]}
        until(lambda: led() == {name: name for name in hosts}, "each host leads its own group")

        with application(fleet, seed=7, workers=1) as ledger:
            fleet.write("autonomous")
            until(lambda: _moving(directory), "a move")
            (move,) = _moving(directory)
            started[second].kill()
            until(lambda: directory.leader() not in (None, second), "another host leads the group")
            assert {name: led()[name] for name in hosts if name != second} == {
                name: name for name in hosts if name != second
            }
            heir = str(directory.leader())
            _steer("pause", move, fleet)
            start(second)
            waits = f"{move.operation} {move.id} has ended"
            until(lambda: _notes(directory)[heir].waits_for == waits, "the heir says what it waits for")
            _check_status(fleet, heir, second, waits, hosts)
            time.sleep(2.5)  # longer than it would wait in all if nothing were under way
            assert directory.leader() == heir
            _steer("resume", move, fleet)
            until(lambda: directory.leader() == second, "the group is back")
            fleet.write("observe")
            until(lambda: all(one.finished for one in directory.snapshot().migrations.values()), "quiet")
        shown = fleet.cluster(directory.snapshot()).rows()
        assert directory.snapshot().migrations[move.id].state == "done"
        assert owners(directory.snapshot()) == {"a": 1, "b": 1}
        epochs = {one.leader_epoch for one in directory.history(limit=500) if move.id in one.reason}
        assert len(epochs) == 2, f"begun by the killed one, ended by its heir, and by nobody else: {epochs}"
        assert led() == {name: name for name in hosts}
    assert ledger.faults(shown) == []
    assert ledger.operations > 20


def _moving(directory: Directory) -> list[Migration]:
    return [record for record in directory.snapshot().migrations.values() if record.state == "copying"]


def _notes(directory: Directory) -> dict[str, InstanceNote]:
    return {note.name: note for note in read_instances(directory.published(INSTANCES))}


def _steer(verb: str, move: Migration, fleet: Fleet) -> None:
    done = balancer_here(verb, move.id, "--migration", "--config", fleet.config)
    assert done.code == 0, done.err


def _check_status(fleet: Fleet, heir: str, wanted: str, waits: str, hosts: Sequence[str]) -> None:
    (document,) = json.loads(balancer_here("status", "--config", fleet.config, "--output", "json").out)
    assert (document["leader_wanted"], document["leader_waits_for"]) == (wanted, waits)
    assert [one["name"] for one in document["instances"]] == list(hosts)
    said = balancer_here("status", "--config", fleet.config)
    assert f"leads: {heir}; wanted: {wanted}, hands over when {waits}" in " ".join(said.out.split())
