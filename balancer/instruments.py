"""Every metric, declared once: its name, a sentence of meaning, its labels, and why those labels stay few.

Each part sets these through an `Instruments`: the planner's report, migrations, the directory's
users, the API. Alert rules and the dashboard in `deploy/` are tested against `declared()`. No label ever names a
tablet, a key, a migration or a user: at a million tablets there are as many series as at ten. A label is one of
`bundle` and `node` (what the operator wrote into his files) or a word of our own fixed list.
"""

from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from balancer import __version__

_FAST: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_PAUSES: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
_MIGRATIONS: Final = (1.0, 5.0, 15.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 3600.0, 10800.0, 43200.0)

MESSAGE_OUTCOMES: Final = ("applied", "failed", "refused", "waiting")
"""What the label `outcome` of messages may be: what an attempt of the leader's came to."""
MIGRATION_WAITS: Final = ("snapshots", "locks", "other")
"""What the label `reason` of waiting migrations may be."""
DIMENSIONS: Final = ("bytes", "memory", "write_rate", "read_rate", "tablets")
"""What the label `dimension` may be: the names of `[placement] dimensions` in a bundle's file."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """One metric as people and tests see it."""

    name: str
    kind: str  # gauge, counter, histogram
    meaning: str
    labels: tuple[str, ...]
    bound: str
    """How many series there can be."""

    def series(self) -> tuple[str, ...]:
        """The names under which Prometheus stores it."""
        if self.kind == "histogram":
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)


class Instruments:
    """All metrics of one process, in a registry of their own (tests and several daemons in one process need that)."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry: Final = registry or CollectorRegistry()
        self.declarations: Final[list[Declaration]] = []
        self._declare_bundles()
        self._declare_nodes()
        self._declare_between_nodes()
        self._declare_plans()
        self._declare_migrations()
        self._declare_checks()
        self._declare_process()

    def _declare_bundles(self) -> None:
        per_bundle, per_dimension = "one per bundle", f"bundles × {len(DIMENSIONS)} dimensions"
        bundle = ("bundle",)
        self.score = self._gauge("balance_score", "How even the bundle is, 0 to 100.", bundle, per_bundle)
        self.score_bound = self._gauge(
            "balance_score_bound",
            "Upper bound of the score: no plan within the budgets can do better.",
            bundle,
            per_bundle,
        )
        self.imbalance = self._gauge(
            "imbalance_ratio",
            "Load of the fullest node over the mean, each node by its weight; 1 is even.",
            ("bundle", "dimension"),
            per_dimension,
        )
        self.bundle_state = self._gauge(
            "bundle_state",
            "1 for the current state: balanced, working, waiting for the schedule, blocked.",
            ("bundle", "state"),
            "bundles × 4 states",
        )
        self.bundle_mode = self._gauge(
            "bundle_mode", "1 for the bundle's mode: observe, approve, autonomous.", ("bundle", "mode"), "bundles × 3"
        )
        self.paused = self._gauge("paused", "1 while an operator has paused the bundle.", bundle, per_bundle)
        self.schedule_open = self._gauge(
            "schedule_open", "1 while the schedule lets new migrations start.", bundle, per_bundle
        )
        self.schedule_opens_in = self._gauge(
            "schedule_opens_in_seconds",
            "Seconds until the schedule opens; 0 while it is open, +Inf if it never opens.",
            bundle,
            per_bundle,
        )
        self.tablet_sizes = self._gauge(
            "tablet_size_bytes",
            "Sizes of the bundle's tablets: median, p99 and max.",
            ("bundle", "statistic"),
            "bundles × 3 statistics",
        )
        self.hottest_tablet = self._gauge(
            "hottest_tablet_rows_per_second",
            "Rows per second of the tablet with the most writes, or reads.",
            ("bundle", "operation"),
            "bundles × 2 operations",
        )
        self.quarantined = self._gauge(
            "quarantined_tablets", "Tablets left alone until an operator has looked at them.", bundle, per_bundle
        )
        self.tick_seconds = self._histogram("tick_seconds", "Duration of a bundle's tick.", bundle, per_bundle, _FAST)
        self.tick_at = self._gauge(
            "tick_timestamp_seconds", "When the bundle's last tick ended, in seconds since 1970.", bundle, per_bundle
        )
        self.tick_errors = self._counter("tick_errors", "Ticks of a bundle that failed.", bundle, per_bundle)

    def _declare_nodes(self) -> None:
        node, per_node = ("bundle", "node"), "one per node"
        self.tablets = self._gauge(
            "tablets",
            "Tablets of a node, each in one state: owned, migrating, pinned, quarantined.",
            ("bundle", "node", "state"),
            "nodes × 4 states",
        )
        self.node_load = self._gauge(
            "node_load",
            "A node's load in a dimension: bytes, bytes of memory, rows per second, tablets.",
            ("bundle", "node", "dimension"),
            f"nodes × {len(DIMENSIONS)} dimensions",
        )
        self.node_capacity = self._gauge(
            "node_capacity",
            "How much a node can hold, if known: bytes of disk or of memory.",
            ("bundle", "node", "dimension"),
            "nodes × 2 dimensions",
        )
        self.node_state = self._gauge(
            "node_state",
            "1 for the node's state: active, draining, closed, down, lost.",
            ("bundle", "node", "state"),
            "nodes × 5 states",
        )
        self.node_reachable = self._gauge("node_reachable", "1 if the last poll reached the node.", node, per_node)
        self.node_disagreements = self._gauge(
            "node_disagreements",
            "Tablets about which the node's ownership table contradicts the directory.",
            node,
            per_node,
        )
        self.node_rewound = self._gauge(
            "node_rewound",
            "1 if the node has gone back in time: writes that it acknowledged are missing.",
            node,
            per_node,
        )
        self.node_database = self._gauge("node_database_bytes", "Size of the node's database.", node, per_node)
        self.node_connections = self._gauge("node_connections", "Connections to the node's server.", node, per_node)
        self.node_wal = self._gauge(
            "node_retained_wal_bytes", "Write-ahead log that replication slots keep on the node.", node, per_node
        )
        self.node_prepared = self._gauge(
            "node_prepared_seconds",
            "Age of the oldest part of a transaction over several nodes that waits on the node; 0: none waits.",
            node,
            per_node,
        )
        self.poll_age = self._gauge("poll_age_seconds", "Age of the node's figures at the last tick.", node, per_node)
        self.poll_seconds = self._histogram(
            "poll_seconds", "Duration of one node's poll.", ("bundle",), "bundles × buckets", _FAST
        )
        self.leftovers = self._gauge(
            "leftovers",
            "Slots, publications, subscriptions and tables that no migration owns.",
            node,
            per_node,
        )

    def _declare_between_nodes(self) -> None:
        node, per_node = ("bundle", "node"), "one per node"
        self.messages_pending = self._gauge(
            "messages_pending",
            "Messages between shards that the node's tablets have sent and that are not settled yet.",
            node,
            per_node,
        )
        self.messages_failed = self._gauge(
            "messages_failed",
            "Messages of the node's tablets that were given up and not dismissed yet.",
            node,
            per_node,
        )
        self.messages_age = self._gauge(
            "messages_oldest_seconds",
            "Age of the oldest message that waits on the node; 0: none waits.",
            node,
            per_node,
        )
        self.missing_copies = self._gauge(
            "reference_copies_missing",
            "Reference tables without a copy on the node that follows the home.",
            node,
            per_node,
        )
        self.copy_lag = self._gauge(
            "reference_lag_bytes",
            "Bytes of the home's log that a copy of a reference table on the node has not confirmed; the maximum.",
            node,
            per_node,
        )

    def _declare_plans(self) -> None:
        bundle, per_bundle = ("bundle",), "one per bundle"
        reasons = "bundles × the codes of the policies (some dozens)"
        self.plans = self._counter("plans", "Plans made.", bundle, per_bundle)
        self.plan_score = self._gauge(
            "plan_score_after", "The score that the current plan would lead to.", bundle, per_bundle
        )
        self.plan_actions = self._gauge(
            "plan_actions",
            "Actions of the current plan by kind and reason.",
            ("bundle", "kind", "reason"),
            f"{reasons} × 5 kinds",
        )
        self.plan_rejections = self._gauge(
            "plan_rejections",
            "Candidates that the current plan rejected, by reason.",
            ("bundle", "reason"),
            reasons,
        )
        self.plan_pending_moves = self._gauge(
            "plan_pending_moves", "Moves that wait for the budgets.", bundle, per_bundle
        )
        self.plan_pending_bytes = self._gauge(
            "plan_pending_bytes", "Bytes of the moves that wait for the budgets.", bundle, per_bundle
        )
        self.actions = self._counter(
            "actions",
            "Actions that became migrations, by kind and reason.",
            ("bundle", "kind", "reason"),
            f"{reasons} × 5 kinds",
        )
        self.commands = self._counter(
            "commands",
            "Operators' commands by result: done, refused.",
            ("verb", "result"),
            "a dozen verbs × 2 results",
        )

    def _declare_migrations(self) -> None:
        operation = ("bundle", "operation")
        self.migrations = self._gauge(
            "migrations",
            "Unfinished migrations by operation and phase.",
            ("bundle", "operation", "phase"),
            "bundles × 4 operations × 14 phases",
        )
        self.migrations_finished = self._counter(
            "migrations_finished",
            "Migrations that ended: done, cancelled, failed.",
            ("bundle", "operation", "outcome"),
            "bundles × 4 operations × 3 outcomes",
        )
        self.migrations_waiting = self._gauge(
            "migrations_waiting",
            "Migrations that wait, by reason: snapshots (sessions with an older one), locks (on the table), other.",
            ("bundle", "reason"),
            "bundles × 3 reasons",
        )
        self.migration_waits = self._gauge(
            "migration_waiting_seconds",
            "For how long the migration that has waited longest has waited; 0: none waits.",
            ("bundle",),
            "one per bundle",
        )
        self.migration_seconds = self._histogram(
            "migration_seconds",
            "Duration of completed migrations.",
            operation,
            "bundles × 4 operations × buckets",
            _MIGRATIONS,
        )
        self.moved_bytes = self._counter(
            "moved_bytes", "Bytes copied by completed migrations.", operation, "bundles × 4 operations"
        )
        self.write_pause = self._histogram(
            "write_pause_seconds",
            "How long one migration held back the writers of a tablet.",
            operation,
            "bundles × 4 operations × buckets",
            _PAUSES,
        )
        self.verifications = self._counter(
            "verifications",
            "Comparisons of source and target before a commit: equal, different.",
            ("bundle", "result"),
            "bundles × 2 results",
        )

    def _declare_checks(self) -> None:
        kind, per_kind = ("bundle", "kind"), "bundles × 10 kinds of checks"
        self.check_findings = self._gauge(
            "check_findings", "Findings of the consistency checker that are still open.", kind, per_kind
        )
        self.check_unchecked = self._gauge(
            "check_unchecked", "What the current round could not check so far.", kind, per_kind
        )
        self.check_ended = self._gauge(
            "check_timestamp_seconds", "When a kind was last checked completely, in seconds since 1970.", kind, per_kind
        )
        self.check_overdue = self._gauge(
            "check_overdue_seconds",
            "How late a round of checks is; it may take as long as the time between two rounds.",
            ("bundle",),
            "one per bundle",
        )
        self.check_rows = self._gauge(
            "check_rows", "Rows read by the current or last round of checks.", ("bundle",), "one per bundle"
        )

    def _declare_process(self) -> None:
        one = "one"
        self.leader = self._gauge("leader", "1 if this instance leads.", (), one)
        self.leader_epoch = self._gauge("leader_epoch", "The newest leader's epoch known here.", (), one)
        self.leader_wanted = self._gauge(
            "leader_wanted", "1 if this instance should lead, when leadership is spread over instances.", (), one
        )
        self.instances_present = self._gauge(
            "instances_present", "Instances of this directory that are present; 0: leadership is not spread.", (), one
        )
        self.handovers = self._counter(
            "leader_handovers", "How often this instance led and handed over to the wanted one.", (), one
        )
        self.directory_commits = self._histogram(
            "directory_commit_seconds",
            "Duration of directory commits by outcome: committed, conflict, fenced, refused, unavailable, unknown.",
            ("outcome",),
            "6 outcomes × buckets",
            _FAST,
        )
        self.messages_delivered = self._counter(
            "messages_delivered",
            "The leader's attempts to deliver messages by outcome: applied, failed, refused, waiting.",
            ("outcome",),
            "4 outcomes",
        )
        self.directory_age = self._gauge(
            "directory_age_seconds", "How stale this instance's view of the directory may be.", (), one
        )
        self.directory_version = self._gauge("directory_version", "Version of the directory known here.", (), one)
        self.directory_open = self._gauge(
            "directory_open",
            "1 while someone other than the writer may change the directory, or other than the reader may read it.",
            (),
            one,
        )
        self.configuration_bad = self._gauge(
            "configuration_reload_failed",
            "1 while the files contain errors and the last good configuration stays in force.",
            (),
            one,
        )
        self.configuration_at = self._gauge(
            "configuration_timestamp_seconds",
            "When the configuration in force was read, in seconds since 1970.",
            (),
            one,
        )
        self.http_requests = self._counter(
            "http_requests",
            "Requests by route and status.",
            ("route", "status"),
            "some dozen routes × some dozen statuses",
        )
        self.http_seconds = self._histogram(
            "http_seconds", "Duration of requests.", ("route",), "some dozen routes × buckets", _FAST
        )
        self.info = self._gauge("info", "1, with the version of the software.", ("version",), one)
        self.info.labels(__version__).set(1)

    def _gauge(self, name: str, meaning: str, labels: tuple[str, ...], bound: str) -> Gauge:
        self._note(name, "gauge", meaning, labels, bound)
        return Gauge(f"balancer_{name}", meaning, labels, registry=self.registry)

    def _counter(self, name: str, meaning: str, labels: tuple[str, ...], bound: str) -> Counter:
        self._note(f"{name}_total", "counter", meaning, labels, bound)
        return Counter(f"balancer_{name}", meaning, labels, registry=self.registry)

    def _histogram(
        self, name: str, meaning: str, labels: tuple[str, ...], bound: str, buckets: tuple[float, ...]
    ) -> Histogram:
        self._note(name, "histogram", meaning, labels, bound)
        return Histogram(f"balancer_{name}", meaning, labels, registry=self.registry, buckets=buckets)

    def _note(self, name: str, kind: str, meaning: str, labels: tuple[str, ...], bound: str) -> None:
        self.declarations.append(Declaration(f"balancer_{name}", kind, meaning, labels, bound))


def declared() -> tuple[Declaration, ...]:
    """The list of all metrics."""
    return tuple(Instruments().declarations)
