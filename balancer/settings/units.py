"""Sizes, durations and DSNs as people write them. Pure functions; the errors say what is allowed."""

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit

from pydantic import SecretStr

_SIZE_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_TIME_UNITS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_PAIR = re.compile(r"\s*(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s']*)")


def parse_size(value: object) -> object:
    """Bytes from "10GB", "512 MiB" or a number; anything that is not text is left to the type's own check."""
    if not isinstance(value, str):
        return _not_negative(value, "a size")
    match = _QUANTITY.fullmatch(value)
    unit = match and match[2].upper().replace("IB", "B")
    if not match or unit not in _SIZE_UNITS:
        raise ValueError(
            f'{value!r} is not a size; write a number of bytes or one with B, KB, MB, GB or TB, as in "10GB"'
        )
    return round(float(match[1]) * _SIZE_UNITS[unit])


def parse_duration(value: object) -> object:
    """Seconds from "250ms", "10m", "1h" or a number of seconds."""
    if not isinstance(value, str):
        return _not_negative(value, "a duration")
    match = _QUANTITY.fullmatch(value)
    if not match or match[2] not in _TIME_UNITS:
        raise ValueError(f'{value!r} is not a duration; write a number with us, ms, s, m, h or d, as in "250ms"')
    return float(match[1]) * _TIME_UNITS[match[2]]


def _not_negative(value: object, what: str) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        raise ValueError(f"{value} is negative; {what} is zero or more")
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
        """From a URL (`postgresql://…`) or from libpq's `key=value` words."""
        if isinstance(value, Dsn):
            return value
        if not isinstance(value, str) or not value.strip():
            raise ValueError('a DSN is text, as in "postgresql://balancer@host/database"')
        return cls._from_url(value) if "://" in value else cls._from_words(value)

    @classmethod
    def _from_url(cls, value: str) -> "Dsn":
        parts = urlsplit(value)
        if parts.scheme not in ("postgresql", "postgres"):
            raise ValueError(f"the scheme of a DSN is postgresql://, not {parts.scheme}://")
        user_info, at, hosts = parts.netloc.rpartition("@")
        user, _, password = user_info.partition(":")
        query, hidden = [], unquote(password)
        for pair in filter(None, parts.query.split("&")):
            name, _, content = pair.partition("=")
            if name == "password":
                hidden = unquote(content)
            else:
                query.append(pair)
        text = urlunsplit((parts.scheme, f"{user}{at}{hosts}", parts.path, "&".join(query), ""))
        return cls(text, SecretStr(hidden) if hidden else None)

    @classmethod
    def _from_words(cls, value: str) -> "Dsn":
        words, at = [], 0
        secret = None
        while at < len(value.rstrip()):
            match = _PAIR.match(value, at)
            if not match:
                # What stands there may be a password: it is not repeated.
                raise ValueError("the DSN is neither a URL nor words of the form key=value")
            if match[1] == "password":
                secret = SecretStr(re.sub(r"\\(.)", r"\1", match[2].strip("'")))
            else:
                words.append(f"{match[1]}={match[2]}")
            at = match.end()
        return cls(" ".join(words), secret)
