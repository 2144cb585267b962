"""Rolls messages between shards forward: delivers what senders have left, gives up what is refused, forgets the rest.

One of the leader's jobs calls `look` about once a second, and again while there is something to do; once a minute it
calls `forget`. A step done twice, or late, changes nothing: see `balancer/nodes/schema/messages.sql`. So a leader that
has lost its leadership does no harm, and the nodes refuse it anyway.

Keeps every node ready for messages: roots, grants, and the statements that the bundles' files declare.

The leader's housekeeping calls it. A node that joined, a file that changed, a role that was given rights: the next look
brings each in line. A node known to be right is not asked again for a while.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import psycopg
import structlog

from balancer.clock import Clock
from balancer.directory.contract import Leadership
from balancer.directory.identity import identity_of
from balancer.directory.locate import locate_key, parse_key
from balancer.directory.model import NodeState, Table, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Fenced
from balancer.features.messages import delivery as mail
from balancer.features.messages.enable import mail_leaf, message_handlers, message_roots, message_tables, tell_node
from balancer.naming import Name
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.schema.texts import KEPT
from balancer.nodes.session.addresses import address_in
from balancer.nodes.session.connection import Address, Connection, Cursor, connect
from balancer.nodes.session.holder import ConnectionHolder
from balancer.settings import Settings

log = structlog.get_logger()

SHUN_SECONDS = 5.0
"""How long a node that did not answer is left alone."""
LONGEST_WAIT = 300.0
"""Seconds between two tries of a message, at most."""


@dataclass
class NodeMail:
    """What a node's tablets have in their outboxes."""

    pending: int = 0
    failed: int = 0
    oldest: float = 0.0


@dataclass
class MailRound:
    """What one look has found and done."""

    nodes: dict[str, NodeMail] = field(default_factory=lambda: defaultdict(NodeMail))
    outcomes: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def settled(self) -> int:
        return self.outcomes["applied"] + self.outcomes["failed"]


class MessageService:
    """Under one leadership. For one thread at a time."""

    def __init__(self, leadership: Leadership, addresses: Callable[[str], Address], clock: Clock) -> None:
        self._leadership = leadership
        self._addresses = addresses
        self._clock = clock
        self._links = ConnectionHolder("messages")
        self._shunned: dict[str, float] = {}

    def close(self) -> None:
        self._links.close()

    def look(self, snapshot: Snapshot) -> MailRound:
        """Delivers what is due; whatever cannot be reached waits for the next look."""
        done = MailRound()
        tables = message_tables(snapshot)
        if not tables:
            done.nodes.update((node, NodeMail()) for node in snapshot.nodes)
            return done
        # Before any outbox is read: a ticket says that its server's clock was not later than that.
        tickets = {node: clock for node in _nodes(snapshot, tables) if (clock := self._ticket(node)) is not None}
        for table in tables:
            for node in sorted(tickets):
                done.nodes[node]  # also where nothing waits
                if snapshot.nodes[node].bundle == table.bundle:
                    self._look_at(snapshot, table, node, tickets, done)
        return done

    def forget(self, snapshot: Snapshot, *, kept: str = KEPT, after: str = "10 seconds") -> int:
        """Removes outcomes from inboxes by the rule of the argument; returns how many."""
        total = 0
        for table in message_tables(snapshot):
            for node in _nodes(snapshot, [table]):
                with self._forgiving(node, "old messages are not forgotten yet"):
                    self._mark(snapshot, table, node, after)
                    total += self._forget_on(snapshot, table, node, kept)
        return total

    def _ticket(self, node: str) -> datetime | None:
        if self._shunned.get(node, 0.0) > self._clock.monotonic():
            return None
        try:
            with self._connection(node) as connection:
                return mail.clock_of(connection)
        except BalancerError as error:
            self._shunned[node] = self._clock.monotonic() + SHUN_SECONDS
            log.warning("messages of a node wait", node=node, error=str(error))
            return None

    def _look_at(
        self, snapshot: Snapshot, table: Table, node: str, tickets: Mapping[str, datetime], done: MailRound
    ) -> None:
        outbox, _ = _roots(table)
        with self._forgiving(node, "messages wait"):
            with self._connection(node) as connection:
                found = mail.waiting(connection, outbox)
            here = done.nodes[node]
            for leaf in found:
                tablet = _owner(snapshot, table, node, 0, leaf.partition)
                if tablet is None:
                    continue  # of a tablet that has left: its owner has them
                here.pending += leaf.pending
                here.failed += leaf.failed
                here.oldest = max(here.oldest, leaf.oldest)
                if leaf.due:
                    with self._forgiving(node, "messages of a tablet wait"):
                        self._deliver_from(snapshot, table, tablet, tickets, done)

    def _deliver_from(
        self, snapshot: Snapshot, table: Table, tablet: Tablet, tickets: Mapping[str, datetime], done: MailRound
    ) -> None:
        leaf = mail_leaf(table, tablet, 0)
        with self._connection(tablet.node) as connection:
            keys = [column.name for column in table.key_columns]
            letters = mail.proven_letters(connection, (tablet.id, tablet.epoch), leaf, keys, table.name)
        applied: list[UUID] = []
        held: set[tuple[object, ...]] = set()  # queues whose first message could not be settled
        for letter in letters:
            if letter.queue in held:
                continue
            outcome, reason = self._outcome(snapshot, table, letter, tickets)
            done.outcomes[outcome] += 1
            if outcome == "applied":
                applied.append(letter.id)
                continue
            if outcome == "failed" and self._reversed(table, tablet, letter, reason):
                continue
            held.add(letter.queue)
            if outcome != "failed":
                wait = _back_off(letter) if outcome == "refused" else 1.0
                with self._at(tablet) as cursor:
                    mail.put_off(cursor, leaf, letter.id, wait, reason, counts=outcome == "refused")
        if applied:
            with self._at(tablet) as cursor:
                mail.settle_applied(cursor, leaf, applied)

    def _outcome(
        self, snapshot: Snapshot, table: Table, letter: mail.Letter, tickets: Mapping[str, datetime]
    ) -> tuple[str, str]:
        """What the target's owner says; `waiting` if it cannot say anything now."""
        try:
            target = snapshot.table(letter.target)
            at = locate_key(snapshot, letter.target, parse_key(target, letter.key))
            tablet = snapshot.tablet(at.tablet)
            if letter.tries >= mail.GIVE_UP:
                return self._give_up(table, target, tablet, letter, "an operator has given it up")
            if at.node not in tickets:
                return "waiting", f"node {at.node} does not answer"
            outcome, reason = self._deliver(table, tablet, letter, tickets[at.node])
            # One that was refused for the last time, or that an operator has given up on.
            if outcome == "refused" and letter.attempts is not None and letter.tries + 1 >= letter.attempts:
                return self._give_up(table, target, tablet, letter, reason)
        except Fenced:
            raise
        except BalancerError as error:
            return "waiting", str(error)
        return outcome, reason

    def _deliver(self, table: Table, tablet: Tablet, letter: mail.Letter, ticket: datetime) -> tuple[str, str]:
        trusted = self._addresses(tablet.node).trusts_owners
        with self._others_code(tablet) as cursor:
            outcome, reason = mail.deliver_letter(cursor, letter, table.name, tablet.node, ticket)
            mail.leave_others_code(cursor, trusted=trusted)
        known = outcome in ("applied", "failed", "refused")
        return (outcome, reason or "") if known else ("waiting", f"its target says that it is {outcome}")

    def _give_up(
        self, table: Table, target: Table, tablet: Tablet, letter: mail.Letter, reason: str
    ) -> tuple[str, str]:
        keys = [(column.name, str(column.type)) for column in target.key_columns]
        with self._at(tablet) as cursor:
            outcome, why = mail.fail_letter(
                cursor, mail_leaf(target, tablet, 1), keys, letter, sender=table.name, reason=reason
            )
        log.warning("a message was given up", id=str(letter.id), target=letter.target, outcome=outcome, reason=why)
        return outcome, why or ""

    def _reversed(self, table: Table, tablet: Tablet, letter: mail.Letter, reason: str) -> bool:
        """False: the reversal is refused, and will be retried."""
        trusted = self._addresses(tablet.node).trusts_owners
        try:
            with self._others_code(tablet) as cursor:
                mail.settle_failed(cursor, letter, table.name, reason)
                mail.leave_others_code(cursor, trusted=trusted)
        except Fenced:
            raise
        except BalancerError as error:
            log.warning("a message that was given up cannot be reversed", id=str(letter.id), error=str(error))
            why, leaf = f"{reason}; its reversal: {error}", mail_leaf(table, tablet, 0)
            with self._at(tablet) as cursor:
                mail.put_off(cursor, leaf, letter.id, _back_off(letter), why, counts=letter.tries < mail.GIVE_UP)
            return False
        return True

    def _mark(self, snapshot: Snapshot, table: Table, node: str, after: str) -> None:
        """Marks outcomes whose outbox rows are gone: the owners of their senders are asked first."""
        _, inbox = _roots(table)
        with self._connection(node) as connection:
            rows = mail.receipts(connection, inbox, after)
        known = [(_owner(snapshot, table, node, 1, at), one) for at, one in rows]
        found = [(tablet, one) for tablet, one in known if tablet is not None]
        senders: dict[int, list[tuple[Tablet, mail.Receipt]]] = defaultdict(list)
        for tablet, one in found:
            with self._forgiving(node, "a message's sender is not known"):
                key = parse_key(snapshot.table(one.sender), one.sender_key)
                senders[locate_key(snapshot, one.sender, key).tablet].append((tablet, one))
        for sender, theirs in senders.items():
            at = snapshot.tablet(sender)
            with self._forgiving(at.node, "messages are not known to be gone yet"):
                self._mark_those_of(snapshot, at, theirs)

    def _mark_those_of(self, snapshot: Snapshot, sender: Tablet, known: list[tuple[Tablet, mail.Receipt]]) -> None:
        leaf = mail_leaf(snapshot.tables[sender.table], sender, 0)
        with self._connection(sender.node) as connection:
            ids = [one.id for _, one in known]
            left = mail.proven_left(connection, (sender.id, sender.epoch), leaf, ids)
            # A sender that settles does not wait for the disk: its crash must not bring rows back after this.
            with node_transaction(connection, self._leadership.epoch, sender.node, durable=True) as cursor:
                mail.flush_log(cursor)
        gone: dict[int, list[UUID]] = defaultdict(list)
        for tablet, one in known:
            if one.id not in left:
                gone[tablet.id].append(one.id)
        for number, messages in gone.items():
            tablet = snapshot.tablet(number)
            with self._at(tablet) as cursor:
                mail.mark_gone(cursor, mail_leaf(snapshot.tables[tablet.table], tablet, 1), messages)

    def _forget_on(self, snapshot: Snapshot, table: Table, node: str, kept: str) -> int:
        _, inbox = _roots(table)
        with self._connection(node) as connection:
            names = mail.old_partitions(connection, inbox, kept)
        total = 0
        for tablet in (_owner(snapshot, table, node, 1, name) for name in names):
            if tablet is None:
                continue
            with self._at(tablet) as cursor:
                total += mail.forget_old(cursor, mail_leaf(table, tablet, 1), kept)
        return total

    @contextmanager
    def _connection(self, node: str) -> Iterator[Connection]:
        with self._links.borrow(self._addresses(node)) as connection:
            connection.prepare_threshold = None  # what is prepared does not outlive `forget_session`
            yield connection

    @contextmanager
    def _at(self, tablet: Tablet) -> Iterator[Cursor]:
        """A transaction on a tablet's owner, which has proven its ownership."""
        hold = mail.hold_statement((tablet.id, tablet.epoch))
        with (
            self._connection(tablet.node) as connection,
            node_transaction(connection, self._leadership.epoch, tablet.node, durable=True, together=[hold]) as cursor,
        ):
            yield cursor

    @contextmanager
    def _others_code(self, tablet: Tablet) -> Iterator[Cursor]:
        """The same, for what runs handlers."""
        hold = mail.hold_statement((tablet.id, tablet.epoch))
        with self._connection(tablet.node) as connection:
            with node_transaction(
                connection, self._leadership.epoch, tablet.node, durable=True, together=[hold]
            ) as cursor:
                yield cursor
            mail.forget_session(connection)

    @contextmanager
    def _forgiving(self, node: str, what: str) -> Iterator[None]:
        try:
            yield
        except Fenced:
            raise
        except (BalancerError, psycopg.Error) as error:
            log.warning(what, node=node, error=str(error))


def _back_off(letter: mail.Letter) -> float:
    """Seconds until a refused message is retried."""
    return float(min(2 ** min(letter.tries, 20), LONGEST_WAIT))


def _nodes(snapshot: Snapshot, tables: list[Table]) -> list[str]:
    bundles = {table.bundle for table in tables}
    here = (node for node in snapshot.nodes.values() if node.bundle in bundles)
    return sorted(node.id for node in here if node.state is not NodeState.LOST and not node.rewound)


def _roots(table: Table) -> tuple[Name, Name]:
    found = message_roots(table)
    return found.outbox, found.inbox


def _owner(snapshot: Snapshot, table: Table, node: str, which: int, partition: str) -> Tablet | None:
    """Whose outbox (0) or inbox (1) a partition on a node is; None: a tablet's that has left, or none's."""
    found = re.search(r"_t(\d+)$", partition)
    tablet = snapshot.find_tablet(int(found[1])) if found else None
    if tablet is None or (tablet.node, tablet.table) != (node, table.id):
        return None
    return tablet if mail_leaf(table, tablet, which).name == partition else None


SECONDS = 600.0
"""How long a node that was right is assumed to stay right."""


class MessageKeeper:
    """Under one leadership."""

    def __init__(self, leader_epoch: int, clock: Clock) -> None:
        self._epoch = leader_epoch
        self._clock = clock
        self._right: dict[str, tuple[str, float]] = {}

    def keep(self, snapshot: Snapshot, settings: Settings) -> None:
        """Brings every node in line; one out of reach waits."""
        tables = message_tables(snapshot)
        if not tables:
            return
        wanted = repr((tables, message_handlers(settings)))
        for bundle in settings.bundles.values():
            for node in bundle.nodes:
                then, at = self._right.get(node, ("", 0.0))
                if then != wanted or self._clock.monotonic() - at >= SECONDS:
                    self._bring(
                        address_in(settings, node, identity_of(snapshot)), snapshot, settings, bundle.name, wanted
                    )

    def _bring(self, address: Address, snapshot: Snapshot, settings: Settings, bundle: str, wanted: str) -> None:
        try:
            with (
                closing(connect(address, purpose="messages")) as connection,
                node_transaction(connection, self._epoch, address.node) as cursor,
            ):
                tell_node(cursor, snapshot, message_handlers(settings), bundle)
        except BalancerError as error:
            log.warning("a node is not ready for messages", node=address.node, error=str(error))
            return
        self._right[address.node] = wanted, self._clock.monotonic()
