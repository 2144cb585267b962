"""The switch of an import: fences on every old table, the last changes, seals, the directory's commit, the new names.

`run` has the argument.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from balancer.clock import Clock
from balancer.directory.contract import Directory
from balancer.errors import BalancerError, Refused, Unavailable
from balancer.features.import_tables.follow import ImportFacts, follow_changes, read_facts
from balancer.features.import_tables.names import (
    Elsewhere,
    Taking,
    highest_number,
    read_elsewhere,
    spread_numbers,
    take_names,
    take_names_elsewhere,
)
from balancer.features.import_tables.plan import ImportedTable, ImportPlan, duplicate_words
from balancer.features.import_tables.record import FOLLOWING, RENAMING, SEALING, ImportJournal, ImportSessions
from balancer.features.import_tables.statements import check_unchanged, kind_of_table
from balancer.features.tables.adopt import owned_row
from balancer.naming import Name
from balancer.nodes.catalog.roots import full_names, read_root
from balancer.nodes.schema.install import add_tablets
from balancer.nodes.session.connection import Cursor, last_rows, run_together, translated
from balancer.nodes.tablets import capture, fence
from balancer.nodes.tablets.closed import close_expired
from balancer.settings import MigrationSettings

SPARE: Final = 1 << 20
"""Numbers that are skipped above the highest: somebody may have drawn one and not used it yet."""
ROUNDS: Final = 200
"""Each round has what changed during the previous one: if this many did not get short, more will not."""


class ImportSwitch:
    """Of one import, in one process."""

    def __init__(
        self,
        plan: ImportPlan,
        journal: ImportJournal,
        sessions: ImportSessions,
        directory: Directory,
        *,
        settings: MigrationSettings,
        clock: Clock,
        observe: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._journal = journal
        self._sessions = sessions
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._observe = observe
        self._fences: dict[str, fence.Fence] = {}
        self._facts: list[ImportFacts] | None = None

    def run(self) -> float:
        """Follows until little is left, then switches; retries while writers would be kept out for too long.

        Returns when they were kept out, by the monotonic clock.
        """
        attempts = self._settings.fence_attempts
        for attempt in range(1, attempts + 1):
            self._observe("follow")
            self._catch_up()
            try:
                return self._attempt()
            except (Unavailable, fence.Expired) as error:
                self.let_writers_on()
                if attempt == attempts:
                    raise Unavailable(
                        f"the switch of {self._plan.words} was given up after {attempt} tries: {error}; the import goes"
                        " on where it is when it is run again"
                    ) from error
                self._observe(f"again: {error}")
                self._clock.sleep(min(self._settings.retry_back_off_limit, self._settings.retry_back_off * attempt))
            except BalancerError:
                self.let_writers_on()
                raise
        raise AssertionError("fence_attempts is 1 or more")

    def let_writers_on(self) -> None:
        """The record first: once it is written, what was sealed can no longer be committed."""
        self._journal.save(replace(self._journal.record, state=FOLLOWING))
        failed: list[BalancerError] = []
        for node in self._plan.sources:
            try:
                self._sessions.patiently(partial(self._lift, node))
            except BalancerError as error:  # the others' writers need not wait for this node
                failed.append(error)
        if failed:
            raise failed[0]

    def _catch_up(self) -> None:
        """Until a round is short enough to be repeated while writers are refused."""
        for _ in range(ROUNDS):
            began = self._clock.monotonic()
            count, _twice = self._follow()
            took = self._clock.monotonic() - began
            if took < self._settings.write_pause_budget / 2:
                return
        raise Unavailable(
            f"{self._plan.words} changes faster than its changes can follow: the last of {ROUNDS} rounds had {count}"
            f" entries and took {took * 1000:.0f} ms, and write_pause_budget is"
            f" {self._settings.write_pause_budget * 1000:g} ms"
        )

    def _follow(self) -> tuple[int, dict[Name, list[str]]]:
        if self._facts is None:
            self._facts = read_facts(self._sessions, self._journal.record.id, self._plan)
        return follow_changes(self._sessions, self._facts, self._plan)

    def _attempt(self) -> float:
        plan, timeout = self._plan, self._settings.lock_timeout
        for node in (*plan.without, *plan.sources):
            self._observe(f"rehearse on {node}")
            self._sessions.patiently(partial(self._rehearse, node))
        began = self._clock.monotonic()
        for node in plan.sources:
            self._observe(f"fence {node}")
            self._raise_fence(node)
        self._observe("last changes")
        count, twice = 1, dict[Name, list[str]]()
        while count:
            count, twice = self._follow()
        if twice:
            raise Refused("; ".join(duplicate_words(name, keys) for name, keys in twice.items()))
        numbers = self._highest_number() + SPARE if plan.numbered else 0
        held = self._clock.monotonic() - began
        if held > self._settings.write_pause_budget:
            raise Unavailable(f"writers were refused for {held * 1000:.0f} ms, more than write_pause_budget")
        self._journal.save(replace(self._journal.record, state=SEALING, numbers=numbers))
        for node in plan.sources:
            self._observe(f"seal {node}")
            with self._sessions.transaction(node) as cursor:
                fence.check_standing(cursor, plan.names, self._fences[node], timeout)
                for table in plan.tables:
                    check_unchanged(cursor, table.name, table.root, self._journal.record.id, table.index)
                run_together(cursor, fence.seal_statements(plan.names, self._fences[node]))
        self._observe("commit")
        with translated(plan.sources[0]), self._sessions.nodes[plan.sources[0]].cursor() as cursor:
            root = read_root(cursor, plan.tables[0].root)
        self._journal.commit(replace(self._journal.record, state=RENAMING), plan, root)
        return began

    def _raise_fence(self, node: str) -> None:
        raised = fence.Fence(self._journal.record.id, self._directory.snapshot().epoch, "", 0, 0)
        seconds, timeout = self._settings.fence_deadline, self._settings.lock_timeout
        with self._sessions.transaction(node) as cursor:
            run_together(cursor, [fence.deadline_statement(seconds)])
            raised = fence.announced(last_rows(cursor)[0], raised)
            locks, triggers = fence.raise_statements(self._plan.names, raised, timeout)
            run_together(cursor, [*locks, *triggers])
        self._fences[node] = raised

    def _lift(self, node: str) -> None:
        with self._sessions.transaction(node) as cursor:
            fence.lift_fence(cursor, self._plan.names, self._settings.lock_timeout)

    def _highest_number(self) -> int:
        found = [0]
        for node in self._plan.sources:
            with translated(node), self._sessions.readers[node].cursor() as cursor:
                found.append(highest_number(cursor, self._plan.names))
        return max(found)

    def _rehearse(self, node: str) -> None:
        """What could fail after the commit fails before it: anything that the tables carry along may have changed."""
        given = self._elsewhere(node)
        connection = self._sessions.nodes[node]
        with translated(node), connection.transaction(force_rollback=True), connection.cursor() as cursor:
            self._take_names(cursor, node, given, lambda: None)

    def rename(self) -> None:
        """On each node the new roots take the old tables' names, and the old ones are kept, read-only. Rolls forward.

        Nodes that never had the tables come first: what the tables carry along is read where they still have their
        names.
        """
        for node in (*self._plan.without, *self._plan.sources):
            self._observe(f"rename on {node}")
            self._sessions.patiently(partial(self._rename_on, node))

    def _rename_on(self, node: str) -> None:
        plan, record = self._plan, self._journal.record
        given = self._elsewhere(node)
        with self._sessions.transaction(node) as cursor:
            if kind_of_table(cursor, plan.tables[0].root) is not None:
                self._take_names(cursor, node, given, partial(self._close, cursor))
                spread_numbers(cursor, plan.names, record.lanes.get(node), record.numbers)
            mine = [tablet for tablet, _ in record.tablets(plan) if tablet.node == node]
            add_tablets(cursor, [owned_row(tablet, plan.names) for tablet in mine])

    def _take_names(self, cursor: Cursor, node: str, given: Elsewhere | None, close: Callable[[], None]) -> None:
        partitions = self.partitions(node)
        together = [Taking(table, partitions[table]) for table in self._plan.names]
        with full_names(cursor):
            if given is None:
                take_names(cursor, together, close)
            else:
                take_names_elsewhere(cursor, together, given)

    def partitions(self, node: str) -> dict[Name, tuple[Name, ...]]:
        """By table: the partitions that a node has of it."""
        mine = [tablet for tablet, _ in self._journal.record.tablets(self._plan) if tablet.node == node]
        return {
            table.name: tuple(Name(table.name.schema, tablet.partitions[table.index]) for tablet in mine)
            for table in self._plan.tables
        }

    def _elsewhere(self, node: str) -> Elsewhere | None:
        """What a node that never had the tables is given; None: it has them, or has been given it."""
        home, here = self._plan.sources[0], self._sessions.readers[node]
        if node in self._plan.sources:
            return None
        with translated(node), here.cursor() as cursor:
            if kind_of_table(cursor, self._plan.tables[0].root) is None:
                return None
        with translated(home), self._sessions.readers[home].cursor() as cursor, full_names(cursor):
            return read_elsewhere(cursor, [Taking(table) for table in self._plan.names])

    def _close(self, cursor: Cursor) -> None:
        """Removes what watches the old tables; from the fence on nobody writes to them, and nobody ever will."""
        timeout = self._settings.lock_timeout
        for table in self._plan.tables:
            capture.drop_capture(cursor, self._journal.record.id, table.index, table.name)
            close_expired(cursor, [table.name], _sentence(table), timeout)
        fence.drop_fence(cursor, self._plan.names, timeout)


def _sentence(table: ImportedTable) -> str:
    return (
        f"{table.before} is what {table.name} was before it was imported, and takes no writes: the rows are in"
        f" {table.name} now"
    )
