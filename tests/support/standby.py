"""A streaming standby of a server, made as operators make them: pg_basebackup, then a server on the copy."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from balancer.embedded import process
from balancer.embedded.postgres import PostgresServer
from tests.support.servers import postgres
from tests.support.waiting import surely


@contextmanager
def standby(primary: PostgresServer, folder: Path, version: int, name: str = "walreceiver") -> Iterator[PostgresServer]:
    """Runs until the block ends; caught up with what the primary had when it was made."""
    made = make_standby(primary, folder, version, name)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def make_standby(primary: PostgresServer, folder: Path, version: int, name: str = "walreceiver") -> PostgresServer:
    """A copy of the primary's folder that has not been started yet."""
    account = process.Account.choose()
    process.prepare_folder(folder, account)
    shutil.copy(primary.folder / "password", folder / "password")
    if account:
        account.own(folder / "password")
    made = postgres(folder, version)
    program = str(made._reachable("pg_basebackup"))
    where = psycopg.conninfo.make_conninfo(primary.dsn(), dbname=None, application_name=name)
    process.run(
        [program, f"--pgdata={made.data}", f"--dbname={where}", "--checkpoint=fast", "--write-recovery-conf"],
        account,
        folder,
    )
    return made


def wait_until(happened: Callable[[], bool], seconds: float = 20.0) -> None:
    """Waits for what a server does in its own time; fails if it does not."""
    assert surely(happened, seconds), "it did not happen"


def copy_folder(server: PostgresServer, to: Path) -> None:
    """A cold backup of a server that is stopped."""
    assert server.pid() is None
    _copy(server.data, to)


def restore_folder(server: PostgresServer, backup: Path) -> None:
    """The cold backup becomes the server's data again; what came after it is gone."""
    assert server.pid() is None
    shutil.rmtree(server.data)
    _copy(backup, server.data)


def _copy(source: Path, to: Path) -> None:
    shutil.copytree(source, to, symlinks=True)
    if os.geteuid() == 0:
        account = process.Account.choose()
        assert account is not None
        for path in (to, *to.rglob("*")):
            os.chown(path, account.uid, account.gid, follow_symlinks=False)
