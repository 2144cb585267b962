"""The wiring of one instance: directory, election, ticks, migrations, commands, HTTP, reload. It decides nothing.

`balancer run` and the demonstration make one, `start` it, and call `step` about once a second until they `stop` it.
Every bundle ticks on its own: an error of one is its state, and never another's.
"""

import threading
from collections.abc import Mapping

import structlog

from balancer.api.source import LeaderView
from balancer.clock import Clock
from balancer.daemon.beginner import Beginner
from balancer.daemon.enrol import enrol
from balancer.daemon.leader import LeaderLoop
from balancer.daemon.leading import Leading
from balancer.daemon.notify import Notifier
from balancer.daemon.pool import MigrationPool
from balancer.daemon.reload import ConfigurationWatch
from balancer.daemon.ticker import Ticker
from balancer.daemon.ticks import Ticks
from balancer.daemon.watching import MigrationWatch
from balancer.directory.configured import open_configured
from balancer.directory.contract import Directory, Follower, Leadership
from balancer.errors import BalancerError, Unavailable
from balancer.instruments import Instruments
from balancer.migration.observer import Observer
from balancer.nodes.connection import Address
from balancer.planner.node_samples import NodeSampler
from balancer.planner.recorder import Recorder
from balancer.planner.report import Reporter
from balancer.planner.state import BundleState
from balancer.polling.addresses import addresses_of
from balancer.settings import MigrationSettings, Settings

log = structlog.get_logger()

POOL_PATIENCE = 10.0


class Daemon:
    """One instance of the balancer. Also what the API asks (`api.source.Source`)."""

    def __init__(self, settings: Settings, clock: Clock, observer: Observer | None = None) -> None:
        self._clock = clock
        self._watch = ConfigurationWatch(settings)
        self._instruments = Instruments()
        self._recorder = Recorder()
        self._notifier = Notifier(clock)
        self._ticker = Ticker(clock)
        self._directory: Directory | None = None
        self._follower: Follower | None = None
        self._elector: LeaderLoop | None = None
        self._leading: Leading | None = None
        self._reporter = Reporter(self._instruments)
        self._observer = MigrationWatch(self._reporter, observer)
        self._sampler = NodeSampler(self.address, lambda: self.follower().snapshot)
        self._ticks = Ticks(self, self._reporter, self._sampler, clock)
        self._stopping = threading.Event()
        self._commands = threading.Thread(target=self._watch_commands, name="commands", daemon=True)
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
    def leading(self) -> Leading | None:
        """The leader's hands, while they are ours."""
        found = self._leading
        return found if found is not None and found.leadership.held() else None

    def start(self) -> None:
        """Opens the directory, stands for election and begins to tick."""
        settings = self.settings()
        self._directory = open_configured(settings.daemon, self._clock)
        self._follower = self._directory.follow()
        self._elector = LeaderLoop(self._directory, settings.daemon.instance, self._elected, self._deposed)
        self._elector.start()
        self._ticker.start()
        self._set_jobs()
        self._commands.start()
        log.info("started", instance=settings.daemon.instance, bundles=sorted(settings.bundles))

    def step(self) -> None:
        """About once a second: late ticks, the watchdog, changed files."""
        for bundle in self._ticker.nudge():
            log.warning("a tick was late by the monotonic clock", bundle=bundle)
        if self._watch.changed():
            self.reload()
        leading = self.leading
        self._instruments.leader.set(leading is not None)
        self._instruments.leader_epoch.set(leading.leadership.epoch if leading else self.follower().snapshot.epoch)
        self._last_step = self._clock.monotonic()
        self._notifier.alive()

    def reload(self) -> None:
        """Reads the configuration again; a wrong one changes nothing and is reported."""
        self._notifier.reloading()
        good = self._watch.reload()
        self._instruments.configuration_bad.set(not good)
        if good:
            self._instruments.configuration_at.set(self._clock.now().timestamp())
            log.info("configuration read", bundles=sorted(self.settings().bundles))
            self._set_jobs()
            self._ticks.forget(self.settings().bundles)
            if (leading := self.leading) is not None:
                enrol(self.directory(), leading.leadership, self.settings())
        else:
            log.error("the configuration is wrong and was not used", error=self._watch.error)
        self._notifier.ready(self._status())

    def ready(self) -> None:
        """Start-up is over, the API included."""
        self._notifier.ready(self._status())

    def stop(self) -> None:
        """Hands over at once and ends. Idempotent."""
        self._notifier.stopping()
        self._stopping.set()
        self._ticker.stop()
        if self._elector is not None:
            self._elector.stop()
        if self._commands.is_alive():
            self._commands.join()
        self._ticks.close()
        self._sampler.close()
        if self._follower is not None:
            self._follower.close()
        if self._directory is not None:
            self._directory.close()
        log.info("stopped")

    def settings(self) -> Settings:
        """The configuration in force."""
        return self._watch.settings

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
        leading = self.leading
        if leading is not None:
            return LeaderView(self.settings().daemon.instance, leading.leadership.epoch, True)
        return LeaderView(self._ticks.known_leader(), self.follower().snapshot.epoch, False)

    def tick_age(self) -> float:
        """Seconds since the loop last made progress."""
        return self._clock.monotonic() - self._last_step

    def address(self, node: str) -> Address:
        """Where a node is now, by the configuration in force."""
        found = addresses_of(self.settings().bundles.values()).get(node)
        if found is None:
            raise Unavailable(f"node {node} is not in the configuration")
        return found

    def run_soon(self, bundle: str) -> None:
        """Lets a bundle tick at once."""
        self._ticker.run_soon(bundle)

    def _set_jobs(self) -> None:
        settings = self.settings()
        self._ticker.set(
            {name: (settings.daemon.tick, lambda name=name: self._ticks.run(name)) for name in settings.bundles}  # type: ignore[misc]
        )

    def _migration_settings(self, bundle: str) -> MigrationSettings:
        return self.settings().bundle(bundle).migration

    def _elected(self, leadership: Leadership) -> None:
        directory = self.directory()
        enrol(directory, leadership, self.settings())
        pool = MigrationPool(
            directory,
            leadership,
            addresses=self.address,
            settings_of=self._migration_settings,
            observer=self._observer,
            clock=self._clock,
        )
        leading = Leading(
            directory,
            leadership,
            pool=pool,
            beginner=Beginner(directory, leadership, self._sampler.split_keys, self._clock),
            settings=self.settings,
            replan=self.run_soon,
            clock=self._clock,
        )
        taken_over = pool.recover()
        self._leading = leading
        log.info("leading", epoch=leadership.epoch, migrations_taken_over=taken_over)
        leading.answer_commands(directory.snapshot())
        for bundle in self.settings().bundles:
            self.run_soon(bundle)

    def _deposed(self) -> None:
        leading, self._leading = self._leading, None
        if leading is not None:
            leading.leadership.resign()
            leading.pool.close(POOL_PATIENCE)

    def _watch_commands(self) -> None:
        """Carries out commands as they arrive, not at the next tick."""
        follower = self.follower()
        seen = -1
        while not self._stopping.is_set():
            snapshot = follower.wait(seen, 0.5)
            leading = self.leading
            if leading is None or snapshot.version == seen:
                continue
            try:
                leading.answer_commands(snapshot)
            except BalancerError as error:
                log.warning("commands wait", error=str(error))
                self._stopping.wait(1.0)
                continue
            seen = snapshot.version

    def _status(self) -> str:
        return f"{len(self.settings().bundles)} bundles"
