"""Around every request: access, size and time limits, security headers, metrics. Plain ASGI, so that nothing slips by.

A body is read here as a whole before anything is called: all bodies are small, and one that is too long, or too slow,
is refused without the application having seen any of it.
"""

import asyncio
from collections.abc import Iterable
from json import JSONDecodeError
from traceback import format_exception
from typing import Final

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from balancer.api.access import READING, Access
from balancer.api.problems import defect, problem
from balancer.clock import Clock
from balancer.directory.codec import pack, read_json
from balancer.instruments import Instruments
from balancer.logs import mask
from balancer.outside import one_line

log = structlog.get_logger()

MAX_BODY: Final = 256 * 1024
BODY_SECONDS: Final = 10.0
_MOST_DISCARDED: Final = 16 * MAX_BODY
_FRAMES: Final = 8
_CLOSE: Final = {"Connection": "close"}

_CSP: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS: Final = {
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """The outermost layer."""

    def __init__(
        self, app: ASGIApp, access: Access, instruments: Instruments, clock: Clock, page_paths: Iterable[str]
    ) -> None:
        self._app = app
        self._access = access
        self._instruments = instruments
        self._clock = clock
        self._page_paths = frozenset(page_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, scope["scheme"] == "https")
        began = self._clock.monotonic()
        try:
            refusal = self._refusal(scope)
            if refusal is None:
                refusal, receive = await _with_body(scope, receive)
            await (refusal or self._app)(scope, receive, answer)
        except Exception as error:  # noqa: BLE001 - the request's last boundary: it must not end the server's thread
            log.error("a request failed", path=scope["path"], traceback=_where(error))
            if not answer.started:
                await defect()(scope, receive, answer)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            self._instruments.http_requests.labels(route, str(answer.status)).inc()
            self._instruments.http_seconds.labels(route).observe(self._clock.monotonic() - began)

    def _refusal(self, scope: Scope) -> Response | None:
        path, headers = scope["path"], Headers(scope=scope)
        authorization = headers.get("authorization", "")
        scope["knows_token"] = self._access.knows(authorization)
        scope["bears_token"] = self._access.bears_any(authorization)
        denial = self._access.host_denial(path, headers.get("host", "")) or self._access.denial(
            scope["method"], path, scope["scheme"], authorization, path in self._page_paths
        )
        if denial is None:
            return None
        asking = {"WWW-Authenticate": 'Bearer realm="tablet-balancer"'} if denial.status == 401 else None
        return problem(denial.status, denial.reason, asking)


def _where(error: Exception) -> str:
    """The end of the traceback, where our own code is: before it are the libraries around us."""
    return mask("".join(format_exception(error)[-_FRAMES:]))


class _Answer:
    """Passes the response on with the headers that every response has."""

    def __init__(self, send: Send, secure: bool) -> None:
        self._send = send
        self._secure = secure
        self.status = 500
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.started = message["status"], True
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            if self._secure:
                headers["Strict-Transport-Security"] = "max-age=31536000"
            headers.setdefault("Cache-Control", "no-store")
        await self._send(message)


async def _with_body(scope: Scope, receive: Receive) -> tuple[Response | None, Receive]:
    """Reads the body; a refusal if it is too long or too slow, otherwise a `receive` that returns it again."""
    if scope["method"] in READING:
        return None, receive
    try:
        body = await asyncio.wait_for(_read(receive), BODY_SECONDS)
    except TimeoutError:
        return problem(408, f"the body did not arrive within {BODY_SECONDS:.0f} s", _CLOSE), receive
    if body is None:
        return problem(413, f"a body may have at most {MAX_BODY} bytes", _CLOSE), receive
    fault = _fault(body)
    if fault:
        return problem(422, f"the body cannot be accepted: {fault}"), receive
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return None, again


def _fault(body: bytes) -> str:
    """Why the directory could not store what this JSON says; empty: it could, or it is not JSON, which comes later."""
    try:
        pack(read_json(body))
    except (JSONDecodeError, UnicodeDecodeError):
        return ""
    except UnicodeEncodeError:
        return "a text in it has half of a surrogate pair"
    except ValueError as error:  # NaN, an infinity, a number of thousands of digits, too many levels
        return one_line(str(error), 200)
    return ""


async def _read(receive: Receive) -> bytes | None:
    """The whole body, or None if it is too long.

    Some of what is too long is read and discarded: otherwise a client that is still sending would see a broken
    connection instead of our answer.
    """
    body = bytearray()
    length = 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        length += len(part)
        if length <= MAX_BODY:
            body += part
        if length > _MOST_DISCARDED or not message.get("more_body", False):
            return bytes(body) if length <= MAX_BODY else None
