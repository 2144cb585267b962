"""The note by which samples of keys reach the leader: its format, its writer and its reader.

{"at": seconds since 1970, "seconds": how long was collected, "tables": {table id: [[position in hexadecimal, weight,
whether it was a write], …]}} under the topic `samples`. Written by the client library and, for coordinators in other
languages, by HTTP; read by the tick. Clients may not create notes: each writes into one of a fixed number of slots, so
what any of them does costs the leader a bounded time. Any application may write anything there, so the reader takes
nothing for granted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Final

from balancer.directory.model import Json

TOPIC: Final = "samples"
SLOTS: Final = tuple(f"client-{number:02d}" for number in range(64))
"""Names of clients' notes. Clients that share one overwrite each other: with a hundred, a third of the samples is lost,
and the rest is still a sample."""
MOST_ENTRIES: Final = 5000
"""Per note: a client collects 40 per table, HTTP accepts 1,000 at once."""
HEAVIEST: Final = 1e12
"""Rows per note and key: a higher number was not counted but made up."""
EARLY: Final = 60.0
"""Seconds by which a reporter's clock may be ahead of this host's."""
LONGEST_KEY: Final = 128
"""Bytes; a longer key is truncated, which moves it by less than any split would notice."""


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


def read_samples(note: Mapping[str, Json], now: float) -> Iterator[tuple[int, list[KeySample]]]:
    """Table ids and samples. Raises `KeyError`, `TypeError`, `ValueError` or `AttributeError` if it is not a note."""
    at = float(note["at"])
    if not isfinite(at) or at > now + EARLY:
        raise ValueError("it is from the future")
    tables = note["tables"].items()
    if sum(len(samples) for _, samples in tables) > MOST_ENTRIES:
        raise ValueError(f"it has more than {MOST_ENTRIES} samples")
    for table, samples in tables:
        yield int(table), [_sample(at, *one) for one in samples]


def _sample(at: float, key: str, weight: float, write: bool) -> KeySample:
    if not 0 < float(weight) <= HEAVIEST:
        raise ValueError("a sample's weight is a number above 0")
    if len(key) > 2 * LONGEST_KEY:
        raise ValueError(f"a sample's key has more than {LONGEST_KEY} bytes")
    return KeySample(at, bytes.fromhex(key), float(weight), bool(write))
