"""The library for applications: finds the node of a key, and makes moves a matter of milliseconds instead of errors.

It needs the directory and psycopg; neither the daemon nor numpy (except for `group`). Applications import from here.
"""

from balancer.client.async_router import AsyncRouter
from balancer.client.entry import Isolation
from balancer.client.ids import Ids, LocatedIds
from balancer.client.locate import Location, RowId, locate_key, parse_key
from balancer.client.pools import PoolSettings
from balancer.client.router import Router

__all__ = [
    "AsyncRouter",
    "Ids",
    "Isolation",
    "LocatedIds",
    "Location",
    "PoolSettings",
    "Router",
    "RowId",
    "locate_key",
    "parse_key",
]
