"""Notes: small documents that are not part of the truth. What may be one, the same for every backend."""

from balancer.errors import TooLarge, UserError

MAX_NOTE = 256 * 1024
"""Bytes of one note: as large as a plan's progress needs, far below a server's limit."""


def check_note(topic: str, name: str, data: bytes) -> None:
    """Raises `UserError` for a name that cannot be one, `TooLarge` for too many bytes."""
    for word in (topic, name):
        if not word or "/" in word or not word.isprintable() or word in (".", "..") or len(word) > 200:
            raise UserError(f"{word!r} cannot name a note: 1 to 200 printable characters without '/'")
    if len(data) > MAX_NOTE:
        raise TooLarge(f"the note {topic}/{name} has {len(data)} bytes; {MAX_NOTE} are allowed")
