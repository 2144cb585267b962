"""The library for applications: finds the node of a key, and turns moves into milliseconds of waiting, not errors.

It needs the directory and psycopg; neither the daemon nor numpy (except for `group`). Applications import from here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from balancer.client.async_router import AsyncRouter
    from balancer.client.atomic_block import AsyncAtomic, Atomic
    from balancer.client.checked_rows import WrongKey
    from balancer.client.id_blocks import Ids, LocatedIds
    from balancer.client.locate import Location, RowId, locate_key, parse_key
    from balancer.client.merging import summed, top
    from balancer.client.outgoing import AsyncRoutedConnection, RoutedConnection
    from balancer.client.pools import PoolSettings
    from balancer.client.router import Router, TabletAnswer
    from balancer.client.shard_steps import Shard
    from balancer.client.transaction_steps import Isolation

_MODULES = {
    "AsyncAtomic": "atomic_block",
    "AsyncRoutedConnection": "outgoing",
    "AsyncRouter": "async_router",
    "Atomic": "atomic_block",
    "Ids": "id_blocks",
    "Isolation": "transaction_steps",
    "LocatedIds": "id_blocks",
    "Location": "locate",
    "PoolSettings": "pools",
    "RoutedConnection": "outgoing",
    "Router": "router",
    "RowId": "locate",
    "Shard": "shard_steps",
    "TabletAnswer": "router",
    "WrongKey": "checked_rows",
    "locate_key": "locate",
    "parse_key": "locate",
    "summed": "merging",
    "top": "merging",
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
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found
