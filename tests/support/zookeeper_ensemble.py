"""An ensemble of ZooKeeper servers on this machine."""

from pathlib import Path

from balancer.embedded import process
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.errors import Unavailable


class ZooKeeperEnsemble:
    """Several servers that elect a leader among them."""

    def __init__(self, folder: Path, size: int = 3) -> None:
        self.servers: list[ZooKeeperServer] = []
        account = process.Account.choose()
        process.prepare_folder(folder.absolute(), account)
        ports = process.free_ports(2 * size)
        members = {f"server.{number}": f"127.0.0.1:{ports.pop()}:{ports.pop()}" for number in range(1, size + 1)}
        for number in range(1, size + 1):
            home = folder / f"zk{number}"
            process.prepare_folder(home, account)
            process.prepare_folder(home / "data", account)
            (home / "data" / "myid").write_text(str(number))
            self.servers.append(ZooKeeperServer(home, members))

    @property
    def address(self) -> str:
        """All members' addresses, for clients."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Starts every member that is not running, and waits until each answers."""
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.start()

    def leader(self) -> ZooKeeperServer:
        """The member that currently leads."""
        for server in self.servers:
            if server.pid() is not None and server.mode() == "leader":
                return server
        raise Unavailable("the ensemble has no leader at present")

    def stop(self) -> None:
        """Stops every member. Idempotent."""
        for server in self.servers:
            server.stop()

    def kill(self) -> None:
        """SIGKILL to every member."""
        for server in self.servers:
            server.kill()

    def __enter__(self) -> "ZooKeeperEnsemble":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
