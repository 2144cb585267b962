"""Whether the directory is open to anybody but the writer and the reader: every instance checks once a minute."""

from collections.abc import Callable

import structlog

from balancer.directory.contract import Directory
from balancer.errors import BalancerError
from balancer.instruments import Instruments

log = structlog.get_logger()


class ExposureWatch:
    """Says so in the log, once for each change, and in a metric."""

    def __init__(self, directory: Callable[[], Directory], instruments: Instruments) -> None:
        self._directory = directory
        self._metric = instruments.directory_open
        self._known: tuple[str, ...] = ()

    def look(self) -> None:
        """Checks once. What was known stays while the directory is out of reach."""
        try:
            found = tuple(self._directory().exposures())
        except BalancerError as error:
            log.warning("it is not known who may change the directory", error=str(error))
            return
        if found != self._known:
            for one in found:
                log.warning("the directory is open", error=one, remedy="balancer directory secure")
        self._known = found
        self._metric.set(bool(found))
