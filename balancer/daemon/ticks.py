"""The ticks of all bundles: each has its own poller and memory, and its newest state is kept for anyone who asks."""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from balancer.clock import Clock
from balancer.daemon.leader import Leader
from balancer.directory.contract import Directory, Follower
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.naming import cluster_name
from balancer.nodes.session.addresses import addresses_of
from balancer.planner import orders, plans, windows
from balancer.planner.acting import TickInput
from balancer.planner.bundle_state import STATUS_TOPIC, BundleState, summary
from balancer.planner.day_profile import ProfileKeeper
from balancer.planner.hot_keys import NodeSampler, Samples
from balancer.planner.memory import BalancingNote
from balancer.planner.metrics import Reporter
from balancer.planner.recorder import Recorder
from balancer.planner.tick import BundleTick, failed_tick, left_alone
from balancer.planner.windows import LookBook
from balancer.polling.poller import FootingNotes, Poller, heirs
from balancer.settings import BundleSettings, Mode, Settings

log = structlog.get_logger()


class DaemonView(Protocol):
    """What a tick needs from the daemon."""

    @property
    def leading(self) -> Leader | None: ...

    @property
    def recorder(self) -> Recorder: ...

    def settings(self) -> Settings: ...

    def directory(self) -> Directory: ...

    def follower(self) -> Follower: ...


@dataclass(frozen=True, slots=True)
class _Bundle:
    """What the ticks of one bundle keep; the lock is held while one runs, so that nothing is closed under it."""

    tick: BundleTick
    poller: Poller
    book: FootingNotes
    balancing: BalancingNote
    profile: ProfileKeeper
    looks: LookBook
    lock: threading.Lock = field(default_factory=threading.Lock)


class Ticks:
    """Runs the ticks and keeps the states. `run` may be called for several bundles at once, once for each."""

    def __init__(self, around: DaemonView, reporter: Reporter, sampler: NodeSampler, clock: Clock) -> None:
        self._around = around
        self._reporter = reporter
        self._sampler = sampler
        self._clock = clock
        self._lock = threading.Lock()
        self._bundles: dict[str, _Bundle] = {}
        self._states: dict[str, BundleState] = {}
        self._left_alone: dict[str, BundleState] = {}
        self._leader: str | None = None
        self._asked: set[str] = set()

    def states(self) -> Mapping[str, BundleState]:
        """The newest state of each bundle."""
        with self._lock:
            return {**self._left_alone, **self._states}

    def known_leader(self) -> str | None:
        """Who leads, as the last tick heard."""
        return self._leader

    def ask(self, bundle: str) -> None:
        """Has the next plan of a bundle recorded with its inputs, whatever it proposes."""
        with self._lock:
            self._asked.add(bundle)

    def run(self, name: str) -> None:
        """One tick of one bundle; whatever goes wrong with it becomes its state."""
        settings = self._around.settings()
        bundle = settings.bundles.get(name)
        if bundle is None:
            return  # it was removed from the configuration a moment ago
        snapshot = self._around.follower().snapshot
        try:
            kept = self._bundle(settings, bundle)
        except BalancerError as error:
            self._keep(snapshot, failed_tick(bundle, str(error), self._clock.now()))
            return
        with structlog.contextvars.bound_contextvars(bundle=name), kept.lock:
            if self._bundles.get(name) is kept:
                snapshot = self._around.follower().snapshot
                self._keep(snapshot, self._state(kept, settings, bundle, snapshot), kept)

    def forget(self, bundles: Mapping[str, BundleSettings]) -> None:
        """Ends the ticks of bundles that are no longer configured."""
        with self._lock:
            gone = {name: self._bundles.pop(name) for name in list(self._bundles) if name not in bundles}
        for name, kept in gone.items():
            with kept.lock:
                kept.poller.close()
            with self._lock:
                self._states.pop(name, None)
            self._reporter.forget(name)
            self._around.recorder.forget(name)

    def leave_alone(self, bundles: Iterable[tuple[BundleSettings, str]]) -> None:
        """Bundles that have a file here but belong to another directory, each with the reason, which is their state."""
        now = self._clock.now()
        told = {bundle.name: left_alone(bundle, why, now) for bundle, why in bundles}
        with self._lock:
            self._left_alone = told

    def close(self) -> None:
        """Closes the pollers. Idempotent."""
        self.forget({})

    def _bundle(self, settings: Settings, bundle: BundleSettings) -> _Bundle:
        with self._lock:
            if bundle.name not in self._bundles:
                daemon = settings.daemon
                book = FootingNotes.load(self._around.directory(), bundle.name)
                poller = Poller(
                    cluster_name(daemon.directory),
                    self._clock,
                    daemon.poll_timeout,
                    newest_epoch=lambda: self._around.directory().snapshot().epoch,
                    book=book,
                )
                profile = ProfileKeeper(bundle.name)
                tick = BundleTick(poller, Samples(self._around.directory()), self._sampler, self._clock, profile)
                self._bundles[bundle.name] = _Bundle(
                    tick, poller, book, BalancingNote(bundle.name), profile, LookBook(bundle.name)
                )
            return self._bundles[bundle.name]

    def _state(self, kept: _Bundle, settings: Settings, bundle: BundleSettings, snapshot: Snapshot) -> BundleState:
        try:
            leading = self._around.leading
            tail = kept.balancing.read(self._around.directory(), leading)
            kept.profile.read(self._around.directory(), leading, heirs(snapshot))
            looked = kept.looks.read(self._around.directory(), leading)
            occasion = self._occasion(settings, bundle, snapshot, leading)
            return kept.looks.noted(kept.tick.run(replace(occasion, tail=tail, looked=looked)))
        except BalancerError as error:
            log.warning("tick failed", error=str(error))
            failed = failed_tick(bundle, str(error), self._clock.now())
        except Exception as error:
            # The last boundary of a tick: a bug in one bundle's tick must not end the others'.
            log.exception("tick failed unexpectedly")
            failed = failed_tick(bundle, f"a defect: {type(error).__name__}: {error}", self._clock.now())
        return replace(failed, looked=kept.looks.looked)  # it looked at nothing: the next one looks back

    def _occasion(
        self, settings: Settings, bundle: BundleSettings, snapshot: Snapshot, leading: Leader | None
    ) -> TickInput:
        try:
            self._leader = self._around.directory().leader()
        except BalancerError:
            self._leader = None
        bundle = replace(bundle, options=orders.respected(bundle.options, snapshot, bundle.name))
        by_operator = bundle.mode is Mode.APPROVE
        approved = plans.in_state(snapshot, bundle.name, plans.APPROVED) if by_operator else None
        standing = approved or plans.in_state(snapshot, bundle.name, plans.PROPOSED)
        return TickInput(
            bundle=bundle,
            settings=settings,
            snapshot=snapshot,
            addresses=addresses_of([bundle]),
            leader=self._leader,
            starter=leading,
            approved=plans.actions_of(approved) if approved else (),
            plan=standing.id if standing else "",
            asked=self._taken(bundle.name),
            orders=tuple(orders.open_orders(snapshot, bundle.name)),
            rounds=windows.waiting(snapshot, bundle.name),
        )

    def _taken(self, bundle: str) -> bool:
        """Whether the bundle's next plan was asked for: this tick answers it."""
        with self._lock:
            asked = bundle in self._asked
            self._asked.discard(bundle)
            return asked

    def _keep(self, snapshot: Snapshot, state: BundleState, kept: _Bundle | None = None) -> None:
        with self._lock:
            before = self._states.get(state.bundle)
            self._states[state.bundle] = state
        if before is None or (before.word, before.sentence) != (state.word, state.sentence):
            log.info("state", word=state.word, sentence=state.sentence)
        migrations = [record for record in snapshot.migrations.values() if record.bundle == state.bundle]
        self._reporter.observe(state, migrations)
        self._around.recorder.record(state)
        # A tick that began before this instance led has looked at nothing, and must not hide who did.
        if self._around.leading is not None and (state.looked is not None or state.error):
            try:
                self._around.directory().publish(STATUS_TOPIC, state.bundle, summary(state))
                if kept is not None:
                    kept.book.publish(self._around.directory(), state.bundle)
                    kept.profile.write(self._around.directory())
                    if not state.error:
                        kept.balancing.write(self._around.directory(), state.tail)
            except BalancerError as error:
                log.warning("the status could not be published", error=str(error))
