"""The note by which samples of keys reach the leader: its format, its writer and its reader.

{"at": seconds since 1970, "seconds": how long was collected, "tables": {table id: [[position in hexadecimal, weight,
whether it was a write], …]}} under the topic `samples`. Written by the client library and, for coordinators in other
languages, by HTTP; read by the tick. Anybody may leave a note, so the reader takes nothing for granted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from balancer.directory.model import Json

TOPIC: Final = "samples"
LONGEST_KEY: Final = 128
"""Bytes; a longer key is cut, which moves it by less than any split would care about."""


@dataclass(frozen=True, slots=True)
class KeySample:
    """A use of a key, as a client reported it."""

    at: float
    key: bytes
    weight: float
    write: bool


def entry(position: int | bytes, weight: float, write: bool) -> list[Json]:
    """One use of a key, by its position: that of a hash, or an encoded key."""
    text = f"{position:016x}" if isinstance(position, int) else position[:LONGEST_KEY].hex()
    return [text, weight, write]


def sample_note(at: float, seconds: float, tables: Mapping[str, Json]) -> dict[str, Json]:
    """The note of one reporter: entries by table id."""
    return {"at": at, "seconds": round(seconds, 3), "tables": dict(tables)}


def read_samples(note: Mapping[str, Json]) -> Iterator[tuple[int, list[KeySample]]]:
    """Table ids and samples. Raises `KeyError`, `TypeError`, `ValueError` or `AttributeError` for what is no note."""
    at = float(note["at"])
    for table, samples in note["tables"].items():
        read = [KeySample(at, bytes.fromhex(key), float(weight), bool(write)) for key, weight, write in samples]
        yield int(table), read
