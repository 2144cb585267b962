"""Opens a directory by its address: the only thing besides the contract that callers above know.

`sqlite:///absolute/path` is a file on this machine; `zk://host:port,host:port/cluster` is a cluster in ZooKeeper,
`zks://…` the same through TLS; `https://host:port,host:port/cluster` is the same, as any instance serves it to readers.
Secrets are never part of an address: see `credentials`.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from balancer.clock import Clock
from balancer.directory.contract import Directory
from balancer.directory.credentials import Credentials, from_environment
from balancer.errors import UserError

if TYPE_CHECKING:
    from balancer.directory.store.backend import PagedDirectory

ALLOWED = "sqlite:///absolute/path, zk://host:port,host:port/cluster, zks://… or https://host:port,host:port/cluster"


def open_directory(
    url: str,
    *,
    credentials: Credentials | None = None,
    clock: Clock | None = None,
    timeout: float = 10.0,
    lease: float | None = None,
    create: bool = True,
    cache: Path | str | None = None,
) -> Directory:
    """The directory at an address; `UserError` says what is wrong with an impossible one.

    `timeout`: seconds a call waits for servers. `lease`: seconds after which a silent leader is replaced (5 in a file,
    10 in ZooKeeper). `credentials` None: as the environment gives them. Without `create`, one that does not exist is a
    `UserError`, and is not made: for callers with no use for an empty directory. `cache`: a folder in which processes
    of this host share what one of them has loaded, see `host_cache`.
    """
    directory = _opened(url, credentials, clock, timeout, lease, create=create)
    if cache is not None:
        from balancer.directory.store.host_cache import HostCache  # noqa: PLC0415 - few processes use one

        try:
            directory.share(HostCache(Path(cache), url, directory.clock))
        except BaseException:
            directory.close()
            raise
    return directory


def _opened(
    url: str, credentials: Credentials | None, clock: Clock | None, timeout: float, lease: float | None, *, create: bool
) -> "PagedDirectory":
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        if parts.netloc or not parts.path.startswith("/") or parts.path.endswith("/"):
            raise UserError(f"{url!r} is not a directory address: a file is written as sqlite:///absolute/path")
        # Both kinds are imported here: each takes a while, and most processes need only one of them.
        from balancer.directory.sqlite.backend import SqliteDirectory  # noqa: PLC0415

        return SqliteDirectory(Path(parts.path), clock=clock, timeout=timeout, lease=lease or 5.0, create=create)
    if parts.scheme in ("zk", "zks"):
        if "@" in parts.netloc:
            raise UserError(
                "a directory address must not contain a user or a password: they come from the environment or a file"
            )
        hosts, cluster = parts.netloc, parts.path.strip("/")
        if not hosts or not cluster:
            raise UserError(f"{url!r} is not a directory address: it needs servers and a cluster, as {ALLOWED}")
        from balancer.directory.zookeeper.backend import ZooKeeperDirectory  # noqa: PLC0415

        known = credentials or from_environment(os.environ)
        if parts.scheme == "zks":
            known = replace(known, tls=True)
        return ZooKeeperDirectory(
            hosts, cluster, credentials=known, clock=clock, timeout=timeout, lease=lease or 10.0, create=create
        )
    if parts.scheme in ("http", "https"):
        from balancer.directory.http import HttpDirectory  # noqa: PLC0415

        known = replace(credentials or from_environment(os.environ), tls=parts.scheme == "https")
        return HttpDirectory(url, known, clock, timeout)
    raise UserError(f"{url!r} is not a directory address; allowed are {ALLOWED}")
