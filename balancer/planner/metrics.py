"""Turns what ticks and migrations find out into metrics. The tick calls it; it decides nothing and does no I/O.

Labels come and go (a node is removed, a reason no longer holds): new values are set before stale series are removed, so
that a scrape in between never sees a gap.

A directory whose commits are timed: the daemon wraps its own in one, and everything below commits through it.

Turns what migrations report into metrics and log lines.
"""

import math
import threading
from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol, Self

import numpy as np
import structlog
from prometheus_client import Gauge

from balancer.clock import Clock
from balancer.directory.contract import Directory, Follower, Leadership, Secured
from balancer.directory.model import Json, LogEntry, Migration, MigrationKind, NodeState, Record, Transaction
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.codec import StoredEntry
from balancer.errors import BalancerError, Conflict, Fenced, OutcomeUnknown, Unavailable
from balancer.instruments import MESSAGE_OUTCOMES, MIGRATION_WAITS, Instruments
from balancer.migration.machine import State
from balancer.migration.progress import Observer, Progress
from balancer.planner.bundle_state import BundleState, NodeReport, ScheduleReport, StateWord, imbalance, node_loads
from balancer.policies.check_options import CheckOptions
from balancer.policies.checking import CheckRounds, counts, overdue
from balancer.policies.view import BundleView, PlanResult
from balancer.settings import Mode

Values = Mapping[tuple[str, ...], float]


class MailCount(Protocol):
    """Of one node."""

    pending: int
    failed: int
    oldest: float


class Reporter:
    """Keeps the metrics in step with the newest states. Safe to call from several bundles' threads."""

    def __init__(self, instruments: Instruments) -> None:
        self.instruments = instruments
        self._known: dict[tuple[Gauge, str], Values] = {}
        self._waits: dict[str, tuple[str, str, float]] = {}  # migration → bundle, reason, seconds
        self._lock = threading.Lock()

    def observe(self, state: BundleState, migrations: Iterable[Migration] = ()) -> None:
        """One bundle after one tick, with the directory's migrations (those of other bundles are left out)."""
        i, bundle = self.instruments, state.bundle
        self._start(bundle)
        self._set(i.bundle_state, bundle, {(bundle, word): word is state.word for word in StateWord})
        self._set(i.bundle_mode, bundle, {(bundle, mode): mode is state.mode for mode in Mode})
        self._set(i.paused, bundle, {(bundle,): state.paused})
        self._set(i.tick_at, bundle, {(bundle,): state.at.timestamp()})
        i.tick_seconds.labels(bundle).observe(state.tick_seconds)
        i.tick_errors.labels(bundle).inc(bool(state.error))
        self._schedule(bundle, state.schedule, state.at.timestamp())
        self._nodes(bundle, state)
        self._migrations(bundle, migrations)
        self._waiting(bundle)
        if state.view is not None:
            self._view(bundle, state.view)
        if state.plan is not None:
            self._plan(bundle, state.plan)

    def finished(self, migration: Migration, outcome: str, seconds: float, moved: float, pause: float | None) -> None:
        """A migration came to an end: done, cancelled or failed; `pause` is None if writers were not held back."""
        labels = migration.bundle, migration.operation.value
        self.instruments.migrations_finished.labels(*labels, outcome).inc()
        if outcome == "done":
            self.instruments.migration_seconds.labels(*labels).observe(seconds)
            self.instruments.moved_bytes.labels(*labels).inc(moved)
        if pause is not None:
            self.instruments.write_pause.labels(*labels).observe(pause)

    def waits(self, migration: Migration, reason: str, seconds: float) -> None:
        """What a migration waits for, and for how long it has; without a reason it does not wait."""
        with self._lock:
            if reason:
                self._waits[migration.id] = (migration.bundle, reason, seconds)
            elif self._waits.pop(migration.id, None) is None:
                return
        self._waiting(migration.bundle)

    def _waiting(self, bundle: str) -> None:
        with self._lock:
            here = [(why, waited) for where, why, waited in self._waits.values() if where == bundle]
        counts = {word: sum(why == word for why, _ in here) for word in MIGRATION_WAITS}
        self._set(self.instruments.migrations_waiting, bundle, {(bundle, word): n for word, n in counts.items()})
        longest = max((waited for _, waited in here), default=0.0)
        self._set(self.instruments.migration_waits, bundle, {(bundle,): longest})

    def leftovers(self, bundle: str, counts: Mapping[str, int]) -> None:
        """Objects of dead migrations on each node that could be examined."""
        self._set(self.instruments.leftovers, bundle, {(bundle, node): count for node, count in counts.items()})

    def references(self, bundle: str, missing: Mapping[str, int], lags: Mapping[str, float]) -> None:
        """Copies of reference tables, by node: how many are missing, and how far behind the others are at most."""
        self._set(self.instruments.missing_copies, bundle, {(bundle, node): n for node, n in missing.items()})
        self._set(self.instruments.copy_lag, bundle, {(bundle, node): lag for node, lag in lags.items()})

    def messages(self, snapshot: Snapshot, nodes: Mapping[str, MailCount], outcomes: Mapping[str, int]) -> None:
        """Messages between shards: what waits on each node, and what the leader has brought to an end."""
        i = self.instruments
        for bundle in {node.bundle for node in snapshot.nodes.values()}:
            here = {node: count for node, count in nodes.items() if snapshot.nodes[node].bundle == bundle}
            self._set(i.messages_pending, bundle, {(bundle, node): one.pending for node, one in here.items()})
            self._set(i.messages_failed, bundle, {(bundle, node): one.failed for node, one in here.items()})
            self._set(i.messages_age, bundle, {(bundle, node): one.oldest for node, one in here.items()})
        for outcome in MESSAGE_OUTCOMES:
            i.messages_delivered.labels(outcome).inc(outcomes.get(outcome, 0))

    def checks(self, bundle: str, book: CheckRounds, options: CheckOptions, now: float) -> None:
        """The consistency checker: what stands, what could not be checked, and how late it is."""
        i, round_ = self.instruments, book.round
        unchecked = {} if round_ is None else round_.unchecked
        kinds = [str(kind) for kind in options.kinds]
        found = counts(book)
        self._set(i.check_findings, bundle, {(bundle, kind): found[kind] for kind in kinds})
        self._set(i.check_unchecked, bundle, {(bundle, kind): len(unchecked.get(kind, ())) for kind in kinds})
        ended: Values = {(bundle, kind): book.ended[kind] for kind in kinds if kind in book.ended}
        self._set(i.check_ended, bundle, ended)
        self._set(i.check_overdue, bundle, {(bundle,): overdue(book, options, now)})
        self._set(i.check_rows, bundle, {(bundle,): round_.rows if round_ else 0})

    def started(self, bundle: str, kind: str, code: str) -> None:
        """An action became a migration."""
        self.instruments.actions.labels(bundle, kind, code).inc()

    def commanded(self, verb: str, result: str) -> None:
        """A command was carried out or refused."""
        self.instruments.commands.labels(verb, result).inc()

    def verified(self, bundle: str, equal: bool) -> None:
        """Source and target were compared before a commit."""
        self.instruments.verifications.labels(bundle, "equal" if equal else "different").inc()

    def forget(self, bundle: str) -> None:
        """The bundle is no longer configured: removes its series."""
        with self._lock:
            gauges = [gauge for gauge, name in self._known if name == bundle]
        for gauge in gauges:
            self._set(gauge, bundle, {})

    def _start(self, bundle: str) -> None:
        """Counters begin at 0: Prometheus sees no increase in a series whose first sample is already 1."""
        i = self.instruments
        for result in ("equal", "different"):
            i.verifications.labels(bundle, result)
        for operation in MigrationKind:
            for series in (i.moved_bytes, i.migration_seconds, i.write_pause):
                series.labels(bundle, operation.value)
            for outcome in ("done", "cancelled", "failed"):
                i.migrations_finished.labels(bundle, operation.value, outcome)

    def _schedule(self, bundle: str, schedule: ScheduleReport, now: float) -> None:
        self._set(self.instruments.schedule_open, bundle, {(bundle,): schedule.open})
        if schedule.open:
            seconds = 0.0
        elif schedule.next_open is None:
            seconds = math.inf
        else:
            seconds = max(0.0, schedule.next_open.timestamp() - now)
        self._set(self.instruments.schedule_opens_in, bundle, {(bundle,): seconds})

    def _nodes(self, bundle: str, state: BundleState) -> None:
        i, nodes = self.instruments, state.nodes
        states: Values = {(bundle, node.id, word): word == node.state for node in nodes for word in NodeState}
        self._set(i.node_state, bundle, states)
        self._set(i.node_reachable, bundle, {(bundle, node.id): node.reachable for node in nodes})
        self._set(i.node_disagreements, bundle, {(bundle, node.id): len(node.disagreements) for node in nodes})
        self._set(i.node_rewound, bundle, {(bundle, node.id): bool(node.rewound) for node in nodes})
        reached = [node for node in nodes if node.reachable]
        self._set(i.node_database, bundle, {(bundle, node.id): node.database_bytes for node in reached})
        self._set(i.node_connections, bundle, {(bundle, node.id): node.connections for node in reached})
        self._set(i.node_wal, bundle, {(bundle, node.id): node.retained_wal_bytes for node in reached})
        self._set(i.node_prepared, bundle, {(bundle, node.id): node.prepared_seconds for node in reached})
        self._set(i.poll_age, bundle, {(bundle, node.id): _age(node, state) for node in nodes})
        for node in reached:
            i.poll_seconds.labels(bundle).observe(node.poll_seconds)

    def _migrations(self, bundle: str, migrations: Iterable[Migration]) -> None:
        phases: Tally[tuple[str, ...]] = Tally(
            (bundle, migration.operation.value, migration.state)
            for migration in migrations
            if migration.bundle == bundle and not migration.finished
        )
        self._set(self.instruments.migrations, bundle, phases)

    def _view(self, bundle: str, view: BundleView) -> None:
        i, names = self.instruments, [node.id for node in view.nodes]
        loads: Values = {
            (bundle, node, dimension): float(value)
            for dimension, column in node_loads(view).items()
            for node, value in zip(names, column, strict=True)
        }
        self._set(i.node_load, bundle, loads)
        self._set(i.node_capacity, bundle, _capacities(bundle, view))
        self._set(i.imbalance, bundle, {(bundle, name): ratio for name, ratio in imbalance(view).items()})
        self._set(i.tablets, bundle, _tablets(bundle, view))
        self._set(i.quarantined, bundle, {(bundle,): len(view.quarantined)})
        sizes = view.tablets.sizes
        if len(sizes):
            quantiles = zip(("median", "p99", "max"), np.quantile(sizes, (0.5, 0.99, 1.0)), strict=True)
            self._set(i.tablet_sizes, bundle, {(bundle, name): float(value) for name, value in quantiles})
            rates = {"write": view.tablets.write_rate, "read": view.tablets.read_rate}
            hottest: Values = {(bundle, name): float(column.max()) for name, column in rates.items()}
            self._set(i.hottest_tablet, bundle, hottest)

    def _plan(self, bundle: str, plan: PlanResult) -> None:
        i = self.instruments
        i.plans.labels(bundle).inc()
        self._set(i.score, bundle, {(bundle,): plan.score_before})
        self._set(i.score_bound, bundle, {(bundle,): plan.bound})
        self._set(i.plan_score, bundle, {(bundle,): plan.score_after})
        self._set(i.plan_pending_moves, bundle, {(bundle,): plan.pending_moves})
        self._set(i.plan_pending_bytes, bundle, {(bundle,): plan.pending_bytes})
        actions: Tally[tuple[str, ...]] = Tally((bundle, action.kind.value, action.code) for action in plan.actions)
        self._set(i.plan_actions, bundle, actions)
        self._set(i.plan_rejections, bundle, {(bundle, code): count for code, count in plan.counts.items()})

    def _set(self, gauge: Gauge, bundle: str, values: Values) -> None:
        """Makes these the only series of the gauge that belong to the bundle."""
        with self._lock:
            known = self._known.get((gauge, bundle), {})
            self._known[gauge, bundle] = values
        for labels, value in values.items():
            if known.get(labels) != value:  # a thousand nodes have tens of thousands of series
                gauge.labels(*labels).set(float(value))
        stale = known.keys() - values.keys()
        for labels in stale:
            gauge.remove(*labels)


def _age(node: NodeReport, state: BundleState) -> float:
    """How old the node's figures are: those of an unreachable node are as old as its silence."""
    if node.reachable or node.unreachable_since is None:
        return 0.0
    return (state.at - node.unreachable_since).total_seconds()


def _capacities(bundle: str, view: BundleView) -> Values:
    capacities = {(bundle, node.id, "bytes"): node.disk_capacity for node in view.nodes}
    capacities |= {(bundle, node.id, "memory"): node.memory for node in view.nodes}
    return {labels: value for labels, value in capacities.items() if value is not None}


def _tablets(bundle: str, view: BundleView) -> Values:
    """Tablets by node and state; each counts once, and trouble takes precedence over work."""
    migrating = [tablet for flight in view.in_flight if not flight.waits for tablet in flight.tablets]
    count, columns = len(view.nodes), view.tablets
    state = np.zeros(len(columns), dtype=np.int64)
    for number, ids in enumerate((view.pinned, migrating, view.quarantined), start=1):
        state[np.isin(columns.ids, np.fromiter(ids, dtype=np.int64))] = number
    cells = np.bincount(columns.node * 4 + state, minlength=count * 4)
    words = ("owned", "pinned", "migrating", "quarantined")
    return {
        (bundle, node.id, word): float(cells[at * 4 + number])
        for at, node in enumerate(view.nodes)
        for number, word in enumerate(words)
    }


_OUTCOMES: Final[tuple[tuple[type[BalancerError], str], ...]] = (
    (Conflict, "conflict"),
    (Fenced, "fenced"),
    (Unavailable, "unavailable"),
    (OutcomeUnknown, "unknown"),
)


class MeteredDirectory:
    """See `balancer.directory.contract.Directory`: does what the wrapped one does."""

    def __init__(self, directory: Directory, instruments: Instruments, clock: Clock) -> None:
        self._directory = directory
        self._commits = instruments.directory_commits
        self._clock = clock

    def commit(self, transaction: Transaction) -> int:
        began, outcome = self._clock.monotonic(), "committed"
        try:
            return self._directory.commit(transaction)
        except BalancerError as error:
            outcome = next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "refused")
            raise
        finally:
            self._commits.labels(outcome).observe(self._clock.monotonic() - began)

    def restore(self, records: Sequence[Record], *, reason: str, author: str, leader_epoch: int) -> int:
        return self._directory.restore(records, reason=reason, author=author, leader_epoch=leader_epoch)

    def snapshot(self) -> Snapshot:
        return self._directory.snapshot()

    def history(self, after: int = 0, limit: int = 100) -> Sequence[LogEntry]:
        return self._directory.history(after, limit)

    def log(self, after: int, upto: int) -> Sequence[StoredEntry] | None:
        return self._directory.log(after, upto)

    def follow(self, confirm_every: float = 1.0) -> Follower:
        return self._directory.follow(confirm_every)

    def campaign(self, name: str, timeout: float | None = None) -> Leadership | None:
        return self._directory.campaign(name, timeout)

    def leader(self) -> str | None:
        return self._directory.leader()

    def publish(self, topic: str, name: str, document: Json) -> int:
        return self._directory.publish(topic, name, document)

    def published(self, topic: str) -> Mapping[str, Json]:
        return self._directory.published(topic)

    def unpublish(self, topic: str, name: str) -> None:
        self._directory.unpublish(topic, name)

    def take_block(self, table: int) -> int:
        return self._directory.take_block(table)

    def blocks(self) -> Mapping[int, int]:
        return self._directory.blocks()

    def exposures(self, *, everything: bool = False) -> Sequence[str]:
        return self._directory.exposures(everything=everything)

    def secure(self, *, dry_run: bool) -> Secured:
        return self._directory.secure(dry_run=dry_run)

    def close(self) -> None:
        self._directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


log = structlog.get_logger()


class MigrationMetrics(Observer):
    """Called from the migrations' own threads; does nothing that could hold one up."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def entered(self, migration: Migration, state: State) -> None:
        log.debug("state entered", state=state)

    def left(self, migration: Migration, state: State) -> None:
        if state is State.VERIFYING and not migration.error:
            self._reporter.verified(migration.bundle, True)

    def progressed(self, migration: Migration, progress: Progress) -> None:
        self._reporter.waits(migration, progress.reason, progress.waited)

    def finished(self, migration: Migration) -> None:
        self._reporter.waits(migration, "", 0.0)
        detail = migration.detail
        self._reporter.finished(
            migration,
            migration.state,
            seconds=migration.updated - migration.created,
            moved=float(detail.get("size", 0)),
            pause=detail.get("pause"),
        )
        if migration.detail.get("different"):
            self._reporter.verified(migration.bundle, False)
