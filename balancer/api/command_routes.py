"""Operators' commands over HTTP: put into the directory, carried out by the leader, wherever that is."""

from dataclasses import dataclass
from typing import Any, Final

from fastapi.concurrency import run_in_threadpool

from balancer.api.command_shapes import AnyCommand, SplitCommand
from balancer.api.documents import cut_at, instant
from balancer.api.keytext import encoded_prefix
from balancer.api.long_poll import VersionWatch
from balancer.api.page_shapes import DryRunShape
from balancer.api.record_shapes import CommandList, CommandShape
from balancer.api.source import Source
from balancer.directory.model import Command, CommandState
from balancer.directory.snapshot import NotFound
from balancer.errors import Refused
from balancer.planner.commands import submit
from balancer.planner.dry_runs import command_line, would_do

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
