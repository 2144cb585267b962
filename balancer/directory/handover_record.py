"""The record of a bundle that goes, or has gone, to another directory: it closes the bundle and says where it is.

It is a pause of its own (`only` is the word handover), with what the hand-over must know as its reason, so that former
versions can read it too. `balancer.features.handover.run` hands over, and has the argument; daemons leave a bundle with
such a record alone, clients are told where it went, and only the hand-over's own commits change it (`faults`). No
secret is part of a directory's address, so none is here."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from balancer.directory.model import Pause, RecordKind
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused

if TYPE_CHECKING:
    from balancer.directory.invariants import Overlay

WORD: Final = "handover"
CLOSED, UNDOING, CHANGING, GONE, FORGETTING = "closed", "undoing", "changing", "gone", "forgetting"
"""In the directory that gives: nothing has changed on any node; it is being taken back; from here on there is no way
back; all nodes are the other's; its records are being removed."""
ARRIVING: Final = "arriving"
"""In the directory that takes, until all nodes are its own."""
FORMER: Final = "former {}"
"""Name of the counter saying that nodes of this directory used to belong to a cluster of that name."""


@dataclass(frozen=True, slots=True)
class HandoverRecord:
    """How far the hand-over of one bundle is."""

    id: str
    state: str
    to: str
    """The address of the directory that takes, or, in that one, of the directory that gives."""
    identity: str
    """Of that other directory."""
    with_it: tuple[str, ...] = ()
    """The bundles that go together."""
    ids: Mapping[str, int] = field(default_factory=dict)
    """By table: where its row ids began here before they were closed."""

    def pause(self, bundle: str, author: str) -> Pause:
        """As it is stored."""
        return Pause(bundle, None, author, json.dumps(asdict(self)), WORD)

    def sentence(self, bundle: str) -> str:
        """For people and for clients."""
        if self.state == ARRIVING:
            return f"bundle {bundle} is arriving from the directory {self.to}"
        if self.state in (CLOSED, UNDOING):
            return f"bundle {bundle} is being handed over to the directory {self.to}"
        return f"bundle {bundle} was handed over to the directory {self.to}: its applications open that one"


def key_of_handover(bundle: str) -> str:
    """The key of a bundle's record."""
    return f"{bundle} {WORD}"


def is_handover(key: str) -> bool:
    """Whether a pause of this key is such a record."""
    return key.endswith(f" {WORD}")


def read_handover(pause: Pause) -> HandoverRecord:
    """What a record says."""
    try:
        document: dict[str, Any] = json.loads(pause.reason)
        found = HandoverRecord(**document)
        return replace(
            found, with_it=tuple(map(str, found.with_it)), ids={str(k): int(v) for k, v in found.ids.items()}
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise Refused(
            f"the directory's record of the hand-over of bundle {pause.bundle} is damaged: {error}"
        ) from error


def handover_of(snapshot: Snapshot, bundle: str) -> HandoverRecord | None:
    """The hand-over of a bundle, if there is one."""
    pause = snapshot.pauses.get(key_of_handover(bundle))
    return None if pause is None else read_handover(pause)


def handovers_in(snapshot: Snapshot) -> dict[str, HandoverRecord]:
    """Every bundle with such a record."""
    return {pause.bundle: read_handover(pause) for pause in snapshot.pauses.values() if pause.only == WORD}


def signpost(snapshot: Snapshot, table: int) -> str:
    """Where a table's bundle has gone, or is going, in one sentence; empty: it is here."""
    known = snapshot.tables.get(table)
    found = None if known is None else handover_of(snapshot, known.bundle)
    return "" if known is None or found is None else found.sentence(known.bundle)


def former_names(snapshot: Snapshot) -> set[str]:
    """Clusters that nodes of this directory used to belong to."""
    start = FORMER.format("")
    return {name.removeprefix(start) for name in snapshot.counters if name.startswith(start)}


def without_handed_over(snapshot: Snapshot) -> Snapshot:
    """What is left for the leader: without the nodes and tables of bundles that a hand-over has closed."""
    gone = {pause.bundle for pause in snapshot.pauses.values() if pause.only == WORD}
    if not gone:
        return snapshot
    records = dict(snapshot.records)
    for kind in (RecordKind.NODE, RecordKind.TABLE):
        records[kind] = {key: one for key, one in snapshot.of(kind).items() if one.bundle not in gone}
    return replace(snapshot, records=records)


def faults(after: "Overlay") -> Iterator[str]:
    """What a commit must not do to bundles that a hand-over has closed, one sentence each.

    A commit that changes the record itself is the hand-over's own. One that writes a first record closes the bundle: at
    that point nothing may be under way in the newest version of the directory.
    """
    for (kind, key), record in after.changed.items():
        new = kind is RecordKind.PAUSE and record is not None and record.only == WORD
        if new and after.find_before(kind, key) is None:
            for migration in after.every(RecordKind.MIGRATION):
                if not migration.finished and migration.bundle == record.bundle:
                    yield f"bundle {record.bundle} cannot be handed over during migration {migration.id}"
    marks = (pause for pause in after.before.pauses.values() if pause.only == WORD)
    closed = {pause.bundle: pause for pause in marks if (RecordKind.PAUSE, pause.key) not in after.changed}
    if not closed:
        return
    for (kind, key), record in after.changed.items():
        bundle = _bundle_of(after, kind, key, record)
        if bundle in closed:
            yield f"{kind} {key!r} cannot be changed: {read_handover(closed[bundle]).sentence(bundle)}"


def _bundle_of(after: "Overlay", kind: RecordKind, key: str, record: Any) -> str:
    """The bundle that a change is about, if it concerns a hand-over; empty: it does not."""
    known = record if record is not None else after.find_before(kind, key)
    if kind is RecordKind.BUNDLE:
        return key
    if kind in (RecordKind.NODE, RecordKind.TABLE, RecordKind.PAUSE):
        return str(known.bundle)
    if kind is RecordKind.MIGRATION:
        return "" if record is None or record.finished else str(record.bundle)
    if kind is RecordKind.TABLET:
        return _bundle_of_table(after, known.table)
    if kind is RecordKind.PIN:
        tablet = after.find(RecordKind.TABLET, known.tablet)
        return "" if tablet is None else _bundle_of_table(after, tablet.table)
    word, _, number = key.partition(" ")
    return (
        _bundle_of_table(after, number) if kind is RecordKind.COUNTER and (word, number != "") == ("ids", True) else ""
    )


def _bundle_of_table(after: "Overlay", table: object) -> str:
    found = after.find(RecordKind.TABLE, table) or after.find_before(RecordKind.TABLE, str(table))
    return "" if found is None else str(found.bundle)
