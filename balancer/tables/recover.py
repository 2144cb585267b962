"""A directory that is older than its nodes, restored from an export, learns from them who owns what.

Every node says which tablets it owns, with their epochs, and its catalog says which keys each partition holds. Of a
tablet that several nodes claim, the claim with the highest epoch counts: a change of owner raises it, and nobody else
does. What is found must cover each table's keys exactly once, or nothing is changed. Migrations that the export still
knows are forgotten: what they did is on the nodes, and `doctor` removes what they left. Called by the command line.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from balancer.directory.contract import Directory, Leadership
from balancer.directory.handover_record import handovers_in
from balancer.directory.identity import counter_of_identity, identity_of
from balancer.directory.model import Bounds, Change, Counter, Node, Put, RecordKind, Remove, Table, Tablet, Transaction
from balancer.directory.record_rules import TABLET_COUNTER
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused, Unavailable
from balancer.nodes.bounds import KeyColumn, KeyRange
from balancer.nodes.connection import Connection, Cursor, translated
from balancer.nodes.expired_keys import bound_of
from balancer.nodes.names import Name, parse_name
from balancer.nodes.schema import OwnedTablet, OwnState, read_identity, read_tablets
from balancer.policies.hash_leaves import Leaf
from balancer.tables.adopt import to_bounds
from balancer.tables.coverage import FoundTablet, check_coverage

ELECTIONS = 100_000
"""A directory whose epoch is further behind than this is not the one that these nodes had."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """What would be changed, and in words."""

    changes: tuple[Change, ...]
    words: tuple[str, ...]
    epoch: int
    """The highest leader's epoch that a node has seen: a leader below it is refused there."""


@dataclass(frozen=True, slots=True)
class _Claim:
    node: str
    row: OwnedTablet
    bounds: Bounds


def plan_recovery(
    snapshot: Snapshot, nodes: Mapping[str, Connection], records: Sequence[Node], cluster: str
) -> TakenOver:
    """Reads all nodes, which must all answer. Raises `Refused` where they do not say it without a doubt.

    `records`: the nodes as the files have them; some may have come after the export.
    """
    if missing := sorted(set(snapshot.nodes) - set(nodes)):
        raise Unavailable(f"all nodes must answer, and {', '.join(missing)} did not: who owns what only they can say")
    claims, epoch, identity = _read_claims(snapshot, nodes, cluster)
    changes: list[Change] = []
    words: list[str] = []
    if identity and identity != identity_of(snapshot):
        changes.append(Put(counter_of_identity(identity)))
        words.append(f"the directory is the one that the nodes know: its identity is {identity}")
    owners = {claim.node for found in claims.values() for claim in found.values()}
    for record in records:
        if record.id in owners - set(snapshot.nodes):
            changes.append(Put(record))
            words.append(f"node {record.id} has come since")
    for table in snapshot.tables.values():
        found = claims[table.id]
        _check_table(table, found)
        for change, text in _differences(snapshot, table, found):
            changes.append(change)
            words.append(text)
    for migration in snapshot.migrations.values():
        if not migration.finished:
            changes.append(Remove(RecordKind.MIGRATION, migration.id))
            words.append(f"migration {migration.id} is forgotten; what it left is found by `balancer doctor`")
    return TakenOver((*changes, *_counter(snapshot, claims)), tuple(words), epoch)


def _read_claims(
    snapshot: Snapshot, nodes: Mapping[str, Connection], cluster: str
) -> tuple[dict[int, dict[int, _Claim]], int, str]:
    """By table and tablet who owns it; the highest leader's epoch; the directory's identity as the nodes know it."""
    epoch, identity = 0, ""
    for bundle, handover in handovers_in(snapshot).items():
        raise Refused(f"{handover.sentence(bundle)}: what its nodes say is for that directory")
    claims: dict[int, dict[int, _Claim]] = {table: {} for table in snapshot.tables}
    for node, connection in nodes.items():
        with translated(node), connection.cursor() as cursor:
            known = read_identity(cursor)
            if known is None:
                continue
            if (known.cluster, known.node) != (cluster, node):
                raise Refused(f"the database of node {node} is node {known.node} of cluster {known.cluster}")
            if known.identity and identity not in ("", known.identity):
                raise Refused(f"node {node} belongs to directory {known.identity}, others to {identity}, by identity")
            identity = identity or known.identity
            epoch = max(epoch, known.leader_epoch)
            for row in read_tablets(cursor):
                if row.state not in (OwnState.INCOMING, OwnState.MOVED):
                    _enter(claims, snapshot, cursor, node, row)
    return claims, epoch, identity


def recover(directory: Directory, leadership: Leadership, planned: TakenOver, snapshot: Snapshot, author: str) -> None:
    """Commits it, under a leadership that no node refuses."""
    reason = f"taken over from the nodes: {len(planned.words)} changes"
    directory.commit(Transaction(planned.changes, snapshot.version, reason, author, leader_epoch=leadership.epoch))


def lead_above(directory: Directory, name: str, epoch: int, timeout: float) -> Leadership:
    """Leads with an epoch above this one: each election raises it by one. Raises `Refused` while somebody leads."""
    for _ in range(ELECTIONS):
        leadership = directory.campaign(name, timeout)
        if leadership is None:
            raise Refused(f"{directory.leader() or 'another instance'} leads: stop the daemons first")
        if leadership.epoch > epoch:
            return leadership
        leadership.resign()
    raise Refused(f"the nodes have seen leaders up to epoch {epoch}: this is not the directory that they belonged to")


def _enter(
    claims: dict[int, dict[int, _Claim]], snapshot: Snapshot, cursor: Cursor, node: str, row: OwnedTablet
) -> None:
    """Finds the table of a claim by its partition's parent, and its keys by the partition's bound."""
    table = _table_of(snapshot, cursor, row)
    if table is None:
        return
    known = snapshot.find_tablet(row.id)
    if table.everywhere:
        bounds: Bounds | None = known.bounds if known else Leaf(1, 0)
    else:
        part = bound_of(cursor, row.partitions[0], [column.type for column in table.columns])
        bounds = None if part is None else to_bounds(part)
    if bounds is None:
        raise Refused(f"node {node} says it owns tablet {row.id}, but {row.partitions[0]} is not attached there")
    other = claims[table.id].get(row.id)
    if other is not None and other.row.epoch == row.epoch:
        raise Refused(
            f"nodes {other.node} and {node} both own tablet {row.id} with epoch {row.epoch}: one of them is old"
        )
    if other is None or other.row.epoch < row.epoch:
        claims[table.id][row.id] = _Claim(node, row, bounds)


_PARENT = """
SELECT n.nspname, c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE i.inhrelid = to_regclass(%s)
"""


def _table_of(snapshot: Snapshot, cursor: Cursor, row: OwnedTablet) -> Table | None:
    found = cursor.execute(_PARENT, (str(row.partitions[0]),)).fetchone()
    root = Name(*found) if found else row.partitions[0]  # a reference table is no partition
    return next((one for one in snapshot.tables.values() if root in map(parse_name, one.roots)), None)


def _check_table(table: Table, found: Mapping[int, _Claim]) -> None:
    if table.everywhere or table.whole:
        if len(found) != 1:
            raise Refused(f"{len(found)} nodes say that they own table {table.name}, which has one tablet")
        return
    columns = [KeyColumn(column.name, column.type) for column in table.columns]
    tablets = [FoundTablet(one.node, _part(one.bounds), one.row.partitions) for one in found.values()]
    check_coverage(table.name, columns, tablets)


def _part(bounds: Bounds) -> KeyRange | Leaf:
    return bounds if isinstance(bounds, Leaf) else KeyRange(bounds.lower, bounds.upper)


def _differences(snapshot: Snapshot, table: Table, found: Mapping[int, _Claim]) -> Iterator[tuple[Change, str]]:
    for tablet in snapshot.tablets(table.id):
        if tablet.id not in found:
            yield Remove(RecordKind.TABLET, tablet.key), f"tablet {tablet.id} of {table.name} is gone: split or merged"
    for number, claim in sorted(found.items()):
        known = snapshot.find_tablet(number)
        names = _names(table, claim.row.partitions)
        made = replace(
            known or Tablet(number, table.id, claim.bounds, claim.node),
            bounds=claim.bounds,
            node=claim.node,
            epoch=claim.row.epoch,
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


def _counter(snapshot: Snapshot, claims: Mapping[int, Mapping[int, _Claim]]) -> Iterator[Change]:
    """Ids of tablets are never given again, also those that only the nodes remember."""
    highest = max((number for found in claims.values() for number in found), default=0)
    known = snapshot.counters.get(TABLET_COUNTER) or Counter(TABLET_COUNTER)
    if highest >= known.next:
        yield Put(Counter(TABLET_COUNTER, highest + 1))
