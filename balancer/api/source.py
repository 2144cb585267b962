"""What the API needs from the daemon: a protocol, so that the API knows nothing about loops, signals and wiring.

The daemon implements it; tests implement it over a real directory. Every method may be called from any thread at any
time, even on a standby, and answers from memory unless it says otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from balancer.clock import Clock
from balancer.directory.contract import Directory, Follower
from balancer.directory.instance_note import LeaderSpread
from balancer.instruments import Instruments
from balancer.planner.recorder import Recorder
from balancer.planner.state import BundleState
from balancer.settings import Settings


@dataclass(frozen=True, slots=True)
class LeaderView:
    """Who leads, as far as this instance knows."""

    name: str | None
    epoch: int
    is_self: bool
    spread: LeaderSpread | None = None
    """None: leadership is not spread over instances."""


class Source(Protocol):
    """A running instance."""

    @property
    def clock(self) -> Clock: ...

    @property
    def instruments(self) -> Instruments: ...

    @property
    def recorder(self) -> Recorder: ...

    def directory(self) -> Directory:
        """For commands, history and notes: these ask the servers. Raises `Unavailable` until it is open."""

    def follower(self) -> Follower:
        """The view of the directory, kept up to date. Raises `Unavailable` until there is a first snapshot."""

    def settings(self) -> Settings:
        """The configuration in force."""

    def states(self) -> Mapping[str, BundleState]:
        """The newest state of each bundle that has ticked."""

    def leader(self) -> LeaderView: ...

    def tick_age(self) -> float:
        """Seconds since the loop last made progress: what `/healthz` judges."""
