"""Notices that the configuration has changed: by content, so that it does not matter how the files were replaced.

Kubernetes swaps a symbolic link, editors rename, people copy: all of them change what the files say, which is what is
compared; while the file system says that nothing has changed, nothing is read. A wrong configuration is never used: the
old one stays, and the mistake is reported until it is fixed. The same goes for a bundle whose file has vanished: a
volume that is not mounted looks the same as a bundle that was given up.

Bundles that belong to another directory, or are going there: this instance leaves them alone, whatever files say.

It is as if their files were not there: no ticks, no leader's work, no enrolment. Their state says where they are.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace

import structlog

from balancer.clock import Clock, SystemClock
from balancer.daemon.ticks import Ticks
from balancer.directory.handover_record import handovers_in
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.settings import Settings, load_settings, waits_for_restart

log = structlog.get_logger()

_MOST_BYTES = 1 << 24
_SETTLED_SECONDS = 5.0  # a file system's clock is coarse: two changes within a moment may carry the same time

Marks = tuple[tuple[str, int, int, int, int], ...]


def changed_bundles(before: Settings, after: Settings) -> list[str]:
    """Those for which something is new: in their own file, or for all of them."""
    if before.daemon != after.daemon:
        return list(after.bundles)
    return [name for name, bundle in after.bundles.items() if before.bundles.get(name) != bundle]


class ConfigurationWatch:
    """Keeps the settings in force and says when they have changed."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self._clock = clock or SystemClock()
        self._started = settings.daemon
        self.error = ""
        """What is wrong with the newest files; empty: nothing."""
        self._settled: Marks | None = None
        """The marks of files read long after their last change: while they stay, there is no need to read again."""
        self._fingerprint = self._read()

    def changed(self) -> bool:
        """Whether the files differ from when they were last read."""
        marks = self._marks()
        if marks == self._settled:
            return False
        if self._read() != self._fingerprint:
            return True
        newest = max((changed for _, _, _, _, changed in marks), default=0)
        if self._clock.now().timestamp() - newest / 1e9 > _SETTLED_SECONDS:
            self._settled = marks
        return False

    def reload(self, confirmed: bool = False) -> bool:
        """Reads the files; True if what they say is in force now, False if the old settings stay (see `error`).

        `confirmed`: somebody asked for it, so a bundle whose file is gone was removed and not lost.
        """
        self._fingerprint = self._read()
        self._settled = None
        try:
            read = load_settings(self.settings.file)
            self.error = self._missing(read, confirmed)
        except BalancerError as error:
            self.error = str(error)
        except Exception as error:
            # Whatever a file makes the parsers do, the instance continues with what it had.
            log.exception("the configuration could not be read because of a defect")
            self.error = f"{self.settings.file} could not be read because of a defect: {type(error).__name__}"
        if self.error:
            return False
        self.settings = read
        return True

    def _missing(self, read: Settings, confirmed: bool) -> str:
        """What was there and is gone, in one sentence; empty: nothing, or somebody wants it that way."""
        gone = sorted(self.settings.bundles.keys() - read.bundles.keys())
        folder = read.file.parent / read.daemon.bundles
        if gone and not folder.is_dir():
            return f"{folder}: the folder of the bundles' files is gone; where no bundle is meant, leave it there empty"
        if gone and not confirmed:
            return (
                f"{folder}: the files of these bundles are gone: {', '.join(gone)};"
                " put them back, or confirm with SIGHUP (systemctl reload) or a restart"
            )
        return ""

    def waits_for_restart(self) -> list[str]:
        """Keys of `balancer.toml` that differ from when the instance was started, and need a restart."""
        return waits_for_restart(self._started, self.settings.daemon)

    def _marks(self) -> Marks:
        """What the file system says about the files; follows links, so it notices when one is swapped."""
        return tuple(self._mark(file) for file in self._files())

    @staticmethod
    def _mark(file: str) -> tuple[str, int, int, int, int]:
        try:
            found = os.stat(file)
        except OSError as error:
            return file, -(error.errno or 0), 0, 0, 0
        return file, found.st_dev, found.st_ino, found.st_size, max(found.st_mtime_ns, found.st_ctime_ns)

    def _read(self) -> bytes:
        digest = hashlib.sha256()
        for file in self._files():
            digest.update(os.fsencode(file) + b"\0" + self._content(file) + b"\0")
        return digest.digest()

    # Runs every second of an instance's life: without path objects, which would take most of the time.

    def _files(self) -> Iterator[str]:
        here, daemon = self.settings.file.parent, self.settings.daemon
        yield str(self.settings.file)
        yield from self._listed(str(here / daemon.bundles), ".toml")
        if daemon.node_passwords is not None:
            yield from self._listed(str(here / daemon.node_passwords), "")

    @staticmethod
    def _listed(folder: str, ending: str) -> Iterator[str]:
        try:
            names = [name for name in os.listdir(folder) if name.endswith(ending) and not name.startswith(".")]
        except OSError:
            return
        yield from sorted(f"{folder}/{name}" for name in names)

    @staticmethod
    def _content(file: str) -> bytes:
        try:
            handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.read(handle, _MOST_BYTES)
            finally:
                os.close(handle)
        except OSError as error:
            return str(error.errno).encode()


class HandedOver:
    """Of one instance."""

    def __init__(self) -> None:
        self._gone: frozenset[str] = frozenset()

    def left(self, read: Settings) -> Settings:
        """The configuration without them."""
        if not self._gone:
            return read
        return replace(read, bundles={name: one for name, one in read.bundles.items() if name not in self._gone})

    def look(self, snapshot: Snapshot, read: Settings, ticks: Ticks) -> bool:
        """Updates by the newest snapshot known; returns whether they have changed."""
        found = handovers_in(snapshot)
        listed = read.bundles
        ticks.leave_alone([(listed[name], one.sentence(name)) for name, one in found.items() if name in listed])
        before, self._gone = self._gone, frozenset(found)
        for bundle in sorted(self._gone - before):
            log.info("left alone", bundle=bundle, why=found[bundle].sentence(bundle))
        return before != self._gone
