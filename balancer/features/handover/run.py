"""Hands whole bundles from one directory to another, while applications keep writing. Called by the command line.

The giver G has the bundle's records; the taker T is to have them. The process that hands over leads neither: it commits
as operators do, on the newest version; the daemons of both may run, or not.

Order, each step recorded before its effect (G's record is `handover_record`, one for each bundle, all alike):

    closed     G: the record, and row ids closed, in one commit that is refused while a migration runs
    (copy)     T: head (bundle, nodes, a record `arriving`), each table with its tablets and its ids closed, history
    changing   G: from here on there is no way back
    (nodes)    each node changes hands in a transaction of its own: `features.handover.statements`
    (arrival)  T: ids opened above all that G has given, the record removed; a plain pause stays, for the operator
    gone       G: its records are a signpost, until `forget`

The argument
============

 1. *At any moment at most one directory's leader acts on a node*: the one whose identity the node has. Each step of a
    leader compares it under the row's lock, which the change of hands takes exclusively. No directory, clock, lease or
    epoch is part of this; a leader that is late, cut off, of an older version or on an old connection is refused too.
 2. *What the taker has is what the node has.* G's records cannot change once `closed` is committed: every commit is
    checked against the newest version, and one that touches the bundle is refused (`directory/handover_record.faults`).
    A leader of an older version does not know this check; so the node itself is compared with the copied records, each
    tablet with its epoch, nothing incoming, nothing fenced, under the locks of 1. A difference stops the hand-over
    there.
 3. *Nothing is under way*: a first record is refused while a migration of the bundle is unfinished, by the version that
    it is committed on, and after it none can begin. Imports, schema changes and commands need commits on the bundle,
    which are refused from then on; the close is followed by another check for those that began before.
 4. *The taker's leader does nothing before all nodes are its own*: until arrival its record closes the bundle there in
    the same way, and each node refuses it until that very node has changed hands.
 5. *Ids*: G's are closed with the first commit; a client that takes a block reads G's counter after taking it, so it
    got ids only if it took the block before the close. Blocks are counted after the close; T's ids begin above them,
    and are closed until arrival. So at no moment do both hand out ids, and undoing opens G's only where T's were never
    opened.
 6. *A way back exists until `changing`*: undoing and changing are both written over `closed`, by compare-and-set; one
    of them loses, and no node is touched before `changing` is written. After it every step is repeated until it is
    done; each finds what was done before (the node's row, T's record, G's record) and skips it. A process that comes
    late, when another has ended the hand-over, goes by its id: the bundle may be on its way back. A node that is
    meanwhile gone for good is left out on an operator's word and arrives as a lost one; should it come back, 1 keeps
    T's leader off it until the hand-over is run once more, and the record keeps G's off.
 7. *Applications* go by proofs, which nodes give by tablet and epoch, and these do not change here. So G's map stays
    right until T's leader moves something; then a node says that the tablet is not there, and G's record says where to
    look. Transactions over several keys and messages need a leader to finish them, so a router on G refuses them.

Which records of a directory belong to bundles that are handed over, as changes of either directory. Pure values.

Called by `run`, which says in what order, and by the checks before it, to see whether they fit into a commit.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import uuid4

from balancer.directory.contract import Directory, commit_on_newest
from balancer.directory.handover_record import (
    ARRIVING,
    CHANGING,
    CLOSED,
    FORGETTING,
    FORMER,
    GONE,
    UNDOING,
    WORD,
    HandoverRecord,
    handover_of,
    key_of_handover,
)
from balancer.directory.identity import made_identity
from balancer.directory.invariants import CLOSED_IDS, TABLET_COUNTER
from balancer.directory.model import Change, Counter, NodeState, Pause, Put, RecordKind, Remove, Table, Transaction
from balancer.directory.snapshot import BLOCK, Snapshot, counter_of
from balancer.errors import Conflict, Refused, Unavailable
from balancer.features.handover.statements import DirectoryIdentity, change_hands, in_hands_of
from balancer.features.tables.adopt import TABLE_COUNTER
from balancer.naming import cluster_name
from balancer.nodes.session.connection import Address, Connection, connect, is_up
from balancer.planner.day_profile import topic_of
from balancer.polling.poller import TOPIC as FOOTINGS

_HISTORY_AT_ONCE: Final = 20


@dataclass(frozen=True)
class HandoverSide:
    """One of the two directories."""

    url: str
    directory: Directory

    @property
    def cluster(self) -> str:
        return cluster_name(self.url)


@dataclass
class HandingOver:
    """Some bundles on their way from one directory to another; in one process."""

    giver: HandoverSide
    taker: HandoverSide
    bundles: tuple[str, ...]
    addresses: Callable[[str], Address]
    author: str
    observe: Callable[[str], None] = field(default=lambda step: None)
    """Is told of each step before its effect."""

    def record(self) -> HandoverRecord | None:
        """How far it is by the giver's word; `Refused` if the bundles do not go together."""
        snapshot = self.giver.directory.snapshot()
        found = {bundle: handover_of(snapshot, bundle) for bundle in self.bundles}
        records = set(map(repr, found.values()))
        first = found[self.bundles[0]]
        if len(records) > 1 or (first is not None and set(first.with_it) != set(self.bundles)):
            together = sorted({name for one in found.values() if one for name in one.with_it})
            raise Refused(f"these bundles are handed over together, name all of them: {' '.join(together)}")
        if first is not None and first.to != self.taker.url:
            raise Refused(f"{first.sentence(self.bundles[0])}; not to {self.taker.url}")
        return first

    def run(self, check: Callable[[bool], Sequence[str]], lost: Sequence[str] = ()) -> HandoverRecord:
        """From where it is to its end. `check` says what is in the way, before and after the bundle is closed.

        `lost`: nodes that are gone for good since nodes began to change hands. They arrive as lost ones.
        """
        if lost:
            self._check_lost(self.record(), lost)
        record = self.record() or self._close(check(False))
        if record.state == UNDOING:
            raise Refused("it is being undone: run it with --undo until that has ended")
        if record.state == GONE:
            self._change(record)  # a standby that was promoted, or a backup, may have forgotten the change
        if record.state in (GONE, FORGETTING):
            return record
        if record.state == CLOSED:
            if wrong := check(True):
                raise Refused(f"{'; '.join(wrong)}. The bundle stays closed: fix it and run this again, or use --undo")
            self._copy(record)
            record = self._save(record, CHANGING)
        self._change(record, lost)
        self._arrive(record, lost)
        return self._save(record, GONE)

    def _check_lost(self, record: HandoverRecord | None, lost: Sequence[str]) -> None:
        if record is None or record.state != CHANGING:
            raise Refused(
                "a node is left out only while its nodes change hands: before, use --undo; afterwards,"
                " run `balancer node lost` in the other directory"
            )
        mine = nodes_with_tablets(self.giver.directory.snapshot(), self.bundles)
        for node in lost:
            if node not in mine:
                raise Refused(f"{self._what} has no node {node}")
            self.addresses(node)  # one that the configuration does not name cannot be asked, but is not lost for that
            try:
                self.connect(node).close()
            except Unavailable as error:
                if is_up(error.why):
                    raise Refused(f"node {node} answers, and {error.why.removeprefix('it ')}: it is not lost") from None
                continue
            raise Refused(f"node {node} answers: it is not lost")

    def undo(self) -> None:
        """Undoes it, as long as no node can have changed hands."""
        record = self.record()
        if record is None:
            self._clear_taker()
            return
        if record.state not in (CLOSED, UNDOING):
            raise Refused("its nodes are changing hands, or have: there is no way back; run it again without --undo")
        record = self._save(record, UNDOING) if record.state == CLOSED else record
        self._remove_from(self.taker, ARRIVING, record)
        self.observe("opening")
        reason = f"the hand-over of {', '.join(self.bundles)} is undone"

        def propose(snapshot: Snapshot) -> tuple[Transaction | None, None]:
            marks = [key for key in map(key_of_handover, self.bundles) if key in snapshot.pauses]
            ids = [Put(Counter(f"ids {table}", next_)) for table, next_ in record.ids.items()]
            changes: list[Change] = [*(Remove(RecordKind.PAUSE, key) for key in marks), *ids]
            return self._transaction(changes, snapshot, reason) if marks else None, None

        commit_on_newest(self.giver.directory, propose, "it could not be undone")

    def _clear_taker(self) -> None:
        """Removes what was copied by a process that did not know yet that it was undone. No node can have changed
        hands: that needs the giver's record. They are asked anyway, in case an old backup of the giver lacks it."""
        taker, hands = self.taker.directory.snapshot(), self._hands(self.giver)
        mark = handover_of(taker, self.bundles[0])
        if mark is None or (mark.state, mark.identity) != (ARRIVING, hands.identity):
            raise Refused("no hand-over of this bundle has begun")
        for node in nodes_with_tablets(taker, self.bundles):
            with closing(self.connect(node)) as connection:
                if not in_hands_of(connection, node, hands):
                    raise Refused(f"node {node} has changed hands, and {self.giver.url} knows nothing of it")
        self._remove_from(self.taker, ARRIVING, mark)

    def forget(self) -> None:
        """Removes the signpost, with all records of the bundles, from the giver."""
        record = self.record()
        if record is None or record.state not in (GONE, FORGETTING):
            raise Refused("only what has wholly been handed over can be forgotten")
        record = self._save(record, FORGETTING) if record.state == GONE else record
        self._remove_from(self.giver, FORGETTING, record)

    # The steps.

    def _close(self, wrong: Sequence[str]) -> HandoverRecord:
        if wrong:
            raise Refused("; ".join(wrong))
        made_identity(self.author, self.giver.directory)
        identity = made_identity(self.author, self.taker.directory)
        number = uuid4().hex[:12]
        self.observe("closing")

        def propose(snapshot: Snapshot) -> tuple[Transaction, HandoverRecord]:
            if any(handover_of(snapshot, bundle) for bundle in self.bundles):
                raise Conflict("another process hands it over")
            tables = [table for table in snapshot.tables.values() if table.bundle in self.bundles]
            ids = {str(table.id): counter_of(snapshot, table.id).next for table in tables}
            made = HandoverRecord(number, CLOSED, self.taker.url, identity, self.bundles, ids)
            closed = [Put(Counter(f"ids {table}", CLOSED_IDS)) for table in ids]
            marks = [Put(made.pause(bundle, self.author)) for bundle in self.bundles]
            return self._transaction([*marks, *closed], snapshot, f"{self._what} begins"), made

        return commit_on_newest(self.giver.directory, propose, f"{self._what} could not be recorded")

    def _save(self, record: HandoverRecord, state: str) -> HandoverRecord:
        """Replaces the state that this process knows, unless another one doing the same hand-over has done so."""
        self.observe(state)
        saved = replace(record, state=state)

        def propose(snapshot: Snapshot) -> tuple[Transaction | None, HandoverRecord]:
            known = handover_of(snapshot, self.bundles[0])
            if known == saved:
                return None, saved
            if known != record:
                raise Refused(f"another process has changed {self._what}: {known.state if known else 'it was undone'}")
            marks: list[Change] = [Put(saved.pause(bundle, self.author)) for bundle in self.bundles]
            return self._transaction(marks, snapshot, f"{self._what}: {state}"), saved

        return commit_on_newest(self.giver.directory, propose, f"{self._what} could not be recorded")

    def _copy(self, record: HandoverRecord) -> None:
        giver = self.giver.directory.snapshot()
        arriving = replace(record, state=ARRIVING, to=self.giver.url, identity=self._hands(self.giver).identity)
        self.observe("head")

        def head(taker: Snapshot) -> tuple[Transaction | None, None]:
            known = handover_of(taker, self.bundles[0])
            if known == arriving:
                return None, None
            if known is not None or any(bundle in taker.bundles for bundle in self.bundles):  # it has arrived, and more
                raise Refused(f"another process has changed {self._what}")
            changes = [
                *head_changes(giver, taker, self.bundles, self.giver.cluster, self.author),
                *self._marks(arriving),
            ]
            return self._transaction(changes, taker, f"{self._what} arrives"), None

        commit_on_newest(self.taker.directory, head, f"{self._what} could not be copied")
        for table in sorted(giver.tables.values(), key=lambda table: table.id):
            if table.bundle in self.bundles:
                self.observe(f"table {table.name}")
                self._put(arriving, table_changes(giver, table), lambda taker, one=table: one.id not in taker.tables)  # type: ignore[misc]
        self.observe("history")
        over = [one for one in giver.migrations.values() if one.bundle in self.bundles and one.finished]
        for first in range(0, len(over), _HISTORY_AT_ONCE):
            some = over[first : first + _HISTORY_AT_ONCE]
            self._put(arriving, [Put(one) for one in some], lambda taker, few=some: few[-1].id not in taker.migrations)  # type: ignore[misc]
        self._copy_notes()

    def _copy_notes(self) -> None:
        """The day's profile, and where each node was seen in its own history; leaders' epochs begin at 0 there."""
        giver, taker = self.giver.directory, self.taker.directory
        footings = giver.published(FOOTINGS)
        for bundle in self.bundles:
            for name, document in giver.published(topic_of(bundle)).items():
                taker.publish(topic_of(bundle), name, document)
            seen = footings.get(bundle) or {}
            taker.publish(FOOTINGS, bundle, {node: {**said, "leader_epoch": 0} for node, said in seen.items()})

    def _put(self, arriving: HandoverRecord, changes: Sequence[Change], missing: Callable[[Snapshot], bool]) -> None:
        """Into the taker, under its record: an undo in the meantime would have removed that."""

        def propose(snapshot: Snapshot) -> tuple[Transaction | None, None]:
            if handover_of(snapshot, self.bundles[0]) != arriving:
                raise Refused(f"another process has changed {self._what}")
            both = [*changes, *self._marks(arriving)]
            return self._transaction(both, snapshot, f"{self._what} arrives") if missing(snapshot) else None, None

        commit_on_newest(self.taker.directory, propose, f"{self._what} could not be copied")

    def _change(self, record: HandoverRecord, lost: Sequence[str] = ()) -> None:
        giver, taker = self._hands(self.giver), self._hands(self.taker)
        snapshot = self.giver.directory.snapshot()
        for node, tablets in nodes_with_tablets(snapshot, self.bundles).items():
            if node in lost:
                continue  # should it come back, it is the giver's by its own word: nobody's leader is let in there
            self.observe(f"node {node}")
            known = self.record()
            if known is None or known.id != record.id:  # forgotten, and the bundle may have come back since
                raise Refused(f"another process has ended {self._what}")
            epoch = self.taker.directory.snapshot().epoch
            with closing(self.connect(node)) as connection:
                change_hands(connection, node, giver=giver, taker=taker, epoch=epoch, tablets=tablets)

    def _arrive(self, record: HandoverRecord, lost: Sequence[str]) -> None:
        self.observe("arrival")
        taken = self.giver.directory.blocks()

        def propose(snapshot: Snapshot) -> tuple[Transaction | None, None]:
            mark = handover_of(snapshot, self.bundles[0])
            if mark is None or (mark.id, mark.state) != (record.id, ARRIVING):  # it has, and may be leaving by now
                return None, None
            ids = [
                Put(Counter(f"ids {table}", next_ + taken.get(int(table), 0) * BLOCK))
                for table, next_ in record.ids.items()
            ]
            marks = [Remove(RecordKind.PAUSE, key_of_handover(bundle)) for bundle in self.bundles]
            why = f"lost during its hand-over, says {self.author}"
            gone = [Put(replace(snapshot.nodes[node], state=NodeState.LOST, reason=why)) for node in lost]
            return self._transaction([*marks, *ids, *gone], snapshot, f"{self._what} has arrived"), None

        commit_on_newest(self.taker.directory, propose, f"{self._what} could not be ended")

    def _remove_from(self, side: HandoverSide, state: str, record: HandoverRecord) -> None:
        """All records of the bundles, and the mark last; a table at a time, as far as they are there."""
        while True:
            snapshot = side.directory.snapshot()
            mark = handover_of(snapshot, self.bundles[0])
            if mark is None:
                for bundle in self.bundles:  # should it come back, what was seen of its nodes here is too old
                    side.directory.unpublish(FOOTINGS, bundle)
                return
            if (mark.id, mark.state) != (record.id, state):
                raise Refused(f"another process has changed {self._what}")
            table = next((one for one in snapshot.tables.values() if one.bundle in self.bundles), None)
            self.observe(f"removing {'the rest' if table is None else table.name}")
            if table is not None:
                changes = [*table_removal(snapshot, table), *self._marks(mark)]
            else:
                changes = list(rest_removal(snapshot, self.bundles))
            try:
                side.directory.commit(self._transaction(changes, snapshot, f"{self._what}: records are removed"))
            except Conflict:
                continue

    # What they are made of.

    def connect(self, node: str) -> Connection:
        """A connection to a node of one of the two directories: what is done there checks which one."""
        return connect(replace(self.addresses(node), cluster="", identity=""), purpose="hand-over")

    def _hands(self, side: HandoverSide) -> DirectoryIdentity:
        return DirectoryIdentity(side.cluster, made_identity(self.author, side.directory))

    def _marks(self, mark: HandoverRecord) -> list[Change]:
        return [Put(mark.pause(bundle, self.author)) for bundle in self.bundles]

    @property
    def _what(self) -> str:
        return f"the hand-over of {', '.join(self.bundles)}"

    def _transaction(self, changes: Sequence[Change], snapshot: Snapshot, reason: str) -> Transaction:
        return Transaction(tuple(changes), snapshot.version, reason, self.author)


_SLOTS: Final = 1 << 14
_TABLETS_OF_A_SLOT, _TABLES_OF_A_SLOT = 1 << 32, 100_000


def nodes_with_tablets(snapshot: Snapshot, bundles: Sequence[str]) -> dict[str, dict[int, int]]:
    """For each node of the bundles, the tablets that it owns, with their epochs."""
    found: dict[str, dict[int, int]] = {one.id: {} for one in snapshot.nodes.values() if one.bundle in bundles}
    for table in snapshot.tables.values():
        if table.bundle in bundles:
            for tablet in snapshot.tablets(table.id):
                found[tablet.node][tablet.id] = tablet.epoch
    return dict(sorted(found.items()))


def head_changes(
    giver: Snapshot, taker: Snapshot, bundles: Sequence[str], cluster: str, author: str
) -> Iterator[Change]:
    """What comes before the tables: bundles, nodes, pauses, and numbers that are never assigned again."""
    for bundle in bundles:
        yield Put(giver.bundles[bundle])
        standing = [one for one in giver.pauses.values() if one.bundle == bundle and one.only != WORD]
        yield from map(Put, standing)
        if bundle not in {one.key for one in standing}:
            yield Put(Pause(bundle, None, author, f"handed over; `balancer resume {bundle}` lets it be balanced"))
    yield from (Put(node) for node in giver.nodes.values() if node.bundle in bundles)
    tables = {one.name: one.id for one in giver.tables.values() if one.bundle in bundles}
    tablets = [number for owned in nodes_with_tablets(giver, bundles).values() for number in owned]
    slot = 0 if TABLET_COUNTER in taker.counters else 1 + secrets.randbelow(_SLOTS - 1)
    for name, ids, size in (
        (TABLET_COUNTER, tablets, _TABLETS_OF_A_SLOT),
        (TABLE_COUNTER, tables.values(), _TABLES_OF_A_SLOT),
    ):
        known = taker.counters[name].next if name in taker.counters else 1
        # A directory's own numbers are far from those that the giver still assigns, so that further bundles can follow.
        yield Put(Counter(name, max(known, slot * size, 1 + max(ids, default=0))))
    for name in tables:
        lanes = giver.counters.get(f"lanes of {name}")
        if lanes is not None:
            yield Put(lanes)
    if FORMER.format(cluster) not in taker.counters:
        yield Put(Counter(FORMER.format(cluster)))


def table_changes(giver: Snapshot, table: Table) -> list[Change]:
    """One table with its tablets, their pins, and its ids, closed."""
    tablets = list(giver.tablets(table.id))
    pins = [giver.pins[one.id] for one in tablets if one.id in giver.pins]
    return [Put(table), *map(Put, tablets), *map(Put, pins), Put(Counter(f"ids {table.id}", CLOSED_IDS))]


def table_removal(snapshot: Snapshot, table: Table) -> list[Change]:
    """Removes the same. Its ids stay closed: a table of this number may have handed out some."""
    tablets = list(snapshot.tablets(table.id))
    pins = [Remove(RecordKind.PIN, one.key) for one in tablets if one.id in snapshot.pins]
    return [Remove(RecordKind.TABLE, table.key), *(Remove(RecordKind.TABLET, one.key) for one in tablets), *pins]


def rest_removal(snapshot: Snapshot, bundles: Sequence[str]) -> Iterator[Change]:
    """Everything else of bundles without tables, including their marks."""
    kinds: Mapping[RecordKind, Mapping[object, object]] = {
        kind: snapshot.of(kind) for kind in (RecordKind.NODE, RecordKind.PLAN, RecordKind.PAUSE)
    }
    for kind, records in kinds.items():
        for one in records.values():
            if one.bundle in bundles:  # type: ignore[attr-defined]
                yield Remove(kind, one.key)  # type: ignore[attr-defined]
    for bundle in bundles:
        yield Remove(RecordKind.BUNDLE, bundle)
