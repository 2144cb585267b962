"""Connections as a router lends them: code inside a block cannot end the block's transaction.

`commit()` and `rollback()` inside a block are refused at once. An ORM that is given the block's connection (a `creator`
of SQLAlchemy's, say) would otherwise commit rows that the block may still want back, and then go on without any proof
of ownership. Nested blocks (`connection.transaction()`) are savepoints, as always. `pools` makes these connections.
"""

from typing import Any

import psycopg

from balancer.client.locate import Location
from balancer.errors import UserError


class BlockConnection(psycopg.Connection[Any]):
    """Of a blocking router."""

    lent = False
    """Whether a block has it; the pool itself may roll back what comes back to it half-way."""
    location: Location | None = None
    """Of a block of `transaction`: what was proven."""

    def commit(self) -> None:
        _refuse(self.lent, "commit")
        super().commit()

    def rollback(self) -> None:
        _refuse(self.lent, "rollback")
        super().rollback()


class AsyncBlockConnection(psycopg.AsyncConnection[Any]):
    """Of an asyncio router."""

    lent = False
    location: Location | None = None

    async def commit(self) -> None:
        _refuse(self.lent, "commit")
        await super().commit()

    async def rollback(self) -> None:
        _refuse(self.lent, "rollback")
        await super().rollback()


def _refuse(lent: bool, word: str) -> None:
    if lent:
        raise UserError(
            f"{word}() inside a block of the router: the block's end commits, an exception rolls back. With SQLAlchemy"
            " use balancer.client.sqlalchemy.session, with Django balancer.client.django.shard"
        )
