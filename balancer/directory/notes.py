"""Notes: small documents that are not part of the truth. What may be one, the same for every backend.

The note by which samples of keys reach the leader: its format, its writer and its reader.

{"at": seconds since 1970, "seconds": how long was collected, "tables": {table id: [[position in hexadecimal, weight,
whether it was a write], …]}} under the topic `samples`. Written by the client library and, for coordinators in other
languages, by HTTP; read by the tick. Clients may not create notes: each writes into one of a fixed number of slots, so
what any of them does costs the leader a bounded time. Any application may write anything there, so the reader takes
nothing for granted.

The note by which an instance says that it is there: its format, its writer and its reader.

One for each instance under the topic `instances`, written again and again with another `beat`. No clocks are compared:
a reader considers an instance present while its note changes. The note outlives its writer; it then says how many
leaderships in a row have failed there, which is what the next process begins with.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b
from math import isfinite
from typing import Final

from balancer.directory.model import Json
from balancer.errors import TooLarge, UserError
from balancer.untrusted import one_line

MAX_NOTE = 256 * 1024
"""Bytes of one note: as large as a plan's progress needs, far below a server's limit."""


def check_note(topic: str, name: str, data: bytes) -> None:
    """Raises `UserError` for a name that cannot be one, `TooLarge` for too many bytes."""
    for word in (topic, name):
        if not word or "/" in word or not word.isprintable() or word in (".", "..") or len(word) > 200:
            raise UserError(f"{word!r} cannot name a note: 1 to 200 printable characters without '/'")
    if len(data) > MAX_NOTE:
        raise TooLarge(f"the note {topic}/{name} has {len(data)} bytes; {MAX_NOTE} are allowed")


SAMPLES: Final = "samples"
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


INSTANCES: Final = "instances"
_LONGEST_NAME = 200
_LONGEST_SENTENCE = 500
_MOST_WEIGHT = 1e6
_MOST_FAILURES = 1000


@dataclass(frozen=True, slots=True)
class InstanceNote:
    """What an instance says about itself."""

    name: str
    process: str
    """Different for each process, so that two of one name are noticed."""
    beat: int
    at: float
    """Since 1970, for people."""
    weight: float
    unfit: str
    """Why it should not lead; empty: it could."""
    failures: int
    """How many of its leaderships in a row ended in a failure; the current one counts until it has lasted."""
    wanted: str
    """Who should lead, as it sees it."""
    waits_for: str
    """For a leader that is not the wanted one: what must come first; empty: nothing."""


_FIELDS: Final = tuple(field.name for field in fields(InstanceNote))


@dataclass(frozen=True, slots=True)
class LeaderSpread:
    """Who leads a directory among its instances, and who should, as one of them sees it."""

    wanted: str
    waits_for: str = ""
    """What must come before the leader hands over to the wanted one; empty: nothing, or it is that one."""
    instances: tuple[InstanceNote, ...] = ()
    """Those that are present, by name."""


def note_name(instance: str) -> str:
    """An instance may have any name, a note may not."""
    return blake2b(instance.encode(errors="backslashreplace"), digest_size=12).hexdigest()


def instance_note(note: InstanceNote) -> dict[str, Json]:
    """As it is written: its fields have plain values, so nothing below them is copied."""
    return {name: getattr(note, name) for name in _FIELDS}


def read_instances(notes: Mapping[str, Json]) -> Iterator[InstanceNote]:
    """The instances in the notes of the topic, by name. Skips anything that is not such a note."""
    for name, document in sorted(notes.items()):
        try:
            note = _read(document)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            continue
        if note_name(note.name) == name:
            yield note


def _read(document: Json) -> InstanceNote:
    name, process = document["name"], document["process"]
    if not isinstance(name, str) or not isinstance(process, str) or not 0 < len(name) <= _LONGEST_NAME:
        raise ValueError("no name")
    weight, at = float(document["weight"]), float(document["at"])
    if not isfinite(at) or not 0.0 <= weight <= _MOST_WEIGHT:
        raise ValueError("no weight, or no time")
    return InstanceNote(
        name=name,
        process=process[:_LONGEST_NAME],
        beat=int(document["beat"]),
        at=at,
        weight=weight,
        unfit=one_line(str(document["unfit"]), _LONGEST_SENTENCE),
        failures=max(0, min(int(document["failures"]), _MOST_FAILURES)),
        wanted=one_line(str(document["wanted"]), _LONGEST_NAME),
        waits_for=one_line(str(document["waits_for"]), _LONGEST_SENTENCE),
    )
