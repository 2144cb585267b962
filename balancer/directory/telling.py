"""What a change in the history is about, and how to put it into words. One answer for the command line and the API."""

from balancer.directory.model import (
    Bundle,
    Change,
    Command,
    CommandState,
    Counter,
    LogEntry,
    Migration,
    Node,
    Pause,
    Pin,
    Plan,
    Record,
    RecordKind,
    Remove,
    Table,
    Tablet,
)
from balancer.directory.snapshot import Snapshot


def tablets_of(change: Change) -> set[int]:
    """The tablets that it is about, by id."""
    if isinstance(change, Remove):
        return {int(change.key)} if change.kind in (RecordKind.TABLET, RecordKind.PIN) else set()
    match change.record:
        case Tablet(id=tablet) | Pin(tablet=tablet):
            return {tablet}
        case Migration() as record:
            return {*record.sources, *(tablet.id for tablet in record.targets)}
        case Command(arguments=arguments):
            named = [arguments.get("tablet"), *_list(arguments.get("tablets"))]
            return {int(str(value)) for value in named if str(value).isdigit()}
        case _:
            return set()


def nodes_of(change: Change) -> set[str]:
    """The nodes that it is about, by id."""
    if isinstance(change, Remove):
        return {change.key} if change.kind is RecordKind.NODE else set()
    match change.record:
        case Node(id=node) | Tablet(node=node):
            return {node}
        case Migration() as record:
            return {record.source_node, record.target_node}
        case Command(arguments={"node": node}):
            return {str(node)}
        case _:
            return set()


def bundle_of(change: Change, snapshot: Snapshot) -> str | None:
    """The bundle that it is about, as far as that is known by now."""
    if isinstance(change, Remove):
        return change.key if change.kind in (RecordKind.BUNDLE, RecordKind.PAUSE) else None
    match change.record:
        case Bundle(name=bundle):
            return bundle
        case Node() | Table() | Migration() | Plan() | Pause() as record:
            return record.bundle
        case Tablet(table=number):
            table = snapshot.tables.get(number)
            return table.bundle if table else None
        case Command(arguments={"bundle": bundle}):
            return str(bundle)
        case _:
            return None


def is_step(entry: LogEntry) -> bool:
    """Whether a commit is only a step on the way: the states of a migration between its beginning and its end, plans
    that were made and carried out, commands that wait. Who owns what does not change with it."""
    return all(map(_is_step, entry.changes))


def _is_step(change: Change) -> bool:
    if isinstance(change, Remove):
        return change.kind in (RecordKind.PLAN, RecordKind.COUNTER, RecordKind.COMMAND, RecordKind.MIGRATION)
    match change.record:
        case Migration() as record:
            return not record.finished and record.state not in ("planned", "cancelling")
        case Command(state=state):
            return state is CommandState.WAITING
        case Plan(state=state):
            return state != "approved"
        case Counter():
            return True
        case _:
            return False


def told(change: Change) -> str:
    """In a few words."""
    return f"{change.kind} {change.key} removed" if isinstance(change, Remove) else _told(change.record)


def _told(record: Record) -> str:  # noqa: PLR0911 - one line for each kind of record
    match record:
        case Bundle():
            return f"bundle {record.name}"
        case Node():
            return f"node {record.id} is {record.state}" + (f": {record.reason}" if record.reason else "")
        case Table():
            return f"table {record.name} ({record.layout})"
        case Tablet():
            return f"tablet {record.id} on {record.node}, epoch {record.epoch}, {record.state}"
        case Migration():
            what = f"{record.operation} {record.id} of {', '.join(map(str, record.sources))}: {record.state}"
            return f"{what} ({record.error})" if record.error else what
        case Command():
            return f"command {record.verb} by {record.author}: {record.state}" + (
                f", {record.result}" if record.result else ""
            )
        case Plan():
            return f"plan {record.id} of {record.bundle}: {record.state}"
        case Pin():
            return f"tablet {record.tablet} pinned" + (f": {record.reason}" if record.reason else "")
        case Pause():
            return f"bundle {record.bundle} paused" + (f": {record.reason}" if record.reason else "")
        case Counter():
            return f"counter {record.name} at {record.next}"


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []
