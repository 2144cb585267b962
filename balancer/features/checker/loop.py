"""The loop of the consistency checker: one step is one look at one unit of work, and the book after it.

The daemon's leader calls `step` within its schedule and its share of the time; `balancer verify` calls it until a round
is over. `policies.checking` decides what is next and what a look means.

The list of what can be looked at: for each kind its subjects, in order, and the look at one unit of work.

A further kind is a word in `policies.check_options.CheckKind` and a line here; the checker, the book, the metrics and
the page know no kind by name.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from balancer.clock import Clock
from balancer.directory.contract import Directory
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.features.checker.evidence import CheckScope
from balancer.features.checker.invariants import (
    look_at_invariants,
    look_at_sum,
    sums_of_bundle,
    tablets_with_invariants,
)
from balancer.features.checker.map import look_at_map, look_for_strays, whole_bundle
from balancer.features.checker.messages import look_at_messages, tablets_with_messages
from balancer.features.checker.numbers import look_at_copies, look_at_sequences, tables_on_nodes
from balancer.features.checker.rows import (
    look_at_bounds,
    look_at_ids,
    look_for_orphans,
    tablets_with_ids,
    tablets_with_keys,
    tablets_with_rows,
)
from balancer.nodes.session.connection import Timeouts
from balancer.nodes.session.holder import Addresses, ConnectionHolder, NodeSessions
from balancer.policies.check_options import CheckKind
from balancer.policies.checking import (
    Anomaly,
    CheckResult,
    CheckRounds,
    CheckUnit,
    after_look,
    begin_round,
    confirmed,
    end_kind,
    next_unit,
    of_kinds,
)
from balancer.polling.poller import Poller
from balancer.settings import BundleSettings

CONFIRM_PAUSE = 0.5
"""Seconds between two looks at what looks wrong: anything temporary is usually over by then."""


@dataclass(frozen=True, slots=True)
class CheckStep:
    """What one step did."""

    unit: CheckUnit | None
    """None: a kind or a round has begun or ended."""
    appeared: tuple[Anomaly, ...] = ()
    gone: tuple[Anomaly, ...] = ()
    look: CheckResult = CheckResult()  # noqa: RUF009 - frozen
    seconds: float = 0.0


class Checker:
    """Goes over one bundle. Belongs to one thread."""

    def __init__(self, ground: CheckScope, book: CheckRounds) -> None:
        self._ground = ground
        self.book = book
        self._subjects: tuple[CheckKind | None, int, Sequence[int]] = (None, -1, ())

    @property
    def kinds(self) -> tuple[CheckKind, ...]:
        return self._ground.bundle.checks.kinds

    def renew(self, bundle: BundleSettings) -> None:
        """Takes over a reloaded configuration."""
        self._ground = replace(self._ground, bundle=bundle)
        self._subjects = (None, -1, ())

    def begin(self) -> tuple[Anomaly, ...]:
        """Begins a new round; returns what is no longer checked."""
        now = self._ground.clock.now().timestamp()
        self.book, gone = of_kinds(begin_round(self.book, self.kinds, now), self.kinds)
        return gone

    def step(self) -> CheckStep:
        """The next look of the round; what looks wrong is looked at twice. Raises no node's errors."""
        round_ = self.book.running
        assert round_ is not None, "a round was begun"
        assert round_.kind is not None
        clock, began = self._ground.clock, self._ground.clock.monotonic()
        unit = next_unit(round_, self._subjects_of(round_.kind)) if round_.kind in self.kinds else None
        if unit is None:
            self.book, gone = end_kind(self.book, self.kinds, clock.now().timestamp())
            return CheckStep(None, gone=gone)
        look = self._look(unit)
        if look.anomalies:
            clock.sleep(CONFIRM_PAUSE)
            look = confirmed(look, self._look(unit))
        seconds = clock.monotonic() - began
        self.book, appeared = after_look(self.book, unit, look, clock.now().timestamp(), seconds)
        return CheckStep(unit, appeared, look=look, seconds=seconds)

    def _look(self, unit: CheckUnit) -> CheckResult:
        ground = replace(self._ground, sums=self.book.sums)
        try:
            return KINDS[unit.kind].look(ground, unit)
        except BalancerError as error:
            return CheckResult(unchecked=f"{unit.kind}: {error}")

    def _subjects_of(self, kind: CheckKind) -> Sequence[int]:
        """Made again when the map has changed: a million tablets are not counted at every step."""
        snapshot = self._ground.snapshot()
        known, version, subjects = self._subjects
        if (known, version) != (kind, snapshot.version):
            subjects = KINDS[kind].subjects(self._ground, snapshot)
            self._subjects = (kind, snapshot.version, subjects)
        return subjects


@contextmanager
def ground_of(
    bundle: BundleSettings,
    directory: Directory,
    addresses: Addresses,
    cluster: str,
    clock: Clock,
    *,
    tables: frozenset[str] | None = None,
    tablets: frozenset[int] | None = None,
) -> Iterator[CheckScope]:
    """What a checker works on, for the length of a block."""
    links = NodeSessions(addresses, "checks")
    patience = bundle.checks.statement_timeout
    readers = ConnectionHolder("check", Timeouts(statement=patience, network=patience + 10.0))
    poller = Poller(cluster, clock, newest_epoch=lambda: directory.snapshot().epoch)
    try:
        yield CheckScope(bundle, directory, links, poller, readers, clock, tables, tablets)
    finally:
        readers.close()
        links.close()
        poller.close()


class CheckDefinition(NamedTuple):
    """What the checker needs to know about a kind."""

    subjects: Callable[[CheckScope, Snapshot], Sequence[int]]
    """The numbers of what to check, in order; only `look` knows what they mean."""
    look: Callable[[CheckScope, CheckUnit], CheckResult]


KINDS: Mapping[CheckKind, CheckDefinition] = {
    CheckKind.MAP: CheckDefinition(whole_bundle, look_at_map),
    CheckKind.STRAYS: CheckDefinition(whole_bundle, look_for_strays),
    CheckKind.SEQUENCES: CheckDefinition(tables_on_nodes, look_at_sequences),
    CheckKind.COPIES: CheckDefinition(whole_bundle, look_at_copies),
    CheckKind.BOUNDS: CheckDefinition(tablets_with_keys, look_at_bounds),
    CheckKind.ORPHANS: CheckDefinition(tablets_with_rows, look_for_orphans),
    CheckKind.IDS: CheckDefinition(tablets_with_ids, look_at_ids),
    CheckKind.MESSAGES: CheckDefinition(tablets_with_messages, look_at_messages),
    CheckKind.INVARIANTS: CheckDefinition(tablets_with_invariants, look_at_invariants),
    CheckKind.SUMS: CheckDefinition(sums_of_bundle, look_at_sum),
}
