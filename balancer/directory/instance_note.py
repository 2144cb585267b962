"""The note by which an instance says that it is there: its format, its writer and its reader.

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
from balancer.outside import one_line

TOPIC: Final = "instances"
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
