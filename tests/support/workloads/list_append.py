"""Several writers append tokens to few rows. Every read is a beginning of what is there in the end.

Nothing depends on when somebody looked: a former owner's rows, an old snapshot and the end are beginnings of one list,
or somebody has written to two copies.
"""

from collections.abc import Sequence

from tests.support.workloads.approach import Approach
from tests.support.workloads.caller import Caller
from tests.support.workloads.workload import Client, Occurrence, Shown, Workload, contents, misplaced

END = ";"


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
        read = reply.rows[0][0] if reply.rows else None
        client.history.append(Occurrence("append", key, token, read, outcome, reply.began, reply.ended))

    def read(self, caller: Caller, client: Client) -> None:
        key = client.chance.choice(self.keys)
        reply = caller.read([key], lambda relation: f"SELECT note FROM {relation(key, 0)} WHERE id = {key}")
        read = reply.rows[0][0] if reply.rows else None
        client.history.append(Occurrence("read", key, "", read, reply.outcome, reply.began, reply.ended))

    def faults(self, history: Sequence[Occurrence], shown: Shown, approach: Approach) -> list[str]:
        rows = contents(shown)
        found = misplaced(shown)
        for key in self.keys:
            mine = [one for one in history if one.key == key]
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
    found = [f"row {key} has {token} twice" for token in places if tokens.count(token) > 1]
    found += [f"row {key} has lost {one.value}" for one in sure if one.value not in places]
    found += [f"row {key} has {token}, which was refused" for token in places if token not in allowed]
    answered = [one for one in history if isinstance(one.found, str)]
    found += [
        f"row {key} was read as …{str(one.found)[-40:]} and ended as something else"
        for one in answered
        if not last.startswith(str(one.found))
    ]
    if proven:
        missing = [one for one in history if one.kind == "read" and one.outcome == "done" and one.found is None]
        found += [f"row {key} was not found by a reader" for one in missing]
        found += _stale(key, sure, answered)
    return found + _disorder(key, sure, places)


def _stale(key: int, sure: Sequence[Occurrence], answered: Sequence[Occurrence]) -> list[str]:
    """Reads that began after an append was acknowledged and do not have it."""
    by_end = sorted(sure, key=lambda one: one.ended)
    found = []
    before, length = 0, 0
    for read in sorted(answered, key=lambda one: one.began):
        while before < len(by_end) and by_end[before].ended < read.began:
            length = max(length, len(str(by_end[before].found)))
            before += 1
        if len(str(read.found)) < length:
            found.append(f"row {key} was read {length - len(str(read.found))} characters too old")
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
