"""The library for applications: finds the node of a key, and turns moves into milliseconds of waiting, not errors.

It needs the directory and psycopg; neither the daemon nor numpy (except for `group`). Applications import from here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from balancer.client.async_router import AsyncRouter
    from balancer.client.atomic import AsyncAtomic, Atomic
    from balancer.client.every_shard import summed, top
    from balancer.client.keys.ids import Ids, LocatedIds
    from balancer.client.messages import AsyncRoutedConnection, RoutedConnection
    from balancer.client.router import Router, TabletAnswer
    from balancer.client.shard_steps import Shard
    from balancer.client.transaction.block import WrongKey
    from balancer.client.transaction.pools import PoolSettings
    from balancer.client.transaction.steps import Isolation
    from balancer.directory.locate import Location, RowId, locate_key, parse_key

_MODULES = {
    "AsyncAtomic": "balancer.client.atomic",
    "AsyncRoutedConnection": "balancer.client.messages",
    "AsyncRouter": "balancer.client.async_router",
    "Atomic": "balancer.client.atomic",
    "Ids": "balancer.client.keys.ids",
    "Isolation": "balancer.client.transaction.steps",
    "LocatedIds": "balancer.client.keys.ids",
    "Location": "balancer.directory.locate",
    "PoolSettings": "balancer.client.transaction.pools",
    "RoutedConnection": "balancer.client.messages",
    "Router": "balancer.client.router",
    "RowId": "balancer.directory.locate",
    "Shard": "balancer.client.shard_steps",
    "TabletAnswer": "balancer.client.router",
    "WrongKey": "balancer.client.transaction.block",
    "locate_key": "balancer.directory.locate",
    "parse_key": "balancer.directory.locate",
    "summed": "balancer.client.every_shard",
    "top": "balancer.client.every_shard",
}

__all__ = [
    "AsyncAtomic",
    "AsyncRoutedConnection",
    "AsyncRouter",
    "Atomic",
    "Ids",
    "Isolation",
    "LocatedIds",
    "Location",
    "PoolSettings",
    "RoutedConnection",
    "Router",
    "RowId",
    "Shard",
    "TabletAnswer",
    "WrongKey",
    "locate_key",
    "parse_key",
    "summed",
    "top",
]


def __getattr__(name: str) -> Any:
    # Imported on demand: most applications have one kind of router, and our own commands have none.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return found
