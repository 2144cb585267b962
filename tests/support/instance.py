"""A running instance for tests of the API: a real directory, real settings, states made by hand, a real server."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

from balancer.api.app import create_app
from balancer.api.server import ApiServer, SocketLimits, connections_for, raise_descriptor_limit
from balancer.api.source import LeaderView
from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Directory, Follower
from balancer.directory.open import open_directory
from balancer.instruments import Instruments
from balancer.planner.bundle_state import BundleState
from balancer.planner.metrics import Reporter
from balancer.planner.recorder import Recorder
from balancer.settings import Settings, load_settings
from balancer.settings.files import HttpSettings

TOKEN = "correct-horse-battery"


class Instance:
    """What the daemon is to the API."""

    def __init__(self, directory: Directory, settings: Settings) -> None:
        self.clock: Clock = SystemClock()
        self.instruments = Instruments()
        self.recorder = Recorder()
        self.reporter = Reporter(self.instruments)
        self.age = 0.0
        self.leading = LeaderView("host-a", 7, True)
        self._directory = directory
        self._follower = directory.follow()
        self._settings = settings
        self._states: dict[str, BundleState] = {}

    def directory(self) -> Directory:
        return self._directory

    def follower(self) -> Follower:
        return self._follower

    def settings(self) -> Settings:
        return self._settings

    def states(self) -> Mapping[str, BundleState]:
        return dict(self._states)

    def leader(self) -> LeaderView:
        return self.leading

    def tick_age(self) -> float:
        return self.age

    def report(self, state: BundleState) -> None:
        """What a tick does with its state."""
        self._states[state.bundle] = state
        self.recorder.record(state)
        self.reporter.observe(state, self._follower.snapshot.migrations.values())

    def close(self) -> None:
        self._follower.close()
        self._directory.close()


def http_settings(**changes: Any) -> HttpSettings:
    """A server on loopback, on any port, with a token."""
    return HttpSettings(**{"listen": "127.0.0.1:0", "token": SecretStr(TOKEN), **changes})


@contextmanager
def instance_in(folder: Path) -> Iterator[Instance]:
    """An instance over an empty SQLite directory."""
    address = f"sqlite://{folder}/directory.db"
    (folder / "balancer.toml").write_text(f'directory = "{address}"\ninstance = "host-a"\n')
    instance = Instance(open_directory(address), load_settings(folder / "balancer.toml"))
    try:
        yield instance
    finally:
        instance.close()


@contextmanager
def serving(instance: Instance, **changes: Any) -> Iterator[httpx.Client]:
    """A client of the instance's server, really listening. It is patient with late answers: a busy machine takes long
    over hundreds of requests at once."""
    http = http_settings(**changes)
    early = httpx.Limits(keepalive_expiry=2.0)  # the server closes idle connections after 5 s: not while we send
    patient = SocketLimits(connections_for(raise_descriptor_limit()), header_seconds=120.0)
    with (
        ApiServer(create_app(instance, http), http, patient) as server,
        httpx.Client(base_url=server.url, timeout=20, verify=False, limits=early) as client,
    ):
        yield client


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
