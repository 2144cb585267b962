"""Makes a directory that is older than its nodes, restored from an export, learn from them who owns what.

Every node says which tablets it owns, with their epochs, and its catalog says which keys each partition holds. If
several nodes claim a tablet, the claim with the highest epoch counts: a change of owner raises it, and nothing else
does, except that `tablet lost` writes it on a closed tablet before the directory has it: such a claim is in doubt. So
is an owner whose epoch is below one that a former owner, or the directory, has seen: it has gone back in time. What is
found must cover each table's keys exactly once, or nothing is changed. Migrations that the export still knows are
forgotten: what they did is on the nodes, and `doctor` removes what they left. A former owner that is closed, and was
not yet told that its tablet has left, is told so: otherwise the leader would take it for a node that has gone back in
time. Called by the command line.

In addition to the owners, the directory learns what it would otherwise do a second time or undo: ids of tablets and
lanes of numbers that were assigned, tablets that have expired, and nodes that are closed because they went back in
time, which stay closed. A node that was lost before the export is not asked: its tablets stay its own, unless another
has their keys.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from balancer.directory.contract import Directory, Leadership
from balancer.directory.handover_record import handovers_in
from balancer.directory.identity import counter_of_identity, identity_of
from balancer.directory.invariants import TABLET_COUNTER
from balancer.directory.model import (
    Bounds,
    Change,
    Counter,
    Node,
    NodeState,
    Put,
    RangeBounds,
    RecordKind,
    Remove,
    Table,
    Tablet,
    TabletState,
    Transaction,
)
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused, Unavailable
from balancer.features.tables.adopt import to_bounds
from balancer.features.tables.survey import FoundTablet, check_coverage, overlap
from balancer.naming import Name, parse_name
from balancer.nodes.catalog.bounds import KeyColumn, KeyRange
from balancer.nodes.catalog.roots import parent_of
from balancer.nodes.catalog.sequences import read_drawn
from balancer.nodes.schema.install import OwnedTablet, OwnState, of_the_old_map, read_identity, read_tablets
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.connection import Connection, Cursor, translated
from balancer.nodes.tablets.closed import bound_of, say_moved, stays_empty
from balancer.nodes.tablets.object_names import CLOSED
from balancer.nodes.tablets.partition import exists
from balancer.policies.keyspace.hash_leaves import Leaf

ELECTIONS = 100_000
"""A directory whose epoch is further behind than this is not the one that these nodes had."""
UNSEEN = 20
"""Elections of the lost directory that perhaps no node has seen: a leader that was elected there last and has not
contacted a node yet has an epoch above all that nodes know. Leaders do so within seconds, so there are few."""
LOCK_TIMEOUT = 2.0


@dataclass(frozen=True, slots=True)
class TakenOver:
    """What would be changed, and in words."""

    changes: tuple[Change, ...]
    words: tuple[str, ...]
    epoch: int
    """The highest leader's epoch that a node has seen: a leader below it is refused there."""
    untold: tuple[tuple[str, OwnedTablet], ...] = ()
    """By node, what it should say about a tablet that has left."""


@dataclass(frozen=True, slots=True)
class _Claim:
    node: str
    row: OwnedTablet
    bounds: Bounds
    expired: bool = False

    @property
    def closed(self) -> bool:
        """By the leader: its node has gone back in time, or has it by `tablet lost` and was not opened."""
        return self.row.migration == CLOSED


@dataclass(slots=True)
class _Said:
    """What all nodes say together."""

    claims: dict[int, dict[int, _Claim]]
    """By table and tablet who owns it."""
    epoch: int = 0
    identity: str = ""
    last: int = 0
    """The highest id of a tablet in any state, of any table."""
    closed: set[str] = field(default_factory=set)
    lanes: dict[str, int] = field(default_factory=dict)
    """By table, the first lane above all that nodes count in."""
    unknown: dict[str, list[int]] = field(default_factory=dict)
    """By node, the tablets that it owns of tables that the directory does not have."""
    left: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By tablet, the highest epoch with which it has left a node, and that node."""
    closed_claims: list[_Claim] = field(default_factory=list)
    """Those behind a migration's fence: its tablet may have left meanwhile."""


def plan_recovery(
    snapshot: Snapshot, nodes: Mapping[str, Connection], records: Sequence[Node], cluster: str
) -> TakenOver:
    """Reads all nodes, which must all answer. Raises `Refused` if their answers leave any doubt.

    `records`: the nodes as the files have them; some may have joined after the export.
    """
    lost = {node.id for node in snapshot.nodes.values() if node.state is NodeState.LOST}
    if missing := sorted(set(snapshot.nodes) - set(nodes) - lost):
        raise Unavailable(f"all nodes must answer, and {', '.join(missing)} did not: who owns what only they can say")
    for bundle, handover in handovers_in(snapshot).items():
        raise Refused(f"{handover.sentence(bundle)}: what its nodes say is for that directory")
    said = _read_nodes(snapshot, {node: one for node, one in nodes.items() if node not in lost}, cluster)
    changes: list[Change] = []
    words: list[str] = []
    if said.identity and said.identity != identity_of(snapshot):
        changes.append(Put(counter_of_identity(said.identity)))
        words.append(f"the directory is the one that the nodes know: its identity is {said.identity}")
    for change, text in (*_nodes(snapshot, records, said), *_lanes(snapshot, said)):
        changes.append(change)
        words.append(text)
    for table in snapshot.tables.values():
        found = said.claims[table.id]
        taken = [_part(one.bounds) for one in found.values()]
        for tablet in snapshot.tablets(table.id):
            if tablet.node in lost and not any(overlap(_part(tablet.bounds), part) for part in taken):
                row = OwnedTablet(tablet.id, tablet.epoch, OwnState.OWNED, (parse_name(table.roots[0]),))
                found[tablet.id] = _Claim(tablet.node, row, tablet.bounds, tablet.state is TabletState.EXPIRED)
        _pass_over_expired(found)
        _check_table(table, found)
        _check_epochs(snapshot, said, found)
        for change, text in _differences(snapshot, table, found):
            changes.append(change)
            words.append(text)
    untold = tuple(_untold(said))
    words += [f"node {node} is told that tablet {row.id} is on node {row.moved_to}" for node, row in untold]
    for migration in snapshot.migrations.values():
        if not migration.finished:
            changes.append(Remove(RecordKind.MIGRATION, migration.id))
            words.append(f"migration {migration.id} is forgotten; what it left is found by `balancer doctor`")
    words += [
        f"node {node} owns tablets of tables that the directory does not have, {min(ids)} among them: adopt them again"
        for node, ids in said.unknown.items()
    ]
    return TakenOver((*changes, *_counter(snapshot, said)), tuple(words), said.epoch, untold)


def _read_nodes(snapshot: Snapshot, nodes: Mapping[str, Connection], cluster: str) -> _Said:
    said = _Said({table: {} for table in snapshot.tables})
    for node, connection in nodes.items():
        with translated(node), connection.cursor() as cursor:
            known = read_identity(cursor)
            if known is None:
                continue
            if (known.cluster, known.node) != (cluster, node):
                raise Refused(f"the database of node {node} is node {known.node} of cluster {known.cluster}")
            if known.identity and said.identity not in ("", known.identity):
                raise Refused(
                    f"node {node} belongs to directory {known.identity}, others to {said.identity}, by identity"
                )
            # A directory that has no export with its identity in it was never handed anything.
            if known.changed_hands and known.identity != identity_of(snapshot):
                raise Refused(
                    f"node {node} was handed over to directory {known.identity}, and this one is"
                    f" {identity_of(snapshot) or 'without an identity'}: what the node says is for that directory"
                )
            if known.identity and identity_of(snapshot) not in ("", known.identity):
                raise Refused(
                    f"node {node} belongs to directory {known.identity}, and this one is {identity_of(snapshot)}, by"
                    " identity: this is an export, or these are the nodes, of another cluster. An export without an"
                    " identity is imported into an empty place, and recovered before a daemon leads there"
                )
            said.identity = said.identity or known.identity
            said.epoch = max(said.epoch, known.leader_epoch)
            rows = read_tablets(cursor)
            for row in rows:
                said.last = max(said.last, row.id)
                if row.state is OwnState.MOVED:
                    said.left[row.id] = max(said.left.get(row.id, (0, "")), (row.epoch, node))
                elif row.state is not OwnState.INCOMING and not of_the_old_map(row, rows):
                    _enter(said, snapshot, cursor, node, row)
            for table in snapshot.tables.values():
                drawn = read_drawn(cursor, [root for root in map(parse_name, table.roots) if exists(cursor, root)])
                lanes = [one.lane + 1 for one in drawn if one.lane is not None]
                said.lanes[table.name] = max([*lanes, said.lanes.get(table.name, 0)])
    return said


def _nodes(snapshot: Snapshot, records: Sequence[Node], said: _Said) -> Iterator[tuple[Change, str]]:
    owners = {claim.node for found in said.claims.values() for claim in found.values()}
    for record in records:
        if record.id in owners - set(snapshot.nodes):
            closed = _WHY_CLOSED if record.id in said.closed else ""
            yield Put(replace(record, rewound=closed)), f"node {record.id} has come since"
    for node in snapshot.nodes.values():
        # Its leader opens what is closed on a node that is not known to have gone back.
        if node.id in said.closed and not node.rewound:
            yield Put(replace(node, rewound=_WHY_CLOSED)), f"node {node.id} stays closed: see `balancer node rejoin`"


_WHY_CLOSED = "its tablets were closed when the directory was restored, from which it cannot be told why"


def _lanes(snapshot: Snapshot, said: _Said) -> Iterator[tuple[Change, str]]:
    for table, first in said.lanes.items():
        name = f"lanes of {table}"
        if first > (snapshot.counters.get(name) or Counter(name, 0)).next:
            yield Put(Counter(name, first)), f"{first} lanes of numbers of table {table} are in use"


def _untold(said: _Said) -> Iterator[tuple[str, OwnedTablet]]:
    owners = {number: claim for found in said.claims.values() for number, claim in found.items()}
    for claim in said.closed_claims:
        owner = owners.get(claim.row.id, claim)
        if owner.node != claim.node and owner.row.epoch > claim.row.epoch:
            left = replace(claim.row, state=OwnState.MOVED, epoch=owner.row.epoch, moved_to=owner.node)
            yield claim.node, replace(left, migration=None)


def tell_former_owners(nodes: Mapping[str, Connection], planned: TakenOver, leader_epoch: int) -> None:
    """Says what the migration would have said at its end, before the directory knows: it is true regardless, and after
    an interruption here it is said again."""
    for node, row in planned.untold:
        with node_transaction(nodes[node], leader_epoch, node, durable=True) as cursor:
            say_moved(cursor, row, leader_epoch=leader_epoch, lock_timeout=LOCK_TIMEOUT)


def recover(directory: Directory, leadership: Leadership, planned: TakenOver, snapshot: Snapshot, author: str) -> None:
    """Commits it, under a leadership that no node refuses."""
    if not planned.changes:
        return  # only a node had to be told something
    reason = f"taken over from the nodes: {len(planned.words)} changes"
    directory.commit(Transaction(planned.changes, snapshot.version, reason, author, leader_epoch=leadership.epoch))


def shut_out(nodes: Mapping[str, Connection], leader_epoch: int) -> None:
    """A leader that still follows the lost directory can no longer do anything on a node, and what it was doing has
    ended: what the nodes say from here on stays true."""
    for node, connection in nodes.items():
        with translated(node), connection.cursor() as cursor:
            there = read_identity(cursor) is not None
        if there:
            with node_transaction(connection, leader_epoch, node):
                pass


def lead_above(directory: Directory, name: str, epoch: int, timeout: float) -> Leadership:
    """Leads with an epoch above this one, and above those that nodes may not have seen: each election raises it by one.

    Raises `Refused` while somebody leads.
    """
    for _ in range(ELECTIONS):
        leadership = directory.campaign(name, timeout)
        if leadership is None:
            raise Refused(f"{directory.leader() or 'another instance'} leads: stop the daemons first")
        if leadership.epoch > epoch + UNSEEN:
            return leadership
        leadership.resign()
    raise Refused(f"the nodes have seen leaders up to epoch {epoch}: this is not the directory that they belonged to")


def _enter(said: _Said, snapshot: Snapshot, cursor: Cursor, node: str, row: OwnedTablet) -> None:
    """Finds the table of a claim by its partition's parent, and its keys by the partition's bound."""
    table = _table_of(snapshot, cursor, row)
    if table is None:
        said.unknown.setdefault(node, []).append(row.id)
        return
    known = snapshot.find_tablet(row.id)
    if table.everywhere:
        bounds: Bounds | None = known.bounds if known else Leaf(1, 0)
    else:
        part = bound_of(cursor, row.partitions[0], [column.type for column in table.columns])
        bounds = None if part is None else to_bounds(part)
    if bounds is None:
        raise Refused(f"node {node} says it owns tablet {row.id}, but {row.partitions[0]} is not attached there")
    mine = _Claim(node, row, bounds, stays_empty(cursor, row.partitions))
    if mine.closed:
        said.closed.add(node)
    elif row.state is OwnState.FENCED:
        said.closed_claims.append(mine)
    other = said.claims[table.id].get(row.id)
    if other is None:
        said.claims[table.id][row.id] = mine
        return
    older, newer = sorted((other, mine), key=lambda claim: claim.row.epoch)
    if older.row.epoch == newer.row.epoch:
        raise Refused(
            f"nodes {other.node} and {node} both own tablet {row.id} with epoch {row.epoch}: one of them is old"
        )
    if newer.closed and not older.closed:
        raise Refused(
            f"node {older.node} owns tablet {row.id} with epoch {older.row.epoch}, and node {newer.node} was made ready"
            f" for it, with epoch {newer.row.epoch}, and is closed: whether `tablet lost` was carried out only a person"
            " can say. In balancer.tablet of the node whose rows do not count, make its state 'moved', moved_to the"
            " other node, epoch that node's and migration NULL"
        )
    said.claims[table.id][row.id] = newer


def _table_of(snapshot: Snapshot, cursor: Cursor, row: OwnedTablet) -> Table | None:
    root = parent_of(cursor, row.partitions[0]) or row.partitions[0]  # a reference table is not a partition
    return next((one for one in snapshot.tables.values() if root in map(parse_name, one.roots)), None)


def _check_table(table: Table, found: Mapping[int, _Claim]) -> None:
    if table.everywhere or table.whole:
        if len(found) != 1:
            raise Refused(f"{len(found)} nodes say that they own table {table.name}, which has one tablet")
        return
    columns = [KeyColumn(column.name, column.type) for column in table.columns]
    tablets = [FoundTablet(one.node, _part(one.bounds), one.row.partitions) for one in found.values()]
    check_coverage(table.name, columns, tablets)


def _pass_over_expired(found: dict[int, _Claim]) -> None:
    """The empty tablet of an expiry replaces the one that an earlier expiry left, which may be on another node and hear
    of it later. Neither has rows."""
    ends = {
        number: one.bounds.upper for number, one in found.items() if one.expired and isinstance(one.bounds, RangeBounds)
    }
    for number, end in ends.items():
        if end < max(ends.values()):
            del found[number]


def _check_epochs(snapshot: Snapshot, said: _Said, found: Mapping[int, _Claim]) -> None:
    """An epoch never goes down: an owner with a lower one than was seen elsewhere has old rows."""
    for number, claim in found.items():
        mine = f"node {claim.node} owns tablet {number} with epoch {claim.row.epoch}"
        epoch, node = said.left.get(number, (0, ""))
        if epoch > claim.row.epoch:
            raise Refused(
                f"{mine}, and node {node} says that it left with epoch {epoch}: node {claim.node} has gone back in"
                " time. Bring its newer server back; or, if what it has is all that is left, delete the row of this"
                f" tablet in balancer.tablet of node {node}"
            )
        known = snapshot.find_tablet(number)
        if known is not None and known.epoch > claim.row.epoch:
            raise Refused(
                f"{mine}, and the directory has seen epoch {known.epoch}, on node {known.node}: the node has gone back"
                " in time, or that change of owner had not reached it. Import an older export, or do without this"
                " command: the leader ends what is under way"
            )


def _part(bounds: Bounds) -> KeyRange | Leaf:
    return bounds if isinstance(bounds, Leaf) else KeyRange(bounds.lower, bounds.upper)


def _differences(snapshot: Snapshot, table: Table, found: Mapping[int, _Claim]) -> Iterator[tuple[Change, str]]:
    for tablet in snapshot.tablets(table.id):
        if tablet.id not in found:
            yield Remove(RecordKind.TABLET, tablet.key), f"tablet {tablet.id} of {table.name} is gone: split or merged"
    for number, claim in sorted(found.items()):
        known = snapshot.find_tablet(number)
        names = _names(table, claim.row.partitions)
        state = known.state if known is not None else TabletState.EXPIRED if claim.expired else TabletState.OWNED
        made = replace(
            known or Tablet(number, table.id, claim.bounds, claim.node),
            bounds=claim.bounds,
            node=claim.node,
            epoch=claim.row.epoch,
            state=state,
            partitions=known.partitions if known is not None else names,
        )
        if known is None:
            yield Put(made), f"tablet {number} of {table.name} is new, on node {claim.node}"
        elif made != known:
            yield (
                Put(made),
                f"tablet {number} of {table.name} is on {claim.node} (epoch {made.epoch}), not {known.node}",
            )


def _names(table: Table, partitions: Sequence[Name]) -> tuple[str, ...]:
    usual = len(partitions) == len(table.roots)
    return tuple(name.name for name in partitions) if usual else ()


def _counter(snapshot: Snapshot, said: _Said) -> Iterator[Change]:
    """Ids of tablets are never assigned again, including those that only the nodes remember, in whatever state."""
    known = snapshot.counters.get(TABLET_COUNTER) or Counter(TABLET_COUNTER)
    if said.last >= known.next:
        yield Put(Counter(TABLET_COUNTER, said.last + 1))
