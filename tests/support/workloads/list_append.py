"""Several writers append tokens to few rows. Every read is a prefix of what is there in the end.

It does not matter when somebody looked: a former owner's rows, an old snapshot and the end are prefixes of one list, or
somebody has written to two copies.
"""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from tests.support.workloads.approach import Approach
from tests.support.workloads.caller import Caller
from tests.support.workloads.workload import Client, Occurrence, Shown, Workload, contents, misplaced

END = ";"


class Beginning(NamedTuple):
    """A list as somebody read it: in an hour there are more of them than fit in memory."""

    length: int
    digest: bytes
    tail: str

    @classmethod
    def of(cls, text: object) -> "Beginning | None":
        """None: there was no row."""
        return cls(len(text), _hash(text.encode()).digest(), text[-40:]) if isinstance(text, str) else None


def _hash(data: bytes = b"") -> "blake2b":
    return blake2b(data, digest_size=12)


def beginnings(tokens: Sequence[str]) -> dict[int, bytes]:
    """By length: the digest of every prefix of this list."""
    so_far, length = _hash(), 0
    found = {0: so_far.digest()}
    for token in tokens:
        so_far.update(token.encode())
        length += len(token)
        found[length] = so_far.digest()
    return found


class ListAppend(Workload):
    """The note of a row is its list."""

    name = "list-append"

    def __init__(self, keys: Sequence[int]) -> None:
        self.keys = tuple(keys)

    def write(self, caller: Caller, client: Client) -> None:
        key, token = client.chance.choice(self.keys), str(client.fresh_value()) + END
        reply = caller.write(
            [key],
            lambda relation: f"UPDATE {relation(key, 0)} SET note = note || '{token}' WHERE id = {key} RETURNING note",
        )
        outcome = reply.outcome
        if outcome == "done" and not reply.rows:
            outcome = "refused"  # plain SQL on a node without the row: nothing happened
            if client.approach.proven:
                client.surprises.append(f"row {key} was not there to be written to")
        read = Beginning.of(reply.rows[0][0]) if reply.rows else None
        client.history.append(Occurrence("append", key, token, read, outcome, reply.began, reply.ended))

    def read(self, caller: Caller, client: Client) -> None:
        key = client.chance.choice(self.keys)
        reply = caller.read([key], lambda relation: f"SELECT note FROM {relation(key, 0)} WHERE id = {key}")
        read = Beginning.of(reply.rows[0][0]) if reply.rows else None
        client.history.append(Occurrence("read", key, "", read, reply.outcome, reply.began, reply.ended))

    def faults(self, history: Sequence[Occurrence], shown: Shown, approach: Approach) -> list[str]:
        rows = contents(shown)
        found = misplaced(shown)
        by_key: dict[int, list[Occurrence]] = {key: [] for key in self.keys}
        for one in history:
            by_key[one.key].append(one)
        for key, mine in by_key.items():
            found += list_faults(key, mine, (rows[key][1] or "") if key in rows else None, approach.proven)
        return found


def list_faults(key: int, history: Sequence[Occurrence], last: str | None, proven: bool) -> list[str]:
    """What is wrong with one row. `proven`: reads are of the newest rows."""
    if last is None:
        return [f"row {key} is lost"]
    tokens = [token + END for token in last.split(END)[:-1]]
    places = {token: place for place, token in enumerate(tokens)}
    appended = [one for one in history if one.kind == "append"]
    sure = [one for one in appended if one.outcome == "done"]
    allowed = {str(one.value) for one in appended if one.outcome in ("done", "unknown")}
    found = [f"row {key} has {token} twice" for token, count in Counter(tokens).items() if count > 1]
    found += [f"row {key} has lost {one.value}" for one in sure if one.value not in places]
    found += [f"row {key} has {token}, which was refused" for token in places if token not in allowed]
    answered = [(one, one.found) for one in history if isinstance(one.found, Beginning)]
    right = beginnings(tokens)
    found += [
        f"row {key} was read as …{read.tail} and ended as something else"
        for _, read in answered
        if right.get(read.length) != read.digest
    ]
    if proven:
        missing = [one for one in history if one.kind == "read" and one.outcome == "done" and one.found is None]
        found += [f"row {key} was not found by a reader" for one in missing]
        found += _stale(key, sure, answered)
    return found + _disorder(key, sure, places)


def _stale(key: int, sure: Sequence[Occurrence], answered: Sequence[tuple[Occurrence, Beginning]]) -> list[str]:
    """Reads that began after an append was acknowledged and do not have it."""
    by_end = sorted(sure, key=lambda one: one.ended)
    found = []
    before, length = 0, 0
    for one, read in sorted(answered, key=lambda pair: pair[0].began):
        while before < len(by_end) and by_end[before].ended < one.began:
            seen = by_end[before].found
            length = max(length, seen.length if isinstance(seen, Beginning) else 0)
            before += 1
        if read.length < length:
            found.append(f"row {key} was read {length - read.length} characters too old")
    return found


def _disorder(key: int, sure: Sequence[Occurrence], places: dict[str, int]) -> list[str]:
    """Appends in the wrong order: the later one began after the earlier one had been acknowledged."""
    kept = [one for one in sure if one.value in places]
    found = []
    by_end = sorted(kept, key=lambda one: one.ended)
    before, highest = 0, -1
    for one in sorted(kept, key=lambda one: one.began):
        while before < len(by_end) and by_end[before].ended < one.began:
            highest = max(highest, places[str(by_end[before].value)])
            before += 1
        if places[str(one.value)] < highest:
            found.append(f"row {key} has {one.value} before a token that was acknowledged earlier")
    return found
