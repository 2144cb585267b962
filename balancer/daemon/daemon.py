"""The wiring of one instance: directory, election, ticks, migrations, commands, HTTP, reload. It decides nothing.

`balancer run` and the demonstration make one, `start` it, and call `step` about once a second until they `stop` it.
Every bundle ticks on its own: an error in one is its own state, never another's.
"""

from collections.abc import Callable, Mapping
from functools import partial

import structlog

from balancer.api.source import LeaderView
from balancer.clock import Clock
from balancer.daemon.configuration import ConfigurationWatch, HandedOver, changed_bundles
from balancer.daemon.housekeeping import LOOK_SECONDS, ExposureWatch, Housekeeping, LeftoverWatch, enrol
from balancer.daemon.leader import CommandWatch, Leader
from balancer.daemon.leadership import LeaderLoop, Spreader, leaders_work, why_unfit
from balancer.daemon.scheduler import Ticker
from balancer.daemon.systemd import Notifier
from balancer.daemon.ticks import Ticks
from balancer.directory.configured import open_configured
from balancer.directory.contract import Directory, Follower, Leadership
from balancer.directory.handover_record import without_handed_over
from balancer.directory.identity import identity_of, made_identity
from balancer.errors import BalancerError, Unavailable
from balancer.features.checker.duty import LOOK_SECONDS as CHECK_SECONDS
from balancer.features.checker.duty import CheckKeeper
from balancer.features.forwarding.updater import ForwardingUpdater
from balancer.features.messages.service import MessageService
from balancer.features.pgbouncer.bouncer import bouncing_of
from balancer.features.reference.keeper import ReferenceKeeper
from balancer.instruments import Instruments
from balancer.migration.begin import Beginner
from balancer.migration.pool import MigrationPool
from balancer.migration.progress import Observer, Observers
from balancer.nodes.session.addresses import address_in
from balancer.nodes.session.connection import Address
from balancer.planner.bundle_state import BundleState
from balancer.planner.hot_keys import NodeSampler
from balancer.planner.metrics import MeteredDirectory, MigrationMetrics, Reporter
from balancer.planner.recorder import Recorder
from balancer.settings import Settings

log = structlog.get_logger()

POOL_PATIENCE = 10.0
HOUSEKEEPING = "housekeeping of the leader"  # a space keeps these names apart from those of bundles
LEFTOVERS = "leftovers of {}"
REFERENCES = "reference tables of {}"
FORWARDING = "forwarding of {}"
FORWARDING_SECONDS = 600.0
"""After a migration it is done at once; this is for nodes that were out of reach then, and for a new leader, which does
not wait for it: it contacts every node."""
MESSAGES = "messages between shards"
MESSAGES_SECONDS = 1.0
FORGETTING_SECONDS = 60.0
LONGEST_DELIVERY = 20.0
CHECKS = "checks of {}"
HOUSEKEEPING_SECONDS = 60.0


class Daemon:
    """One instance of the balancer. Also what the API queries (`api.source.Source`)."""

    def __init__(self, settings: Settings, clock: Clock, observer: Observer | None = None) -> None:
        self._clock = clock
        self._watch = ConfigurationWatch(settings, clock)
        self._instruments = Instruments()
        self._recorder = Recorder(settings.daemon.tick)
        self._notifier = Notifier(clock)
        self._ticker = Ticker(clock)
        self._directory: Directory | None = None
        self._follower: Follower | None = None
        self._elector: LeaderLoop | None = None
        self._spreader: Spreader | None = None
        self._leading: Leader | None = None
        self._housekeeping: Housekeeping | None = None
        self._references: ReferenceKeeper | None = None
        self._messages: MessageService | None = None
        self._messages_due = self._forgetting_due = 0.0  # monotonic
        self._checks: CheckKeeper | None = None
        self._enrol_again = False
        self._handed_over = HandedOver()
        self._exposures = ExposureWatch(self.directory, self._instruments)
        self._reporter = Reporter(self._instruments)
        self._bouncing = bouncing_of(settings.daemon.pgbouncer, lambda: self.directory().snapshot())
        self._forwarding = ForwardingUpdater(
            lambda bundle: self.settings().bundle(bundle).forwarding,
            lambda: self.directory().snapshot(),
            self.address,
        )
        self._observer = Observers(MigrationMetrics(self._reporter), self._bouncing, observer, self._forwarding)
        self._sampler = NodeSampler(self.address, lambda: self.follower().snapshot, clock)
        self._ticks = Ticks(self, self._reporter, self._sampler, clock)
        self._leftovers = LeftoverWatch(lambda: self.follower().snapshot, self.address, self._reporter)
        self._commands = CommandWatch(self.follower, lambda: self.leading)
        self._last_step = clock.monotonic()

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def instruments(self) -> Instruments:
        return self._instruments

    @property
    def recorder(self) -> Recorder:
        return self._recorder

    @property
    def leading(self) -> Leader | None:
        """The leader's duties, while we lead."""
        found = self._leading
        return found if found is not None and found.leadership.held() else None

    def start(self) -> None:
        """Opens the directory, stands for election and begins to tick."""
        settings = self.settings()
        opened = open_configured(settings.daemon, self._clock, create=True)
        self._directory = MeteredDirectory(opened, self._instruments, self._clock)
        self._instruments.configuration_at.set(self._clock.now().timestamp())
        self._follower = self._directory.follow()
        self._handed_over.look(self._follower.snapshot, settings, self._ticks)
        self._spreader = Spreader(
            self._directory,
            lambda: self.settings().daemon,
            unfit=lambda: why_unfit(self.settings().bundles, self.states()),
            under_way=lambda: leaders_work(self.directory(), self._references),
            instruments=self._instruments,
            clock=self._clock,
        )
        name = settings.daemon.instance
        self._elector = LeaderLoop(self._directory, name, self._elected, self._deposed, self._spreader)
        self._elector.start()
        self._ticker.start()
        self._set_jobs()
        self._commands.start()
        log.info("started", instance=name, bundles=sorted(settings.bundles))

    def step(self) -> None:
        """About once a second: late ticks, the watchdog, changed files."""
        for bundle in self._ticker.nudge():
            log.warning("a tick was late by the monotonic clock", bundle=bundle)
        if self._watch.changed():
            self.reload()
        self._leave_handed_over()
        if self._enrol_again:
            self._enrol()
        leading, follower = self.leading, self.follower()
        self._instruments.leader.set(leading is not None)
        self._instruments.leader_epoch.set(leading.leadership.epoch if leading else follower.snapshot.epoch)
        self._instruments.directory_age.set(follower.age())
        self._instruments.directory_version.set(follower.snapshot.version)
        self._last_step = self._clock.monotonic()
        self._notifier.alive()

    def _leave_handed_over(self) -> None:
        if self._handed_over.look(self.follower().snapshot, self._watch.settings, self._ticks):
            self._set_jobs()
            self._ticks.forget(self.settings().bundles)
            self._enrol()

    def reload(self, confirmed: bool = False) -> None:
        """Reads the configuration again; a wrong one changes nothing, and is reported. `confirmed`: on request."""
        self._notifier.reloading()
        before = self.settings()
        good = self._watch.reload(confirmed)
        self._instruments.configuration_bad.set(not good)
        if good:
            self._instruments.configuration_at.set(self._clock.now().timestamp())
            log.info("configuration read", bundles=sorted(self.settings().bundles))
            if waiting := self._watch.waits_for_restart():
                log.warning("these settings have changed and need a restart of this instance", settings=waiting)
            self._set_jobs()
            for bundle in changed_bundles(before, self.settings()):
                self.run_soon(bundle)
            self._ticks.forget(self.settings().bundles)
            self._enrol()
        else:
            log.error("the configuration contains errors and was not used", error=self._watch.error)
        self._notifier.ready(self._status())

    def ready(self) -> None:
        """Start-up is over, the API included."""
        self._notifier.ready(self._status())

    def hand_over(self) -> None:
        """Gives up the leadership and stops campaigning; reads are still answered. Idempotent."""
        self._notifier.stopping()
        self._commands.stop()
        if self._elector is not None:
            self._elector.stop()

    def stop(self) -> None:
        """Hands over at once and ends. Idempotent."""
        self.hand_over()  # first: a tick in flight may wait for a node that does not answer
        self._ticker.stop()
        self._commands.close()
        self._ticks.close()
        self._sampler.close()
        if self._follower is not None:
            self._follower.close()
        if self._directory is not None:
            self._directory.close()
        log.info("stopped")

    def settings(self) -> Settings:
        """The configuration in force, without bundles that belong to another directory."""
        return self._handed_over.left(self._watch.settings)

    def directory(self) -> Directory:
        """The directory, once it is open."""
        if self._directory is None:
            raise Unavailable("the directory is not open yet")
        return self._directory

    def follower(self) -> Follower:
        """The view of the directory, once there is one."""
        if self._follower is None:
            raise Unavailable("the directory has not been read yet")
        return self._follower

    def states(self) -> Mapping[str, BundleState]:
        """The newest state of each bundle."""
        return self._ticks.states()

    def leader(self) -> LeaderView:
        """Who leads, as far as this instance knows."""
        leading, spread = self.leading, None if self._spreader is None else self._spreader.spread
        if leading is not None:
            return LeaderView(self.settings().daemon.instance, leading.leadership.epoch, True, spread)
        return LeaderView(self._ticks.known_leader(), self.follower().snapshot.epoch, False, spread)

    def tick_age(self) -> float:
        """Seconds since the loop last made progress."""
        return self._clock.monotonic() - self._last_step

    def address(self, node: str) -> Address:
        """Where a node is now, by the configuration in force."""
        return address_in(self.settings(), node, identity_of(self.follower().snapshot))

    def run_soon(self, bundle: str) -> None:
        """Makes a bundle tick at once."""
        self._ticker.run_soon(bundle)

    def _replan(self, bundle: str) -> None:
        self._ticks.ask(bundle)
        self.run_soon(bundle)

    def _set_jobs(self) -> None:
        settings = self.settings()
        jobs: dict[str, tuple[float, Callable[[], None]]] = {
            HOUSEKEEPING: (HOUSEKEEPING_SECONDS, self._keep_house),
            MESSAGES: (MESSAGES_SECONDS, self._deliver_messages),
        }
        for name in settings.bundles:
            jobs[name] = settings.daemon.tick, partial(self._ticks.run, name)
            jobs[REFERENCES.format(name)] = settings.daemon.tick, partial(self._keep_references, name)
            jobs[LEFTOVERS.format(name)] = LOOK_SECONDS, partial(self._look_for_leftovers, name)
            if settings.bundles[name].forwarding:
                jobs[FORWARDING.format(name)] = FORWARDING_SECONDS, partial(self._follow_with_forwarding, name)
            if settings.bundles[name].checks.enable:
                jobs[CHECKS.format(name)] = CHECK_SECONDS, partial(self._check, name)
        self._ticker.set(jobs)

    def _keep_house(self) -> None:
        self._exposures.look()
        keeper = self._housekeeping
        if keeper is not None and self.leading is not None:
            keeper.run()

    def _deliver_messages(self) -> None:
        """Repeats while there is something to deliver: the next look would come a second later."""
        began = self._clock.monotonic()
        if began < self._messages_due:
            return
        service, until = self._messages, began + LONGEST_DELIVERY
        try:
            while service is not None and self.leading is not None and self._clock.monotonic() < until:
                snapshot = without_handed_over(self.follower().snapshot)
                done = service.look(snapshot)
                self._reporter.messages(snapshot, done.nodes, done.outcomes)
                if self._clock.monotonic() >= self._forgetting_due:
                    self._forgetting_due = self._clock.monotonic() + FORGETTING_SECONDS
                    service.forget(snapshot)
                if not done.settled:
                    break
                began = self._clock.monotonic()
        except BalancerError as error:
            log.warning("messages wait", error=str(error))
        # A look at very many tablets costs the nodes time: no more than a tenth of theirs.
        self._messages_due = self._clock.monotonic() + min(5.0, 9 * (self._clock.monotonic() - began))

    def _keep_references(self, bundle: str) -> None:
        self._keep(self._references, bundle, "copies of reference tables wait")

    def _check(self, bundle: str) -> None:
        self._keep(self._checks, bundle, "checks wait")

    def _keep(self, keeper: ReferenceKeeper | CheckKeeper | None, bundle: str, failure: str) -> None:
        try:
            if keeper is not None and self.leading is not None:
                keeper.keep(bundle)
        except BalancerError as error:
            log.warning(failure, bundle=bundle, error=str(error))

    def _follow_with_forwarding(self, bundle: str) -> None:
        if self.leading is not None:
            self._forwarding.follow(bundle)

    def _look_for_leftovers(self, bundle: str) -> None:
        if self.leading is not None:
            self._leftovers.look(bundle, self.settings().bundle(bundle).nodes)

    def _enrol(self) -> None:
        """What the configuration says about bundles and nodes goes into the directory, sooner or later."""
        leading = self.leading
        try:
            if leading is not None:
                enrol(self.directory(), leading.leadership, self.settings())
            self._enrol_again = False
        except BalancerError as error:
            self._enrol_again = True
            log.warning("the configuration could not be recorded yet", error=str(error))

    def _elected(self, leadership: Leadership) -> None:
        directory = self.directory()
        made_identity(self.settings().daemon.instance, directory, leadership.epoch)
        enrol(directory, leadership, self.settings())
        pool = MigrationPool(
            directory,
            leadership,
            addresses=self.address,
            settings_of=lambda bundle: self.settings().bundle(bundle).migration,
            observer=self._observer,
            clock=self._clock,
        )
        references = ReferenceKeeper(leadership, directory.snapshot, self.address, self._reporter)
        leading = Leader(
            directory,
            leadership,
            pool=pool,
            beginner=Beginner(directory, leadership, self._sampler.split_keys, self._clock),
            addresses=self.address,
            settings=self.settings,
            replan=self._replan,
            polled=self._forwarding.judge,
            refused_copies=references.refusals,
            reporter=self._reporter,
            clock=self._clock,
        )
        self._housekeeping = Housekeeping(directory, leadership, self.settings, self._clock, leading.forget_decisions)
        self._references = references
        self._messages = MessageService(leadership, self.address, self._clock)
        self._checks = CheckKeeper(
            directory,
            leadership,
            addresses=self.address,
            settings=self.settings,
            reporter=self._reporter,
            clock=self._clock,
        )
        if self._bouncing is not None:
            self._bouncing.recover()
        taken_over = pool.recover()
        self._leading = leading
        log.info("leading", epoch=leadership.epoch, migrations_taken_over=taken_over)
        leading.answer_commands(directory.snapshot())
        for bundle in self.settings().bundles:
            self.run_soon(bundle)
            self.run_soon(LEFTOVERS.format(bundle))
            self.run_soon(REFERENCES.format(bundle))
            self.run_soon(FORWARDING.format(bundle))
        self.run_soon(HOUSEKEEPING)

    def _deposed(self) -> None:
        leading, self._leading, self._housekeeping, self._references = self._leading, None, None, None
        service, self._messages = self._messages, None
        if service is not None:
            service.close()
        checks, self._checks = self._checks, None
        if checks is not None:
            checks.close()
        if leading is not None:
            leading.leadership.resign()
            leading.pool.close(POOL_PATIENCE)
            leading.close()

    def _status(self) -> str:
        return f"{len(self.settings().bundles)} bundles"
