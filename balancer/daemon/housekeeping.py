"""What the leader does now and then: forgets old records and keeps the list of nodes.

A daemon that runs for months would otherwise fill the directory with finished migrations and answered commands. What
the policies and the planner still read (failures, cool-downs, follow-ups) is far younger than what is forgotten here;
the directory itself keeps the history of commits.
"""

from collections.abc import Callable, Iterator
from itertools import islice

import structlog

from balancer.clock import Clock
from balancer.daemon.enrol import enrol
from balancer.daemon.message_keeper import MessageKeeper
from balancer.daemon.proofs import ProofKeeper
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import (
    Change,
    CommandState,
    Json,
    Migration,
    MigrationKind,
    Pause,
    Pin,
    RecordKind,
    Remove,
    Transaction,
)
from balancer.directory.sample_note import SLOTS
from balancer.directory.sample_note import TOPIC as SAMPLES
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.migration.progress import TOPIC as PROGRESS
from balancer.planner.memory import HEAT
from balancer.planner.steering import steered
from balancer.settings import Settings

log = structlog.get_logger()

KEPT_MIGRATIONS = 500  # finished ones, of all bundles
KEPT_SECONDS = 3600.0  # and all that ended within it, as tablets rest after a migration and must be known to …
MOST_MIGRATIONS = 5000  # … but no more than these
KEPT_COMMANDS = 200  # answered ones
DECISIONS_EVERY = 3600.0
AT_ONCE = 100  # removals per commit: far below what a directory accepts


class Housekeeping:
    """Under one leadership. `run` is called about once a minute; a part that fails does not prevent the others."""

    def __init__(
        self,
        directory: Directory,
        leadership: Leadership,
        settings: Callable[[], Settings],
        clock: Clock,
        forget_decisions: Callable[[Snapshot], int] = lambda _: 0,
    ) -> None:
        self._forget_decisions = forget_decisions
        self._decisions_due = 0.0  # monotonic
        self._directory = directory
        self._leadership = leadership
        self._settings = settings
        self._clock = clock
        self._proofs = ProofKeeper(leadership.epoch, clock)
        self._messages = MessageKeeper(leadership.epoch, clock)

    def run(self) -> None:
        """Everything once."""
        parts = (
            self.enrol,
            self.forget,
            self.forget_notes,
            self.keep_proofs,
            self.keep_messages,
            self.forget_decisions,
        )
        for part in parts:
            try:
                part()
            except BalancerError as error:
                log.warning("housekeeping waits", part=part.__name__, error=str(error))

    def enrol(self) -> None:
        """Removes a node that left the configuration from the directory once its last tablet has left."""
        enrol(self._directory, self._leadership, self._settings())

    def forget(self) -> int:
        """Removes records that nobody needs any more; returns how many."""
        total, now = 0, self._clock.now().timestamp()
        while removals := tuple(islice(forgettable(snapshot := self._directory.snapshot(), now), AT_ONCE)):
            author = self._settings().daemon.instance
            reason = f"{len(removals)} old records forgotten"
            self._directory.commit(Transaction(removals, snapshot.version, reason, author, self._leadership.epoch))
            total += len(removals)
        return total

    def forget_notes(self) -> None:
        """Removes notes of progress whose migration is over, where its leader died before it could, and samples of
        programs that no longer report: each start of one may have brought another name."""
        migrations = self._directory.snapshot().migrations
        for name in self._directory.published(PROGRESS):
            record = migrations.get(name)
            if record is None or record.finished:
                self._directory.unpublish(PROGRESS, name)
        now = self._clock.now().timestamp()
        for name, note in self._directory.published(SAMPLES).items():
            if name not in SLOTS and _is_over(note, now):
                self._directory.unpublish(SAMPLES, name)

    def forget_decisions(self) -> None:
        """Removes decisions of transactions over several nodes, a day later: this asks every node, so once an hour."""
        if self._clock.monotonic() >= self._decisions_due:
            self._decisions_due = self._clock.monotonic() + DECISIONS_EVERY  # also if a node does not answer
            self._forget_decisions(self._directory.snapshot())

    def keep_messages(self) -> None:
        """Tells nodes what messages do, as the configuration says, including nodes that joined later."""
        self._messages.keep(self._directory.snapshot(), self._settings())

    def keep_proofs(self) -> None:
        """Makes roots refuse unproven writes where the configuration wants it, including nodes that joined later."""
        self._proofs.keep(self._directory.snapshot(), self._settings())


def _is_over(note: Json, now: float) -> bool:
    """Whether nobody will read this note of samples any more."""
    at = note.get("at") if isinstance(note, dict) else None
    return not isinstance(at, int | float) or at < now - KEPT_SECONDS


def _needed(snapshot: Snapshot, record: Migration) -> bool:
    """Whether it made tablets for heat that still exist: once they have cooled, they may be joined again."""
    heat = record.operation is MigrationKind.SPLIT and str(record.detail.get("code", "")).startswith(HEAT)
    return heat and any(snapshot.find_tablet(target.id) is not None for target in record.targets)


def forgettable(snapshot: Snapshot, now: float) -> Iterator[Change]:
    """Finished migrations and answered commands beyond the newest, oldest first; pins and pauses that are over."""
    finished = [record for record in snapshot.migrations.values() if record.finished and not _needed(snapshot, record)]
    finished.sort(key=lambda record: record.updated)
    for place, record in enumerate(finished[: max(0, len(finished) - KEPT_MIGRATIONS)]):
        if record.updated < now - KEPT_SECONDS or place < len(finished) - MOST_MIGRATIONS:
            yield Remove(RecordKind.MIGRATION, record.id)
    states = (CommandState.DONE, CommandState.REFUSED)
    answered = [
        command
        for command in snapshot.commands.values()
        if command.state in states and steered(command, snapshot) is None  # a successor needs to know these
    ]
    for command in sorted(answered, key=lambda command: command.created)[: max(0, len(answered) - KEPT_COMMANDS)]:
        yield Remove(RecordKind.COMMAND, command.id)
    temporary: list[Pin | Pause] = [*snapshot.pins.values(), *snapshot.pauses.values()]
    for ended in temporary:
        if ended.until is not None and ended.until <= now:
            yield Remove(ended.kind, ended.key)
