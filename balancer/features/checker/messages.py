"""Messages between shards that are neither applied nor in transit: checks both ends of each.

What the two ends may say, and when, is the argument of `nodes/schema/messages.sql`. Each end is read on a node that
proves to own its tablet, one after the other, because the two are on different nodes; the order of the reads
distinguishes what is settled, dismissed or forgotten between them from damage:

 - "Failed" in an outbox was in the inbox before, and stays there for two hours longer than the outbox row; so the
   outbox is read first.
 - An inbox that has marked a message as gone has seen its outbox row gone, for good; so the outbox is read again.
 - "Failed" in an inbox has its outbox row until somebody dismisses it, which tells the inbox first; so the inbox is
   read again.

A message that was deleted at its sender before it was applied leaves no trace, and is not found here.

Questions of the consistency checker about the messages of one tablet, some pages at a time. Only reads.

Called inside a transaction that has proven to be the owner's (`evidence`). Outboxes and inboxes are our own, so
reading them runs nobody else's code.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from psycopg import sql

from balancer.directory.locate import locate_key, parse_key
from balancer.directory.model import Table, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Refused, Unavailable, UserError
from balancer.features.checker.evidence import ATTEMPTS, PAUSE, CheckScope, HeldTablet, NotHeld, holding, on_owner
from balancer.features.checker.rows import page_after, tablet_ids
from balancer.features.messages.enable import mail_leaf, message_tables
from balancer.features.messages.roots import KeyColumns
from balancer.naming import Name
from balancer.nodes.session.connection import Cursor
from balancer.nodes.tablets.checksum import pages
from balancer.policies.check_options import CheckKind
from balancer.policies.checking import Anomaly, CheckResult, CheckUnit
from balancer.untrusted import quoted

PAGES = 256
"""Pages of an outbox or inbox that one look reads: 2 MB, each of whose messages is looked up at its other end."""


class SentRow(NamedTuple):
    """A message in an outbox."""

    id: UUID
    sender_key: list[str]
    target: str
    key: list[str]
    name: str
    state: str
    age: float
    """Seconds since it was sent."""
    known: bool
    """True if this node knows what the message does, or has not been told yet which messages there are."""
    reason: str | None


class KnownOutcome(NamedTuple):
    """A message in an inbox."""

    id: UUID
    outcome: str
    gone: bool
    dismissed: bool


class Unreversed(NamedTuple):
    """A message that was given up, in an inbox."""

    id: UUID
    key: list[str]
    sender: str
    sender_key: list[str]


class MailPage(NamedTuple):
    """What some pages have."""

    rows: list[Any]
    next_page: int
    """0: these were the last."""


# A node that knows the sender's table was told about its messages in the same transaction.
_SENT = """
SELECT t.message_id, ARRAY[{keys}], t.message_target, t.message_key, t.message_name, t.message_state,
       extract(epoch FROM clock_timestamp() - t.message_sent)::float8,
       EXISTS (SELECT FROM balancer.message_handler h
               WHERE (h.target, h.name, h.sender) = (t.message_target, t.message_name, {sender}))
       OR NOT EXISTS (SELECT FROM balancer.message_table m WHERE m.name = {sender}),
       t.message_reason
FROM ONLY {leaf} AS t WHERE {pages} ORDER BY t.message_sent
"""
_UNREVERSED = """
SELECT t.message_id, ARRAY[{keys}], t.message_sender, t.message_sender_key
FROM ONLY {leaf} AS t WHERE {pages} AND t.message_outcome = 'failed' AND NOT t.message_dismissed
ORDER BY t.message_at
"""


_OUTCOME = sql.SQL("t.message_outcome, t.message_gone IS NOT NULL, t.message_dismissed")
_STATE = sql.SQL("t.message_state")


def sent_rows(cursor: Cursor, leaf: Name, keys: Sequence[str], sender: str, first: int) -> MailPage:
    """The messages in these pages of a tablet's outbox, oldest first."""
    end = page_after(cursor, leaf, first, PAGES)
    statement = sql.SQL(_SENT).format(
        keys=_texts(keys), sender=sql.Literal(sender), leaf=leaf.identifier, pages=pages(first, end or None)
    )
    return MailPage([SentRow(*row) for row in cursor.execute(statement).fetchall()], end)


def unreversed(cursor: Cursor, leaf: Name, keys: Sequence[str], first: int) -> MailPage:
    """Those in these pages of a tablet's inbox that were given up, and that nobody has dismissed at their sender."""
    end = page_after(cursor, leaf, first, PAGES)
    statement = sql.SQL(_UNREVERSED).format(keys=_texts(keys), leaf=leaf.identifier, pages=pages(first, end or None))
    return MailPage([Unreversed(*row) for row in cursor.execute(statement).fetchall()], end)


def outcomes_of(
    cursor: Cursor, leaf: Name, keys: KeyColumns, wanted: Mapping[UUID, Sequence[str]]
) -> dict[UUID, KnownOutcome]:
    """What a tablet's inbox knows about these messages, each with the key that it was sent to."""
    rows = _found(cursor, leaf, keys, wanted, _OUTCOME)
    return {row[0]: KnownOutcome(*row) for row in rows}


def states_of(cursor: Cursor, leaf: Name, keys: KeyColumns, wanted: Mapping[UUID, Sequence[str]]) -> dict[UUID, str]:
    """What a tablet's outbox says about these messages, each with the key that it was sent from."""
    return {row[0]: str(row[1]) for row in _found(cursor, leaf, keys, wanted, _STATE)}


def _found(
    cursor: Cursor, leaf: Name, keys: KeyColumns, wanted: Mapping[UUID, Sequence[str]], columns: sql.SQL
) -> list[tuple[Any, ...]]:
    """Finds them by the primary key, whose last column alone has no index."""
    places = [sql.Identifier(f"k{number}") for number in range(len(keys))]
    same = [
        sql.SQL("t.{} = w.{}::" + kind).format(sql.Identifier(name), place)
        for (name, kind), place in zip(keys, places, strict=True)
    ]
    statement = sql.SQL(
        "SELECT t.message_id, {} FROM unnest(%s::uuid[]{}) AS w (id, {})"
        " JOIN ONLY {} AS t ON {} AND t.message_id = w.id"
    ).format(
        columns,
        sql.SQL(", %s::text[]" * len(keys)),
        sql.SQL(", ").join(places),
        leaf.identifier,
        sql.SQL(" AND ").join(same),
    )
    values = [[key[number] for key in wanted.values()] for number in range(len(keys))]
    return cursor.execute(statement, (list(wanted), *values)).fetchall()


def _texts(keys: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("t.{}::text").format(sql.Identifier(name)) for name in keys)


_OUTBOX, _INBOX = 0, 1
_EXAMPLES = 3
_UNTOLD = 60.0  # seconds: a node to which a tablet has moved may hear of a new message only now
Answer = TypeVar("Answer")
Ends = Mapping[UUID, Sequence[str]]
"""Messages, each with the key that its other end is at."""


@dataclass(frozen=True, slots=True)
class _Found:
    """Messages of one tablet with the same trouble."""

    about: str
    what: str
    messages: list[Any]
    advice: str


def tablets_with_messages(ground: CheckScope, snapshot: Snapshot) -> Sequence[int]:
    """The tablets of tables that take part in messages."""
    return tablet_ids(ground, snapshot, message_tables(snapshot))


def look_at_messages(ground: CheckScope, unit: CheckUnit) -> CheckResult:
    """The outbox of a tablet (item 0), then its inbox (item 1), against the other ends."""
    read: list[tuple[Table, Tablet, MailPage]] = []

    def look(held: HeldTablet) -> CheckResult:
        table, tablet = held.table, held.tablet
        if table.message_roots is None:
            return CheckResult()
        page = _read(held, unit.item, unit.page if unit.epoch == tablet.epoch else 0)
        read.append((table, tablet, page))
        return CheckResult(rows=len(page.rows), next_page=page.next_page, epoch=tablet.epoch, more=unit.item == _OUTBOX)

    seen = on_owner(ground, unit.subject, look)
    for table, tablet, page in read:
        judge = _judge_outbox if unit.item == _OUTBOX else _judge_inbox
        try:
            found = list(judge(ground, table, tablet, page.rows))
        except BalancerError as error:
            return replace(seen, unchecked=f"messages of tablet {tablet.id}: {error}")
        return replace(seen, anomalies=tuple(_anomaly(table, tablet, unit.item, one) for one in found if one.messages))
    return seen


def _read(held: HeldTablet, which: int, first: int) -> MailPage:
    table = held.table
    leaf, keys = mail_leaf(table, held.tablet, which), [column.name for column in table.key_columns]
    if which == _OUTBOX:
        return sent_rows(held.cursor, leaf, keys, table.name, first)
    return unreversed(held.cursor, leaf, keys, first)


def _judge_outbox(ground: CheckScope, table: Table, tablet: Tablet, rows: Sequence[SentRow]) -> Iterator[_Found]:
    snapshot = ground.snapshot()
    aimless = [row for row in rows if row.state == "pending" and not _has_target(snapshot, row)]
    rest = [row for row in rows if _has_target(snapshot, row)]
    unknown = [row for row in rest if row.state == "pending" and not row.known and row.age > _UNTOLD]
    limit = ground.bundle.checks.message_age
    late = [row for row in rest if row.state == "pending" and row.age > limit and row not in unknown]
    yield from _contradictions(ground, table, tablet, rest)
    yield _Found(
        "target",
        f"wait for table {_names(row.target for row in aimless)}, which takes no messages, or not for such a key",
        aimless,
        "make it ready again (balancer messages enable); else reverse them by hand and delete them from the outbox",
    )
    yield _Found(
        "handler",
        f"wait for what no bundle's file declares any more: {_names(row.name for row in unknown)}",
        unknown,
        "declare it again under [tables.NAME.messages], then `balancer messages enable`",
    )
    reasons = [row.reason for row in late if row.reason]
    why = quoted(reasons[0]) if reasons else "nobody has tried"
    yield _Found(
        "age",
        f"have waited for more than {limit:g} s, the oldest for {late[0].age if late else 0:.0f} s: {why}",
        late,
        "`balancer messages list` says why each waits, `balancer messages give-up ID` reverses it; is there a leader?",
    )


def _contradictions(ground: CheckScope, table: Table, tablet: Tablet, rows: Sequence[SentRow]) -> Iterator[_Found]:
    known = _at_other_ends(ground, rows, lambda row: (row.target, row.key), _INBOX, outcomes_of)
    lost = [row for row in rows if row.state == "failed" and row.id not in known]
    both = [row for row in rows if row.state == "failed" and row.id in known and known[row.id].outcome == "applied"]
    marked = [row for row in rows if row.id in known and known[row.id].gone]
    if not (lost or both or marked):
        return
    suspects = {row.id: row.sender_key for row in (*lost, *both, *marked)}
    still = _asked(ground, table.name, suspects, _OUTBOX, states_of)
    yield _Found(
        "forgotten",
        "were given up and reversed, but their targets do not know them",
        [row for row in lost if still.get(row.id) == "failed"],
        "did the target's node lose data? see whether they were applied there, then `balancer messages dismiss ID`",
    )
    yield _Found(
        "both",
        "were reversed although their targets have applied them",
        [row for row in both if still.get(row.id) == "failed"],
        "undo one of the two by hand, then `balancer messages dismiss ID`",
    )
    yield _Found(
        "marked",
        "are still there, and their targets will forget them: they could be applied twice",
        [row for row in marked if row.id in still and row not in both],
        "UPDATE the target's inbox SET message_gone = NULL for them, within two hours; did this node lose data?",
    )


def _judge_inbox(ground: CheckScope, table: Table, tablet: Tablet, rows: Sequence[Unreversed]) -> Iterator[_Found]:
    snapshot = ground.snapshot()
    senders = {one.name for one in message_tables(snapshot)}
    mine = [row for row in rows if row.sender in senders]
    there = _at_other_ends(ground, mine, lambda row: (row.sender, row.sender_key), _OUTBOX, states_of)
    suspects = {row.id: row.key for row in mine if row.id not in there}
    again = _asked(ground, table.name, suspects, _INBOX, outcomes_of)
    stand = {one.id for one in again.values() if one.outcome == "failed" and not one.dismissed}
    yield _Found(
        "unreversed",
        "were given up here, and their senders do not have them: they were not reversed",
        [row for row in mine if row.id in stand],
        "reverse them by hand at their senders' keys (message_sender_key), then SET message_dismissed = true here",
    )


def _has_target(snapshot: Snapshot, row: SentRow) -> bool:
    try:
        table = snapshot.table(row.target)
        locate_key(snapshot, row.target, parse_key(table, row.key))
    except UserError:
        return False
    return table.message_roots is not None


def _at_other_ends(
    ground: CheckScope,
    rows: Sequence[Any],
    other_end: Callable[[Any], tuple[str, list[str]]],
    which: int,
    read: Callable[[Cursor, Name, KeyColumns, Ends], dict[UUID, Answer]],
) -> dict[UUID, Answer]:
    by_table: dict[str, dict[UUID, Sequence[str]]] = defaultdict(dict)
    for row in rows:
        table, key = other_end(row)
        by_table[table][row.id] = key
    return {
        message: answer
        for table, wanted in by_table.items()
        for message, answer in _asked(ground, table, wanted, which, read).items()
    }


def _asked(
    ground: CheckScope,
    name: str,
    wanted: Ends,
    which: int,
    read: Callable[[Cursor, Name, KeyColumns, Ends], dict[UUID, Answer]],
) -> dict[UUID, Answer]:
    """What the owners of these keys say, wherever they are by now. Raises `BalancerError` if one does not answer."""
    left, found = dict(wanted), dict[UUID, Answer]()
    for _ in range(ATTEMPTS):
        snapshot = ground.snapshot()
        table = snapshot.table(name)
        if table.message_roots is None:
            raise Refused(f"table {name} takes no messages any more")
        columns = [(column.name, str(column.type)) for column in table.key_columns]
        for tablet, ends in _by_tablet(snapshot, table, left):
            try:
                with holding(ground, tablet) as cursor:
                    found |= read(cursor, mail_leaf(table, tablet, which), columns, ends)
            except NotHeld:
                continue
            left = {message: key for message, key in left.items() if message not in ends}
        if not left:
            return found
        ground.clock.sleep(PAUSE)
    raise Unavailable(f"tablets of table {name} were moving each time they were checked")


def _by_tablet(snapshot: Snapshot, table: Table, ends: Ends) -> list[tuple[Tablet, Ends]]:
    grouped: dict[int, dict[UUID, Sequence[str]]] = defaultdict(dict)
    for message, key in ends.items():
        grouped[locate_key(snapshot, table.name, parse_key(table, key)).tablet][message] = key
    return [(snapshot.tablet(number), theirs) for number, theirs in grouped.items()]


def _anomaly(table: Table, tablet: Tablet, which: int, found: _Found) -> Anomaly:
    assert table.message_roots is not None
    leaf, count = mail_leaf(table, tablet, which), len(found.messages)
    examples = ", ".join(str(row.id) for row in found.messages[:_EXAMPLES])
    return Anomaly(
        CheckKind.MESSAGES,
        f"{count} messages in {leaf} on node {tablet.node} {found.what}, such as {examples}",
        table=table.name,
        tablet=tablet.id,
        node=tablet.node,
        root=table.roots[table.message_roots[which]],
        count=count,
        advice=found.advice,
        about=found.about,
    )


def _names(names: Iterator[str]) -> str:
    return ", ".join(quoted(name) for name in sorted(set(names))[:_EXAMPLES])
