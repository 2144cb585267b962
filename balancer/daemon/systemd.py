"""Tells systemd how we are (`Type=notify` with a watchdog); silent everywhere else."""

import os
import socket

from balancer.clock import Clock


class Notifier:
    """Speaks systemd's protocol over the socket it named in the environment, if it named one."""

    def __init__(self, clock: Clock, environment: "os._Environ[str] | dict[str, str] | None" = None) -> None:
        environment = os.environ if environment is None else environment
        self._clock = clock
        self._address = environment.get("NOTIFY_SOCKET", "").replace("@", "\0", 1)
        interval = int(environment.get("WATCHDOG_USEC", "0")) / 1e6
        self._watchdog = interval / 2 if interval else None
        self._last_alive = -float("inf")

    def ready(self, status: str) -> None:
        """Start-up is over."""
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """The configuration is being read again; `ready` follows."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(self._clock.monotonic() * 1e6)}")

    def status(self, status: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={status}")

    def alive(self) -> None:
        """To be called while the loop makes progress; sends no more often than the watchdog needs."""
        now = self._clock.monotonic()
        if self._watchdog is not None and now - self._last_alive >= self._watchdog:
            self._last_alive = now
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """We have been asked to stop, and are stopping."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.sendto(message.encode(), self._address)
