"""`balancer run`: an instance until it is told to stop. Signals only set flags; the loop does the rest."""

import ctypes
import gc
import signal
import threading
from types import FrameType

import structlog

from balancer.api.app import create_app
from balancer.api.server import ApiServer
from balancer.clock import Clock, SystemClock
from balancer.daemon.daemon import Daemon
from balancer.settings import Settings

log = structlog.get_logger()

STEP_SECONDS = 1.0


class Signals:
    """SIGTERM and SIGINT end the loop, SIGHUP reads the configuration again."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.reload = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        signal.signal(signal.SIGHUP, self._reload)

    def _end(self, _: int, __: FrameType | None) -> None:
        self.ended.set()

    def _reload(self, _: int, __: FrameType | None) -> None:
        self.reload.set()


def run(settings: Settings, clock: Clock | None = None) -> None:
    """Runs until a signal ends it; then hands over at once."""
    signals = Signals()
    _spare_memory()
    daemon = Daemon(settings, clock or SystemClock())
    server = ApiServer(create_app(daemon, settings.daemon.http), settings.daemon.http)
    # First: if the address is not available, nothing else begins. Until the directory is open, `/readyz` says so.
    server.start()
    try:
        daemon.start()
        daemon.ready()
        _spare_the_collector()
        while not signals.ended.wait(STEP_SECONDS):
            _step(daemon, signals)
    finally:
        daemon.hand_over()  # before anything that may take time
        server.stop()
        daemon.stop()


def _step(daemon: Daemon, signals: Signals) -> None:
    """What fails in here (no file descriptors left, a full disk) is retried in a second.

    A step that never succeeds does not feed the supervisor's watchdog, which then decides.
    """
    try:
        if signals.reload.is_set():
            signals.reload.clear()
            daemon.reload(confirmed=True)
        daemon.step()
    except Exception:
        log.exception("a step of the daemon's loop failed")


def _spare_memory() -> None:
    """Two arenas for all threads.

    By default glibc gives threads arenas of their own, each of which keeps what it once needed: with a million tablets
    a third of the process. Other C libraries have no such setting, and need none.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    set_option(_ARENAS, 2)


_ARENAS = -8  # M_ARENA_MAX of malloc.h


def _spare_the_collector() -> None:
    """Collects garbage cycles less often, and not among the objects that start-up made.

    A poll makes tens of thousands of short-lived rows; with the default threshold that search is a fifth of its work.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
