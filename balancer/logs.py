"""Logs: key–value on a terminal, JSON otherwise. Every part logs through `structlog.get_logger`.

A migration's lines carry its id, tablet, source and target because its thread binds them once (`bind_migration`).
Values that look like secrets are masked here, once, whatever part they came from.
"""

import logging
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, Final, TextIO

import structlog

from balancer.untrusted import LONGEST, cut, visible

_SECRET_NAMES = re.compile(r"password|passwd|token|secret|credential|authorization", re.IGNORECASE)
LONGEST_LOGGED: Final = 16384
"""Characters of one value of a log line: a traceback fits."""
_DEEPEST = 5

# Every part either cannot fail once it has begun, or is bounded: the time grows with the text, not with its square. In
# a value of words or JSON a quote may be missing, because the text was cut: then all the rest is the secret.
_SECRET_TEXT = re.compile(
    r"""
      (?P<url>://[^\s'"<>]*+)
    | (?P<name>(?:password|passwd|passphrase|secret|token|api_?key|credential|client_key|server_key)[\w-]{0,40}+
          (?: \s{0,40}+ = | \\{0,4}+ ["'] \s{0,40}+ [:=] ) \s{0,40}+ )
      (?: ' (?:[^'\\]|\\.)*+ '? | " (?:[^"\\]|\\.)*+ "? | \\{1,4}+ ["'] [^"']*+ ["']? | (?:[^\s\\]|\\.)*+ )
    | (?P<header>\bauthorization["']? \s{0,40}+ [:=] \s{0,40}+ ) [^\r\n]*+
    | (?P<bearer>\b(?:bearer|basic)\s{1,40}+ (?=\S{6}) ) \S++
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)


def mask(text: str, longest: int = LONGEST) -> str:
    """A text for people: cut, and without the passwords and tokens in it.

    It hides too much rather than too little: what looks like the tail of a secret goes with it.
    """
    return _SECRET_TEXT.sub(_masked, cut(text, longest))


def _masked(match: re.Match[str]) -> str:
    if match["url"] is None:
        return f"{match['name'] or match['header'] or match['bearer']}***"
    # A password may contain any character except a blank, so it ends at the last @.
    login, at, rest = match["url"].rpartition("@")
    user, colon, _ = login.removeprefix("://").partition(":")
    shown = f"://{user}:***@{rest}" if at and colon else match["url"]
    place, question, query = shown.partition("?")
    return place + question + "&".join(_without_secret(pair) for pair in query.split("&"))


def _without_secret(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name}=***" if equals and _SECRET_NAMES.search(name) else pair


def _mask_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        # structlog's own entries (`_record`, `_from_structlog`) are not printed.
        if not name.startswith("_"):
            event[name] = "***" if _SECRET_NAMES.search(name) else _harmless(value)
    return event


def _harmless(value: Any, depth: int = 0) -> Any:
    """The value as it may be logged, whatever it is made of."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth < _DEEPEST and isinstance(value, Mapping):
        return {
            visible(str(name)): "***" if _SECRET_NAMES.search(str(name)) else _harmless(content, depth + 1)
            for name, content in value.items()
        }
    if depth < _DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [_harmless(content, depth + 1) for content in value]
    return visible(mask(str(value), LONGEST_LOGGED))


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
    # kazoo logs every heartbeat: not what an operator wants to read. APScheduler warns about ticks that it skips
    # because the last one is still running, which is what it is told to do.
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
