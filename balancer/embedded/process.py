"""Servers as child processes: started unprivileged, found again by their pid file, reliably stopped.

Used by the PostgreSQL and ZooKeeper servers next to this module and by the keeper. A pid file is trusted only if the
process it names was started on the same folder: after a reboot the number may belong to somebody else.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from balancer.clock import SystemClock
from balancer.errors import BalancerError, Unavailable

POLL_SECONDS = 0.02
PORT_PATIENCE = 2.0
_SERVERS = ("java", "postgres")

_clock = SystemClock()
_started: list["subprocess.Popen[bytes]"] = []  # a server we started is our child until it has been reaped
_starting = threading.Lock()  # several are started and stopped in parallel: none may get lost from the list


@dataclass(frozen=True, slots=True)
class Account:
    """The account that the servers run as. PostgreSQL refuses to run as root, so root starts them as somebody else."""

    uid: int
    gid: int

    @classmethod
    def choose(cls) -> "Account | None":
        """None if we are an ordinary user; otherwise the first of the usual unprivileged accounts."""
        if os.geteuid() != 0:
            return None
        for name in ("postgres", "nobody"):
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return cls(entry.pw_uid, entry.pw_gid)
        raise BalancerError("running as root, but there is neither an account 'postgres' nor 'nobody' for the servers")

    def own(self, path: Path) -> None:
        """Gives a folder, or a file, to the account."""
        os.chown(path, self.uid, self.gid)


def prepare_folder(path: Path, account: Account | None) -> None:
    """Makes a folder that only the servers' account can use."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    if account:
        account.own(path)


def _identity(account: Account | None) -> dict[str, Any]:
    """The account a program is started as: with none of our groups, if it is not our own."""
    return {"user": account.uid, "group": account.gid, "extra_groups": []} if account else {}


def spawn(argv: Sequence[str], log: Path, account: Account | None, cwd: Path) -> "subprocess.Popen[bytes]":
    """Starts a server in a session of its own, so that Ctrl-C reaches us and not it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    with log.open("ab") as output:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
            env=environment,
            **_identity(account),
        )
    with _starting:
        _started.append(child)
    return child


def run(argv: Sequence[str], account: Account | None, cwd: Path) -> None:
    """Runs one of the server's short programs; its output is shown only if it fails."""
    done = subprocess.run(
        list(argv),
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        **_identity(account),
    )
    if done.returncode:
        raise BalancerError(f"{Path(argv[0]).name} failed with exit code {done.returncode}: {done.stderr.strip()}")


def read_pid(pid_file: Path, folder: Path) -> int | None:
    """The living process that this pid file names, if it really works on this folder."""
    try:
        pid = int(pid_file.read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None
    return pid if str(folder) in command_line(pid) else None


def command_line(pid: int) -> str:
    """What a process was started with; empty when there is none, or when it has ended and waits to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return "" if state == "Z" else Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def stop(pid: int, folder: Path, first: signal.Signals, patience: float) -> None:
    """Asks a process to end, and kills it with its children when it does not."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, first)
    if not until(lambda: not _works_on(pid, folder), patience):
        kill(pid, folder)


def kill(pid: int, folder: Path) -> None:
    """SIGKILL to a server and all its children, and waits until they are gone."""
    family = [pid, *children(pid)]
    for member in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    until(lambda: not _works_on(pid, folder) and not any(command_line(member) for member in family), 10.0)
    if _works_on(pid, folder):
        raise Unavailable(f"process {pid} on {folder} does not end")


def _works_on(pid: int, folder: Path) -> bool:
    """Our own child counts until it is reaped: an ending process loses its command line shortly before that."""
    with _starting:
        _started[:] = [child for child in _started if child.poll() is None]
        ours = any(child.pid == pid for child in _started)
    return ours or str(folder) in command_line(pid)


def reap(folder: Path, patience: float) -> None:
    """Waits for those servers below a folder that we have started and somebody else has stopped."""
    with _starting:
        left = [child for child in _started if f" {folder}/" in " ".join(map(str, cast(Sequence[str], child.args)))]
    for child in left:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(patience)


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still live."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found


def servers_below(folder: Path) -> list[int]:
    """The servers that work below a folder, whether or not they have a pid file: one that was just started by a process
    that was killed before it could record that has none."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        words = command_line(int(entry.name)).split(" ")
        if Path(words[0]).name in _SERVERS and any(word.startswith(f"{folder}/") for word in words[1:]):
            found.append(int(entry.name))
    return found


def until(happened: Callable[[], bool], patience: float) -> bool:
    """Waits for something; False if it does not happen in time."""
    deadline = _clock.monotonic() + patience
    while not happened():
        if _clock.monotonic() > deadline:
            return False
        _clock.sleep(POLL_SECONDS)
    return True


def free_port(preferred: int | None = None) -> int:
    """A port of the loopback interface that nobody listens on: the preferred one if it is free, or soon will be: a
    killed server's last process may still be ending.

    Others are taken from below the range that the system uses for outgoing connections: one of those must not occupy a
    server's port while the server restarts.
    """
    if preferred is not None and until(lambda: _is_free(preferred), PORT_PATIENCE):
        return preferred
    for candidate in (20_000 + secrets.randbelow(12_000) for _ in range(100)):
        if _is_free(candidate):
            return candidate
    raise Unavailable("no free port on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return True
    return False


def free_ports(count: int) -> list[int]:
    """Several such ports, all different."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)


def ask(address: str, word: bytes) -> str:
    """What a server on loopback answers to a short word; empty if it does not answer."""
    host, port = address.split(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0) as connection:
        connection.sendall(word)
        parts = []
        while part := connection.recv(4096):
            parts.append(part)
        return b"".join(parts).decode(errors="replace")
    return ""


def remembered_port(file: Path) -> int | None:
    """The port a server used last time: kept, so that addresses recorded elsewhere stay valid."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int(file.read_text())
    return None


def secret(file: Path) -> str:
    """A password kept in a file that only we can read; made the first time."""
    if not file.exists():
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as output:
            output.write(secrets.token_urlsafe(24))
    return file.read_text()


def reachable(path: Path, account: Account | None) -> bool:
    """Whether the account may enter every folder above this path."""
    if account is None:
        return True
    return all(_may_enter(folder.stat(), account) for folder in path.resolve().parents)


def _may_enter(status: os.stat_result, account: Account) -> bool:
    if status.st_uid == account.uid:
        return bool(status.st_mode & 0o100)
    return bool(status.st_mode & (0o010 if status.st_gid == account.gid else 0o001))


def make_reachable(source: Path, copy: Path, account: Account | None) -> Path:
    """The folder itself, or a copy of it where the account can reach it (a checkout below /root, say)."""
    if reachable(source / "x", account):
        return source
    if not copy.exists():
        fresh = copy.with_name(copy.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(source, fresh, symlinks=True)
        fresh.rename(copy)
    return copy


def settings_lines(settings: Mapping[str, object]) -> Iterator[str]:
    """`name = 'value'` lines as PostgreSQL reads them."""
    for name, value in settings.items():
        escaped = str(value).replace("'", "''")
        yield f"{name} = '{escaped}'\n"
