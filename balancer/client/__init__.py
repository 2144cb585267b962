"""The library for applications: finds the node of a key, and makes moves a matter of milliseconds instead of errors.

It needs the directory and psycopg; neither the daemon nor numpy (except for `group`). Applications import from here.
"""

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
