"""What a change of the leader would interrupt, and whether this instance could lead. For `spreading`; only looks."""

from collections.abc import Iterable, Iterator, Mapping

from balancer.daemon.reference_keeper import ReferenceKeeper
from balancer.directory.contract import Directory
from balancer.directory.model import CommandState
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.planner.state import BundleState
from balancer.tables.ddl_notes import SchemaChange, changes_of
from balancer.tables.import_record import imports_in


def leaders_work(directory: Directory, references: ReferenceKeeper | None) -> str:
    """What a change of the leader would interrupt at this moment; asks the directory."""
    copies = [] if references is None else references.filling()
    return under_way(directory.snapshot(), changes_of(directory), copies)


def under_way(snapshot: Snapshot, changes: Iterable[SchemaChange], copies: Iterable[str]) -> str:
    """The first of what is under way, as "move 3f2a"; empty: nothing. `copies`: reference tables that are filled."""
    return next(_all(snapshot, changes, copies), "")


def _all(snapshot: Snapshot, changes: Iterable[SchemaChange], copies: Iterable[str]) -> Iterator[str]:
    running = [record for record in snapshot.migrations.values() if not record.finished]
    for record in sorted(running, key=lambda record: (record.created, record.id)):
        yield f"{record.operation} {record.id}"
    for command in snapshot.commands.values():
        if command.state is CommandState.WAITING:
            yield f"the command {command.verb} of {command.author}"
    for change in changes:
        if not change.finished:
            yield change.reason
    try:
        for bundle, table, _ in imports_in(snapshot):
            yield f"the import of table {table} of bundle {bundle}"
    except BalancerError as error:
        yield f"an import ({error})"
    for table in copies:
        yield f"the copy of reference table {table}"


def why_unfit(bundles: Iterable[str], states: Mapping[str, BundleState]) -> str:
    """Why this instance should not lead, by its own looks at the nodes; empty: it could.

    If it sees less than half of the nodes: one that is down is down for everybody, a host that is cut off misses most
    of them.
    """
    for bundle in sorted(bundles):
        if bundle not in states:
            return "it has not looked at its nodes yet"
    for bundle, state in sorted(states.items()):
        if state.error:
            return f"it cannot look at bundle {bundle}"
    nodes = [node for state in states.values() for node in state.nodes]
    reached = sum(node.reachable for node in nodes)
    return f"it reaches {reached} of {len(nodes)} nodes" if 2 * reached < len(nodes) else ""
