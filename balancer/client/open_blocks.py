"""Open blocks, and those that have been open for too long: a switch waits for them, and every pause grows.

A block notes the frame that opened it, nothing more: that costs less than a microsecond. The routes' own thread looks
once a second, and only for a block that is too old does it log where it was opened, once for each such place, as a
warning of the logger `balancer.client`. Keys are not logged: they may identify people.
"""

import logging
import sys
import traceback
from types import FrameType

from balancer.directory.locate import Location

LOG = logging.getLogger("balancer.client")
WARN_AFTER = 10.0
"""In seconds: far longer than one request's transaction, far shorter than an operator wants a move to wait."""


_OWN = ("balancer.client", "contextlib")


class OpenBlock:
    """One block, by the frame that opened it (the first that is not ours). Its place is kept: the frame continues
    inside the block."""

    def __init__(self, table: str, frame: FrameType) -> None:
        self.table = table
        self.location: Location | None = None
        self.began: float | None = None
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OWN):
            frame = frame.f_back
        self._frame = frame
        self._instruction = frame.f_lasti  # finding the line takes longer than all the rest

    def since(self) -> float | None:
        """When its transaction began (monotonic seconds); None: it has none."""
        return self.began

    def opening(self) -> traceback.StackSummary:
        """The traceback of its opening. Frames outside the block's own stand still."""
        lines = self._frame.f_code.co_lines()
        here = next((line for start, end, line in lines if start <= self._instruction < end and line), None)
        frames = [(self._frame, here or self._frame.f_lineno)]
        while (outer := frames[-1][0].f_back) is not None:
            frames.append((outer, outer.f_lineno))
        return traceback.StackSummary.extract(iter(frames[::-1]))


class OpenBlocks:
    """All of a router. Blocks come and go from many threads; one thread looks."""

    def __init__(self, warn_after: float) -> None:
        self._warn_after = warn_after
        self._open: dict[int, OpenBlock] = {}
        self._warned: set[tuple[str, int | None]] = set()
        self.hinted: set[tuple[str, int]] = set()
        """Places whose statements have been given a hint: see `client/keys/hints`."""

    def note(self, block: OpenBlock) -> None:
        """`forget` it when it ends."""
        self._open[id(block)] = block

    def opened(self, table: str, location: Location) -> OpenBlock:
        """A block; `began` is set when its transaction begins."""
        block = OpenBlock(table, sys._getframe(2))
        block.location = location
        self._open[id(block)] = block
        return block

    def forget(self, block: OpenBlock) -> None:
        self._open.pop(id(block), None)

    def look(self, now: float) -> None:
        """Warns about blocks that have become too old."""
        for block in list(self._open.values()):
            since = block.since()
            if since is not None and now - since >= self._warn_after:
                self._warn(block, now - since)

    def _warn(self, block: OpenBlock, seconds: float) -> None:
        opening, location = block.opening(), block.location
        place = (opening[-1].filename, opening[-1].lineno)
        if location is None or place in self._warned:
            return
        self._warned.add(place)
        LOG.warning(
            "a block for table %s has been open for %.1f s: until it ends, tablet %s on node %s cannot be moved."
            " It was opened here (this place is named once):\n%s",
            block.table,
            seconds,
            location.tablet,
            location.node,
            "".join(opening.format()).rstrip(),
        )
