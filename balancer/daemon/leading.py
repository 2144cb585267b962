"""What only the leader does: begins and runs migrations, closes and opens nodes, carries out commands.

One object per leadership; when that is over, every part of it refuses to act, because each step checks the epoch.
"""

import threading
from collections.abc import Callable
from dataclasses import replace

import structlog

from balancer.clock import Clock
from balancer.daemon.beginner import Beginner
from balancer.daemon.pool import MigrationPool
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import (
    CLOSED_BY_DAEMON,
    Change,
    Command,
    CommandState,
    Migration,
    NodeState,
    Put,
    Transaction,
)
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Conflict, Fenced
from balancer.planner.commands import Outcome, carry_out
from balancer.planner.report import Reporter
from balancer.settings import BundleSettings, Settings
from policies.model import Action, NodeChange

log = structlog.get_logger()


class Leading:
    """Acts under one leadership."""

    def __init__(
        self,
        directory: Directory,
        leadership: Leadership,
        *,
        pool: MigrationPool,
        beginner: Beginner,
        settings: Callable[[], Settings],
        replan: Callable[[str], None],
        reporter: Reporter,
        clock: Clock,
    ) -> None:
        self.leadership = leadership
        self.pool = pool
        self._directory = directory
        self._beginner = beginner
        self._settings = settings
        self._replan = replan
        self._reporter = reporter
        self._clock = clock
        self._lock = threading.Lock()  # commands come from the watcher and, at election, from the loop

    def start(self, action: Action, bundle: BundleSettings) -> Migration:
        """Journals a migration and sets it to work."""
        self.leadership.check()
        migration = self._beginner.begin(action, bundle)
        log.info(
            "migration begun", migration=migration.id, kind=action.kind, tablets=action.tablets, reason=action.reason
        )
        self._reporter.started(bundle.name, action.kind, action.code)
        self.pool.start(migration)
        return migration

    def change_node(self, change: NodeChange) -> None:
        """Closes a node to new data, or opens it again."""
        snapshot = self._directory.snapshot()
        node = snapshot.nodes.get(change.node)
        if node is None or str(node.state) == str(change.condition):
            return
        state = NodeState(str(change.condition))
        reason = "" if state is NodeState.ACTIVE else f"{CLOSED_BY_DAEMON}{change.reason}"
        self.commit(
            (Put(replace(node, state=state, reason=reason)),), snapshot, f"{state} node {node.id}: {change.reason}"
        )
        log.info("node changed", node=node.id, state=state, reason=change.reason)

    def answer_commands(self, snapshot: Snapshot) -> None:
        """Carries out every command that waits, oldest first."""
        with self._lock:
            waiting = [command for command in snapshot.commands.values() if command.state is CommandState.WAITING]
            for command in sorted(waiting, key=lambda command: command.created):
                self._answer(command)

    def _answer(self, command: Command) -> None:
        snapshot = self._directory.snapshot()
        present = snapshot.commands.get(command.id)
        if present is None or present.state is not CommandState.WAITING:
            return
        answered, outcome = carry_out(present, snapshot, self._clock.now())
        try:
            answered = self._do(answered, outcome, snapshot)
            changes = (*outcome.changes, Put(answered)) if answered.state is CommandState.DONE else (Put(answered),)
            self.commit(changes, snapshot, f"{command.verb}: {answered.result}", command.author)
        except Conflict:
            return  # something moved meanwhile: the command still waits and is looked at again with the next change
        self._reporter.commanded(command.verb, answered.state)
        log.info("command", verb=command.verb, author=command.author, state=answered.state, result=answered.result)
        if outcome.replan:
            self._replan(outcome.replan)

    def _do(self, command: Command, outcome: Outcome, snapshot: Snapshot) -> Command:
        """Acts as the outcome says; an error of ours becomes the command's refusal."""
        results = []
        try:
            for verb, migration in outcome.steer:
                self.pool.steer(verb, migration)
            for action in outcome.actions:
                bundle = self._settings().bundle(snapshot.table(action.table).bundle)
                results.append(self.start(action, bundle).id)
        except Fenced:
            raise
        except BalancerError as error:
            return replace(command, state=CommandState.REFUSED, result=str(error))
        return replace(command, result=f"{command.result}: {', '.join(results)}") if results else command

    def commit(self, changes: tuple[Change, ...], snapshot: Snapshot, reason: str, author: str = "") -> None:
        """Changes the directory under this leadership."""
        author = author or self._settings().daemon.instance
        self._directory.commit(Transaction(changes, snapshot.version, reason, author, self.leadership.epoch))
