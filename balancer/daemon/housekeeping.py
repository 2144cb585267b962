"""What the leader does now and then: forgets old records and keeps the list of nodes.

A daemon that runs for months would otherwise fill the directory with finished migrations and answered commands. What
the policies and the planner still read (failures, cool-downs, follow-ups) is far younger than what is forgotten here;
the directory itself keeps the history of commits.

Keeps the directory's bundles and nodes in step with the configuration. The leader calls it.

At its election, after a reload, and now and then, because a node may become empty at any time.

Addresses, zones and weights follow the file; a node's state belongs to the operators and stays. A changed address is
published only when the server there has proven to be that node: clients go where the directory says, and a typing error
would send all of them to another node, or to an old copy. A node that is no longer in the file is removed once it owns
nothing; until then it stays, and the bundle says why.

Keeps the roots of every node as `require_proof` wants them. The leader's housekeeping calls it.

A node that joined, a setting that changed, a root that somebody made again: the next look brings each in line. A node
known to be right is not asked again for a while.

Counts what dead migrations have left on the nodes, from time to time, for the metric and its alert.

Only looks: `balancer doctor` removes. The tick already reports whatever prevents a look (a node out of reach, one
without our schema), so it is ignored here.

Whether the directory is open to anybody but the writer and the reader: every instance checks once a minute.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

import structlog

from balancer.clock import Clock
from balancer.directory.configured import records_of
from balancer.directory.contract import Directory, Leadership, commit_on_newest
from balancer.directory.handover_record import WORD as HANDOVER
from balancer.directory.identity import identity_of
from balancer.directory.model import (
    Bundle,
    Change,
    CommandState,
    Json,
    Migration,
    MigrationKind,
    Node,
    Pause,
    Pin,
    Put,
    RecordKind,
    Remove,
    Transaction,
)
from balancer.directory.notes import SAMPLES, SLOTS
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.features.messages.service import MessageKeeper
from balancer.instruments import Instruments
from balancer.migration.pool import steered
from balancer.migration.progress import TOPIC as PROGRESS
from balancer.naming import Name, parse_name
from balancer.nodes.schema.install import read_identity, read_tablets, upgrade_schema
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.schema.proof import set_proof, unlike
from balancer.nodes.session.addresses import address_in
from balancer.nodes.session.ask_all import SHARED
from balancer.nodes.session.connection import Address, Timeouts, connect, installed, translated
from balancer.nodes.session.holder import Addresses, NodeSessions
from balancer.nodes.tablets.leftovers import find_leftovers
from balancer.planner.memory import HEAT
from balancer.planner.metrics import Reporter
from balancer.planner.verbs import tablets_on
from balancer.settings import BundleSettings, Settings

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


Prove = Callable[[Snapshot, Settings, list[str]], Mapping[str, str]]
"""Of nodes whose addresses in the file are not those in the directory: why the server there is not that node."""
PATIENCE = Timeouts(connect=3.0, statement=5.0)


def enrol(directory: Directory, leadership: Leadership, settings: Settings, prove: Prove | None = None) -> int:
    """Brings the directory up to date; returns how many records were changed."""
    snapshot = directory.snapshot()
    odd = (prove or prove_addresses)(snapshot, settings, list(_changed_addresses(snapshot, settings)))
    for node, why in sorted(odd.items()):
        log.warning("a changed address is not published yet", node=node, why=why)

    def propose(snapshot: Snapshot) -> tuple[Transaction | None, int]:
        changes = tuple(changes_of(snapshot, settings, odd))
        transaction = Transaction(
            changes, snapshot.version, "configuration read", settings.daemon.instance, leadership.epoch
        )
        return transaction if changes else None, len(changes)

    return commit_on_newest(directory, propose, "the configuration could not be recorded")


def prove_addresses(snapshot: Snapshot, settings: Settings, nodes: list[str]) -> Mapping[str, str]:
    """Asks the servers at the addresses of the file, all at once."""
    identity = identity_of(snapshot)
    answers = SHARED.ask_all({node: partial(_prove, snapshot, address_in(settings, node, identity)) for node in nodes})
    return {node: str(answer) for node, answer in answers.items() if answer}


def _prove(snapshot: Snapshot, address: Address) -> str:
    asked = connect(address, purpose="proof of an address", timeouts=PATIENCE)
    with closing(asked), translated(address.node), asked.cursor() as cursor:
        known = read_identity(cursor)
        owned = read_tablets(cursor) if known is not None else []
    if known is None or known.node != address.node:
        return f"the server there is {'no node' if known is None else f'node {known.node}'}, not node {address.node}"
    mine = ((row, snapshot.find_tablet(row.id)) for row in owned)
    if not any(tablet and (tablet.node, tablet.epoch) == (address.node, row.epoch) for row, tablet in mine):
        return f"the server there has none of the tablets of node {address.node}"
    return ""


def _changed_addresses(snapshot: Snapshot, settings: Settings) -> Iterator[str]:
    """Of nodes that own something: nobody is sent to the others."""
    for bundle in settings.bundles.values():
        for node in bundle.nodes.values():
            known = snapshot.nodes.get(node.id)
            if known is not None and known.dsn != node.dsn and tablets_on(snapshot, node.id):
                yield node.id


def changes_of(snapshot: Snapshot, settings: Settings, odd: Mapping[str, str] | None = None) -> Iterator[Change]:
    """What the configuration changes in the directory; the addresses of the `odd` nodes stay as they are."""
    gone = {pause.bundle for pause in snapshot.pauses.values() if pause.only == HANDOVER}
    for bundle in settings.bundles.values():
        if bundle.name in gone:
            continue
        if bundle.name not in snapshot.bundles:
            yield Put(Bundle(bundle.name))
        for record in records_of(bundle):
            known = snapshot.nodes.get(record.id)
            wanted = record if known is None else _with_record(record, known)
            if known is not None and record.id in (odd or {}):
                wanted = replace(wanted, dsn=known.dsn)
            if wanted != known:
                yield Put(wanted)
    configured = {node for bundle in settings.bundles.values() for node in bundle.nodes}
    running = [record for record in snapshot.migrations.values() if not record.finished]
    busy = {node for record in running for node in (record.source_node, record.target_node)}
    for node in snapshot.nodes.values():
        unlisted = node.id not in configured | busy and node.bundle in settings.bundles and node.bundle not in gone
        if unlisted and not tablets_on(snapshot, node.id):
            yield Remove(RecordKind.NODE, node.id)


def _with_record(configured: Node, known: Node) -> Node:
    """What the file says, with what operators and the leader have recorded since."""
    return replace(
        configured, state=known.state, reason=known.reason, rewound=known.rewound, generation=known.generation
    )


SECONDS = 600.0
"""How long a node that was right is assumed to stay right."""

Wanted = Mapping[Name, bool]


class ProofKeeper:
    """Under one leadership."""

    def __init__(self, leader_epoch: int, clock: Clock) -> None:
        self._epoch = leader_epoch
        self._clock = clock
        self._right: dict[str, tuple[Wanted, float]] = {}

    def keep(self, snapshot: Snapshot, settings: Settings) -> int:
        """Brings every node in line; returns how many roots were changed. One out of reach waits."""
        doubtful = {}
        for bundle in settings.bundles.values():
            wanted = dict(_wanted(snapshot, bundle))
            for node in bundle.nodes:
                if wanted and not self._known(node, wanted):
                    doubtful[node] = partial(self._bring, address_in(settings, node, identity_of(snapshot)), wanted)
        answers = SHARED.ask_all(doubtful)
        for answer in answers.values():
            if isinstance(answer, BalancerError):
                raise answer
        return sum(changed for changed in answers.values() if not isinstance(changed, BalancerError))

    def _known(self, node: str, wanted: Wanted) -> bool:
        then, at = self._right.get(node, ({}, 0.0))
        return then == wanted and self._clock.monotonic() - at < SECONDS

    def _bring(self, address: Address, wanted: Wanted) -> int:
        node = address.node
        try:
            with translated(node), closing(connect(address, purpose="proofs")) as connection:
                wrong = {root: needed for root, needed in wanted.items() if unlike(connection, [root], wanted=needed)}
                for root, needed in wrong.items():
                    # One root at a time: each needs a lock that writers wait behind.
                    with node_transaction(connection, self._epoch, node) as cursor:
                        upgrade_schema(cursor)
                        set_proof(cursor, [root], wanted=needed)
                    log.info("require_proof", node=node, root=str(root), on=needed)
        except BalancerError as error:
            log.warning("require_proof is not up to date", node=node, error=str(error))
            return 0
        self._right[node] = dict(wanted), self._clock.monotonic()
        return len(wrong)


def _wanted(snapshot: Snapshot, bundle: BundleSettings) -> Iterator[tuple[Name, bool]]:
    """Roots of tables that are in the directory: others are not made yet."""
    for table in snapshot.tables.values():
        shape = bundle.tables.get(table.name)
        if table.bundle == bundle.name and shape is not None and not table.everywhere:
            yield from ((parse_name(root), shape.require_proof) for root in table.roots)


LOOK_SECONDS: Final = 600.0
"""An orphan slot takes hours to fill a disk; a look is a few catalogue queries on each node."""


class LeftoverWatch:
    """Used by one thread at a time for each bundle."""

    def __init__(self, snapshot: Callable[[], Snapshot], addresses: Addresses, reporter: Reporter) -> None:
        self._snapshot = snapshot
        self._addresses = addresses
        self._reporter = reporter

    def look(self, bundle: str, nodes: Iterable[str]) -> None:
        """Looks at every node of a bundle."""
        answers = SHARED.ask_all({node: partial(self._count, node) for node in nodes})
        counts: dict[str, int] = {}
        for node, answer in answers.items():
            if isinstance(answer, BalancerError):
                log.debug("cannot look for leftovers", node=node, error=str(answer))
            else:
                counts[node] = answer
        self._reporter.leftovers(bundle, counts)
        for node, count in counts.items():
            if count:
                log.warning("leftovers of migrations; `balancer doctor` shows them", node=node, count=count)

    def _count(self, node: str) -> int:
        links = NodeSessions(self._addresses, "leftovers")
        try:
            with translated(node):
                connection = links.control(node)
                with connection.cursor() as cursor:
                    if not installed(cursor):
                        return 0
                # Before and after: what begins or ends while we look is not a leftover.
                running = _running(self._snapshot())
                found = find_leftovers(connection)
        finally:
            links.close()
        running |= _running(self._snapshot())
        return sum(leftover.migration not in running for leftover in found)


def _running(snapshot: Snapshot) -> set[str]:
    return {migration.id for migration in snapshot.migrations.values() if not migration.finished}


class ExposureWatch:
    """Says so in the log, once for each change, and in a metric."""

    def __init__(self, directory: Callable[[], Directory], instruments: Instruments) -> None:
        self._directory = directory
        self._metric = instruments.directory_open
        self._known: tuple[str, ...] = ()

    def look(self) -> None:
        """Checks once. What was known stays while the directory is out of reach."""
        try:
            found = tuple(self._directory().exposures())
        except BalancerError as error:
            log.warning("it is not known who may change the directory", error=str(error))
            return
        if found != self._known:
            for one in found:
                log.warning("the directory is open", error=one, remedy="balancer directory secure")
        self._known = found
        self._metric.set(bool(found))
