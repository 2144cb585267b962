"""The notes by which a bundle's profile outlives its leader: their format, their writer and their reader.

One topic per bundle, one note per hour and `CHUNK` tablets, named `HOUR.CHUNK`: {"day": the local day's ordinal,
"seen": how much was seen, "data": tablets' ids, as differences of 8 bytes, then a byte for writes and one for reads of
each}. Anybody may leave a note, so the reader takes nothing for granted: it skips what is not one.
"""

import base64
import binascii
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from balancer.directory.codec import inflate
from balancer.directory.model import Json
from balancer.policies.bundle_view import Ints
from balancer.policies.day_parts import SLOTS
from balancer.policies.day_profile import LOADS, UNKNOWN, DayProfile, Levels, coarse, fine, no_profile

CHUNK: Final = 16_384
"""Tablets per note: even if nothing could be compressed, it would be smaller than a note may be."""
_BYTES = 8 + len(LOADS)  # of a tablet
_LAST_DAY = 3_652_059  # of the calendar: 9999-12-31
_MOST_SEEN = 100.0
_NAME = re.compile(r"(\d{1,2})\.(\d{1,6})", re.ASCII)
_Found = tuple[int, float, Ints, Levels]  # day, how much was seen, tablets, their levels


def topic_of(bundle: str) -> str:
    """The topic of a bundle's notes."""
    return f"profile-{bundle}"


def profile_notes(profile: DayProfile, slot: int) -> Iterator[tuple[str, dict[str, Json]]]:
    """The notes of one hour, by name."""
    levels = profile.hours[slot]
    if levels is None:
        return
    narrow = coarse(levels)
    for number, first in enumerate(range(0, len(profile), CHUNK)):
        part = slice(first, first + CHUNK)
        raw = np.diff(profile.ids[part], prepend=0).astype("<i8").tobytes() + narrow[:, part].tobytes()
        data = base64.b64encode(zlib.compress(raw, 6)).decode()
        yield f"{slot}.{number}", {"day": profile.days[slot], "seen": profile.seen[slot], "data": data}


def slot_of_name(name: str) -> int | None:
    """The hour that a note is about; None: it is not a note of a profile."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match is not None and int(match[1]) < SLOTS else None


def read_profile(notes: Mapping[str, Json]) -> DayProfile:
    """The profile in the notes of a bundle."""
    found: dict[int, list[_Found]] = {}
    for name, note in sorted(notes.items()):
        slot = slot_of_name(name)
        if slot is not None:
            try:
                found.setdefault(slot, []).append(_read(note))
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError, binascii.Error, zlib.error):
                continue
    found = {slot: parts for slot, parts in found.items() if parts}
    if not found:
        return no_profile()
    ids = np.unique(np.concatenate([part[2] for parts in found.values() for part in parts]))
    hours: list[Levels | None] = [None] * SLOTS
    seen, days = [0.0] * SLOTS, [0] * SLOTS
    for slot, parts in found.items():
        hours[slot] = _joined(ids, parts)
        # For an hour that was half rewritten, the older day and the lower `seen` count.
        days[slot], seen[slot] = min(part[0] for part in parts), min(part[1] for part in parts)
    return DayProfile(ids, tuple(hours), tuple(seen), tuple(days))


def _joined(ids: Ints, parts: list[_Found]) -> Levels:
    levels = np.full((len(LOADS), len(ids)), UNKNOWN, np.uint16)
    for _, _, mine, own in parts:
        levels[:, np.searchsorted(ids, mine)] = own
    return levels


def _read(note: Json) -> _Found:
    day, seen = int(note["day"]), float(note["seen"])
    raw = inflate(base64.b64decode(note["data"], validate=True), CHUNK * _BYTES)
    count, rest = divmod(len(raw), _BYTES)
    if rest or not 0 < day <= _LAST_DAY or not 0.0 <= seen <= _MOST_SEEN:
        raise ValueError("it is no note of a profile")
    steps = np.frombuffer(raw[: 8 * count], dtype="<i8").astype(np.int64)
    ids = np.cumsum(steps)
    if (steps <= 0).any() or (ids <= 0).any():
        raise ValueError("its tablets are not in order")
    levels = np.frombuffer(raw[8 * count :], dtype=np.uint8).reshape(len(LOADS), count)
    return day, seen, ids, fine(levels)
