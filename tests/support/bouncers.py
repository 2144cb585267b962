"""A real PgBouncer, run as an unprivileged account, as it requires."""

import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from balancer.embedded import process
from balancer.embedded.postgres import PostgresServer


@dataclass(frozen=True)
class PgBouncer:
    """A running one; `file` is what it includes."""

    port: int
    file: Path
    password: str

    @property
    def admin(self) -> str:
        return self.dsn("pgbouncer")

    def dsn(self, alias: str) -> str:
        return f"postgresql://postgres:{quote(self.password)}@127.0.0.1:{self.port}/{quote(alias)}"


@contextmanager
def running_pgbouncer(folder: Path, server: PostgresServer) -> Iterator[PgBouncer]:
    """In transaction pooling, in front of servers that have this server's password."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert program is not None, "PgBouncer is not installed"
    account = process.Account.choose()
    process.prepare_folder(folder, account)
    port = process.free_port()
    bouncer = PgBouncer(port, folder / "databases.ini", server.password())
    bouncer.file.write_text("[databases]\n")
    (folder / "users.txt").write_text(f'"postgres" "{bouncer.password}"\n')
    (folder / "pgbouncer.ini").write_text(
        f"%include {bouncer.file}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = scram-sha-256\nauth_file = {folder / 'users.txt'}\nadmin_users = postgres\n"
        "pool_mode = transaction\ndefault_pool_size = 8\nmax_client_conn = 200\nignore_startup_parameters = options\n"
    )
    for file in folder.iterdir():
        if account:
            account.own(file)
    child = process.spawn([program, str(folder / "pgbouncer.ini")], folder / "log", account, folder)
    try:
        _await_port(port, folder / "log")
        yield bouncer
    finally:
        child.terminate()
        child.wait(10)


def _await_port(port: int, log: Path) -> None:
    deadline = time.monotonic() + 20
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
