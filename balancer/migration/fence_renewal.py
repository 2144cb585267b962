"""Renews the fence of a read-only migration while its rows are copied, in a thread with a connection of its own.

If the daemon dies, nobody renews and the fence ends by itself. A renewal that fails (a vacuum holds the lock, the
server is away for a moment) is retried while the fence stands; after that the error is raised when the block is left,
and sealing would refuse such a fence anyway.
"""

import threading

from balancer.errors import OutcomeUnknown, Refused, Unavailable
from balancer.migration.background import Background
from balancer.migration.context import Context
from balancer.migration.links import Links
from balancer.nodes.epoch_check import node_transaction
from balancer.nodes.fence import renew_fence

RETRY_SECONDS = 0.2


class FenceKeeper:
    """A block during which the context's fence does not expire."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._running: Background[None] = Background(self._keep, "fence-keeper")

    def __enter__(self) -> "FenceKeeper":
        if self._ctx.fence is None:
            raise Refused("there is no fence to keep: the migration must begin again")
        self._running.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._running.__exit__(kind, error, trace)
        if error is None:
            self._running.result()

    def _keep(self, stop: threading.Event) -> None:
        ctx = self._ctx
        assert ctx.fence is not None
        seconds = ctx.settings.read_only_fence_deadline
        links = Links(ctx.links.address, ctx.id)
        try:
            while not stop.wait(seconds / 3):
                self._renew(links, seconds, stop)
        finally:
            links.close()

    def _renew(self, links: Links, seconds: float, stop: threading.Event) -> None:
        ctx, node = self._ctx, self._ctx.record.source_node
        assert ctx.fence is not None
        names = [place.partition for place in ctx.source_places]
        until = ctx.clock.monotonic() + seconds / 2  # a third of its time has passed: then it still has a sixth left
        while True:
            ctx.leadership.check()
            try:
                with node_transaction(links.control(node), ctx.leadership.epoch, node) as cursor:
                    # Recorded before the commit, whose answer may be lost: from then on either deadline may stand.
                    ctx.fence = renew_fence(cursor, names, ctx.fence, seconds, ctx.settings.lock_timeout)
            except (Unavailable, OutcomeUnknown):
                links.close()
                if ctx.clock.monotonic() > until:
                    raise
                if stop.wait(RETRY_SECONDS):
                    return  # the fence still stands, as far as is known; sealing asks the node itself
            else:
                return
