"""Stops the servers of a folder when the process that started them is gone, however it ended.

A `Keeper` holds the writing end of a pipe; its child process waits for the end of that pipe, which the kernel closes
even after SIGKILL, and then stops every server whose pid file lies below the folder. It holds a lock meanwhile: the
next keeper of the same folder waits for it, so that one keeper's clean-up never hits the next one's servers.
"""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

from balancer.embedded import process
from balancer.errors import Unavailable

PATIENCE = 20.0


class Keeper:
    """Guards the servers below a folder for as long as this process lives."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        # The child must import this module from wherever we did.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "balancer.embedded.reaper", str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=environment,
        )
        assert self._child.stdout is not None
        ready = self._child.stdout.read(1)
        self._child.stdout.close()
        if not ready:
            self.close()
            raise Unavailable(f"the keeper of {folder} did not start")

    def close(self) -> None:
        """Ends the guard; it stops whatever is still running. Idempotent."""
        if self._child.stdin and not self._child.stdin.closed:
            self._child.stdin.close()
        self._child.wait()
        process.reap(self._folder, PATIENCE)

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def stop_servers(folder: Path) -> None:
    """Stops every PostgreSQL and ZooKeeper server that runs on data below this folder."""
    for pid_file in sorted(folder.glob("**/postmaster.pid")):
        pid = process.read_pid(pid_file, pid_file.parent)
        if pid is not None:
            process.stop(pid, pid_file.parent, signal.SIGINT, PATIENCE)
    for pid_file in sorted(folder.glob("**/server.pid")):
        pid = process.read_pid(pid_file, pid_file.parent)
        if pid is not None:
            process.stop(pid, pid_file.parent, signal.SIGTERM, PATIENCE)
    for pid in process.servers_below(folder):
        process.stop(pid, folder, signal.SIGTERM, PATIENCE)


def main() -> None:
    """Waits for the end of standard input, then stops the servers. The lock goes with the process."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "keeper.lock", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(sys.stdout.fileno(), b"!")
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop_servers(folder)


if __name__ == "__main__":
    main()
