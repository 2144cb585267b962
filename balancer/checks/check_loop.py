"""The loop of the consistency checker: one step is one look at one unit of work, and the book after it.

The daemon's leader calls `step` within its schedule and its share of the time; `balancer verify` calls it until a round
is over. `policies.checking` decides what is next and what a look means.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from balancer.checks.ground import Ground
from balancer.checks.kinds import KINDS
from balancer.clock import Clock
from balancer.directory.contract import Directory
from balancer.errors import BalancerError
from balancer.migration.links import Addresses, Links
from balancer.nodes.connection import Timeouts
from balancer.nodes.connection_holder import ConnectionHolder
from balancer.policies.check_options import CheckKind
from balancer.policies.checking import (
    Anomaly,
    CheckBook,
    CheckUnit,
    Look,
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
    look: Look = Look()  # noqa: RUF009 - frozen
    seconds: float = 0.0


class Checker:
    """Goes over one bundle. Belongs to one thread."""

    def __init__(self, ground: Ground, book: CheckBook) -> None:
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

    def _look(self, unit: CheckUnit) -> Look:
        ground = replace(self._ground, sums=self.book.sums)
        try:
            return KINDS[unit.kind].look(ground, unit)
        except BalancerError as error:
            return Look(unchecked=f"{unit.kind}: {error}")

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
) -> Iterator[Ground]:
    """What a checker works on, for the length of a block."""
    links = Links(addresses, "checks")
    patience = bundle.checks.statement_timeout
    readers = ConnectionHolder("check", Timeouts(statement=patience, network=patience + 10.0))
    poller = Poller(cluster, clock, newest_epoch=lambda: directory.snapshot().epoch)
    try:
        yield Ground(bundle, directory, links, poller, readers, clock, tables, tablets)
    finally:
        readers.close()
        links.close()
        poller.close()
