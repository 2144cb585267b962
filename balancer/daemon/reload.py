"""Notices that the configuration has changed: by content, so that it does not matter how the files were replaced.

Kubernetes swaps a symbolic link, editors rename, people copy: all of them change what the files say, which is what is
compared. A wrong configuration is never used: the old one stays, and the mistake is reported until it is mended.
"""

import hashlib
from pathlib import Path

from balancer.settings import ConfigurationError, Settings, load_settings, waits_for_restart


class ConfigurationWatch:
    """Keeps the settings in force and says when there are others."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._started = settings.daemon
        self.error = ""
        """What is wrong with the newest files; empty: nothing."""
        self._fingerprint = self._read()

    def changed(self) -> bool:
        """Whether the files say something else than when they were last read."""
        return self._read() != self._fingerprint

    def reload(self) -> bool:
        """Reads the files; True if what they say is in force now, False if the old settings stay (see `error`)."""
        self._fingerprint = self._read()
        try:
            self.settings = load_settings(self.settings.file)
        except ConfigurationError as error:
            self.error = str(error)
            return False
        self.error = ""
        return True

    def waits_for_restart(self) -> list[str]:
        """Keys of `balancer.toml` that say something else than when the instance was started, and need a new start."""
        return waits_for_restart(self._started, self.settings.daemon)

    def _read(self) -> bytes:
        digest = hashlib.sha256()
        folder = self.settings.file.parent / self.settings.daemon.bundles
        for file in (self.settings.file, *sorted(folder.glob("*.toml"))):
            digest.update(str(file).encode() + b"\0" + self._content(file) + b"\0")
        return digest.digest()

    @staticmethod
    def _content(file: Path) -> bytes:
        try:
            return file.read_bytes()
        except OSError as error:
            return str(error.errno).encode()
