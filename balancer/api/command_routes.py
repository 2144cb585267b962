"""Operators' commands over HTTP: put into the directory, carried out by the leader, wherever that is.

What may be asked of the leader over HTTP: one document for each verb, told apart by `verb`.

The fields are those that `planner.commands` knows; a document becomes the same record in the directory that the command
line writes. What is decided, and with which words something is refused, is the leader's business.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field, model_validator

from balancer.api.directory_feed import VersionWatch
from balancer.api.record_shapes import CommandList, CommandShape, DryRunShape
from balancer.api.shapes import cut_at, instant
from balancer.api.source import Source
from balancer.directory.locate import encoded_prefix
from balancer.directory.model import Command, CommandState
from balancer.directory.snapshot import NotFound
from balancer.errors import Refused
from balancer.planner.commands import command_line, submit, would_do
from balancer.settings import WantedMode

TabletNumber = Annotated[int, Field(ge=1, le=2**63 - 1, description="a tablet's id")]
TabletNumbers = Annotated[list[TabletNumber], Field(min_length=1, max_length=1000)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Reason = Annotated[str, Field(max_length=1000, description="for the history")]
Duration = Annotated[float, Field(gt=0, le=10 * 366 * 86400, allow_inf_nan=False)]
AcceptLoss = Annotated[bool, Field(description="accept the loss")]


class CommandBody(BaseModel):
    """What every command has."""

    model_config = ConfigDict(extra="forbid")

    author: str = Field("", max_length=100, description="who is asking, for the history")

    def arguments(self) -> dict[str, Any]:
        """For the directory: what was said, and nothing that was not."""
        return self.model_dump(mode="json", exclude={"verb", "author"}, exclude_none=True, exclude_defaults=True)


class ApplyCommand(CommandBody):
    """Approves a plan, or some of its actions."""

    verb: Literal["apply"]
    plan: Name
    actions: Annotated[list[Annotated[int, Field(ge=1)]] | None, Field(min_length=1, max_length=10_000)] = Field(
        None, description="the actions' numbers; null: all of them"
    )


class CancelCommand(CommandBody):
    """Ends a migration or an order, and undoes it."""

    verb: Literal["cancel"]
    migration: Name = Field(description="the id of a migration or an order")


class CloseCommand(CommandBody):
    """A node keeps what it has and gets no more."""

    verb: Literal["close"]
    node: Name


class DecideCommand(CommandBody):
    """Ends a transaction over several nodes whose home cannot say how."""

    verb: Literal["decide"]
    transaction: Name
    home: Name
    commit: bool
    reason: Annotated[Reason, Field(min_length=1)]

    def arguments(self) -> dict[str, Any]:
        """Also where it is false, `commit` is said."""
        return {**super().arguments(), "commit": self.commit}


class DoubleCommand(CommandBody):
    """Splits every vbucket of a table in two."""

    verb: Literal["double"]
    bundle: Name
    table: Name
    at_once: bool = Field(False, description="do not wait until the schedule is open")


class HalveCommand(CommandBody):
    """Merges every pair of sibling vbuckets of a table."""

    verb: Literal["halve"]
    bundle: Name
    table: Name
    at_once: bool = Field(False, description="do not wait until the schedule is open")


class DrainCommand(CommandBody):
    """Everything leaves a node."""

    verb: Literal["drain"]
    node: Name
    reason: Reason = ""


class ExpireCommand(CommandBody):
    """Retires tablets that have wholly expired."""

    verb: Literal["expire"]
    tablets: TabletNumbers
    reason: Reason = ""


class HoldExpiryCommand(CommandBody):
    """Nothing expires in a bundle until it is released."""

    verb: Literal["hold-expiry"]
    bundle: Name
    reason: Reason = ""


class LostCommand(CommandBody):
    """A node will not come back."""

    verb: Literal["lost"]
    node: Name
    accept_loss: AcceptLoss = False


class MergeCommand(CommandBody):
    """Neighbouring ranges, or two sibling vbuckets, of one node become one."""

    verb: Literal["merge"]
    tablets: TabletNumbers
    reason: Reason = ""
    mode: WantedMode | None = None


class MoveCommand(CommandBody):
    """A tablet goes to another node."""

    verb: Literal["move"]
    tablet: TabletNumber
    node: Name
    reason: Reason = ""
    mode: WantedMode | None = None


class _BundleOrMigration(CommandBody):
    bundle: Name | None = None
    migration: Name | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> "_BundleOrMigration":
        if (self.bundle is None) == (self.migration is None):
            raise ValueError("name a bundle or a migration, and not both")
        return self


class PauseCommand(_BundleOrMigration):
    """A bundle starts nothing new, or a migration stops at its next safe point."""

    verb: Literal["pause"]
    seconds: Duration | None = Field(None, description="only for bundles; null: until resumed")
    reason: Reason = ""


class PinCommand(CommandBody):
    """A tablet stays where it is."""

    verb: Literal["pin"]
    tablet: TabletNumber
    seconds: Duration | None = Field(None, description="null: until unpinned")
    reason: Reason = ""


class ReplanCommand(CommandBody):
    """A bundle is planned again at once."""

    verb: Literal["plan"]
    bundle: Name


class RejoinCommand(CommandBody):
    """A node that has gone back in time is accepted as it is."""

    verb: Literal["rejoin"]
    node: Name
    accept_loss: AcceptLoss = False


class ReleaseCommand(CommandBody):
    """A tablet in quarantine may be migrated again."""

    verb: Literal["release"]
    tablet: TabletNumber


class ReleaseExpiryCommand(CommandBody):
    """Expired tablets of a bundle are retired again."""

    verb: Literal["release-expiry"]
    bundle: Name


class ResumeCommand(_BundleOrMigration):
    """A paused bundle or migration goes on."""

    verb: Literal["resume"]


class RunNowCommand(CommandBody):
    """The next plan of a bundle starts whatever its schedule, once."""

    verb: Literal["run-now"]
    bundle: Name


class SplitCommand(CommandBody):
    """A tablet becomes several: a range at keys or in equal parts, a vbucket in 2, 4, 8 … parts."""

    verb: Literal["split"]
    tablet: TabletNumber
    parts: int | None = Field(None, ge=2, le=1000, description="null: two, or as many as the keys give")
    keys: list[Annotated[list[int | str], Field(min_length=1, max_length=32)]] | None = Field(
        None, max_length=999, description="where to cut a range: the values of all key columns, or of the first ones"
    )
    reason: Reason = ""
    mode: WantedMode | None = None


class TabletLostCommand(CommandBody):
    """A tablet that is nowhere gets a new owner."""

    verb: Literal["tablet-lost"]
    tablet: TabletNumber
    node: Name
    empty: bool = Field(
        False, description="create it without rows; otherwise the node opens the copy that it still has"
    )
    former: bool = Field(False, description="open the tablets that it was split or merged from")
    accept_loss: AcceptLoss = False


class UndrainCommand(CommandBody):
    """A node is as any other again."""

    verb: Literal["undrain"]
    node: Name


class UnpinCommand(CommandBody):
    """A pinned tablet may move again."""

    verb: Literal["unpin"]
    tablet: TabletNumber


AnyCommand = (
    ApplyCommand
    | CancelCommand
    | CloseCommand
    | DecideCommand
    | DoubleCommand
    | DrainCommand
    | ExpireCommand
    | HalveCommand
    | HoldExpiryCommand
    | LostCommand
    | MergeCommand
    | MoveCommand
    | PauseCommand
    | PinCommand
    | RejoinCommand
    | ReleaseCommand
    | ReleaseExpiryCommand
    | ReplanCommand
    | ResumeCommand
    | RunNowCommand
    | SplitCommand
    | TabletLostCommand
    | UndrainCommand
    | UnpinCommand
)
CommandRequest = Annotated[AnyCommand, Field(discriminator="verb")]

EXAMPLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "move": {"verb": "move", "tablet": 3, "node": "pg-a", "reason": "pg-b is to be renewed", "author": "ann"},
    "split": {"verb": "split", "tablet": 1003, "keys": [[2000], [3000]]},
    "merge": {"verb": "merge", "tablets": [3, 7]},
    "drain": {"verb": "drain", "node": "pg-b", "reason": "a new disk"},
    "pause": {"verb": "pause", "bundle": "shop", "seconds": 3600},
    "resume": {"verb": "resume", "bundle": "shop"},
    "approve two actions of a plan": {"verb": "apply", "plan": "5f0c0ffe", "actions": [1, 2]},
    "cancel": {"verb": "cancel", "migration": "4e21d0aa"},
}


_SEEN_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Given:
    """A command that is in the directory, and the status to answer with."""

    shape: CommandShape
    status: int


class Commands:
    """Gives commands and follows them."""

    def __init__(self, source: Source, watch: VersionWatch) -> None:
        self._source = source
        self._watch = watch

    async def give(self, wish: AnyCommand, host: str, wait: float) -> Given:
        """Puts the command into the directory; waits for the leader's answer for as long as requested, and raises it if
        it is a refusal."""
        author = f"{wish.author or 'http'}@{host}"
        command, version = await run_in_threadpool(self._submit, wish, author)
        # The next request must find it here.
        await self._watch.newer(version - 1, _SEEN_SECONDS)
        answered = await self._answered(command, wait)
        if answered.state is CommandState.REFUSED:
            raise Refused(answered.result)
        return Given(shape(answered), 200 if answered.state is CommandState.DONE else 202)

    def try_out(self, wish: AnyCommand, host: str) -> DryRunShape:
        """What the leader would do, by its own code. Raises `Refused` if it would refuse."""
        configured = self._source.settings().bundles.values()
        arguments = self._arguments(wish)
        result = would_do(
            self._source.follower().snapshot,
            wish.verb,
            arguments,
            author=f"{wish.author or 'http'}@{host}",
            now=self._source.clock.now(),
            modes={bundle.name: bundle.mode for bundle in configured},
            options={bundle.name: bundle.options for bundle in configured},
        )
        return DryRunShape(verb=wish.verb, arguments=arguments, result=result, line=command_line(wish.verb, arguments))

    def given(self, limit: int, cursor: str) -> CommandList:
        """What the directory still has, newest first."""
        found = sorted(self._source.follower().snapshot.commands.values(), key=_order)
        items, following = cut_at(found, _order, limit, cursor)
        return CommandList(items=[shape(one) for one in items], next=following)

    async def find(self, command: str, wait: float) -> CommandShape:
        """A command by its id, after the leader has answered it or the time has passed."""
        snapshot = self._source.follower().snapshot
        found = snapshot.commands.get(command)
        if found is None:
            raise NotFound(f"there is no command {command!r} in the directory: old ones are forgotten")
        return shape(await self._answered(found, wait))

    def _submit(self, wish: AnyCommand, author: str) -> tuple[Command, int]:
        snapshot = self._source.follower().snapshot
        now = self._source.clock.now()
        return submit(self._source.directory(), snapshot, wish.verb, self._arguments(wish), author=author, now=now)

    def _arguments(self, wish: AnyCommand) -> dict[str, Any]:
        """As the directory keeps them: keys in byte order."""
        arguments = wish.arguments()
        if isinstance(wish, SplitCommand) and wish.keys:
            snapshot = self._source.follower().snapshot
            arguments["keys"] = [encoded_prefix(snapshot, wish.tablet, key).hex() for key in wish.keys]
        return arguments

    async def _answered(self, command: Command, wait: float) -> Command:
        clock = self._source.clock
        deadline = clock.monotonic() + wait
        snapshot = self._source.follower().snapshot
        while True:
            command = snapshot.commands.get(command.id, command)
            left = deadline - clock.monotonic()
            if command.state is not CommandState.WAITING or left <= 0:
                return command
            newer = await self._watch.newer(snapshot.version, left)
            if newer.version == snapshot.version:
                return command  # the time has passed, or the server stops
            snapshot = newer


def _order(command: Command) -> tuple[float, str]:
    return -command.created, command.id


def shape(command: Command) -> CommandShape:
    """A command as a document."""
    return CommandShape(
        id=command.id,
        verb=command.verb,
        arguments=dict(command.arguments),
        author=command.author,
        created=instant(command.created),
        state=command.state,
        result=command.result,
        migration=command.migration,
    )
