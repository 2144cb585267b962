"""The journal of migrations: their records in the directory, saved by compare-and-set under the leader's epoch.

Used by the runner, by the entry points and by recovery. A save either happened or did not: after an unknown outcome the
identical transaction is sent again until the directory answers.

What a migration remembers in the directory beyond the common record: `Migration.detail`, typed and versioned.

Written by the runner with every journaled state; read by successors, so a field is only ever added, with a default.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from balancer.clock import Clock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Change, Json, Migration, Put, RangeBounds, Tablet, Transaction
from balancer.errors import OutcomeUnknown, Refused, Unavailable
from balancer.policies.keyspace.hash_leaves import Leaf

AUTHOR = "balancer"


class Journal:
    """Belongs to one thread."""

    def __init__(self, directory: Directory, leadership: Leadership, clock: Clock) -> None:
        self._directory = directory
        self._leadership = leadership
        self._clock = clock
        self.base = 0

    def load(self, migration: str) -> Migration:
        """The record as it is now. Raises `Refused` if there is none."""
        snapshot = self._directory.snapshot()
        self.base = snapshot.version
        record = snapshot.migrations.get(migration)
        if record is None:
            raise Refused(f"there is no migration {migration}")
        return record

    def save(
        self, record: Migration, reason: str, changes: Sequence[Change] = (), look: Callable[[], None] | None = None
    ) -> Migration:
        """Saves a record, with other changes in the same commit. Waits while the directory is out of reach.

        `look` says before each sending, the first and every other, whether it may still happen. If it raises, or
        anything else does that the directory has not said of this very request, an earlier sending may have been
        applied: the caller finds out. Raises `Conflict` if somebody else changed a record, `Fenced` if there is another
        leader.
        """
        stamped = replace(record, updated=self._clock.now().timestamp())
        transaction = Transaction(
            changes=(Put(stamped), *changes),
            base=self.base,
            reason=reason,
            author=AUTHOR,
            leader_epoch=self._leadership.epoch,
        )
        self.base = self._commit(transaction, look)
        return stamped

    def _commit(self, transaction: Transaction, look: Callable[[], None] | None) -> int:
        pause = 0.05
        while True:
            if look is not None:
                look()
            try:
                return self._directory.commit(transaction)
            except (Unavailable, OutcomeUnknown):
                # The identical transaction is applied once however often it is sent; giving up here would leave open
                # whether it was applied, and a sealed fence may depend on the answer. Losing the leadership ends it.
                self._leadership.check()
                self._clock.sleep(pause)
                pause = min(2.0, pause * 2)


VERSION = 1


@dataclass(frozen=True, slots=True)
class MigrationDetail:
    """Everything here is needed by a successor, or by a person afterwards."""

    version: int = VERSION
    leader_epoch: int = 0
    """Of the leader that wrote it."""
    code: str = ""
    """The policy's word for its reason; empty: an operator's request."""
    then: tuple[tuple[int, str], ...] = ()
    """Tablet → the node it should go to afterwards: tablets that a split makes, or others that a move is made for."""
    fallback: bool = False
    """Whether it may become read-only where it cannot be replicated: nobody has asked for a mode."""
    mode_reason: str = ""
    """Why it has become read-only."""
    warm: bool = False
    """Whether the tablet belongs to an in-memory table: it is read into the target's cache before the switch."""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """`node:table` → digest of its definition when the migration began: DDL since then ends it."""
    bulk_verified: bool = False
    """Whether the copy was compared with the source at the snapshot it was made from."""
    verified: str = ""
    """Of a reshard: the transaction that began the mirror under which old and new partitions were compared."""
    rows: int = 0
    size: int = 0
    sequences: tuple[tuple[str, int], ...] = ()
    """Sequence → least value it must have on the new owner, so that no id is issued twice."""
    attach: float = 0.0
    """Seconds for which ATTACH will check foreign keys among the roots."""
    fences: int = 0
    """Fences raised so far."""
    marker: int = 0
    """The newest marker that may have been sent."""
    switch: int = 0
    """Drawn for each switch: the target has it if it has all that this switch has brought there. 0: an old record."""
    retreat: str = ""
    """Why something was last retried: a fence lifted, a copy started over, a step repeated."""
    retries: int = 0
    """How often something was retried after a passing failure."""
    restarts: int = 0
    """How often everything was undone and started over."""
    pause: float | None = None
    """Seconds for which writers were held back by the switch."""
    predicted_pause: float | None = None
    switched: float | None = None
    """When the owner changed, in seconds since 1970."""
    before: tuple[Mapping[str, Json], ...] = ()
    """The tablets that a reshard replaces: once it has committed, the directory no longer has them."""
    expiry: Mapping[str, Json] = field(default_factory=dict)
    """What `expire` knows about the tablets that it retires."""
    kept: str = ""
    """Where the former owner's rows were set aside, because somebody may have written to them after the switch."""
    failed: bool = False
    """Whether it is being given up because of an error, not at an operator's request."""

    def document(self) -> dict[str, Json]:
        """As the directory keeps it; fields with their default are left out."""
        default = MigrationDetail()
        found = asdict(self)
        found["sequences"] = [list(pair) for pair in self.sequences]
        found["then"] = [list(pair) for pair in self.then]
        found["before"] = [dict(tablet) for tablet in self.before]
        kept = {name: value for name, value in found.items() if getattr(self, name) != getattr(default, name)}
        return {"version": self.version, **kept}


def pack_tablet(tablet: Tablet) -> dict[str, Json]:
    """A tablet as plain values."""
    bounds = tablet.bounds
    cut = [bounds.lower.hex(), bounds.upper.hex()] if isinstance(bounds, RangeBounds) else list(bounds)
    return {
        "id": tablet.id,
        "epoch": tablet.epoch,
        "node": tablet.node,
        "partitions": list(tablet.partitions),
        "layout": "range" if isinstance(bounds, RangeBounds) else "hash",
        "bounds": cut,
    }


def unpack_tablet(document: Mapping[str, Json], table: int) -> Tablet:
    """The inverse."""
    low, high = document["bounds"]
    bounds = RangeBounds(bytes.fromhex(low), bytes.fromhex(high)) if document["layout"] == "range" else Leaf(low, high)
    return Tablet(
        int(document["id"]),
        table,
        bounds,
        str(document["node"]),
        int(document["epoch"]),
        partitions=tuple(document["partitions"]),
    )


def read_detail(migration: Migration) -> MigrationDetail:
    """The detail of a record. Raises `Refused` for one that a newer version of this program wrote."""
    document: dict[str, Any] = dict(migration.detail)
    version = int(document.get("version", VERSION))
    if version > VERSION:
        raise Refused(f"migration {migration.id} was written by a newer version of this program")
    known = {item.name for item in fields(MigrationDetail)}
    values = {name: value for name, value in document.items() if name in known}
    values["then"] = tuple((int(tablet), str(node)) for tablet, node in document.get("then", ()))
    values["sequences"] = tuple((str(name), int(value)) for name, value in document.get("sequences", ()))
    values["before"] = tuple(document.get("before", ()))
    return MigrationDetail(**values)
