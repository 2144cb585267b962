"""Stands for election for as long as the daemon runs, and says when leadership comes and goes.

The loop's thread calls `elected` with each leadership it wins and `deposed` when it is over, one after the other; what
they start must stop by itself at `leadership.check()`, because a deposed leader may notice late.
"""

import threading
from collections.abc import Callable

import structlog

from balancer.directory.contract import Directory, Leadership
from balancer.errors import BalancerError

log = structlog.get_logger()

LOOK_SECONDS = 0.25
RETRY_SECONDS = 1.0
REST_SECONDS = 2.0  # after a leadership that could not be used: others get their chance


class LeaderLoop:
    """Campaigns in a thread of its own."""

    def __init__(
        self,
        directory: Directory,
        name: str,
        elected: Callable[[Leadership], None],
        deposed: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._name = name
        self._elected = elected
        self._deposed = deposed
        self._stopping = threading.Event()
        self._leadership: Leadership | None = None
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)

    @property
    def leadership(self) -> Leadership | None:
        """The leadership that is held at this moment, if it is."""
        held = self._leadership
        return held if held is not None and held.held() else None

    def start(self) -> None:
        """Begins to campaign."""
        self._thread.start()

    def stop(self) -> None:
        """Resigns, so that a standby takes over at once, and campaigns no more. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                won = self._directory.campaign(self._name, timeout=1.0)
                if won is not None:
                    self._lead(won)
            except BalancerError as error:
                log.warning("cannot stand for election", error=str(error))
                self._stopping.wait(RETRY_SECONDS)
            except Exception:
                # The thread's last boundary: an instance that campaigns no more looks alive and never leads.
                log.exception("cannot stand for election")
                self._stopping.wait(RETRY_SECONDS)

    def _lead(self, won: Leadership) -> None:
        log.info("elected", epoch=won.epoch)
        self._leadership = won
        resting = False
        try:
            self._elected(won)
            while won.held() and not self._stopping.wait(LOOK_SECONDS):
                pass
        except BalancerError as error:
            log.error("cannot lead", error=str(error), epoch=won.epoch)
            resting = True
        except Exception:
            # Whatever is wrong with leading, another instance may be able to; and so may this one, later.
            log.exception("cannot lead", epoch=won.epoch)
            resting = True
        finally:
            self._leadership = None
            won.resign()
            self._deposed()
            log.info("no longer leading", epoch=won.epoch)
        if resting:
            self._stopping.wait(REST_SECONDS)
