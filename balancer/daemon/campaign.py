"""Stands for election for as long as the daemon runs, and reports when leadership comes and goes.

The loop's thread calls `elected` with each leadership it wins and `deposed` when it is over, one after the other; what
they start must stop by itself at `leadership.check()`, because a deposed leader may notice late.

Where leadership is spread over instances (`spreading`), the loop asks before it campaigns and while it leads. A leader
that hands over resigns just like one that is told to stop; there is no other way from one leader to the next.
"""

import threading
from collections.abc import Callable

import structlog

from balancer.daemon.spreading import Spreader
from balancer.directory.contract import Directory, Leadership
from balancer.errors import BalancerError

log = structlog.get_logger()

LOOK_SECONDS = 0.25
RETRY_SECONDS = 1.0
BACK_SECONDS = 0.5  # between checks by an instance that leaves the leadership to another one
REST_SECONDS = 2.0  # after an unusable leadership: others get their chance


class LeaderLoop:
    """Campaigns in a thread of its own."""

    def __init__(
        self,
        directory: Directory,
        name: str,
        elected: Callable[[Leadership], None],
        deposed: Callable[[], None],
        spreader: Spreader,
    ) -> None:
        self._directory = directory
        self._name = name
        self._elected = elected
        self._deposed = deposed
        self._spreader = spreader
        self._stopping = threading.Event()
        self._leadership: Leadership | None = None
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)

    @property
    def leadership(self) -> Leadership | None:
        """The leadership held at this moment, if any."""
        held = self._leadership
        return held if held is not None and held.held() else None

    def start(self) -> None:
        """Begins to campaign."""
        self._thread.start()

    def stop(self) -> None:
        """Resigns, so that a standby takes over at once, and stops campaigning. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if not self._spreader.stands():
                    self._stopping.wait(BACK_SECONDS)
                    continue
                won = self._directory.campaign(self._name, timeout=self._spreader.longest_wait)
                if won is not None:
                    self._lead(won)
            except BalancerError as error:
                log.warning("cannot stand for election", error=str(error))
                self._stopping.wait(RETRY_SECONDS)
            except Exception:
                # The thread's last boundary: an instance that stopped campaigning would look alive and never lead.
                log.exception("cannot stand for election")
                self._stopping.wait(RETRY_SECONDS)
        self._spreader.leave()

    def _lead(self, won: Leadership) -> None:
        log.info("elected", epoch=won.epoch)
        self._leadership = won
        failed = resting = True
        try:
            self._spreader.won(won.epoch)
            self._elected(won)
            failed = not self._led_to_its_end(won)
            resting = False
        except BalancerError as error:
            log.error("cannot lead", error=str(error), epoch=won.epoch)
        except Exception:
            # Whatever is wrong with leading here, another instance may be able to; and so may this one, later.
            log.exception("cannot lead", epoch=won.epoch)
        finally:
            self._leadership = None
            won.resign()
            try:
                self._tell(failed=failed)
            finally:
                self._deposed()
            log.info("no longer leading", epoch=won.epoch)
        if resting:
            self._stopping.wait(REST_SECONDS)

    def _led_to_its_end(self, won: Leadership) -> bool:
        """Waits; False: the leadership was lost. Otherwise this instance gives it up."""
        while won.held() and not self._stopping.wait(LOOK_SECONDS):
            if self._spreader.hands_over():
                self._spreader.handed_over()
                return True
        return self._stopping.is_set()

    def _tell(self, *, failed: bool) -> None:
        """After the resignation, which nothing may delay, and before anything that may take time."""
        if self._stopping.is_set():
            self._spreader.leave()
        else:
            self._spreader.ended(failed=failed)
