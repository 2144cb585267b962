"""What only the leader does: begins and runs migrations, closes and opens nodes, keeps plans, carries out commands.

One object per leadership; when that is over, every part of it refuses to act, because each step checks the epoch.

Lets the leader carry out commands as they arrive, not at the next tick. The daemon starts and stops it.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from balancer.clock import Clock
from balancer.daemon.atomic_recovery import AtomicRecovery
from balancer.daemon.node_guard import NodeGuard
from balancer.directory.contract import Directory, Follower, Leadership
from balancer.directory.handover_record import without_handed_over
from balancer.directory.model import (
    CLOSED_BY_DAEMON,
    Change,
    Command,
    CommandState,
    Migration,
    NodeState,
    Put,
    RecordKind,
    Remove,
    TabletState,
    Transaction,
)
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Conflict, Fenced, OutcomeUnknown, Refused, Unavailable
from balancer.features.repair.revive import check_lost, make_ready, replacement, take_back_ready
from balancer.migration.begin import Also, Beginner, nothing_else
from balancer.migration.pool import MigrationPool
from balancer.naming import cluster_name
from balancer.nodes.session.connection import Address
from balancer.nodes.session.holder import NodeSessions
from balancer.planner import orders, plans
from balancer.planner.commands import decide, refused
from balancer.planner.memory import failures_of
from balancer.planner.metrics import Reporter
from balancer.planner.verbs import CommandContext, Outcome, Revival
from balancer.planner.windows import answered
from balancer.policies.view import Action, BundleView, NodeChange, PlanResult
from balancer.polling.poller import ClusterPoll
from balancer.settings import BundleSettings, Settings

log = structlog.get_logger()

ATTEMPTS = 5  # for a commit that others keep overtaking


class Leader:
    """Acts under one leadership."""

    def __init__(
        self,
        directory: Directory,
        leadership: Leadership,
        *,
        pool: MigrationPool,
        beginner: Beginner,
        addresses: Callable[[str], Address],
        settings: Callable[[], Settings],
        replan: Callable[[str], None],
        polled: Callable[[ClusterPoll, Snapshot], None],
        refused_copies: Callable[[], Mapping[str, str]],
        reporter: Reporter,
        clock: Clock,
    ) -> None:
        self.leadership = leadership
        self.pool = pool
        self._directory = directory
        self._beginner = beginner
        self._settings = settings
        self._replan = replan
        self._polled = polled
        self._refused_copies = refused_copies
        self._reporter = reporter
        self._clock = clock
        self._addresses = addresses
        self._guard = NodeGuard(directory, leadership, addresses, pool, clock)
        self._recovery = AtomicRecovery(leadership, addresses, lambda: cluster_name(settings().daemon.directory))
        self._lock = threading.Lock()  # commands come from the watcher and, at election, from the loop

    def close(self) -> None:
        """Releases connections, once the leadership is over. Idempotent."""
        self._guard.close()

    def start(self, action: Action, bundle: BundleSettings, also: Also = nothing_else) -> Migration:
        """Journals a migration and sets it to work."""
        self.leadership.check()
        migration = self._beginner.begin(action, bundle, also)
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
        self._commit(
            (Put(replace(node, state=state, reason=reason)),), snapshot, f"{state} node {node.id}: {change.reason}"
        )
        log.info("node changed", node=node.id, state=state, reason=change.reason)

    def guard(self, poll: ClusterPoll, snapshot: Snapshot) -> Mapping[str, str]:
        """In every mode: keeps nodes that have gone back in time from doing harm, and rows behind their policies, and
        ends what clients have left prepared.

        Returns what is in the way of the leader's own work, by node.
        """
        found = {**self._refused_copies(), **self._guard.look(poll, snapshot)}
        for doubt in self._recovery.look(poll, snapshot):
            found.setdefault(doubt.node, f"a transaction over several nodes is in doubt: {doubt.why}")
        self._polled(poll, snapshot)
        return found

    def forget_decisions(self, snapshot: Snapshot) -> int:
        """See `AtomicRecovery.forget`."""
        return self._recovery.forget(without_handed_over(snapshot))

    def quarantine(self, tablets: Sequence[int], failures: int) -> None:
        """Quarantines tablets whose migrations failed this often in a row, until an operator releases them.

        The tablet's state in the directory is the only truth about that: failures only lead to it.
        """
        if not tablets:
            return
        snapshot = self._directory.snapshot()
        found = [snapshot.find_tablet(number) for number in tablets]
        owned = [one for one in found if one is not None and one.state is TabletState.OWNED]
        changes = tuple(
            Put(replace(tablet, state=TabletState.QUARANTINED))
            for tablet in owned
            if snapshot.migration_of(tablet.id) is None
            and len(failures_of(snapshot.migrations.values(), tablet.id)) >= failures
        )
        if changes:
            self._record(changes, snapshot, f"{len(changes)} tablets quarantined: their migrations keep failing")

    def propose(self, plan: PlanResult, view: BundleView, bundle: BundleSettings, *, asked: bool = False) -> str:
        """Records a plan that is new or was asked for; returns the id of the one that stands, empty: there is none."""
        snapshot = self._directory.snapshot()
        plan_id, changes = plans.propose(snapshot, plan, view, bundle.options, bundle.mode, asked=asked)
        if changes and not self._record(changes, snapshot, f"plan of bundle {bundle.name}"):
            return ""
        return plan_id

    def settle(self, plan: str, handled: Sequence[Action], failures: Sequence[str]) -> None:
        """Records which of a plan's actions have been handled, and why some could not be started."""
        for _ in range(ATTEMPTS):
            snapshot = self._directory.snapshot()
            found = snapshot.plans.get(plan)
            if found is None or found.state not in (plans.PROPOSED, plans.APPROVED):
                return
            if self._record((plans.settle(found, handled, failures),), snapshot, f"plan {plan} carried out"):
                return

    def settle_orders(self, bundle: str, dues: Sequence[orders.Due], view: BundleView) -> None:
        """Records which of the operators' orders have ended, and forgets old ones."""
        snapshot = self._directory.snapshot()
        # One that was withdrawn since the tick looked at it stays withdrawn.
        standing = [one for one in dues if snapshot.plans.get(one.order.id) == one.order]
        changes: tuple[Change, ...] = (*orders.settled(standing, view), *plans.forgotten_orders(snapshot, bundle))
        if changes:
            self._record(changes, snapshot, f"orders of bundle {bundle}")

    def answer_rounds(self, rounds: Sequence[Command], started: Sequence[Migration], refused: Sequence[str]) -> None:
        """Records what a tick has started because operators asked for a round."""
        for command in rounds:
            for _ in range(ATTEMPTS):
                snapshot = self._directory.snapshot()
                present = snapshot.commands.get(command.id)
                if present is None or present.state is not CommandState.WAITING:
                    break
                done = answered(present, started, refused)
                try:
                    self._commit((Put(done),), snapshot, f"{done.verb}: {done.result}", done)
                except Conflict:
                    continue
                self._answered(done, Outcome(done.result))
                break

    def park(self, bundle: str, overrunning: frozenset[str]) -> None:
        """Holds these migrations of a bundle at a safe point, and resumes those it held before."""
        self.pool.park(bundle, overrunning)

    def answer_commands(self, snapshot: Snapshot) -> None:
        """Carries out every waiting command, oldest first."""
        with self._lock:
            waiting = [command for command in snapshot.commands.values() if command.state is CommandState.WAITING]
            for command in sorted(waiting, key=lambda command: command.created):
                self._answer(command.id)

    def _answer(self, command: str) -> None:
        for _ in range(ATTEMPTS):
            snapshot = self._directory.snapshot()
            present = snapshot.commands.get(command)
            if present is None or present.state is not CommandState.WAITING:
                return
            bundles = self._settings().bundles.values()
            modes = {bundle.name: bundle.mode for bundle in bundles}
            options = {bundle.name: bundle.options for bundle in bundles}
            decided, outcome = decide(present, snapshot, self._clock.now(), modes, options)
            if outcome.round:  # the bundle's tick acts, and then answers
                self._replan(outcome.round)
                return
            try:
                decided = self._obey(decided, outcome, snapshot)
            except Conflict:
                continue  # something moved meanwhile: nothing was done, and the command is retried
            self._answered(decided, outcome)
            return
        log.warning("a command waits: others keep changing what it touches", command=command)

    def _answered(self, command: Command, outcome: Outcome) -> None:
        log.info("command", verb=command.verb, author=command.author, state=command.state, result=command.result)
        self._reporter.commanded(command.verb, command.state)
        if outcome.replan and command.state is CommandState.DONE:
            self._replan(outcome.replan)

    def _obey(self, command: Command, outcome: Outcome, snapshot: Snapshot) -> Command:
        """Acts as the outcome says and records the answer; our refusal becomes the command's.

        The answer is in the very commit that changes the directory or begins the migration: whatever dies in between,
        a successor finds both or neither, and carries it out once.
        """
        try:
            if command.state is CommandState.REFUSED:
                self._take_back(command, snapshot)
            for verb, migration in outcome.steer:
                self.pool.steer(verb, migration)
            if outcome.actions:
                return self._start(command, outcome, snapshot)
            if outcome.end is not None:
                ending = outcome.end
                done = self._recovery.decide(
                    ending.transaction,
                    ending.home,
                    without_handed_over(snapshot),
                    commits=ending.commits,
                    reason=ending.reason,
                )
                command = replace(command, result=f"{command.result}; {done}")
            revived = () if outcome.revive is None else self._revive(outcome.revive, snapshot)
            changes = (*outcome.changes, *revived, Put(command))
            self._commit(changes, snapshot, f"{command.verb}: {command.result}", command)
        except (Conflict, Fenced, OutcomeUnknown, Unavailable):
            raise  # not the command's fault: it still waits
        except BalancerError as error:
            command = refused(command, str(error))
            self._take_back(command, snapshot)
            self._commit((Put(command),), snapshot, f"{command.verb}: {command.result}", command)
        return command

    def _revive(self, revival: Revival, snapshot: Snapshot) -> tuple[Change, ...]:
        """Makes the tablet ready on its new node, closed; a successor repeats what dies before the commit."""
        lost, revived = replacement(snapshot, revival.tablet, revival.node, former=revival.former)
        for migration in self.pool.running():
            record = snapshot.migrations.get(migration)
            if record is not None and {tablet.id for tablet in lost} & {*record.sources}:
                raise Unavailable(f"migration {migration} is still being ended")  # the command waits for that
        links = NodeSessions(self._addresses, "revive")
        try:
            for tablet in lost:
                check_lost(links, snapshot, tablet)
            table = snapshot.tables[revival.tablet.table]
            make_ready(links, self.leadership.epoch, table, revived, empty=revival.empty)
        finally:
            links.close()
        gone = {tablet.id for tablet in lost} - {tablet.id for tablet in revived}
        return (*(Remove(RecordKind.TABLET, str(number)) for number in sorted(gone)), *map(Put, revived))

    def _take_back(self, command: Command, snapshot: Snapshot) -> None:
        """Takes back what an earlier leader made ready for a command that is refused now."""
        context = CommandContext(snapshot, command.arguments, command.author, self._clock.now())
        try:
            if command.verb != "tablet-lost" or context.node().state is NodeState.LOST:
                return
            tablet, node = context.tablet(), context.node().id
        except BalancerError:
            return  # it was refused because there is no such tablet or node
        empty, former = bool(command.arguments.get("empty")), bool(command.arguments.get("former"))
        links = NodeSessions(self._addresses, "revive")
        try:
            take_back_ready(links, self.leadership.epoch, snapshot, tablet, node, empty=empty, former=former)
        except Refused as error:
            log.warning("what was prepared for a command stays", command=command.id, error=str(error))
        finally:
            links.close()

    def _start(self, command: Command, outcome: Outcome, snapshot: Snapshot) -> Command:
        action = outcome.actions[0]
        answers: list[Command] = []

        def answer(migration: Migration) -> tuple[Change, ...]:
            answers.append(replace(command, result=f"{command.result}: {migration.id}", migration=migration.id))
            return (Put(answers[-1]),)

        bundle = self._settings().bundle(snapshot.table(action.table).bundle)
        if outcome.mode is not None:
            bundle = replace(bundle, migration=replace(bundle.migration, mode=outcome.mode))
        self.start(action, bundle, answer)
        return answers[-1]

    def _record(self, changes: tuple[Change, ...], snapshot: Snapshot, reason: str) -> bool:
        """Writes what only explains; failing to write it is not a reason to stop."""
        try:
            self._commit(changes, snapshot, reason)
        except Fenced:
            raise
        except BalancerError as error:
            log.warning("the plan could not be recorded", error=str(error))
            return False
        return True

    def _commit(
        self, changes: tuple[Change, ...], snapshot: Snapshot, reason: str, command: Command | None = None
    ) -> None:
        author = command.author if command is not None else self._settings().daemon.instance
        self._directory.commit(Transaction(changes, snapshot.version, reason, author, self.leadership.epoch))


LOOK_SECONDS = 0.5


class CommandWatch:
    """A thread that follows the directory."""

    def __init__(self, follower: Callable[[], Follower], leading: Callable[[], Leader | None]) -> None:
        self._follower = follower
        self._leading = leading
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commands", daemon=True)

    def start(self) -> None:
        """Begins to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Ends soon. Idempotent."""
        self._stopping.set()

    def close(self) -> None:
        """Waits for the end. Idempotent."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        follower = self._follower()
        seen = -1
        while not self._stopping.is_set():
            snapshot = follower.wait(seen, LOOK_SECONDS)
            leading = self._leading()
            if snapshot.version == seen or leading is None:
                seen = snapshot.version  # the elected leader answers what is waiting, from a newer snapshot than this
                continue
            if self._answer(leading, snapshot):
                seen = snapshot.version
            else:
                self._stopping.wait(1.0)

    def _answer(self, leading: Leader, snapshot: Snapshot) -> bool:
        try:
            leading.answer_commands(snapshot)
        except BalancerError as error:
            log.warning("commands wait", error=str(error))
            return False
        except Exception:
            # The thread's last boundary: a bug in one verb must not end the others forever.
            log.exception("commands wait")
            return False
        return True
