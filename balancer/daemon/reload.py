"""Notices that the configuration has changed: by content, so that it does not matter how the files were replaced.

Kubernetes swaps a symbolic link, editors rename, people copy: all of them change what the files say, which is what is
compared. A wrong configuration is never used: the old one stays, and the mistake is reported until it is mended.
"""

import hashlib
import os

from balancer.settings import ConfigurationError, Settings, load_settings, waits_for_restart

_MOST_BYTES = 1 << 24


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
        for file in (str(self.settings.file), *self._bundles(str(folder))):
            digest.update(file.encode() + b"\0" + self._content(file) + b"\0")
        return digest.digest()

    # Every second of an instance's life: without paths as objects and without text, which would take most of the time.

    @staticmethod
    def _bundles(folder: str) -> list[str]:
        try:
            return sorted(f"{folder}/{name}" for name in os.listdir(folder) if name.endswith(".toml"))
        except OSError:
            return []

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
