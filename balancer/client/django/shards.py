"""`with shard("orders", user_id):`, the retry loop around it, and which models belong to which database."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator
from types import TracebackType
from typing import Any, TypeVar

import psycopg
from django.apps import apps
from django.conf import settings
from django.db import Error, connections, transaction

from balancer.client.django.base import DatabaseWrapper, router_of
from balancer.client.router import PATIENCE, Router
from balancer.client.transaction.connections import BlockConnection
from balancer.client.transaction.failures import Attempts
from balancer.client.transaction.steps import Isolation
from balancer.directory.locate import NO_KEY, AnyKey, Location
from balancer.errors import UserError

Result = TypeVar("Result")
ENGINE = "balancer.client.django"


def shards_alias() -> str:
    """The only database in DATABASES that is a cluster."""
    found = [alias for alias, words in settings.DATABASES.items() if words.get("ENGINE") == ENGINE]
    if len(found) != 1:
        raise UserError(
            f"DATABASES has {len(found)} databases with the engine {ENGINE}; name one: shard(table, key, using=…)"
        )
    return str(found[0])


class _RolledBack(Exception):
    """`transaction.set_rollback(True)` was called inside."""


class ShardBlock(ContextDecorator):
    """A block on the owner of a key. May be reopened after it has ended, but not by two threads at once."""

    def __init__(self, table: str, key: AnyKey, using: str | None, options: dict[str, Any]) -> None:
        self.table = table
        self.key = key
        self._using = using
        self._options = options
        self._open: list[AbstractContextManager[Any]] = []
        self._outer = False

    def _recreate_cm(self) -> "ShardBlock":
        return ShardBlock(self.table, self.key, self._using, self._options)

    @property
    def alias(self) -> str:
        """The database's name in DATABASES."""
        return self._using or shards_alias()

    @property
    def router(self) -> Router:
        """The library's own router of this process: for `locate`, `ids`, `map`, …"""
        return router_of(self._wrapper())

    @property
    def location(self) -> Location:
        """Node, tablet and epoch of the key; for an open block, those that were proven."""
        return self._wrapper().location or self.router.locate(self.table, self.key)

    def __enter__(self) -> "ShardBlock":
        wrapper = self._wrapper()
        if wrapper.location is not None:
            self._open.append(self._nested(wrapper.location))
            return self
        opened = self.router.transaction(self.table, self.key, **self._options)
        connection = opened.__enter__()
        self._open.append(opened)
        self._outer = True
        assert isinstance(connection, BlockConnection)
        assert connection.location is not None
        wrapper.begin(connection, connection.location)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened = self._open.pop()
        if self._open or not self._outer:
            opened.__exit__(kind, error, trace)
            return
        self._outer = False
        wrapper = self._wrapper()
        undone = wrapper.needs_rollback and error is None
        if undone:
            kind, error = _RolledBack, _RolledBack()
        wrapper.end()
        committed = False
        try:
            opened.__exit__(kind, error, trace)
            committed = error is None
        except _RolledBack:
            pass
        finally:
            if not committed:
                wrapper.run_on_commit = []
        if committed:
            wrapper.run_and_clear_commit_hooks()

    def _nested(self, location: Location) -> AbstractContextManager[Any]:
        """A savepoint, if it is for the same tablet; another one is not proven, and its rows are elsewhere."""
        wanted = self.router.locate(self.table, self.key)
        if wanted.tablet != location.tablet:
            raise UserError(
                f"a block for tablet {location.tablet} on node {location.node} is open, and key {self.key!r} of table"
                f" {self.table} is in tablet {wanted.tablet} on node {wanted.node}: end the one before the other, or"
                " use router.atomic() for both"
            )
        inner: AbstractContextManager[Any] = transaction.atomic(using=self.alias)
        inner.__enter__()
        return inner

    def _wrapper(self) -> DatabaseWrapper:
        wrapper = connections[self.alias]
        if not isinstance(wrapper, DatabaseWrapper):
            raise UserError(f"database {self.alias} is not a cluster: its ENGINE must be {ENGINE}")
        return wrapper


def shard(
    table: str,
    key: AnyKey = NO_KEY,
    *,
    using: str | None = None,
    read_only: bool = False,
    isolation: Isolation = Isolation.READ_COMMITTED,
    patience: float = PATIENCE,
) -> ShardBlock:
    """A block, or a decorator, in which sharded models are on the owner of a key: see `Router.transaction`.

    Inside another block for the same tablet it is a savepoint.
    """
    return ShardBlock(table, key, using, {"read_only": read_only, "isolation": isolation, "patience": patience})


def run(
    table: str, key: AnyKey, function: Callable[[], Result], *, patience: float = PATIENCE, **options: Any
) -> Result:
    """Calls the function in a `shard` block, and retries it from the start if needed: see `Router.run`."""
    opened = shard(table, key, **options)
    clock = opened.router.attachments.routes.clock
    deadline = clock.monotonic() + patience
    attempts = Attempts(deadline, clock.monotonic, opened.router.counters)
    while True:
        left = deadline - clock.monotonic()
        try:
            with shard(table, key, patience=left, **options):
                return function()
        except (Error, psycopg.Error) as error:
            cause = error.__cause__ if isinstance(error, Error) else error
            if not isinstance(cause, psycopg.Error):
                raise
            try:
                pause = attempts.pause_after(cause)
            except psycopg.Error:
                raise error from cause
        clock.sleep(pause)


def sharded(model: Any) -> bool:
    """Whether a model's rows are in the cluster: it has `shard_table`."""
    return bool(getattr(model, "shard_table", ""))


class ShardRouter:
    """For DATABASE_ROUTERS: models with `shard_table` are in the cluster, and `migrate` leaves them alone."""

    def db_for_read(self, model: Any, **_: Any) -> str | None:
        return shards_alias() if sharded(model) else None

    db_for_write = db_for_read

    def allow_relation(self, one: Any, other: Any, **_: Any) -> bool | None:
        return None if not sharded(one) and not sharded(other) else sharded(one) and sharded(other)

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **_: Any) -> bool | None:
        if db == shards_alias():
            return False
        try:
            model = apps.get_model(app_label, model_name) if model_name else None
        except LookupError:
            return None
        return False if model is not None and sharded(model) else None
