"""Logging as it was before: setting up logs changes the whole process, and other tests run in it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def kept_logs() -> Iterator[None]:
    """Logs may be reconfigured inside; afterwards they are as they were."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()
