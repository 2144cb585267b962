"""Logs: key–value on a terminal, JSON otherwise. Every part logs through `structlog.get_logger`.

A migration's lines carry its id, tablet, source and target because its thread binds them once (`bind_migration`).
Values that look like secrets are masked here, once, whatever part they came from.
"""

import logging
import re
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TextIO

import structlog

_SECRET_NAMES = re.compile(r"password|token|secret", re.IGNORECASE)
_SECRET_TEXT = re.compile(r"(://[^:/@\s]*:)[^@\s]+(@)|(\bpassword\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&'\"]+)", re.IGNORECASE)


def mask(text: str) -> str:
    """The text without the passwords of DSNs in it."""
    return _SECRET_TEXT.sub(lambda match: f"{match[1]}***{match[2]}" if match[1] else f"{match[3]}***", text)


def _mask_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        if _SECRET_NAMES.search(name):
            event[name] = "***"
        elif isinstance(value, str):
            event[name] = mask(value)
    return event


def set_up_logs(level: str = "info", form: str = "auto", stream: TextIO | None = None) -> None:
    """Called once, by the command that runs; libraries' own logs (kazoo, uvicorn) come out the same way."""
    stream = stream or sys.stderr
    as_json = form == "json" or (form == "auto" and not stream.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _mask_secrets,
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer(ensure_ascii=False)
        if as_json
        else structlog.dev.ConsoleRenderer(colors=stream.isatty())
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # kazoo tells of every heartbeat: not what an operator wants to read. APScheduler warns of ticks that it skips
    # because the last one still runs, which is what it is told to do.
    for name in ("kazoo", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("apscheduler").setLevel(logging.ERROR)


@contextmanager
def bind_migration(migration: str, tablets: tuple[int, ...], source: str, target: str) -> Iterator[None]:
    """Every line logged inside carries the migration's id, tablets, source and target."""
    with structlog.contextvars.bound_contextvars(
        migration=migration, tablet=",".join(map(str, tablets)), source=source, target=target
    ):
        yield
