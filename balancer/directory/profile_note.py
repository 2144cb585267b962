"""The notes by which a bundle's profile outlives its leader: their format, their writer and their reader.

One topic per bundle, one note per part of the day and `CHUNK` tablets, named `PART.CHUNK`: {"day": the local day's
ordinal, "seen": how much was seen, "data": tablets' ids, as differences of 8 bytes, then a byte for writes and one for
reads of each}. In an hour one part of the day changes, so about 2 bytes a tablet are written. Anybody may leave a
note, so the reader takes nothing for granted: what is none is left out.
"""

import base64
import binascii
import re
import zlib
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Final

import numpy as np

from balancer.directory.codec import inflate
from balancer.directory.model import Json
from balancer.policies.bundle_view import Ints
from balancer.policies.day_parts import DAY_PARTS
from balancer.policies.day_profile import LOADS, UNKNOWN, DayProfile, Levels, coarse, fine, no_profile

CHUNK: Final = 16_384
"""Tablets of one note: even if nothing could be compressed, it would be smaller than a note may be."""
_BYTES = 8 + len(LOADS)  # of a tablet
_LAST_DAY = 3_652_059  # of the calendar: 9999-12-31
_MOST_SEEN = 100.0
_NAME = re.compile(r"(\d{1,2})\.(\d{1,6})", re.ASCII)


def topic_of(bundle: str) -> str:
    """The topic of a bundle's notes."""
    return f"profile-{bundle}"


def profile_notes(profile: DayProfile, part: int) -> Iterator[tuple[str, dict[str, Json]]]:
    """The notes of one part of the day, by name."""
    levels = coarse(profile.levels[:, :, part])
    for number, first in enumerate(range(0, len(profile), CHUNK)):
        ids = profile.ids[first : first + CHUNK]
        raw = np.diff(ids, prepend=0).astype("<i8").tobytes() + levels[first : first + CHUNK].tobytes()
        data = base64.b64encode(zlib.compress(raw, 6)).decode()
        yield f"{part}.{number}", {"day": int(profile.days[part]), "seen": float(profile.seen[part]), "data": data}


def part_of_name(name: str) -> int | None:
    """The part of the day that a note is about; None: it is no note of a profile."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match is not None and int(match[1]) < DAY_PARTS else None


def read_profile(notes: Mapping[str, Json]) -> DayProfile:
    """The profile in the notes of a bundle. Of a part that was half rewritten the older day and the less seen count."""
    found: list[tuple[int, Ints, Levels]] = []
    seen, days = np.zeros(DAY_PARTS), np.zeros(DAY_PARTS, dtype=np.int64)
    for name, note in sorted(notes.items()):
        part = part_of_name(name)
        if part is None:
            continue
        try:
            day, share, ids, levels = _read(note)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, binascii.Error, zlib.error):
            continue
        first = not any(known == part for known, _, _ in found)
        days[part] = day if first else min(int(days[part]), day)
        seen[part] = share if first else min(float(seen[part]), share)
        found.append((part, ids, levels))
    if not found:
        return no_profile()
    every = np.unique(np.concatenate([ids for _, ids, _ in found]))
    table = np.full((len(every), len(LOADS), DAY_PARTS), UNKNOWN, dtype=np.uint16)
    for part, ids, levels in found:
        table[np.searchsorted(every, ids), :, part] = levels
    return DayProfile(every, table, seen, days)


def _read(note: Json) -> tuple[int, float, Ints, Levels]:
    day, seen = int(note["day"]), float(note["seen"])
    raw = inflate(base64.b64decode(note["data"], validate=True), CHUNK * _BYTES)
    count, rest = divmod(len(raw), _BYTES)
    if rest or not 0 < day <= _LAST_DAY or not isfinite(seen) or not 0.0 <= seen <= _MOST_SEEN:
        raise ValueError("it is no note of a profile")
    steps = np.frombuffer(raw[: 8 * count], dtype="<i8").astype(np.int64)
    ids = np.cumsum(steps)
    if (steps <= 0).any() or (ids <= 0).any():
        raise ValueError("its tablets are not in order")
    levels = np.frombuffer(raw[8 * count :], dtype=np.uint8).reshape(count, len(LOADS))
    return day, seen, ids, fine(levels)
