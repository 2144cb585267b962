"""The database backend: `ENGINE = "balancer.client.django"`. Django looks for this module by its name.

A wrapper has a connection only inside a `shard` block, lent by the router and in a proven transaction. To Django it is
then inside an `atomic` block: nested ones are savepoints, `on_commit` waits, and Django itself refuses commit() and
rollback(). One router per process and alias; a fork makes its own.
"""

import atexit
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from django.db.backends.base.creation import BaseDatabaseCreation
from django.db.backends.postgresql import base as postgresql
from django.utils.module_loading import import_string
from psycopg.pq import TransactionStatus

from balancer.client.router import Router
from balancer.client.transaction.pools import PoolSettings
from balancer.directory.locate import Location
from balancer.errors import Unavailable, UserError

NO_SHARD = (
    "no shard is open: put the query into `with shard(table, key):`. A queryset is run where it is first read, so read"
    " it inside the block"
)
_routers: dict[tuple[int, str], Router] = {}
_lock = threading.Lock()


def router_of(wrapper: "DatabaseWrapper") -> Router:
    """The router of a database alias in this process, made when it is first needed."""
    known = (os.getpid(), wrapper.alias)
    found = _routers.get(known)
    if found is None:
        with _lock:
            found = _routers.get(known)
            if found is None:
                found = _routers[known] = _made(wrapper)
    return found


def _made(wrapper: "DatabaseWrapper") -> Router:
    settings = wrapper.settings_dict
    pools = PoolSettings(
        size=settings.get("POOL_SIZE", PoolSettings().size), connection=wrapper.get_connection_params()
    )
    make = settings.get("ROUTER", Router.connect)
    router: Router = (import_string(make) if isinstance(make, str) else make)(settings["NAME"], pools)
    atexit.register(router.close)
    return router


def close_routers() -> None:
    """Closes this process's routers: for the end of a test."""
    with _lock:
        for known in [known for known in _routers if known[0] == os.getpid()]:
            _routers.pop(known).close()


class DatabaseCreation(BaseDatabaseCreation):
    """Django's test runner creates no database here: a test names a cluster of its own, or one database."""

    def create_test_db(self, *arguments: Any, **options: Any) -> str:
        name: str = self.connection.settings_dict["NAME"]
        return name

    def destroy_test_db(self, *arguments: Any, **options: Any) -> None:
        close_routers()


class DatabaseWrapper(postgresql.DatabaseWrapper):
    """Django's connection, of one thread."""

    creation_class = DatabaseCreation
    connection: Any
    settings_dict: Any
    savepoint_ids: Any
    atomic_blocks: Any
    run_on_commit: Any
    execute_wrappers: Any
    location: Location | None = None
    """Where the open block is; None: there is none."""

    def get_connection_params(self) -> dict[str, Any]:
        """What Django wants from a connection; the directory decides where it goes."""
        named, self.settings_dict = self.settings_dict, {**self.settings_dict, "NAME": "x"}
        try:
            found: dict[str, Any] = super().get_connection_params()
        finally:
            self.settings_dict = named
        for word in ("dbname", "host", "port"):
            found.pop(word, None)
        zone = f"-c TimeZone={self.timezone_name}" if self.timezone_name else ""
        found["options"] = f"{found.get('options', '')} {zone}".strip()
        return found

    def connect(self) -> None:
        raise UserError(NO_SHARD)

    def _cursor(self, name: str | None = None) -> Any:
        if self.connection is not None and self.connection.pgconn.transaction_status == TransactionStatus.IDLE:
            raise UserError(
                "the block's transaction was ended by a statement of its own: leave COMMIT and ROLLBACK to `shard`"
            )
        return super()._cursor(name)

    def begin(self, connection: psycopg.Connection[Any], location: Location) -> None:
        """The connection is in a transaction: to Django that is an atomic block."""
        self.connection, self.location = connection, location
        self.in_atomic_block, self.autocommit = True, False
        self.commit_on_exit, self.closed_in_transaction = True, False
        self.needs_rollback, self.errors_occurred = False, False
        self.savepoint_ids, self.atomic_blocks, self.run_on_commit = [], [], []
        self.execute_wrappers.append(self._hinted)

    def end(self) -> None:
        """The block is over; what waits for its commit still waits."""
        self.connection, self.location = None, None
        self.execute_wrappers.remove(self._hinted)
        self.in_atomic_block, self.autocommit = False, True
        self.needs_rollback, self.closed_in_transaction = False, False
        self.savepoint_ids, self.atomic_blocks = [], []

    def _hinted(self, execute: Callable[..., Any], statement: Any, values: Any, many: bool, context: Any) -> Any:
        """A hint for a statement that found nothing because its key is elsewhere."""
        done = execute(statement, values, many, context)
        hints = getattr(self.connection, "hints", None)
        if not many and hints is not None and context["cursor"].rowcount == 0:
            hints().found_nothing(statement, values, self.connection)
        return done

    @property
    def pg_version(self) -> int:
        """The block's node's version; without a block, the first that answers: Django asks for it at odd moments."""
        if self.connection is not None:
            return int(self.connection.info.server_version)
        with self._somewhere() as (_, connection):
            return int(connection.info.server_version)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """A read-only look at whichever node answers, for commands that ask for definitions, never for rows."""
        with self._somewhere() as (node, connection):
            connection.execute("BEGIN READ ONLY")
            self.begin(connection, Location(node, 0, 0))
            try:
                yield
            finally:
                self.end()

    @contextmanager
    def _somewhere(self) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
        nodes = router_of(self).snapshot.nodes
        arguments = self.get_connection_params()
        for node in nodes.values():
            try:
                connection = psycopg.connect(node.dsn, **arguments, autocommit=True)
            except psycopg.OperationalError:
                continue
            with closing(connection):
                yield node.id, connection
            return
        raise Unavailable(f"none of the {len(nodes)} nodes can be reached")
