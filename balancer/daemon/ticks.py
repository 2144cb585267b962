"""The ticks of all bundles: each has its own poller and memory, and its newest state is kept for whoever asks."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import structlog

from balancer.clock import Clock
from balancer.daemon.leading import Leading
from balancer.directory.contract import Directory, Follower
from balancer.errors import BalancerError
from balancer.planner import orders, plans
from balancer.planner.node_samples import NodeSampler
from balancer.planner.recorder import Recorder
from balancer.planner.report import Reporter
from balancer.planner.samples import Samples
from balancer.planner.state import BundleState
from balancer.planner.summary import STATUS_TOPIC, summary
from balancer.planner.tick import BundleTick, Occasion, failed_tick
from balancer.polling.addresses import addresses_of, cluster_name
from balancer.polling.poller import Poller
from balancer.settings import BundleSettings, Mode, Settings

log = structlog.get_logger()


class Surroundings(Protocol):
    """What a tick needs of the daemon."""

    @property
    def leading(self) -> Leading | None: ...

    @property
    def recorder(self) -> Recorder: ...

    def settings(self) -> Settings: ...

    def directory(self) -> Directory: ...

    def follower(self) -> Follower: ...


class Ticks:
    """Runs the ticks and keeps the states. `run` may be called for several bundles at once, once for each."""

    def __init__(self, around: Surroundings, reporter: Reporter, sampler: NodeSampler, clock: Clock) -> None:
        self._around = around
        self._reporter = reporter
        self._sampler = sampler
        self._clock = clock
        self._lock = threading.Lock()
        self._ticks: dict[str, tuple[BundleTick, Poller]] = {}
        self._states: dict[str, BundleState] = {}
        self._leader: str | None = None
        self._asked: set[str] = set()

    def states(self) -> Mapping[str, BundleState]:
        """The newest state of each bundle."""
        with self._lock:
            return dict(self._states)

    def known_leader(self) -> str | None:
        """Who leads, as the last tick heard."""
        return self._leader

    def ask(self, bundle: str) -> None:
        """Lets the next plan of a bundle be recorded with its inputs, whatever it proposes."""
        with self._lock:
            self._asked.add(bundle)

    def run(self, name: str) -> None:
        """One tick of one bundle; whatever goes wrong with it becomes its state."""
        settings = self._around.settings()
        bundle = settings.bundles.get(name)
        if bundle is None:
            return  # it was taken out of the configuration a moment ago
        with structlog.contextvars.bound_contextvars(bundle=name):
            occasion = self._occasion(settings, bundle)
            with self._lock:
                asked = name in self._asked
                self._asked.discard(name)
            try:
                state = self._tick(settings, bundle).run(occasion)
                state = self._record_plan(occasion, state, asked)
            except BalancerError as error:
                log.warning("tick failed", error=str(error))
                state = failed_tick(occasion, str(error), self._clock.now())
            except Exception as error:
                # The last boundary of a tick: a defect in one bundle's tick must not end the others'.
                log.exception("tick failed unexpectedly")
                state = failed_tick(occasion, f"a defect: {type(error).__name__}: {error}", self._clock.now())
            self._keep(occasion, state)

    def forget(self, bundles: Mapping[str, BundleSettings]) -> None:
        """Ends the ticks of bundles that are no longer configured."""
        with self._lock:
            gone = [name for name in self._ticks if name not in bundles]
            closing = [self._ticks.pop(name)[1] for name in gone]
            for name in gone:
                self._states.pop(name, None)
        for name in gone:
            self._reporter.forget(name)
            self._around.recorder.forget(name)
        for poller in closing:
            poller.close()

    def close(self) -> None:
        """Closes the pollers. Idempotent."""
        self.forget({})

    def _tick(self, settings: Settings, bundle: BundleSettings) -> BundleTick:
        with self._lock:
            if bundle.name not in self._ticks:
                daemon = settings.daemon
                poller = Poller(cluster_name(daemon.directory), self._clock, daemon.poll_timeout)
                samples = Samples(self._around.directory(), bundle.options.heat.min_samples)
                self._ticks[bundle.name] = BundleTick(poller, samples, self._sampler, self._clock), poller
            return self._ticks[bundle.name][0]

    def _occasion(self, settings: Settings, bundle: BundleSettings) -> Occasion:
        snapshot = self._around.follower().snapshot
        leading = self._around.leading
        try:
            self._leader = self._around.directory().leader()
        except BalancerError:
            self._leader = None
        bundle = replace(bundle, options=orders.respected(bundle.options, snapshot, bundle.name))
        approved = plans.in_state(snapshot, bundle.name, plans.APPROVED)
        proposed = plans.in_state(snapshot, bundle.name, plans.PROPOSED)
        return Occasion(
            bundle=bundle,
            settings=settings,
            snapshot=snapshot,
            addresses=addresses_of([bundle]),
            leader=self._leader,
            starter=leading,
            approved=plans.actions_of(approved) if approved else (),
            proposed=proposed.id if proposed else "",
            orders=tuple(orders.open_orders(snapshot, bundle.name)),
        )

    def _record_plan(self, occasion: Occasion, state: BundleState, asked: bool) -> BundleState:
        """Writes the plan into the directory where we lead and it is a new one; settles approved ones and orders."""
        leading = self._around.leading
        if leading is None or state.plan is None or state.view is None:
            return state
        snapshot = occasion.snapshot
        plan_id, changes = plans.propose(snapshot, state.plan, state.view, occasion.bundle.options, asked=asked)
        approved = plans.in_state(snapshot, occasion.bundle.name, plans.APPROVED)
        acted = state.schedule.open and (state.started or state.not_started)
        if approved is not None and occasion.bundle.mode is Mode.APPROVE and acted:
            changes = (*changes, plans.settle(approved, state.not_started))
        changes = (
            *changes,
            *orders.settled(state.orders, state.view),
            *plans.forgotten_orders(snapshot, occasion.bundle.name),
        )
        if changes:
            leading.commit(changes, snapshot, f"plan of bundle {occasion.bundle.name}")
        return replace(state, plan_id=plan_id)

    def _keep(self, occasion: Occasion, state: BundleState) -> None:
        with self._lock:
            before = self._states.get(state.bundle)
            self._states[state.bundle] = state
        if before is None or (before.word, before.sentence) != (state.word, state.sentence):
            log.info("state", word=state.word, sentence=state.sentence)
        migrations = [record for record in occasion.snapshot.migrations.values() if record.bundle == state.bundle]
        self._reporter.observe(state, migrations)
        self._around.recorder.record(state)
        if self._around.leading is not None:
            try:
                self._around.directory().publish(STATUS_TOPIC, state.bundle, summary(state))
            except BalancerError as error:
                log.warning("the status could not be published", error=str(error))
