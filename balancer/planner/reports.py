"""Nodes and migrations as a tick reports them to people. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from balancer.directory.model import Migration, MigrationKind, Node
from balancer.directory.snapshot import Snapshot
from balancer.nodes.ownership import rewound_words
from balancer.planner.state import NodeReport
from balancer.polling.poller import ClusterPoll, Health
from balancer.settings.units import format_size


def node_reports(
    snapshot: Snapshot, bundle: str, poll: ClusterPoll, in_the_way: Mapping[str, str]
) -> tuple[NodeReport, ...]:
    """The bundle's nodes after a poll, and what keeps the leader from working there."""
    nodes = [node for node in snapshot.nodes.values() if node.bundle == bundle]
    return tuple(replace(node_report(poll, node), in_the_way=in_the_way.get(node.id, "")) for node in nodes)


def node_report(poll: ClusterPoll, record: Node) -> NodeReport:
    """One node, as the directory has it and as it answered."""
    polled = poll.nodes.get(record.id)
    if polled is None:
        return NodeReport(record.id, str(record.state), record.reason, False, error="it is not in the bundle's file")
    silent = polled.unreachable
    facts = polled.poll.facts if polled.poll else None
    return NodeReport(
        id=record.id,
        state=str(record.state),
        reason=record.reason,
        reachable=silent is None,
        unreachable_since=None if silent is None else datetime.fromtimestamp(silent.since, UTC),
        error="" if silent is None else silent.reason,
        version=_version(facts.version) if facts else "",
        is_standby=polled.health is Health.STANDBY,
        rewound=rewound_words(record.id, polled.rewound) if polled.rewound else "",
        disagreements=tuple(found.text for found in polled.disagreements),
        poll_seconds=polled.poll.seconds if polled.poll else 0.0,
        database_bytes=float(facts.database_bytes) if facts else 0.0,
        connections=facts.connections if facts else 0,
        retained_wal_bytes=float(sum(slot.retained_bytes for slot in facts.slots)) if facts else 0.0,
        prepared_seconds=polled.poll.prepared_seconds if polled.poll else 0.0,
    )


def in_words(migration: Migration, parked: bool = False) -> str:
    """A migration in a few words, for the sentence of a bundle."""
    tablets = ", ".join(map(str, migration.sources[:3])) + (", …" if len(migration.sources) > 3 else "")
    noun = "tablet" if len(migration.sources) == 1 else "tablets"
    where = (
        f" from {migration.source_node} to {migration.target_node}"
        if migration.operation is MigrationKind.MOVE
        else f" on {migration.source_node}"
    )
    size = migration.detail.get("size")
    details = [migration.state, *([format_size(size)] if size else []), *(["held"] if parked else [])]
    return f"{migration.operation} of {noun} {tablets}{where} ({', '.join(details)})"


def running(snapshot: Snapshot, bundle: str) -> list[Migration]:
    """The bundle's unfinished migrations, oldest first."""
    records: Iterable[Migration] = snapshot.migrations.values()
    mine = [record for record in records if record.bundle == bundle and not record.finished]
    return sorted(mine, key=lambda record: record.created)


def _version(number: int) -> str:
    """`180004` as PostgreSQL writes it: 18.4."""
    return f"{number // 10000}.{number % 10000}"
