"""A node changes hands: from one directory to another, in one transaction on the node. Called by
`features.handover.run`.

The row of `balancer.node` is the fence. Every step of a leader, in whatever directory, holds that row's lock (FOR
SHARE) from before its first effect to its commit, having compared the identity under it; commands outside transactions
hold the leaders' advisory lock and compare it there. The change takes both locks exclusively. So each step of the
former leader is either wholly before the change, and is seen by the check of the tablets that follows here, or meets
the new identity and is refused: with any epoch, on any connection, by any version (`balancer.enter`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from balancer.errors import Refused
from balancer.nodes.schema.decisions import prepared_parts
from balancer.nodes.schema.install import OwnState, read_tablets
from balancer.nodes.schema.texts import LEADER_LOCK
from balancer.nodes.session.connection import Connection, Cursor, lock_timeout, run_together, translated
from balancer.nodes.session.own_schema import belongs_to

LOCK_SECONDS = 5.0
MOST_SAID = 20


@dataclass(frozen=True, slots=True)
class DirectoryIdentity:
    """A directory as nodes know it."""

    cluster: str
    identity: str


def in_hands_of(connection: Connection, node: str, hands: DirectoryIdentity) -> bool:
    """Whether a node belongs to this directory. Only reads."""
    with translated(node):
        known = belongs_to(connection)
    return known is not None and (known.cluster, known.identity, known.node) == (hands.cluster, hands.identity, node)


def why_not(cursor: Cursor, node: str, tablets: Mapping[int, int]) -> list[str]:
    """What is in the way on a node that should have exactly these tablets, by their epochs. Only reads."""
    rows = read_tablets(cursor)
    found = [
        f"node {node} calls tablet {row.id} {row.state}: something is under way there"
        for row in rows
        if row.state in (OwnState.INCOMING, OwnState.FENCED)
    ]
    owned = {row.id: row.epoch for row in rows if row.state is OwnState.OWNED}
    for number in sorted(owned.keys() | tablets.keys()):
        if owned.get(number) != tablets.get(number):
            there, known = (f"epoch {one[number]}" if number in one else "none" for one in (owned, tablets))
            found.append(f"node {node} and the directory differ in tablet {number}: {there} there, {known} here")
    found += [
        f"a transaction over several nodes is prepared on node {node} and not ended: {part.gid}"
        for part in prepared_parts(cursor)
    ]
    return found[:MOST_SAID]


def change_hands(
    connection: Connection,
    node: str,
    *,
    giver: DirectoryIdentity,
    taker: DirectoryIdentity,
    epoch: int,
    tablets: Mapping[int, int],
) -> bool:
    """Gives a node to the taker, whose newest leader has this epoch; False: it was the taker's already.

    Raises `Refused`, and changes nothing, where the node belongs to neither, or is not as the directories have it.
    """
    with translated(node), connection.transaction(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit TO on")
        run_together(cursor, [lock_timeout(LOCK_SECONDS)])
        cursor.execute("SELECT pg_advisory_xact_lock(%s, 0)", (LEADER_LOCK,))
        row = cursor.execute("SELECT cluster, identity, node FROM balancer.node FOR UPDATE").fetchone()
        if row == (taker.cluster, taker.identity, node):
            return False
        if row != (giver.cluster, giver.identity, node):
            raise Refused(f"node {node} is neither the one directory's nor the other's: {row}")
        # After the locks: anything that a leader of the giver has done here is visible.
        if wrong := why_not(cursor, node, tablets):
            raise Refused("; ".join(wrong))
        cursor.execute(
            "UPDATE balancer.node SET cluster = %s, identity = %s, leader_epoch = %s, changed_hands = true",
            (taker.cluster, taker.identity, epoch),
        )
    return True
