"""Who may do what: reads, changes, and over which transport. Pure decisions; `guard` applies them to requests."""

import hmac
import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from balancer.errors import UserError
from balancer.settings.files import HttpSettings

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
