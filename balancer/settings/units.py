"""Sizes, durations and DSNs as people write them. Pure functions; the errors say what is allowed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import SecretStr

from balancer.policies.options import AUTO
from balancer.untrusted import quoted

_SIZE_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_TIME_UNITS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_LONGEST_QUANTITY = 40
_LARGEST_SIZE = (1 << 63) - 1
_LARGEST_DURATION = 100 * 365 * 86400.0
_LONGEST_DSN = 4096

SHOWN_PARAMETERS: Final = frozenset(
    (
        *("host", "hostaddr", "port", "dbname", "user", "service", "passfile", "application_name", "options"),
        *("connect_timeout", "tcp_user_timeout", "keepalives", "keepalives_idle", "keepalives_interval"),
        *("keepalives_count", "client_encoding", "target_session_attrs", "load_balance_hosts", "channel_binding"),
        *("require_auth", "gssencmode", "krbsrvname", "gsslib", "gssdelegation", "requirepeer"),
        *("sslmode", "sslnegotiation", "sslcompression", "sslcert", "sslkey", "sslcertmode", "sslrootcert", "sslcrl"),
        *("sslcrldir", "sslsni", "ssl_min_protocol_version", "ssl_max_protocol_version"),
        *("min_protocol_version", "max_protocol_version"),
    )
)
"""What of a DSN may be shown and stored. What libpq learns next is not in it, and so not shown."""


def parse_size(value: object) -> object:
    """Bytes from "10GB", "512 MiB" or a number; anything that is not text is left to the type's own check."""
    if not isinstance(value, str):
        return _not_above(_not_negative(value, "a size"), _LARGEST_SIZE, "a size")
    match = _QUANTITY.fullmatch(value) if len(value) <= _LONGEST_QUANTITY else None
    unit = match and match[2].upper().replace("IB", "B")
    if not match or unit not in _SIZE_UNITS:
        raise ValueError(
            f'{quoted(value)} is not a size; write a number of bytes or one with B, KB, MB, GB or TB, as in "10GB"'
        )
    return _not_above(round(float(match[1]) * _SIZE_UNITS[unit]), _LARGEST_SIZE, "a size")


def parse_auto_size(value: object) -> object:
    """The same, or "auto"."""
    return AUTO if value == "auto" else parse_size(value)


def parse_auto_count(value: object) -> object:
    """A number, or "auto"."""
    if isinstance(value, str):
        if value == "auto":
            return AUTO
        raise ValueError(f'{quoted(value)} is neither a number nor "auto"')
    return _not_negative(value, "a number")


def parse_duration(value: object) -> object:
    """Seconds from "250ms", "10m", "1h" or a number of seconds."""
    if not isinstance(value, str):
        return _not_above(_not_negative(value, "a duration"), _LARGEST_DURATION, "a duration")
    match = _QUANTITY.fullmatch(value) if len(value) <= _LONGEST_QUANTITY else None
    if not match or match[2] not in _TIME_UNITS:
        raise ValueError(f'{quoted(value)} is not a duration; write a number with us, ms, s, m, h or d, as in "250ms"')
    return _not_above(float(match[1]) * _TIME_UNITS[match[2]], _LARGEST_DURATION, "a duration")


def _not_negative(value: object, what: str) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        raise ValueError(f"{value} is negative; {what} is zero or more")
    return value


def _not_above(value: object, largest: float, what: str) -> object:
    """The value, unless it is a number that nothing here could count with (not a number at all, for one)."""
    if isinstance(value, int | float) and not isinstance(value, bool) and not value <= largest:
        raise ValueError(f"is too large; {what} is at most {largest:.0f}")
    return value


def format_size(size: float) -> str:
    """Bytes for people: "1.5 GB"."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def format_duration(seconds: float) -> str:
    """Seconds for people: "250 ms", "12.0 s", "1 h 20 m"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} m" if minutes < 60 else f"{minutes // 60} h {minutes % 60} m"


@dataclass(frozen=True, slots=True)
class Dsn:
    """Where a database is. The text has no password in it and may be shown; the password may not."""

    text: str
    password: SecretStr | None = None

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, value: object) -> "Dsn":
        """From a URL (`postgresql://…`) or from libpq's `key=value` words, as libpq itself reads them.

        No error repeats a value: any part of a DSN that is wrong may be a piece of a password.
        """
        if isinstance(value, Dsn):
            return value
        if not isinstance(value, str) or not value.strip():
            raise ValueError('a DSN is text, as in "postgresql://balancer@host/database"')
        if len(value) > _LONGEST_DSN:
            raise ValueError(f"a DSN has at most {_LONGEST_DSN} characters")
        if not value.isprintable():
            raise ValueError("a DSN must not contain line ends or other control characters")
        _check_url(value)
        parameters = _libpq_parameters(value)
        password = parameters.pop("password", None)
        _check_parameters(parameters)
        # A text without a secret stays as it was written: people find it again in what is shown.
        if password is None:
            return cls(value.strip())
        text = _url(parameters) if "://" in value.partition("=")[0] else _words(parameters)
        return cls(text, SecretStr(password) if password else None)


def _check_url(value: str) -> None:
    scheme, separator, rest = value.strip().partition("://")
    if not separator or "=" in scheme:
        return
    if scheme not in ("postgresql", "postgres"):
        known = f", not {scheme}://" if scheme.isalpha() and len(scheme) < 20 else ""
        raise ValueError(f"the scheme of a DSN is postgresql://{known}")
    # libpq would take a password with a slash for a port and a database, and we would show it.
    if "@" in rest.partition("/")[2] or rest.count("@") > 1:
        raise ValueError("the characters @ / ? # in a user name or a password are written as %40 %2F %3F %23 in a URL")


def _libpq_parameters(value: str) -> dict[str, str]:
    try:
        found = conninfo_to_dict(value)
    except psycopg.ProgrammingError:  # libpq repeats what it does not understand
        raise ValueError("the DSN is neither a URL nor a list of key=value, the forms that PostgreSQL takes") from None
    return {name: str(content) for name, content in found.items() if content is not None}


def _check_parameters(parameters: Mapping[str, str]) -> None:
    for name in sorted(parameters.keys() - SHOWN_PARAMETERS):
        raise ValueError(
            f"{name} is not allowed in a DSN, which is shown and stored; only the password is kept separate:"
            " put other secrets in a service file (service=…)"
        )
    if not all(map(str.isprintable, parameters.values())):
        raise ValueError("a DSN must not contain line ends or other control characters")
    if not re.fullmatch(r"(\d{1,5}|)(,(\d{1,5}|))*", parameters.get("port", "")):
        raise ValueError("the port of a DSN is a number (is a / in a password not written as %2F?)")
    if any("@" in host[1:] for host in parameters.get("host", "").split(",")):
        raise ValueError("there is an @ in the host of the DSN (is one in a password not written as %40?)")


def _words(parameters: Mapping[str, str]) -> str:
    first = [name for name in ("host", "port", "dbname", "user") if name in parameters]
    ordered = [*first, *sorted(parameters.keys() - set(first))]
    return make_conninfo("", **{name: parameters[name] for name in ordered})


def _url(parameters: Mapping[str, str]) -> str:
    """The parameters as a URL; several hosts have a port each, or share one."""
    others = dict(parameters)
    user, database = (quote(others.pop(name, ""), safe="") for name in ("user", "dbname"))
    hosts = [quote(host, safe="[]:") for host in others.pop("host", "").split(",")]
    ports = others.pop("port", "").split(",")
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    places = ",".join(_place(host, port) for host, port in zip(hosts, ports, strict=True))
    query = urlencode(others, quote_via=quote)
    return f"postgresql://{user}{'@' if user else ''}{places}/{database}{'?' if query else ''}{query}"


def _place(host: str, port: str) -> str:
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{port}" if port else host
