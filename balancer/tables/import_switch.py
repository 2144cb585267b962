"""The switch of an import: fences on every old table, the last changes, seals, the directory's word, the new names.

`importing` has the argument.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from balancer.clock import Clock
from balancer.directory.contract import Directory
from balancer.errors import BalancerError, Refused, Unavailable
from balancer.nodes import capture, fence
from balancer.nodes.catalog import read_root
from balancer.nodes.connection import last_rows, run_together, translated
from balancer.nodes.expired_keys import close_expired
from balancer.nodes.import_statements import check_unchanged, index_names, kind_of_table, rename, rename_indexes
from balancer.nodes.schema import add_tablets
from balancer.settings import MigrationSettings
from balancer.tables.adopt import owned_row
from balancer.tables.import_follow import ImportFacts, follow_changes, read_facts
from balancer.tables.import_plan import ImportPlan, duplicate_words
from balancer.tables.import_record import FOLLOWING, RENAMING, SEALING, ImportJournal
from balancer.tables.import_sessions import ImportSessions

ROUNDS: Final = 200
"""Each has what changed during the one before: where so many did not become short, more will not."""


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
        self._facts: ImportFacts | None = None

    def run(self) -> float:
        """Follows until little is left, then switches; tried again while writers would be kept out for too long.

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
                        f"the switch of {self._plan.table} was given up after {attempt} tries: {error}; the import goes"
                        " on where it is when it is run again"
                    ) from error
                self._observe(f"again: {error}")
                self._clock.sleep(min(self._settings.retry_back_off_limit, self._settings.retry_back_off * attempt))
            except BalancerError:
                self.let_writers_on()
                raise
        raise AssertionError("fence_attempts is 1 or more")

    def let_writers_on(self) -> None:
        """The record first: once it is written, what was sealed cannot be committed any more."""
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
            f"{self._plan.table} changes faster than its changes can follow: the last of {ROUNDS} rounds had {count}"
            f" entries and took {took * 1000:.0f} ms, and write_pause_budget is"
            f" {self._settings.write_pause_budget * 1000:g} ms"
        )

    def _follow(self) -> tuple[int, list[str]]:
        if self._facts is None:
            self._facts = read_facts(self._sessions, self._plan)
        return follow_changes(self._sessions, self._facts, self._journal.record.id, self._plan)

    def _attempt(self) -> float:
        plan, began = self._plan, self._clock.monotonic()
        for node in plan.sources:
            self._observe(f"fence {node}")
            self._raise_fence(node)
        self._observe("last changes")
        count, twice = 1, list[str]()
        while count:
            count, twice = self._follow()
        if twice:
            raise Refused(duplicate_words(plan.table, twice))
        held = self._clock.monotonic() - began
        if held > self._settings.write_pause_budget:
            raise Unavailable(f"writers were refused for {held * 1000:.0f} ms, more than write_pause_budget")
        self._journal.save(replace(self._journal.record, state=SEALING))
        for node in plan.sources:
            self._observe(f"seal {node}")
            with self._sessions.transaction(node) as cursor:
                mine = fence.check_standing(cursor, [plan.table], self._fences[node], self._settings.lock_timeout)
                check_unchanged(cursor, plan.table, plan.root, self._journal.record.id)
                fence.seal_locked(cursor, [plan.table], self._fences[node], mine)
        self._observe("commit")
        with translated(plan.sources[0]), self._sessions.nodes[plan.sources[0]].cursor() as cursor:
            root = read_root(cursor, plan.root)
        self._journal.commit(replace(self._journal.record, state=RENAMING), plan, root)
        return began

    def _raise_fence(self, node: str) -> None:
        raised = fence.Fence(self._journal.record.id, self._directory.snapshot().epoch, "", 0, 0)
        seconds, timeout = self._settings.fence_deadline, self._settings.lock_timeout
        with self._sessions.transaction(node) as cursor:
            run_together(cursor, fence.lock_statements([self._plan.table], seconds, timeout))
            raised = fence.locked_fence(last_rows(cursor)[0], raised)
            run_together(cursor, fence.trigger_statements([self._plan.table], raised))
        self._fences[node] = raised

    def _lift(self, node: str) -> None:
        with self._sessions.transaction(node) as cursor:
            fence.lift_fence(cursor, [self._plan.table], self._settings.lock_timeout)

    def rename(self) -> None:
        """On each node the new root takes the old table's name, and the old one is kept, read-only. Rolls forward.

        Nodes that never had the table come first: what its indexes are called is read where it still has its name.
        """
        for node in (*self._plan.without, *self._plan.sources):
            self._observe(f"rename on {node}")
            self._sessions.patiently(partial(self._rename_on, node))

    def _rename_on(self, node: str) -> None:
        plan, record, timeout = self._plan, self._journal.record, self._settings.lock_timeout
        names = {} if node in plan.sources else self._index_names(plan.sources[0])
        with self._sessions.transaction(node) as cursor:
            if kind_of_table(cursor, plan.root) is not None:
                if node in plan.sources:
                    names = index_names(cursor, plan.table, plan.root)
                    capture.drop_capture(cursor, record.id, 0, plan.table)
                    close_expired(cursor, [plan.table], self._sentence(), timeout)
                    fence.drop_fence(cursor, [plan.table], timeout)
                    rename(cursor, plan.table, plan.before)
                rename_indexes(cursor, plan.table.schema, names, old=node in plan.sources)
                rename(cursor, plan.root, plan.table)
            mine = [tablet for tablet, _ in record.tablets(plan) if tablet.node == node]
            add_tablets(cursor, [owned_row(tablet, [plan.table]) for tablet in mine])

    def _index_names(self, node: str) -> dict[str, str]:
        with translated(node), self._sessions.readers[node].cursor() as cursor:
            return index_names(cursor, self._plan.table, self._plan.root)

    def _sentence(self) -> str:
        plan = self._plan
        return (
            f"{plan.before} is what {plan.table} was before it was imported, and takes no writes: the rows are in"
            f" {plan.table} now"
        )
