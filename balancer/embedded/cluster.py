"""A whole cluster on this machine: N PostgreSQL nodes and, on request, a ZooKeeper. For the demonstration and tests.

The folder is kept between runs; whatever an earlier run left running in it is stopped first, so that a killed process
leaves neither orphans nor taken ports behind.
"""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from balancer.embedded import process
from balancer.embedded.postgres import PostgresServer, embedded_binaries
from balancer.embedded.reaper import Keeper, stop_servers
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.errors import Refused, UserError

Progress = Callable[[str], None]


def default_folder() -> Path:
    """Where the data lives: the system's place for root (whose home other accounts cannot enter), or the user's."""
    if os.geteuid() == 0:
        return Path("/var/lib/tablet-balancer")
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "tablet-balancer"


class EmbeddedCluster:
    """Servers below one folder, used by one process at a time."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        *,
        zookeeper: bool = False,
        binaries: Path | None = None,
        settings: dict[str, object] | None = None,
        progress: Progress = lambda _: None,
    ) -> None:
        self.folder = folder.absolute()
        binaries = binaries or embedded_binaries()
        self.nodes = {
            f"pg-{letter}": PostgresServer(self.folder / f"pg-{letter}", binaries, settings)
            for letter in "abcdefghijklmnopqrstuvwxyz"[:nodes]
        }
        self.zookeeper = ZooKeeperServer(self.folder / "zookeeper") if zookeeper else None
        self._progress = progress
        self._keeper: Keeper | None = None

    def start(self, fresh: bool = False) -> None:
        """Starts all servers in parallel; with `fresh`, from empty folders."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o755)
        except OSError as error:
            raise UserError(f"the folder {self.folder} cannot be used: {error.strerror}") from None
        self._refuse_a_second_user()
        self._keeper = Keeper(self.folder)
        stop_servers(self.folder)  # what is left if even the last keeper was killed
        if fresh:
            self._empty()
        (self.folder / "owner").write_text(str(os.getpid()))
        with ThreadPoolExecutor(len(self.nodes) + 1) as pool:
            starting = {pool.submit(server.start): name for name, server in self._servers()}
            for done in as_completed(starting):
                done.result()
                self._progress(starting[done])

    def stop(self) -> None:
        """Stops all servers in parallel. Idempotent."""
        with ThreadPoolExecutor(len(self.nodes) + 1) as pool:
            for done in [pool.submit(server.stop) for _, server in self._servers()]:
                done.result()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        (self.folder / "owner").unlink(missing_ok=True)

    def __enter__(self) -> "EmbeddedCluster":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _servers(self) -> list[tuple[str, PostgresServer | ZooKeeperServer]]:
        servers: list[tuple[str, PostgresServer | ZooKeeperServer]] = list(self.nodes.items())
        return [*servers, ("zookeeper", self.zookeeper)] if self.zookeeper else servers

    def _refuse_a_second_user(self) -> None:
        """Two processes on one folder would stop each other's servers."""
        owner = self.folder / "owner"
        try:
            pid = int(owner.read_text())
        except (FileNotFoundError, ValueError):
            return
        if pid != os.getpid() and "balancer" in process.command_line(pid):
            raise Refused(f"process {pid} uses the cluster in {self.folder}; stop it first, or name another --folder")

    def _empty(self) -> None:
        for entry in self.folder.iterdir():
            if entry.is_dir() and not entry.name.startswith("programs-"):
                shutil.rmtree(entry)
            elif entry.is_file() and entry.name != "keeper.lock":
                entry.unlink()
