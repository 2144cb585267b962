"""What a framework keeps with a router: made when it is first asked for, closed when the router is.

`balancer.client.sqlalchemy` keeps its engines this way. Both kinds of router have one of these.
"""

import threading
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from balancer.client.counters import Counters
from balancer.client.open_blocks import OpenBlocks
from balancer.client.pools import PoolSettings
from balancer.client.routing import Routes
from balancer.client.sampler import Sampler
from balancer.errors import UserError


class Attached(Protocol):
    """Something that ends with its router; what an asyncio router keeps is awaited."""

    def written(self) -> list[str]:
        """Nodes that the application may have written to through it."""
        ...

    def close(self) -> Awaitable[None] | None: ...


Kept = TypeVar("Kept", bound=Attached)


class Attachments:
    """One of each kind. May be used from several threads."""

    def __init__(
        self, routes: Routes, settings: PoolSettings, sampler: Sampler | None, blocks: OpenBlocks, counters: Counters
    ) -> None:
        self.routes = routes
        self.settings = settings
        self.sampler = sampler
        self.blocks = blocks
        self.counters = counters
        self._lock = threading.Lock()
        self._kept: dict[type[Attached], Attached] | None = {}

    def get(self, kind: type[Kept], make: Callable[["Attachments"], Kept]) -> Kept:
        """The one of this kind; `make` is called once."""
        self.routes.check_process()
        with self._lock:
            if self._kept is None:
                raise UserError("the router has been closed")
            found = self._kept.get(kind)
            if found is None:
                found = self._kept[kind] = make(self)
        assert isinstance(found, kind)
        return found

    def written(self) -> set[str]:
        """Nodes that the application may have written to through what is kept here."""
        with self._lock:
            return {node for one in (self._kept or {}).values() for node in one.written()}

    def close(self) -> None:
        """Of a blocking router. Idempotent."""
        for one in self._taken():
            one.close()

    async def aclose(self) -> None:
        """Of an asyncio router. Idempotent."""
        for one in self._taken():
            ended = one.close()
            if ended is not None:
                await ended

    def _taken(self) -> list[Attached]:
        with self._lock:
            kept, self._kept = self._kept or {}, None
        return list(kept.values())
