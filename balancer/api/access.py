"""Who may do what: reads, changes, and over which transport. Pure decisions; `access` applies them to requests.

Around every request: access, size and time limits, security headers, metrics. Plain ASGI, so that nothing slips by.

A body is read here as a whole before anything is called: all bodies are small, and one that is too long, or too slow,
is refused without the application having seen any of it.
"""

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path
from traceback import format_exception
from typing import Final

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from balancer.api.problems import defect, problem
from balancer.clock import Clock
from balancer.directory.store.codec import pack, read_json
from balancer.errors import UserError
from balancer.instruments import Instruments
from balancer.logs import mask
from balancer.settings.files import HttpSettings
from balancer.untrusted import one_line

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""Used by supervisors that have no token; they reveal nothing about the cluster."""
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
SHORTEST_TOKEN: Final = 16
"""Characters, if anybody beyond this machine can try: shorter ones can be guessed, or come from a template."""


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a request is refused."""

    status: int
    reason: str


class AccessToken:
    """The bearer token, from the settings or from a file that may be replaced while we run. Beyond loopback, one that
    is too short does not count."""

    def __init__(self, http: HttpSettings, *, reading: bool = False) -> None:
        given, self._file = (http.read_token, http.read_token_file) if reading else (http.token, http.token_file)
        self._shortest = 1 if is_loopback(http.listen) else SHORTEST_TOKEN
        self._given = given.get_secret_value() if given else None
        self._read: tuple[tuple[int, int], str] | None = None

    def value(self) -> str | None:
        """The token in force; None: there is none."""
        found = self.given()
        return found if len(found) >= self._shortest else None

    def given(self) -> str:
        """What the settings say, good or not; empty: nothing, or a file that cannot be read."""
        if self._given is not None or self._file is None:
            return self._given or ""
        return self._from_file(self._file)

    def matches(self, presented: str) -> bool:
        """Whether this is the token; takes the same time wherever they differ."""
        wanted = self.value()
        return wanted is not None and hmac.compare_digest(wanted.encode(), presented.encode(errors="replace"))

    def _from_file(self, file: Path) -> str:
        try:
            stat = file.stat()
            stamp = stat.st_mtime_ns, stat.st_ino
            if self._read is None or self._read[0] != stamp:
                self._read = stamp, file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return ""  # a token that cannot be read lets nobody in
        return self._read[1]


class Access:
    """The rules of one server."""

    def __init__(self, http: HttpSettings) -> None:
        self.token: Final = AccessToken(http)
        self._reading_token = AccessToken(http, reading=True)
        self._read_requires_token = read_needs_token(http)
        self._loopback = is_loopback(http.listen)
        names = ("localhost", socket.gethostname(), split_address(http.listen)[0], *http.allowed_hosts)
        self._hosts = frozenset(_host_name(name) for name in names)

    def denial(self, method: str, path: str, scheme: str, authorization: str, page: bool) -> Denial | None:
        """Why this request is refused, or None. `page`: it is for the page's own files, which reveal nothing."""
        if path in OPEN_PATHS or (page and method in READING):
            return None
        if method not in READING:
            return self.change_denial(scheme, authorization)
        if not self._read_requires_token or self._reads(authorization):
            return None
        return self._token_denial(authorization)

    def change_denial(self, scheme: str, authorization: str) -> Denial | None:
        """Why this bearer may change nothing, or None."""
        denial = self._transport_denial(scheme) or self._token_denial(authorization)
        if denial is not None and denial.status == 401 and self._reads(authorization):
            return Denial(403, "this token may only read")
        return denial

    def host_denial(self, path: str, host: str) -> Denial | None:
        """Why requests with this Host header are not answered. An address is fine: no foreign name can be behind it."""
        name = _host_name(host)
        if path in OPEN_PATHS or name in self._hosts or _is_address(name):
            return None
        return Denial(421, "this server is not known by that name: add it to allowed_hosts in [http]")

    def knows(self, authorization: str) -> bool:
        """Whether the token was presented: its bearer may change things, and so know where the nodes are."""
        return self._token_denial(authorization) is None

    def bears_any(self, authorization: str) -> bool:
        """Whether a token was presented, even if only the readers'."""
        return self.knows(authorization) or self._reads(authorization)

    def _reads(self, authorization: str) -> bool:
        return self._reading_token.matches(_presented(authorization))

    def _transport_denial(self, scheme: str) -> Denial | None:
        if scheme != "https" and not self._loopback:
            return Denial(403, "changes are accepted only over TLS, unless the server listens on loopback")
        if self.token.value() is None:
            return Denial(403, "no token is configured, so nothing can be changed over HTTP")
        return None

    def _token_denial(self, authorization: str) -> Denial | None:
        if self.token.matches(_presented(authorization)):
            return None
        return Denial(401, "a bearer token is needed" if not authorization else "the bearer token is wrong")


def _presented(authorization: str) -> str:
    """The bearer token of a header; empty: there is none, which is never the right one."""
    kind, _, presented = authorization.partition(" ")
    return presented.strip() if kind.lower() == "bearer" else ""


def split_address(listen: str) -> tuple[str, int]:
    """Host and port of `host:port`; an IPv6 host is in brackets."""
    host, _, port = listen.rpartition(":")
    if int(port) > 65535:
        raise UserError(f"[http] cannot listen on {listen}: the largest port is 65535")
    return host.strip("[]"), int(port)


def _host_name(host: str) -> str:
    """A Host header without its port, in the form in which names are compared."""
    name, bracket, _ = host.partition("]")
    return (name.lstrip("[") if bracket else host.rpartition(":")[0] or host).rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def read_needs_token(http: HttpSettings) -> bool:
    """The default: on loopback everybody on this machine may read, elsewhere nobody may."""
    return not is_loopback(http.listen) if http.read_requires_token is None else http.read_requires_token


def is_loopback(listen: str) -> bool:
    """Whether only this machine can connect."""
    host, _ = split_address(listen)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_http(http: HttpSettings) -> None:
    """Refuses settings that would be unsafe or could not work, before anything listens."""
    if (http.tls_certificate is None) != (http.tls_key is None):
        raise UserError("[http] set both tls_certificate and tls_key, or neither")
    for name, file in (("tls_certificate", http.tls_certificate), ("tls_key", http.tls_key)):
        if file is not None and not file.is_file():
            raise UserError(f"[http] {name}: there is no file {file}")
    token, reading = AccessToken(http), AccessToken(http, reading=True)
    if any(one.given() and one.value() is None for one in (token, reading)):
        raise UserError(
            f"[http] a token has fewer than {SHORTEST_TOKEN} characters, and {http.listen} is not loopback:"
            " make one with `openssl rand -hex 32`"
        )
    if not read_needs_token(http):
        return
    way_out = (
        "" if http.read_requires_token else f" ({http.listen} is not loopback; read_requires_token = false opens it)"
    )
    if token.value() is None and reading.value() is None:
        raise UserError(f"[http] reading needs a token, and there is no token, or its file cannot be read{way_out}")
    if http.tls_certificate is None and not is_loopback(http.listen):
        raise UserError(f"[http] without TLS readers would send the token in clear text: give a certificate{way_out}")


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
