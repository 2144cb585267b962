"""A real ZooKeeper on loopback, standalone or an ensemble, from the jars of Debian's package.

Called by `balancer demo --zookeeper` and by the tests. The small heap and the serial collector keep a server at about
60 MB; ticks of half a second let sessions expire quickly enough for tests of failover.
"""

import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from balancer.embedded import process
from balancer.errors import Unavailable, UserError

JARS = ("zookeeper.jar", "slf4j-simple.jar")
JAR_FOLDER = Path("/usr/share/java")
START_PATIENCE = 60.0
ATTEMPTS = 3  # each on another port, if somebody was faster
STOP_PATIENCE = 10.0
# A server that lives for minutes does not recoup what the optimising compiler costs: 4,000 requests take 40 % less of a
# core without it.
JAVA_OPTIONS = ("-Xms32m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

SETTINGS: Mapping[str, object] = {
    "tickTime": 500,
    "initLimit": 20,
    "syncLimit": 10,
    "minSessionTimeout": 1000,
    "clientPortAddress": "127.0.0.1",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
    "maxClientCnxns": 0,
}


def java_command(extra_jars: Sequence[str] = ()) -> list[str]:
    """How to start Java with ZooKeeper's classes; a UserError says what is missing."""
    java = shutil.which("java")
    if java is None:
        raise UserError("ZooKeeper needs Java: apt-get install default-jre-headless")
    jars = [JAR_FOLDER / name for name in (*JARS, *extra_jars)]
    missing = [str(jar) for jar in jars if not jar.exists()]
    if missing:
        raise UserError(f"ZooKeeper's jars are missing ({', '.join(missing)}): apt-get install zookeeper libslf4j-java")
    return [java, *JAVA_OPTIONS, "-cp", ":".join(map(str, jars))]


class ZooKeeperServer:
    """One server and its data folder; part of an ensemble if `peers` names its members' quorum ports."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        java_options: Sequence[str] = (),
        extra_jars: Sequence[str] = (),
    ) -> None:
        self.folder = folder.absolute()
        self.log = self.folder / "server.log"
        self.port: int | None = None
        self._settings = {**SETTINGS, **(settings or {})}
        self._java_options = tuple(java_options)
        self._extra_jars = tuple(extra_jars)
        self._account = process.Account.choose()
        self._pid_file = self.folder / "server.pid"

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        if self.port is None:
            raise Unavailable(f"ZooKeeper in {self.folder} has not been started")
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it and waits until it serves. Idempotent."""
        for _ in range(ATTEMPTS):
            self.launch()
            if self.came_up():
                return
            self.stop()
        raise Unavailable(f"ZooKeeper in {self.folder} does not start; its log ends: {self._log_end()}")

    def launch(self) -> None:
        """Starts it without waiting: the members of an ensemble come up together or not at all."""
        if self.pid() is not None and self.port is not None:
            return
        process.prepare_folder(self.folder, self._account)
        self.stop()
        self.port = process.free_port(self.port or process.remembered_port(self.folder / "port"))
        (self.folder / "port").write_text(str(self.port))
        config = self.folder / "zoo.cfg"
        values = {"dataDir": self.folder / "data", "clientPort": self.port, **self._settings}
        config.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        process.prepare_folder(self.folder / "data", self._account)
        main = ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)]
        command = java_command(self._extra_jars)
        child = process.spawn(
            [command[0], *self._java_options, *command[1:], *main], self.log, self._account, self.folder
        )
        self._pid_file.write_text(str(child.pid))

    def came_up(self) -> bool:
        """Waits until it answers clients: for a member of an ensemble, until there is a quorum."""
        process.until(lambda: self._answers() or self.pid() is None, START_PATIENCE)
        return self.pid() is not None and self._answers()

    def _answers(self) -> bool:
        """Whether it is this very server that answers: somebody else may have taken its port after it was chosen."""
        return self.serving() and f"user.dir={self.folder.resolve()}\n" in process.ask(self.address, b"envi")

    def serving(self) -> bool:
        """Whether it answers, by its own four-letter word."""
        return bool(self.mode())

    def mode(self) -> str:
        """`standalone`, `leader` or `follower`; empty while it does not serve."""
        lines = process.ask(self.address, b"srvr").splitlines()
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("Mode:")), "")

    def stop(self) -> None:
        """Stops it. Idempotent; ZooKeeper keeps its promises however it ends, so SIGTERM is clean."""
        pid = self.pid()
        if pid is not None:
            process.stop(pid, self.folder, signal.SIGTERM, STOP_PATIENCE)
        self._end_others()

    def kill(self) -> None:
        """SIGKILL."""
        pid = self.pid()
        if pid is not None:
            process.kill(pid, self.folder)
        self._end_others()

    def _end_others(self) -> None:
        """Stops servers of this folder whose pids are no longer in the file: two must not work on one folder."""
        for pid in process.servers_below(self.folder):
            process.kill(pid, self.folder)
        self._pid_file.unlink(missing_ok=True)

    def pid(self) -> int | None:
        """The process id, if it runs."""
        return process.read_pid(self._pid_file, self.folder)

    def __enter__(self) -> "ZooKeeperServer":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _log_end(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-3:]) if self.log.exists() else "(no log)"
