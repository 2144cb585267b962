"""The record of an import in the directory: how far it is, and the commits of the process that wrote it last.

It is a pause of its own (`only` is the word import and the table), with what an import must know as its reason. Every
process that continues an import, or cancels it, writes the record first; after that its previous writer cannot commit.

The sessions of an import: on each node one that writes and one that reads.

The writing ones hold an advisory lock until they end, and whatever an import changes on a node goes through them: so a
process that slept keeps others out while its sessions live, and can do nothing once they are gone.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Final, Self
from uuid import uuid4

from balancer.clock import Clock
from balancer.directory.contract import Directory, commit_on_newest
from balancer.directory.model import (
    Change,
    KeyColumn,
    Layout,
    Node,
    Pause,
    Put,
    RecordKind,
    Remove,
    Table,
    Tablet,
    Transaction,
)
from balancer.directory.snapshot import Snapshot
from balancer.errors import Conflict, Refused, Unavailable
from balancer.features.import_tables.plan import ImportPlan
from balancer.features.tables.adopt import TableRequest, missing_parents, next_ids, reserved, to_bounds
from balancer.naming import Name, partition_name
from balancer.nodes.catalog.bounds import Part
from balancer.nodes.catalog.owners_code import check_readable
from balancer.nodes.catalog.roots import Root
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.schema.texts import LEADER_LOCK
from balancer.nodes.session.connection import Address, Connection, Cursor, connect, pin_output, translated
from balancer.settings import MigrationSettings

PREPARING, COPYING, FOLLOWING, SEALING = "preparing", "copying", "following", "sealing"
RENAMING, CANCELLING = "renaming", "cancelling"


@dataclass(frozen=True, slots=True)
class ImportRecord:
    """How far an import is."""

    id: str
    state: str
    table_id: int
    first: int
    """The id of the first tablet."""
    owners: tuple[str, ...]
    sources: tuple[str, ...]
    attempt: int = 1
    lanes: dict[str, int] = field(default_factory=dict)
    """By node: the lane in which its sequences count from the switch on."""
    numbers: int = 0
    """From the seals on: above what any sequence has handed out."""

    def tablets(self, plan: ImportPlan) -> Iterator[tuple[Tablet, Part]]:
        """The tablets that it makes, and the part of each."""
        for number, (part, owner) in enumerate(zip(plan.parts, plan.owners, strict=True), self.first):
            names = tuple(partition_name(table, number).name for table in plan.names)
            yield Tablet(number, self.table_id, to_bounds(part), owner, partitions=names), part


def record_in(snapshot: Snapshot, bundle: str, table: str) -> ImportRecord | None:
    """The unfinished import of a table."""
    pause = snapshot.pauses.get(_key(bundle, table))
    if pause is None:
        return None
    try:
        document = json.loads(pause.reason)
        return ImportRecord(**{**document, "owners": tuple(document["owners"]), "sources": tuple(document["sources"])})
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(f"the directory's record of the import of table {table} is damaged: {error}") from error


def imports_in(snapshot: Snapshot) -> Iterator[tuple[str, str, ImportRecord]]:
    """Bundle, table and record of every unfinished import."""
    for pause in snapshot.pauses.values():
        word, _, table = (pause.only or "").partition(" ")
        if word == _WORD and (found := record_in(snapshot, pause.bundle, table)) is not None:
            yield pause.bundle, table, found


_WORD = "import"


def _key(bundle: str, table: str) -> str:
    return f"{bundle} {_WORD} {table}"


class ImportJournal:
    """Of one import, in one process."""

    def __init__(self, directory: Directory, request: TableRequest) -> None:
        self._directory = directory
        self._request = request
        self._mine: ImportRecord | None = None

    @property
    def record(self) -> ImportRecord:
        """As this process wrote it last."""
        assert self._mine is not None, "begun or taken over before"
        return self._mine

    def known(self) -> bool:
        """Whether the directory has the table."""
        return any(table.name == self._request.name for table in self._directory.snapshot().tables.values())

    def found(self) -> ImportRecord | None:
        """The record that is there, no matter who wrote it."""
        return record_in(self._directory.snapshot(), self._request.bundle, self._request.name)

    def begin(self, plan: ImportPlan, records: Sequence[Node], lanes: Mapping[str, int]) -> ImportRecord:
        """Records an import and reserves its ids."""

        def propose(snapshot: Snapshot) -> tuple[Transaction, ImportRecord]:
            if record_in(snapshot, self._request.bundle, self._request.name) is not None:
                raise Refused(f"an import of table {self._request.name} has begun meanwhile")
            table, first = next_ids(snapshot)
            made = ImportRecord(
                f"m{uuid4().hex[:12]}", PREPARING, table, first, plan.owners, plan.sources, lanes=dict(lanes)
            )
            changes = (
                *missing_parents(self._request.bundle, snapshot, records),
                *reserved(table, first + len(plan.parts) - 1),
                Put(self._pause(made)),
            )
            return self._transaction(changes, snapshot, f"{self._held} begins"), made

        self._mine = commit_on_newest(self._directory, propose, f"the {self._held} could not be recorded")
        return self._mine

    def save(self, record: ImportRecord) -> ImportRecord:
        """Writes the record, if nobody else has written it since this process did."""

        def propose(snapshot: Snapshot) -> tuple[Transaction, None]:
            known = record_in(snapshot, self._request.bundle, self._request.name)
            if known is None or (self._mine is not None and known != self._mine):
                raise Conflict(f"another process works on the {self._held}")
            return self._transaction((Put(self._pause(record)),), snapshot, f"{self._held}: {record.state}"), None

        commit_on_newest(self._directory, propose, f"the {self._held} could not be recorded")
        self._mine = record
        return record

    def commit(self, record: ImportRecord, plan: ImportPlan, root: Root) -> None:
        """The one moment of change: the table becomes known. `record` is what the import is from then on."""
        snapshot = self._directory.snapshot()
        if record_in(snapshot, self._request.bundle, self._request.name) != self._mine:
            raise Conflict(f"another process works on the {self._held}")
        columns = tuple(KeyColumn(column.name, column.type) for column in root.columns)
        table = Table(
            record.table_id,
            self._request.name,
            self._request.bundle,
            Layout(root.layout),
            columns,
            tuple(map(str, plan.names)),
        )
        changes = (
            Put(self._pause(record)),
            *self._hold(snapshot),
            Put(table),
            *(Put(tablet) for tablet, _ in record.tablets(plan)),
        )
        reason = f"table {self._request.name} is imported, with {len(plan.parts)} tablets"
        self._directory.commit(self._transaction(changes, snapshot, reason))
        self._mine = record

    def end(self) -> None:
        """Removes the record, and releases the bundle."""

        def propose(snapshot: Snapshot) -> tuple[Transaction | None, None]:
            bundle = self._request.bundle
            over = [key for key in (_key(bundle, self._request.name), bundle) if key in snapshot.pauses]
            over = [key for key in over if key != bundle or snapshot.pauses[key].reason == self._held]
            changes = tuple(Remove(RecordKind.PAUSE, key) for key in over)
            return self._transaction(changes, snapshot, f"{self._held} has ended") if over else None, None

        commit_on_newest(self._directory, propose, f"the {self._held} could not be ended")

    def _hold(self, snapshot: Snapshot) -> Iterator[Change]:
        """Nothing in the bundle moves until the names have changed on all nodes."""
        if self._request.bundle not in snapshot.pauses:
            yield Put(Pause(self._request.bundle, None, self._request.author, self._held))

    @property
    def _held(self) -> str:
        return f"import of table {self._request.name}"

    def _pause(self, record: ImportRecord) -> Pause:
        only = f"{_WORD} {self._request.name}"
        return Pause(self._request.bundle, None, self._request.author, json.dumps(asdict(record)), only)

    def _transaction(self, changes: tuple[Change, ...], snapshot: Snapshot, reason: str) -> Transaction:
        return Transaction(changes, snapshot.version, reason, self._request.author)


PATIENCE: Final = 3.0
"""Seconds that a predecessor's sessions may take to end."""
_UNLIMITED = ("statement_timeout", "idle_in_transaction_session_timeout")
"""A copy takes as long as it takes; waits for locks are short, as everywhere."""


class ImportSessions:
    """Open while it is entered."""

    def __init__(
        self, addresses: Mapping[str, Address], directory: Directory, settings: MigrationSettings, clock: Clock
    ) -> None:
        self._addresses = addresses
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._stack = ExitStack()
        self.nodes: dict[str, Connection] = {}
        self.readers: dict[str, Connection] = {}

    def __enter__(self) -> Self:
        for node, address in self._addresses.items():
            for kept in (self.nodes, self.readers):
                kept[node] = self._stack.enter_context(connect(address, purpose="import"))
                with translated(node):
                    pin_output(kept[node])
                    for setting in _UNLIMITED:
                        kept[node].execute("SELECT set_config(%s, '0', false)", (setting,))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def lock_out_others(self) -> None:
        """Raises `Unavailable` if another process imports into one of the nodes."""
        for node in self.nodes:
            # The sessions of a process that was killed a moment ago end when their servers notice.
            deadline = self._clock.monotonic() + PATIENCE
            while not self._locked(node):
                if self._clock.monotonic() > deadline:
                    raise Unavailable(f"another process imports a table on node {node}: wait for it, or end it")
                self._clock.sleep(self._settings.retry_back_off)

    def _locked(self, node: str) -> bool:
        with translated(node):
            row = self.nodes[node].execute("SELECT pg_try_advisory_lock(%s, 2)", (LEADER_LOCK,)).fetchone()
        return row == (True,)

    @contextmanager
    def transaction(self, node: str) -> Iterator[Cursor]:
        """A change of a node, under the leader's epoch."""
        epoch = self._directory.snapshot().epoch
        with node_transaction(self.nodes[node], epoch, node, durable=True) as cursor:
            yield cursor

    @contextmanager
    def reading(self, node: str, tables: Sequence[Name], *, trusted: bool) -> Iterator[Connection]:
        """One snapshot of plain tables that are locked: otherwise their owner could add code that reading them runs.

        Writers continue; VACUUM and DDL wait. Raises `Refused` if there is such code, and the owners are not `trusted`.
        """
        reader = self.readers[node]
        self.patiently(partial(self._begin_reading, node, tables, trusted))
        try:
            with translated(node):
                yield reader
        finally:
            if not reader.closed:
                reader.rollback()

    def _begin_reading(self, node: str, tables: Sequence[Name], trusted: bool) -> None:
        reader = self.readers[node]
        with translated(node), reader.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            try:
                check_readable(cursor, tables, trusted=trusted)
            except BaseException:
                if not reader.closed:
                    reader.rollback()
                raise

    def patiently(self, work: Callable[[], None]) -> None:
        """Retries while a lock is not granted; a session that is gone has released its lock, which ends the retries."""
        deadline = self._clock.monotonic() + self._settings.retry_patience
        while True:
            try:
                return work()
            except Unavailable:
                if self._clock.monotonic() > deadline or any(one.closed for one in self.nodes.values()):
                    raise
            self._clock.sleep(self._settings.retry_back_off)
