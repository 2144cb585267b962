"""Opens a directory by its address: the only thing besides the contract that callers above know.

`sqlite:///absolute/path` is a file on this machine. Further arguments are the backend's own.
"""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from balancer.directory.contract import Directory
from balancer.directory.sqlite import SqliteDirectory
from balancer.errors import UserError


def open_directory(url: str, **options: Any) -> Directory:
    """The directory at an address; `UserError` says what is wrong with one that cannot be."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        if parts.netloc or not parts.path.startswith("/"):
            raise UserError(f"{url!r} is not a directory address: a file is written as sqlite:///absolute/path")
        return SqliteDirectory(Path(parts.path), **options)
    raise UserError(
        f"{url!r} is not a directory address; allowed are sqlite:///absolute/path and zk://host:port/cluster"
    )
