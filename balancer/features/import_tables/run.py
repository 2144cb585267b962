"""Turns plain tables of one name on several nodes, whose rows an application has placed by its own rule, into a table.

Order: a new root with its tablets next to the old tables; what captures changes; all rows at one snapshot per node,
compared by checksum; what has changed since, again and again; then the switch. That happens all at once: every old
table is fenced, the last changes follow and are compared, the fences are sealed, and *one directory transaction* makes
the table known and the import irrevocable. After it, and only then, the names change on each node.

Why nothing is lost or doubled. A fence is exact (see `migration.machine`, 2): what an old table has acknowledged is in
its log or was in its snapshot. An unsealed fence ends by itself, and is then not sealed: its triggers, deadline and
breaches are checked under its lock. The commit is conditional on the import's own record (`record`), which every
process that continues, or cancels, writes first: a process that slept can no longer commit; nor can it write to a node
while another does (`record`). A row is written to the new table by its key: taken out, and put in as the old
tables have it, in one transaction per node; the log's entries go after that. So a round may be repeated at any point,
and so may everything else: each step checks what is there.

Foreign keys between tables that are imported together: validated when the names have changed, alongside the writers.

Until then they are on the partitions, enforced and not validated. They are found from the catalog alone, so a process
that is killed in between loses nothing. Called by `run`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from balancer.clock import Clock
from balancer.directory.contract import Directory
from balancer.directory.model import Node, Tablet
from balancer.errors import Refused
from balancer.features.convert.run import give_key
from balancer.features.convert.swap import SwapSession
from balancer.features.import_tables.follow import Truncated
from balancer.features.import_tables.names import Taking, read_definitions
from balancer.features.import_tables.plan import ImportedTable, ImportPlan, check_duplicates, plan_import, resumed_plan
from balancer.features.import_tables.record import (
    CANCELLING,
    COPYING,
    FOLLOWING,
    PREPARING,
    RENAMING,
    SEALING,
    ImportJournal,
    ImportRecord,
    ImportSessions,
)
from balancer.features.import_tables.statements import (
    add_digest,
    belongs,
    beside,
    clear_log,
    compared_columns,
    copy_pair,
    digest_of,
    drop_table,
    empty_root,
    keep_to_us,
    kind_of_table,
    make_root,
)
from balancer.features.import_tables.switch import ImportSwitch
from balancer.features.tables.adopt import TableRequest, require_proofs, reserve_lanes
from balancer.naming import Name
from balancer.nodes.catalog.owners_code import check_readable
from balancer.nodes.catalog.roots import full_names, read_root
from balancer.nodes.definitions.dependents import NearKey, read_near_keys
from balancer.nodes.definitions.root import Definition, make_roots
from balancer.nodes.schema.install import install_schema
from balancer.nodes.session.connection import Address, Connection, translated
from balancer.nodes.tablets import capture, fence
from balancer.nodes.tablets.checksum import Digest
from balancer.nodes.tablets.copy import copy_rows
from balancer.nodes.tablets.object_names import log_name
from balancer.nodes.tablets.partition import count_rows, create_partition
from balancer.settings import MigrationSettings


@dataclass(frozen=True, slots=True)
class Imported:
    """The result."""

    table: str
    tablets: int
    rows: int
    """Of the old tables, which are kept."""
    pause: float | None
    """Seconds for which writers were refused, until the last node had its new names; None: an earlier run switched."""


class TableImport:
    """Carries out one import, from its own process. `observe` is told of each step; tests end the process there."""

    def __init__(
        self,
        request: TableRequest,
        directory: Directory,
        addresses: Mapping[str, Address],
        *,
        records: Sequence[Node],
        cluster: str,
        settings: MigrationSettings,
        clock: Clock,
        observe: Callable[[str], None],
    ) -> None:
        self._request = request
        self._directory = directory
        self._records = records
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._observe = observe
        self._journal = ImportJournal(directory, request)
        self._sessions = ImportSessions(addresses, directory, settings, clock)

    def __enter__(self) -> Self:
        self._sessions.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._sessions.__exit__(*error)

    def plan(self, tablets: int, splits: Sequence[Any]) -> ImportPlan:
        """What would be done, or why it cannot be. Reads every key; changes nothing."""
        if self._journal.known():
            raise Refused(f"table {self._request.name} is in the directory already: there is nothing to import")
        if (begun := self._journal.found()) is not None:
            raise Refused(
                f"the import of {self._request.name} has begun and is {begun.state}: run it again to go on, or say"
                " --cancel"
            )
        weights = {record.id: record.weight for record in self._records}
        found = plan_import(self._request, self._sessions.nodes, weights, tablets=tablets, splits=splits)
        check_duplicates(found, self._sessions.readers)
        return found

    def run(self, tablets: int, splits: Sequence[Any]) -> Imported:
        """Begins an import, or resumes one, and completes it."""
        self._sessions.lock_out_others()
        record = self._journal.found()
        if record is None:
            plan = self.plan(tablets, splits)
            record = self._begin(plan)
        elif record.state == CANCELLING:
            raise Refused(f"the import of {self._request.name} is being cancelled: say --cancel until it is done")
        else:
            record = self._journal.save(replace(record, attempt=record.attempt + 1))
            plan = self._resumed(record, splits)
        switch = ImportSwitch(
            plan,
            self._journal,
            self._sessions,
            self._directory,
            settings=self._settings,
            clock=self._clock,
            observe=self._observe,
        )
        began = None if record.state == RENAMING else self._until_committed(record, plan, switch)
        switch.rename()
        pause = None if began is None else self._clock.monotonic() - began
        self._finish_keys(plan, switch)
        self._observe("proofs")
        require_proofs(self._request, self._sessions.nodes, self._directory.snapshot().epoch)
        rows = self._kept_rows(plan)
        self._observe("end")
        self._journal.end()
        return Imported(self._request.name, len(plan.parts), rows, pause)

    def cancel(self) -> None:
        """Undoes what has not been committed; the old tables are as they were. May be repeated."""
        record = self._journal.found()
        if record is None:
            raise Refused(f"there is no import of table {self._request.name} to cancel")
        if record.state == RENAMING:
            raise Refused(f"the import of {self._request.name} is committed already: run it again to finish it")
        self._sessions.lock_out_others()
        self._journal.save(replace(record, state=CANCELLING, attempt=record.attempt + 1))
        for node in record.sources:
            self._observe(f"open {node}")
            self._sessions.patiently(partial(self._open, node))
        for node in self._sessions.nodes:
            self._observe(f"clean {node}")
            self._sessions.patiently(partial(self._clean, record, node))
        self._observe("end")
        self._journal.end()

    def release(self, *, dry_run: bool) -> dict[str, int]:
        """Drops the old tables that an import has kept; by node how many rows they have."""
        if self._journal.found() is not None:
            raise Refused(f"the import of {self._request.name} has not ended: run it again, or say --cancel")
        if not self._journal.known():
            raise Refused(f"table {self._request.name} is not in the directory: nothing of it was imported")
        before = [beside(root, "before_import") for root in self._request.roots]
        found: dict[str, int] = {}
        for node in self._sessions.nodes:
            with self._sessions.transaction(node) as cursor:
                for table in before:
                    if kind_of_table(cursor, table) == "r":
                        check_readable(cursor, [table], trusted=self._request.trusts_owners)
                        found[node] = found.get(node, 0) + count_rows(cursor, table)
                        if not dry_run:
                            drop_table(cursor, table)
        if not found:
            raise Refused(f"no node has {before[0]} any more: nothing is left to release")
        return found

    def _open(self, node: str) -> None:
        with self._sessions.transaction(node) as cursor:
            fence.lift_fence(cursor, self._request.roots, self._settings.lock_timeout)

    def _clean(self, record: ImportRecord, node: str) -> None:
        with self._sessions.transaction(node) as cursor:
            if node in record.sources:
                fence.drop_fence(cursor, self._request.roots, self._settings.lock_timeout)
                for index, table in enumerate(self._request.roots):
                    capture.drop_capture(cursor, record.id, index, table)
            for table in self._request.roots:
                drop_table(cursor, beside(table, "import"))

    def _begin(self, plan: ImportPlan) -> ImportRecord:
        self._observe("begin")
        for node, connection in self._sessions.nodes.items():
            with translated(node):
                install_schema(connection, self._cluster, node)
        lanes: dict[str, int] = {}
        if plan.numbered:
            first = reserve_lanes(self._directory, self._request.name, len(self._sessions.nodes))
            lanes = {node: first + place for place, node in enumerate(self._sessions.nodes)}
        return self._journal.begin(plan, self._records, lanes)

    def _resumed(self, record: ImportRecord, splits: Sequence[Any]) -> ImportPlan:
        """The plan that it began with: read again from what the first node has of it."""
        home, *_ = record.sources
        with translated(home), self._sessions.nodes[home].cursor() as cursor:
            found = resumed_plan(cursor, self._request, record.sources, record.owners, splits)
        return replace(found, without=tuple(node for node in self._sessions.nodes if node not in record.sources))

    def _until_committed(self, record: ImportRecord, plan: ImportPlan, switch: ImportSwitch) -> float:
        if record.state == SEALING:  # the directory says that it was not committed, so writers may continue
            switch.let_writers_on()
        if record.state == PREPARING:
            self._prepare(record, plan)
            record = self._journal.save(replace(record, state=COPYING))
        if record.state == COPYING:
            self._copy(record, plan)
            record = self._journal.save(replace(record, state=FOLLOWING))
        try:
            return switch.run()
        except Truncated:
            self._journal.save(replace(self._journal.record, state=COPYING))
            raise

    def _prepare(self, record: ImportRecord, plan: ImportPlan) -> None:
        for node in (*plan.sources, *plan.without):
            self._observe(f"root on {node}")
            self._sessions.patiently(partial(self._make_root, record, plan, node))
        for node in plan.sources:
            self._observe(f"capture on {node}")
            self._sessions.patiently(partial(self._capture, record, plan, node))

    def _make_root(self, record: ImportRecord, plan: ImportPlan, node: str) -> None:
        elsewhere = self._definitions(plan) if node in plan.without else None
        with self._sessions.transaction(node) as cursor:
            if kind_of_table(cursor, plan.tables[0].root) is not None:
                return  # by an earlier run
            if elsewhere is None:
                # A check may have been added since we looked; none can be added until the roots are made.
                check_readable(cursor, plan.names, trusted=self._request.trusts_owners)
                for table in plan.tables:
                    make_root(cursor, table.name, table.root, self._request.layout, self._request.key)
            else:
                make_roots(cursor, elsewhere, trusted=self._request.trusts_owners)
                for table in plan.tables:
                    keep_to_us(cursor, table.root)
            for table in plan.tables:
                root = read_root(cursor, table.root)
                for tablet, part in record.tablets(plan):
                    if tablet.node == node:
                        create_partition(cursor, root, _partition(table, tablet), part)

    def _definitions(self, plan: ImportPlan) -> list[Definition]:
        home, *_ = plan.sources
        with translated(home), self._sessions.nodes[home].cursor() as cursor:
            return read_definitions(cursor, [Taking(table) for table in plan.names])

    def _capture(self, record: ImportRecord, plan: ImportPlan, node: str) -> None:
        timeout = self._settings.lock_timeout
        with self._sessions.transaction(node) as cursor:
            for table in plan.tables:
                if not capture.started(cursor, record.id, table.index):
                    capture.start_capture(
                        cursor, record.id, table.index, table.name, key=table.row_key, lock_timeout=timeout
                    )

    def _copy(self, record: ImportRecord, plan: ImportPlan) -> None:
        """All rows at one snapshot per node, after their changes are captured; from the start, each time."""
        if record.attempt > 1:  # otherwise they have just been looked for
            check_duplicates(plan, self._sessions.readers)
        for node in self._sessions.nodes:
            self._observe(f"empty {node}")
            with self._sessions.transaction(node) as cursor:
                for table in plan.tables:
                    empty_root(cursor, table.root)
                    if node in plan.sources:
                        clear_log(cursor, log_name(record.id, table.index))
        wanted = {table.name: dict[int, tuple[int, int]]() for table in plan.tables}
        for source in plan.sources:
            self._observe(f"copy from {source}")
            for name, digest in self._copy_from(source, plan).items():
                add_digest(wanted[name], digest)
        self._observe("compare")
        for table in plan.tables:
            self._compare(record, plan, table, wanted[table.name])

    def _compare(
        self, record: ImportRecord, plan: ImportPlan, table: ImportedTable, wanted: Mapping[int, tuple[int, int]]
    ) -> None:
        there: dict[int, tuple[int, int]] = {}
        for tablet, _ in record.tablets(plan):
            with translated(tablet.node), self._sessions.readers[tablet.node].cursor() as cursor:
                columns, _ = compared_columns(cursor, table.root)
                add_digest(there, digest_of(cursor, columns, _partition(table, tablet)))
        if wanted != there:
            counts = [sum(count for count, _ in side.values()) for side in (wanted, there)]
            raise Refused(
                f"the copy of {table.name} is not what the old tables were: {counts[0]} rows there, {counts[1]} in the"
                " copy, or other values; nothing was switched"
            )

    def _copy_from(self, source: str, plan: ImportPlan) -> dict[Name, Digest]:
        """Copies all tables of one node at one snapshot; returns what they were."""
        reader = self._sessions.readers[source]
        with translated(source), reader.cursor() as cursor:
            facts = {
                table: (compared_columns(cursor, table.name), read_root(cursor, table.root)) for table in plan.tables
            }
        with self._sessions.reading(source, plan.names, trusted=plan.trusts_owners):
            for table, ((_, copied), root) in facts.items():
                for node, connection in self._sessions.nodes.items():
                    if mine := plan.mine(node):
                        read, write = copy_pair(table.name, table.root, copied, belongs(root, mine))
                        with self._sessions.transaction(node):
                            copy_rows(reader, connection, read, write, _ignore, source_node=source)
            return {table.name: digest_of(reader, columns, table.name) for table, ((columns, _), _) in facts.items()}

    def _finish_keys(self, plan: ImportPlan, switch: ImportSwitch) -> None:
        """Validates foreign keys between the tables on every node, alongside the writers."""
        epoch = self._directory.snapshot().epoch
        known: list[NearKey] = []
        owning = [node for node in self._sessions.nodes if plan.mine(node)]
        for node in (*owning, *(node for node in self._sessions.nodes if node not in owning)):
            place = SwapSession(node, self._sessions.nodes[node], epoch, self._settings, self._clock, self._observe)
            finish_keys(place, plan.names, switch.partitions(node), known)
            known = known or keys_of_roots(place, plan.names)

    def _kept_rows(self, plan: ImportPlan) -> int:
        rows = 0
        for node in plan.sources:
            before = [table.before for table in plan.tables]
            with self._sessions.reading(node, before, trusted=plan.trusts_owners) as reader, reader.cursor() as cursor:
                rows += sum(count_rows(cursor, table) for table in before)
        return rows


def _partition(table: ImportedTable, tablet: Tablet) -> Name:
    return Name(table.name.schema, tablet.partitions[table.index])


def _ignore(_: int) -> None:
    """Nobody is told about single blocks."""


def finish_keys(
    place: SwapSession, roots: Sequence[Name], partitions: Mapping[Name, Sequence[Name]], known: Sequence[NearKey]
) -> None:
    """On one node: validates what waits on partitions and gives it to their root.

    A root without partitions gets the `known` keys, which another node's roots have.
    """
    for root in roots:
        waiting = _keys(place.connection, place.node, partitions[root], roots)
        for key in waiting:
            if not key.validated:
                place.observe(f"foreign key {key.name} of {key.table} on {place.node}")
                place.long(key.validate(), [key.table])
        there = {key.name for key in _keys(place.connection, place.node, [root], roots)}
        elsewhere = [key for key in known if key.table == root and not partitions[root]]
        for name, key in {key.name: key for key in (*waiting, *elsewhere)}.items():
            if name not in there:
                place.observe(f"foreign key {name} of {root} on {place.node}")
                place.short([root, key.referenced], partial(give_key, place, roots, root, key))


def keys_of_roots(place: SwapSession, roots: Sequence[Name]) -> list[NearKey]:
    """The foreign keys between the roots themselves, on one node."""
    return _keys(place.connection, place.node, roots, roots)


def _keys(connection: Connection, node: str, tables: Sequence[Name], to: Sequence[Name]) -> list[NearKey]:
    with translated(node), connection.cursor() as cursor, full_names(cursor):
        return read_near_keys(cursor, tables, to)
