"""The verbs about nodes: drain, close, nodes that went back in time, and lost nodes. See `commands`."""

from dataclasses import replace

from balancer.directory.model import NodeState, Put
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused
from balancer.planner.command_context import CommandContext, Outcome, Revival


def tablets_on(snapshot: Snapshot, node: str) -> int:
    """How many tablets a node owns."""
    total = 0
    for table in snapshot.tables:
        columns = snapshot.columns(table)
        if node in columns.nodes:
            total += columns.node.count(columns.nodes.index(node))
    return total


def drain(context: CommandContext) -> Outcome:
    """Everything leaves the node."""
    node = context.node()
    if node.state is NodeState.DRAINING:
        return Outcome(f"node {node.id} is draining already")
    reason = f"drained by {context.author}: {context.arguments.get('reason') or 'no reason given'}"
    count = tablets_on(context.snapshot, node.id)
    return Outcome(
        f"node {node.id} is draining: {count} tablets will leave it; `balancer status` says when it may be removed",
        (Put(replace(node, state=NodeState.DRAINING, reason=reason)),),
        replan=node.bundle,
    )


def undrain(context: CommandContext) -> Outcome:
    """The node is like any other again."""
    node = context.node()
    if node.state not in (NodeState.DRAINING, NodeState.CLOSED, NodeState.LOST):
        return Outcome(f"node {node.id} is {node.state} already")
    return Outcome(
        f"node {node.id} is active again", (Put(replace(node, state=NodeState.ACTIVE, reason="")),), replan=node.bundle
    )


def close(context: CommandContext) -> Outcome:
    """The node keeps what it has and gets no more."""
    node = context.node()
    changed = replace(node, state=NodeState.CLOSED, reason=f"closed by {context.author}")
    return Outcome(f"node {node.id} gets no new tablets; `balancer undrain {node.id}` opens it", (Put(changed),))


def rejoin(context: CommandContext) -> Outcome:
    """Accepts a node that has gone back in time as it is. What was closed is opened after the next poll."""
    node = context.node()
    if not node.rewound:
        return Outcome(f"node {node.id} has not gone back in time: there is nothing to accept")
    if not context.arguments.get("accept_loss"):
        raise Refused(
            f"node {node.id} has gone back in time: {node.rewound}; use --accept-loss to continue"
            " without what is missing"
        )
    accepted = replace(node, rewound="", generation=node.generation + 1)
    count = tablets_on(context.snapshot, node.id)
    return Outcome(
        f"node {node.id} is accepted as it is: its {count} tablets are opened after the next poll",
        (Put(accepted),),
        replan=node.bundle,
    )


def lost(context: CommandContext) -> Outcome:
    """A node that will not come back. Its tablets stay its own in the directory until each has a new owner."""
    node = context.node()
    if node.state is NodeState.LOST:
        return Outcome(f"node {node.id} is lost already")
    count = tablets_on(context.snapshot, node.id)
    if not context.arguments.get("accept_loss"):
        raise Refused(f"node {node.id} owns {count} tablets; use --accept-loss to continue without the node")
    return Outcome(
        f"node {node.id} is lost, and {count} tablets with it: `balancer tablet lost TABLET` gives each a new owner;"
        " migrations that need the node are ended",
        (Put(replace(node, state=NodeState.LOST, reason=f"lost, says {context.author}")),),
        replan=node.bundle,
    )


def tablet_lost(context: CommandContext) -> Outcome:
    """A lost tablet gets a new owner: an empty one, or a node that still has an older copy."""
    tablet, node = context.tablet(), context.node()
    running = context.snapshot.migration_of(tablet.id)
    if running is not None:
        raise Refused(f"tablet {tablet.id} is part of migration {running.id}, which is {running.state}: end it first")
    if node.state is NodeState.LOST:
        raise Refused(f"node {node.id} is lost itself")
    if node.bundle != context.snapshot.tables[tablet.table].bundle:
        raise Refused(f"node {node.id} belongs to another bundle, {node.bundle}")
    if not context.arguments.get("accept_loss"):
        raise Refused(
            f"use --accept-loss to continue without the rows that tablet {tablet.id} had on node {tablet.node}"
        )
    empty, former = bool(context.arguments.get("empty")), bool(context.arguments.get("former"))
    how = "without rows" if empty else "as it was before it was split or merged" if former else "with the copy it has"
    return Outcome(
        f"tablet {tablet.id} is on node {node.id} now, {how}; it is opened after the next poll",
        replan=node.bundle,
        revive=Revival(tablet, node.id, empty=empty, former=former),
    )
