"""Ends what clients have left prepared: transactions over several nodes whose client died or lost its connections.

The leader calls it after every poll, in every mode: prepared parts keep their locks, and moves wait for them. Nothing
is guessed: the home's decision row says how a transaction ends, see `balancer.nodes.schema.decisions`. If the home
cannot be asked, the transaction is *in doubt*: it is reported, and stays until the home is back or an operator decides.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import structlog

from balancer.directory.contract import Leadership
from balancer.directory.handover_record import former_names
from balancer.directory.model import NodeState
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Fenced, Refused, Unavailable
from balancer.naming import PreparedId, parse_prepared
from balancer.nodes.schema.decisions import (
    PreparedPart,
    decision_of,
    end_part,
    forget_decisions,
    old_decisions,
    prepared_parts,
)
from balancer.nodes.schema.leader_transaction import node_command, node_transaction
from balancer.nodes.session.connection import Address, connect, translated
from balancer.polling.node_poll import NodePoll
from balancer.polling.poller import ClusterPoll, Health

log = structlog.get_logger()

AGE = 10.0
"""Seconds for which a part is left to its client."""
AT_ONCE = 50
"""Parts that one look ends: the tick must not be held up."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A part that could not be ended, and why."""

    node: str
    part: PreparedPart
    age: float
    why: str


class AtomicRecovery:
    """Under one leadership."""

    def __init__(self, leadership: Leadership, addresses: Callable[[str], Address], cluster: Callable[[], str]) -> None:
        self._leadership = leadership
        self._addresses = addresses
        self._cluster = cluster

    def look(self, poll: ClusterPoll, snapshot: Snapshot) -> tuple[Doubt, ...]:
        """Ends the parts that a poll has found; returns those that it could not."""
        found = [
            found
            for report in poll.nodes.values()
            for found in self._left(report.node, report.health, report.poll, former_names(snapshot))
        ]
        doubts = []
        unreachable: dict[str, str] = {}  # homes that did not answer this time: each costs a time-out
        for node, part, named, age in sorted(found, key=lambda one: -one[3])[:AT_ONCE]:
            why = unreachable.get(named.home, "")
            try:
                if not why:
                    self._end(node, part, named, snapshot)
                    continue
            except Fenced:
                raise
            except _HomeUnavailable as error:
                why = unreachable[named.home] = str(error)
            except BalancerError as error:
                why = str(error)
            doubts.append(Doubt(node, part, age, why))
            log.warning("a transaction over several nodes is in doubt", node=node, id=part.gid, age=age, why=why)
        return tuple(doubts)

    def decide(self, transaction: str, home: str, snapshot: Snapshot, *, commits: bool, reason: str) -> str:
        """On an operator's word: writes the decision at the home if that can be reached, ends every part that is left,
        and says what was done. Raises `Refused` if the home says otherwise."""
        try:
            decided = self._ask(transaction, home, reason, commits=commits)
        except Unavailable as error:
            log.warning("decided without its home", transaction=transaction, home=home, error=str(error))
            decided = commits
        if decided != commits:
            word = "committed" if decided else "given up"
            raise Refused(f"node {home} says that transaction {transaction} was {word}: the leader ends it so")
        ended = [self._end_everywhere(node, transaction, commits) for node in sorted(snapshot.nodes)]
        return f"{sum(ended)} parts of transaction {transaction} {'committed' if commits else 'rolled back'}"

    def forget(self, snapshot: Snapshot) -> int:
        """Removes decisions that are a day old, if no node has a part of them; returns how many.

        The parts are looked for after the decisions were read: a commit's parts were prepared before it.
        """
        old: dict[str, list[str]] = {}
        for node in sorted(snapshot.nodes):
            if snapshot.nodes[node].state is not NodeState.LOST:
                with closing(connect(self._addresses(node), purpose="atomic")) as connection, translated(node):
                    old[node] = old_decisions(connection)
        if not any(old.values()):
            return 0
        left = set(self._transactions_left(snapshot))
        for node, transactions in old.items():
            gone = [one for one in transactions if one not in left]
            if gone:
                with (
                    closing(connect(self._addresses(node), purpose="atomic")) as connection,
                    node_transaction(connection, self._leadership.epoch, node) as cursor,
                ):
                    forget_decisions(cursor, gone)
        return sum(map(len, old.values()))

    def _transactions_left(self, snapshot: Snapshot) -> Iterator[str]:
        """Every node must answer: one that does not may have a part."""
        for node in sorted(snapshot.nodes):
            with closing(connect(self._addresses(node), purpose="atomic")) as connection, translated(node):
                parts = prepared_parts(connection)
            yield from (named.transaction for part in parts if (named := parse_prepared(part.gid)) is not None)

    def _left(
        self, node: str, health: Health, answer: NodePoll | None, former: set[str]
    ) -> Iterator[tuple[str, PreparedPart, PreparedId, float]]:
        if answer is None or health is Health.STANDBY:
            return
        for part in answer.prepared:
            named = parse_prepared(part.gid)
            age = (answer.facts.now - part.since).total_seconds()
            # What another cluster or program has prepared here is its own business; but a client of the directory that
            # handed the node over may have begun before it knew.
            known = named is not None and named.cluster in {self._cluster(), *former} and named.node == node
            if named is not None and known and age >= AGE:
                yield node, part, named, age

    def _end(self, node: str, part: PreparedPart, named: PreparedId, snapshot: Snapshot) -> None:
        home = snapshot.nodes.get(named.home)
        if home is None or home.state is NodeState.LOST:
            raise _HomeUnavailable(f"its home, node {named.home}, is not in the cluster any more")
        if home.rewound:
            raise _HomeUnavailable(f"its home, node {named.home}, has gone back in time and may have forgotten")
        try:
            commits = self._ask(named.transaction, named.home, "left behind by its client", commits=False)
        except Unavailable as error:
            raise _HomeUnavailable(f"its home cannot be asked: {error}") from error
        if self._end_one(node, part.gid, part.role, commits):
            log.info("a transaction over several nodes was ended", node=node, id=part.gid, commits=commits)

    def _ask(self, transaction: str, home: str, reason: str, *, commits: bool) -> bool:
        with (
            closing(connect(self._addresses(home), purpose="atomic")) as connection,
            node_transaction(connection, self._leadership.epoch, home, durable=True) as cursor,
        ):
            cursor.execute("SET LOCAL lock_timeout TO '2s'")
            return decision_of(cursor, transaction, reason, commits=commits)

    def _end_one(self, node: str, gid: str, role: str, commits: bool) -> bool:
        with (
            closing(connect(self._addresses(node), purpose="atomic")) as connection,
            node_command(connection, self._leadership.epoch, node),
        ):
            return end_part(connection, gid, role, commits=commits)

    def _end_everywhere(self, node: str, transaction: str, commits: bool) -> int:
        with closing(connect(self._addresses(node), purpose="atomic")) as connection, translated(node):
            parts = prepared_parts(connection)
        mine = [part for part in parts if (named := parse_prepared(part.gid)) and named.transaction == transaction]
        return sum(self._end_one(node, part.gid, part.role, commits) for part in mine)


class _HomeUnavailable(Unavailable):
    """Nothing that has this home can be ended now."""
