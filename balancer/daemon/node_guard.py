"""Keeps nodes that have gone back in time from doing harm. The leader calls it after every poll, in every mode: this is
not balancing.

What it does follows from the directory and the node's own rows alone, so any leader may repeat it at any time:

- a node that is found to have gone back is recorded as rewound *first*. The record outlives everything, while each of
  the signs may be overwritten by what comes next;
- a rewound node's claims that the directory has outdated are given away: the node says where the tablet is;
- its own tablets are closed: it is still their owner, and acknowledged writes are missing in them. Carrying on as if
  nothing had happened would mix new writes with old state; only a person can say that this is better than waiting;
- migrations of rewound and lost nodes are cancelled where that is still possible, and ended where they would wait
  forever or drop what may be the last copy;
- a node that an operator has accepted (`balancer node rejoin`) is no longer rewound: what was closed is opened;
- a healthy node gets a mark about once a minute, by which it will be recognised. Marks are written on many nodes at the
  same time, over connections that are kept; nobody waits for one that hangs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import structlog

from balancer.clock import Clock
from balancer.directory.contract import Directory, Leadership, commit_on_newest
from balancer.directory.model import Migration, MigrationKind, Node, NodeState, Put, Tablet, Transaction
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Fenced, Unavailable
from balancer.migration.machine import State
from balancer.migration.pool import MigrationPool
from balancer.nodes.schema.install import STEPS, OwnedTablet, OwnState, install_schema
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.ask_all import SHARED, Question
from balancer.nodes.session.connection import Address, Connection, Cursor, connect, deadline
from balancer.nodes.session.holder import ConnectionHolder
from balancer.nodes.tablets.closed import MARK_EVERY, close_tablet, give_away, locked_rows, open_tablet, write_mark
from balancer.nodes.tablets.fence import drop_fence
from balancer.nodes.tablets.object_names import CLOSED
from balancer.planner.memory import FORGIVEN
from balancer.polling.node_poll import Claim, NodePoll
from balancer.polling.ownership import DisagreementKind
from balancer.polling.poller import ClusterPoll, Health, NodeAnswer

log = structlog.get_logger()

_UNKNOWN = (DisagreementKind.MISSING, DisagreementKind.NOT_OWNED)
BATCH = 20  # tablets per transaction: their partitions are locked together
LOCK_TIMEOUT = 1.0
MARK_PATIENCE = 1.0
MARK_LONGEST = 15.0
"""Seconds after which a mark that hangs is given up, connection and all, whatever keeps it open."""
AUTHOR = "balancer"


@dataclass(frozen=True, slots=True)
class _Act:
    """What to do about one claim. `owner` None: its own tablet."""

    claim: Claim
    word: str  # close, open, give
    owner: Tablet | None = None


class NodeGuard:
    """Under one leadership; used by one thread at a time for each bundle."""

    def __init__(
        self,
        directory: Directory,
        leadership: Leadership,
        addresses: Callable[[str], Address],
        pool: MigrationPool,
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._leadership = leadership
        self._addresses = addresses
        self._pool = pool
        self._clock = clock
        self._links = ConnectionHolder("guard")
        self._marking: dict[str, Question[None]] = {}
        self._unguarded: dict[str, str] = {}  # why the last finished mark was not written, by node

    def close(self) -> None:
        """Releases connections. Idempotent."""
        self._links.close()

    def look(self, poll: ClusterPoll, judged: Snapshot) -> Mapping[str, str]:
        """Acts on what a poll found, by this snapshot. Returns why it could not, by node: that is retried after the
        next poll."""
        failed: dict[str, str] = {}
        for report in poll.nodes.values():
            try:
                self._look(report, judged)
            except Fenced:
                raise
            except BalancerError as error:
                log.warning("a node could not be guarded", node=report.node, error=str(error))
                failed[report.node] = str(error)
        failed |= self._marked(poll.nodes)
        if any(node.state is NodeState.LOST or node.rewound for node in judged.nodes.values()):
            try:
                self.end_migrations(poll)
            except Fenced:
                raise
            except BalancerError as error:
                log.warning("migrations could not be ended yet", error=str(error))
        return failed

    def end_migrations(self, poll: ClusterPoll) -> None:
        """Undoes the migrations of nodes that are lost or rewound; ends those that can be neither undone nor finished.

        A move whose target is lost, or has forgotten the tablet, must not drop the source's rows: they may be all that
        is left. One whose source is lost cannot be cleaned up. One whose source is rewound can: that node's claims are
        settled like any other's.
        """
        snapshot = self._directory.snapshot()
        lost = {node.id for node in snapshot.nodes.values() if node.state is NodeState.LOST}
        rewound = {node.id for node in snapshot.nodes.values() if node.rewound}
        for record in snapshot.migrations.values():
            if record.finished or not (lost | rewound) & {record.source_node, record.target_node}:
                continue
            try:
                self._pool.steer("cancel", record.id)
            except BalancerError:  # it is being undone, or it is too late for that
                needed = record.source_node in lost or record.target_node in lost | rewound
                if needed and not _holds_writers(poll, record, lost) and self._pool.end(record.id):
                    self._finish(record, snapshot)

    def _finish(self, record: Migration, snapshot: Snapshot) -> None:
        why = "a node that it needs is lost or has gone back in time"
        detail = {**record.detail, FORGIVEN: True}  # not the tablet's fault: it may be migrated again at once
        ended = replace(record, state=str(State.FAILED), finished=True, error=why, detail=detail)
        reason = f"migration {record.id} ended: {why}"
        self._directory.commit(Transaction((Put(ended),), snapshot.version, reason, AUTHOR, self._leadership.epoch))

    def _look(self, report: NodeAnswer, judged: Snapshot) -> None:
        answer = report.poll
        if answer is None or report.health is Health.STANDBY or answer.identity is None:
            return
        if answer.identity.node != report.node:
            return  # another node's database: not ours to touch
        generation = judged.nodes[report.node].generation
        why = report.rewound or self._forgotten(report, answer, judged)
        if why:
            self._record(report.node, why, generation)
        closed = any(claim.migration == CLOSED for claim in answer.claims.others)
        if why or closed:
            snapshot = self._directory.snapshot()
            node = snapshot.nodes[report.node]
            if node.generation == generation:
                self._settle(node, answer, snapshot)
        elif not self._unmarked(answer):
            self._unguarded.pop(report.node, None)
        elif self._marking.get(report.node) is None:
            self._marking[report.node] = SHARED.submit(partial(self._mark, report.node, answer))

    def _forgotten(self, report: NodeAnswer, answer: NodePoll, judged: Snapshot) -> str:
        """Which tablet the node does not know although it had opened it; empty: none.

        It may have gone back by less than the time between two polls: then nothing else reveals it.
        """
        suspected = [found.tablet for found in report.disagreements if found.kind in _UNKNOWN]
        suspected += [
            record.targets[0].id
            for record in judged.migrations.values()
            if record.state == State.RETIRING and record.target_node == report.node
        ]
        missing = [number for number in suspected if number is not None]
        if missing:
            held = {claim.tablet for claim in answer.claims if claim.state in (OwnState.OWNED, OwnState.FENCED)}
            missing = [number for number in missing if number not in held]
        newest = self._directory.snapshot() if missing else judged
        for number in missing:
            before, after = judged.find_tablet(number), newest.find_tablet(number)
            # One owner and epoch on both sides of the poll, and no split or merge that has replaced it on the node.
            same = before is not None and after is not None and (before.node, before.epoch) == (after.node, after.epoch)
            if same and after and after.node == report.node and _opened(judged, number) and _opened(newest, number):
                return f"it has forgotten tablet {number}, which it had with epoch {after.epoch}"
        return ""

    def _record(self, name: str, why: str, generation: int) -> None:
        def propose(snapshot: Snapshot) -> tuple[Transaction | None, bool]:
            node = snapshot.nodes[name]
            if node.rewound or node.generation != generation:  # an operator has accepted it since the poll
                return None, False
            changed = Put(replace(node, rewound=why))
            reason = f"node {node.id} has gone back in time: {why}"
            return Transaction((changed,), snapshot.version, reason, AUTHOR, self._leadership.epoch), True

        if commit_on_newest(self._directory, propose, f"node {name} could not be recorded as rewound"):
            log.error("a node has gone back in time; its tablets are closed", node=name, why=why)

    def _settle(self, node: Node, answer: NodePoll, snapshot: Snapshot) -> None:
        acts = list(acts_on(node, answer, snapshot))
        for at in range(0, len(acts), BATCH):
            with closing(self._connected(node.id, answer)) as connection:
                self._fence(connection, node.id, acts[at : at + BATCH])
        if acts:
            log.warning("claims of a node were settled", node=node.id, tablets=len(acts), rewound=bool(node.rewound))

    def _fence(self, connection: Connection, node: str, acts: list[_Act]) -> None:
        opened: list[OwnedTablet] = []
        with node_transaction(connection, self._leadership.epoch, node, durable=True) as cursor:
            rows = {row.id: row for row in locked_rows(cursor, (act.claim.tablet for act in acts))}
            for act in acts:
                row = rows.get(act.claim.tablet)
                # A row that has changed since it was read is looked at again after the next poll.
                if row is not None and (row.epoch, row.state) == (act.claim.epoch, act.claim.state):
                    self._act(cursor, node, row, act)
                    opened += [row] * (act.word == "open")
        for row in opened:
            self._drop_triggers(connection, node, row)

    def _act(self, cursor: Cursor, node: str, row: OwnedTablet, act: _Act) -> None:
        epoch = self._leadership.epoch
        if act.word == "open":
            open_tablet(cursor, row, LOCK_TIMEOUT)
        elif act.owner is not None:
            give_away(cursor, row, act.owner.node, act.owner.epoch, leader_epoch=epoch, lock_timeout=LOCK_TIMEOUT)
        else:
            close_tablet(cursor, row, node, epoch, LOCK_TIMEOUT)

    def _drop_triggers(self, connection: Connection, node: str, row: OwnedTablet) -> None:
        """They are already disabled; dropping them waits for readers and need not succeed."""
        try:
            with node_transaction(connection, self._leadership.epoch, node) as cursor:
                drop_fence(cursor, row.partitions, LOCK_TIMEOUT)
        except Unavailable as error:
            log.info("disabled triggers stay for now", node=node, tablet=row.id, error=str(error))

    def _marked(self, nodes: Iterable[str]) -> dict[str, str]:
        """Waits a moment for the marks that are being written on these nodes; why some are not, by node.

        What was in the way of a node's last mark is reported until the next one has ended: it may wait for the same.
        """
        nodes = list(nodes)
        marking = {node: self._marking[node] for node in nodes if node in self._marking}
        SHARED.wait(list(marking.values()), MARK_PATIENCE)
        for node, question in marking.items():
            if not question.done():
                continue
            del self._marking[node]
            self._unguarded.pop(node, None)
            try:
                question.result()
            except Fenced:
                raise
            except BalancerError as error:
                log.warning("a node could not be guarded", node=node, error=str(error))
                self._unguarded[node] = str(error)
        return {node: self._unguarded[node] for node in nodes if node in self._unguarded}

    def _unmarked(self, answer: NodePoll) -> bool:
        known = answer.identity
        return known is not None and self._clock.now().timestamp() - known.mark >= MARK_EVERY

    def _mark(self, node: str, answer: NodePoll) -> None:
        with self._links.borrow(self._addresses(node)) as connection, deadline(connection, MARK_LONGEST):
            _upgrade(connection, answer)
            with node_transaction(connection, self._leadership.epoch, node, durable=True) as cursor:
                write_mark(cursor, self._clock.now().timestamp(), answer.identity.mark if answer.identity else 0)

    def _connected(self, node: str, answer: NodePoll) -> Connection:
        connection = connect(self._addresses(node), purpose="guard")
        _upgrade(connection, answer)
        return connection


def _upgrade(connection: Connection, answer: NodePoll) -> None:
    known = answer.identity
    if known is not None and known.schema_version < len(STEPS):
        install_schema(connection, known.cluster, known.node)


def _opened(snapshot: Snapshot, tablet: int) -> bool:
    """Whether its owner has certainly opened it: no migration has it, or one that only cleans up."""
    record = snapshot.migration_of(tablet)
    return record is None or (record.state == State.RETIRING and record.operation is MigrationKind.MOVE)


def _holds_writers(poll: ClusterPoll, record: Migration, lost: set[str]) -> bool:
    """Whether a migration that is being undone has still to lift its fence on the source."""
    if record.state != State.CANCELLING or record.source_node in lost:
        return False
    report = poll.nodes.get(record.source_node)
    claims = report.poll.claims.others if report is not None and report.poll is not None else ()
    return any(claim.state is OwnState.FENCED for claim in claims if claim.tablet in record.sources)


def acts_on(node: Node, answer: NodePoll, snapshot: Snapshot) -> Iterator[_Act]:
    """What a node's claims ask for, by the newest snapshot. Pure."""
    for claim in answer.claims:
        closed = claim.migration == CLOSED
        if claim.state is not OwnState.OWNED and not (
            claim.state is OwnState.FENCED and claim.tablet not in snapshot.busy
        ):
            continue
        tablet = snapshot.find_tablet(claim.tablet)
        elsewhere = tablet is not None and tablet.node != node.id and tablet.epoch > claim.epoch
        if elsewhere and (node.rewound or closed):
            yield _Act(claim, "give", tablet)
        elif node.rewound and not closed:
            yield _Act(claim, "close")
        elif closed and not node.rewound and tablet and (tablet.node, tablet.epoch) == (node.id, claim.epoch):
            yield _Act(claim, "open")
