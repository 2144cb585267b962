"""Keeps nodes that have gone back in time from doing harm. The leader calls it after every poll, in every mode: this is
not balancing.

What it does follows from the directory and the node's own rows alone, so any leader may repeat it at any time:

- a node that is found to have gone back is recorded as rewound *first*. The record outlives everything, while each of
  the signs may be overwritten by what comes next;
- a rewound node's claims that the directory has outdated are given away: the node says where the tablet is;
- its own tablets are closed: it is still their owner, and acknowledged writes are missing in them. To go on as if
  nothing had happened would mix new writes with old state; only a person can say that this is better than waiting;
- its migrations are cancelled, where that is still possible;
- a node that an operator has accepted (`balancer node rejoin`) is not rewound any more: what was closed is opened;
- a node that is well gets a mark about once a minute, by which it will be known.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import structlog

from balancer.clock import Clock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Node, Put, Tablet, Transaction
from balancer.directory.newest import commit_on_newest
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Fenced, Unavailable
from balancer.nodes.closed import MARK_EVERY, close_tablet, give_away, locked_rows, open_tablet, write_mark
from balancer.nodes.connection import Address, Connection, Cursor, connect
from balancer.nodes.fence import drop_fence
from balancer.nodes.leader import node_transaction
from balancer.nodes.objects import CLOSED
from balancer.nodes.poll import Claim, NodePoll
from balancer.nodes.schema import STEPS, OwnedTablet, OwnState, install_schema
from balancer.polling.poller import ClusterPoll, Health, NodeReport

log = structlog.get_logger()

BATCH = 20  # tablets per transaction: their partitions are locked together
LOCK_TIMEOUT = 1.0
AUTHOR = "balancer"


@dataclass(frozen=True, slots=True)
class _Act:
    """What is to be done about one claim. `owner` None: its own tablet."""

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
        cancel: Callable[[str], None],
        clock: Clock,
    ) -> None:
        """`cancel` asks a migration to be undone, and raises an error of ours where it is too late."""
        self._directory = directory
        self._leadership = leadership
        self._addresses = addresses
        self._cancel = cancel
        self._clock = clock

    def look(self, poll: ClusterPoll, judged: Snapshot) -> None:
        """Acts on what a poll has found by this snapshot. A node that is in the way is tried again after the next."""
        for report in poll.nodes.values():
            try:
                self._look(report, judged.nodes[report.node].generation)
            except Fenced:
                raise
            except BalancerError as error:
                log.warning("a node could not be guarded", node=report.node, error=str(error))

    def _look(self, report: NodeReport, generation: int) -> None:
        answer = report.poll
        if answer is None or report.health is Health.STANDBY or answer.identity is None:
            return
        if answer.identity.node != report.node:
            return  # another node's database: not ours to touch
        if report.rewound:
            self._record(report, generation)
        closed = any(claim.migration == CLOSED for claim in answer.claims)
        if report.rewound or closed:
            snapshot = self._directory.snapshot()
            node = snapshot.nodes[report.node]
            if node.generation == generation:
                self._settle(node, answer, snapshot)
        elif self._clock.now().timestamp() - answer.identity.mark >= MARK_EVERY:
            self._mark(report.node, answer)

    def _record(self, report: NodeReport, generation: int) -> None:
        def propose(snapshot: Snapshot) -> tuple[Transaction | None, bool]:
            node = snapshot.nodes[report.node]
            if node.rewound or node.generation != generation:  # an operator has accepted it since it was looked at
                return None, False
            changed = Put(replace(node, rewound=report.rewound))
            reason = f"node {node.id} has gone back in time: {report.rewound}"
            return Transaction((changed,), snapshot.version, reason, AUTHOR, self._leadership.epoch), True

        if commit_on_newest(self._directory, propose, f"node {report.node} could not be recorded as rewound"):
            log.error("a node has gone back in time; its tablets are closed", node=report.node, why=report.rewound)

    def _settle(self, node: Node, answer: NodePoll, snapshot: Snapshot) -> None:
        if node.rewound:
            self._cancel_migrations(node.id, snapshot)
        acts = list(acts_on(node, answer, snapshot))
        for at in range(0, len(acts), BATCH):
            with closing(self._connected(node.id, answer)) as connection:
                self._carry_out(connection, node.id, acts[at : at + BATCH])
        if acts:
            log.warning("claims of a node were settled", node=node.id, tablets=len(acts), rewound=bool(node.rewound))

    def _cancel_migrations(self, node: str, snapshot: Snapshot) -> None:
        for migration in snapshot.migrations.values():
            if not migration.finished and node in (migration.source_node, migration.target_node):
                try:
                    self._cancel(migration.id)
                except BalancerError as error:
                    log.info("a migration of a rewound node goes on", migration=migration.id, error=str(error))

    def _carry_out(self, connection: Connection, node: str, acts: list[_Act]) -> None:
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
        """They are disabled already; dropping them waits for readers and need not succeed."""
        try:
            with node_transaction(connection, self._leadership.epoch, node) as cursor:
                drop_fence(cursor, row.partitions, LOCK_TIMEOUT)
        except Unavailable as error:
            log.info("disabled triggers stay for now", node=node, tablet=row.id, error=str(error))

    def _mark(self, node: str, answer: NodePoll) -> None:
        with (
            closing(self._connected(node, answer)) as connection,
            node_transaction(connection, self._leadership.epoch, node, durable=True) as cursor,
        ):
            write_mark(cursor, self._clock.now().timestamp())

    def _connected(self, node: str, answer: NodePoll) -> Connection:
        connection = connect(self._addresses(node), purpose="guard")
        known = answer.identity
        if known is not None and known.schema_version < len(STEPS):
            install_schema(connection, known.cluster, known.node)
        return connection


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
