"""What the verbs of operators' commands look at, and what they result in. See `commands`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from balancer.directory.model import Change, Node, Tablet
from balancer.directory.record_rules import HELD_BY_CHANGE
from balancer.directory.snapshot import NotFound, Snapshot
from balancer.errors import Refused, UserError
from balancer.policies.bundle_view import Action
from balancer.policies.options import BundleOptions
from balancer.settings import Mode, WantedMode


@dataclass(frozen=True, slots=True)
class Revival:
    """A lost tablet that gets a new owner, on an operator's word."""

    tablet: Tablet
    """As it is in the directory, with its former owner."""
    node: str
    empty: bool = False
    """Made without rows; otherwise the node opens the copy that it still has."""
    former: bool = False
    """It opens the tablets from which a split or merge made this one."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A transaction over several nodes that an operator ends because its home cannot say how."""

    transaction: str
    home: str
    commits: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command results in."""

    result: str
    changes: tuple[Change, ...] = ()
    actions: tuple[Action, ...] = ()
    steer: tuple[tuple[str, str], ...] = ()  # (cancel | pause | resume, migration id)
    replan: str = ""  # a bundle whose plan should be made again at once
    mode: WantedMode | None = None  # of the actions; None: the bundle's
    round: str = ""  # a bundle whose next tick acts whatever the schedule, and answers the command
    end: Ending | None = None  # a transaction whose parts are ended; what was done is the answer
    revive: Revival | None = None  # a tablet that is made ready on its new node; what changes with it is found there


@dataclass(frozen=True, slots=True)
class CommandContext:
    """What a verb may look at."""

    snapshot: Snapshot
    arguments: Mapping[str, Any]
    author: str
    now: datetime
    modes: Mapping[str, Mode] = field(default_factory=dict)
    """Bundle → its mode, as the leader's configuration has it; one that is not here is not known."""
    options: Mapping[str, BundleOptions] = field(default_factory=dict)
    """Bundle → its options, as the leader's configuration has them; one that is not here is not known."""

    def word(self, name: str) -> str:
        """A required argument."""
        value = self.arguments.get(name)
        if value in (None, ""):
            raise UserError(f"the command needs {name!r}")
        return str(value)

    def tablet(self, name: str = "tablet") -> Tablet:
        """The tablet that an argument names."""
        return self.snapshot.tablet(self.number(self.word(name)))

    def node(self, name: str = "node") -> Node:
        """The node that an argument names."""
        return self.snapshot.node(self.word(name))

    def bundle(self) -> str:
        """The bundle that the command names."""
        name = self.word("bundle")
        if name not in self.snapshot.bundles:
            known = ", ".join(sorted(self.snapshot.bundles)) or "none"
            raise NotFound(f"there is no bundle {name!r}; there are: {known}")
        return name

    def free_bundle(self) -> str:
        """The bundle; refused if a schema change holds it, since that looked for migrations only once."""
        bundle = self.bundle()
        pause = self.snapshot.pauses.get(bundle)
        if pause is not None and pause.reason.startswith(HELD_BY_CHANGE):
            raise Refused(
                f"bundle {bundle} is held by {pause.reason} until that has ended: `balancer ddl status {bundle}`"
                f" shows its progress, `balancer ddl apply {bundle} --continue` or `--undo` ends it"
            )
        return bundle

    def until(self) -> float | None:
        """When a pin or a pause ends, as seconds since 1970; None: never by itself."""
        seconds = self.arguments.get("seconds")
        return None if seconds is None else self.now.timestamp() + float(seconds)

    @staticmethod
    def number(text: str) -> int:
        """A tablet's id."""
        if not (text.isascii() and text.isdigit()):
            raise UserError(f"{text!r} is not a tablet's id: ids are numbers, see `balancer tablets`")
        return int(text)
