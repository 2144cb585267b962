"""Instances that settle who should lead, in one thread and on a clock that a test moves: a model of an election.

The real `Spreader`s, with a board of notes in memory and an election in which one of those who stand wins. Instances
may be killed, stopped, cut off, or be unable to lead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any, cast

from balancer.daemon.leadership import Spreader
from balancer.directory.contract import Directory
from balancer.directory.model import Json
from balancer.instruments import Instruments
from balancer.settings.files import DaemonFile
from tests.support.manual_clock import ManualClock

STEPS = 10  # per session
REST = 0.2  # sessions, as `campaign` rests after a leadership that it could not use


@dataclass
class Board:
    """The notes, and who leads."""

    notes: dict[str, Json] = field(default_factory=dict)
    name: str | None = None

    def leader(self) -> str | None:
        return self.name

    def publish(self, topic: str, name: str, document: Json) -> int:
        self.notes[name] = document
        return 0

    def published(self, topic: str) -> Mapping[str, Json]:
        return dict(self.notes)

    def unpublish(self, topic: str, name: str) -> None:
        self.notes.pop(name, None)


@dataclass
class Member:
    """One instance, and what a test does to it."""

    spreader: Spreader
    unfit: str = ""
    under_way: str = ""
    cannot_lead: bool = False
    dies_after: float | None = None
    """Seconds of leading after which its process dies, and comes back."""
    never_stands: bool = False
    alive: bool = True
    back_at: float = 0.0
    led_since: float = 0.0


class Hall:
    """Instances by name, and what happens among them."""

    def __init__(self, names: str, seed: int = 0, session: float = 10.0, **leadership: Any) -> None:
        self.clock = ManualClock(datetime(2026, 1, 5, tzinfo=UTC))
        self.board = Board()
        self.epoch = 0
        self.history: list[tuple[float, str, int]] = []
        self._random = Random(seed)
        self._session = session
        self._leadership = {"spread": True, "settle": 3 * session, "lead_at_least": 12 * session, **leadership}
        self.files = {name: self._file(name) for name in names}
        self.members: dict[str, Member] = {}
        for name in names:
            self.begin(name)

    def _file(self, name: str, **changes: Any) -> DaemonFile:
        return DaemonFile(
            directory="zk://h:2181/shop",
            instance=name,
            session_timeout=self._session,
            leadership={**self._leadership, **changes},
        )

    def change(self, name: str, **leadership: Any) -> None:
        """Changes the configuration of one."""
        self.files[name] = self._file(name, **leadership)

    def begin(self, name: str) -> Member:
        """A process of this name starts; what the former one knew is gone, its note is not."""
        before = self.members.get(name)
        spreader = Spreader(
            cast(Directory, self.board),
            lambda: self.files[name],
            unfit=lambda: self.members[name].unfit,
            under_way=lambda: self.members[name].under_way,
            instruments=Instruments(),
            clock=self.clock,
        )
        kept = before or Member(spreader)
        kept.spreader, kept.alive = spreader, True
        self.members[name] = kept
        return kept

    def kill(self, name: str) -> None:
        """SIGKILL; the servers let others lead a session later, which `run` simulates."""
        self.members[name].alive = False
        if self.board.name == name:
            self.run(self._session)
            self.board.name = None

    def run(self, seconds: float) -> None:
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            self.clock.advance(self._session / STEPS)
            names = list(self.members)
            self._random.shuffle(names)
            for name in names:
                member = self.members[name]
                if member.alive and self.clock.monotonic() >= member.back_at:
                    self._step(name, member)

    def _step(self, name: str, member: Member) -> None:
        if self.board.name == name:
            self._lead(name, member)
        elif member.spreader.stands() and self.board.name is None and not member.never_stands:
            self.epoch += 1
            self.board.name, member.led_since = name, self.clock.monotonic()
            self.history.append((self.clock.monotonic(), name, self.epoch))
            member.spreader.won(self.epoch)
            if member.cannot_lead:
                self._end(member, failed=True)
                member.back_at = self.clock.monotonic() + REST * self._session

    def _lead(self, name: str, member: Member) -> None:
        led = self.clock.monotonic() - member.led_since
        if member.dies_after is not None and led >= member.dies_after:
            self.board.name = None
            self.begin(name).back_at = self.clock.monotonic() + REST * self._session
        elif member.spreader.hands_over():
            member.spreader.handed_over()
            self._end(member, failed=False)

    def _end(self, member: Member, *, failed: bool) -> None:
        self.board.name = None
        member.spreader.ended(failed=failed)

    def terms(self) -> list[str]:
        """Who led, one after the other."""
        return [name for _, name, _ in self.history]
