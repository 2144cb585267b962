"""Rows are inserted once and deleted at most once. In the end each is there as often as was promised."""

from collections.abc import Sequence

from tests.support.workloads.approach import Approach
from tests.support.workloads.caller import Caller
from tests.support.workloads.workload import Client, Occurrence, Shown, Workload, contents, misplaced


class SetOfIds(Workload):
    """Half of all rows are deleted again: a tablet in steady use."""

    name = "set"

    def __init__(self, keys: Sequence[int] = (), others: Sequence[int] = ()) -> None:
        """`others`: rows that are there as well, and stay; they are not read."""
        self.keys = tuple(keys)
        self.others = frozenset(others)

    def write(self, caller: Caller, client: Client) -> None:
        if client.mine and client.chance.random() < 0.45:
            self._delete(caller, client, client.mine.pop(client.chance.randrange(len(client.mine))))
        else:
            self._insert(caller, client, client.fresh_id())

    def read(self, caller: Caller, client: Client) -> None:
        key = client.chance.choice(self.keys)
        reply = caller.read([key], lambda relation: f"SELECT id FROM {relation(key, 0)} WHERE id = {key}")
        client.history.append(Occurrence("read", key, 0, len(reply.rows), reply.outcome, reply.began, reply.ended))

    def _insert(self, caller: Caller, client: Client, key: int) -> None:
        reply = caller.write([key], lambda relation: f"INSERT INTO {relation(key, 0)} (id) VALUES ({key})")
        if reply.outcome == "done":
            client.mine.append(key)
        if reply.error is not None and reply.outcome == "refused":
            # Every earlier attempt was refused, and nobody else writes this row.
            client.surprises.append(f"the insert of {key} was answered with: {reply.error}")
        client.history.append(Occurrence("insert", key, 0, None, reply.outcome, reply.began, reply.ended))

    def _delete(self, caller: Caller, client: Client, key: int) -> None:
        reply = caller.write([key], lambda relation: f"DELETE FROM {relation(key, 0)} WHERE id = {key}")
        outcome = reply.outcome
        if outcome == "done" and reply.changed != 1:
            outcome = "refused"  # plain SQL on a node without the row: nothing happened
            if client.approach.proven:
                client.surprises.append(f"{reply.changed} rows were deleted for the id {key}")
        client.history.append(Occurrence("delete", key, 0, None, outcome, reply.began, reply.ended))

    def faults(self, history: Sequence[Occurrence], shown: Shown, approach: Approach) -> list[str]:
        by: dict[tuple[str, str], set[int]] = {}
        for one in history:
            by.setdefault((one.kind, one.outcome), set()).add(one.key)
        there = set(contents(shown))
        inserted = by.get(("insert", "done"), set()) | set(self.keys) | self.others
        tried = by.get(("insert", "unknown"), set())
        deleted, perhaps = by.get(("delete", "done"), set()), by.get(("delete", "unknown"), set())
        found = misplaced(shown)
        found += [f"acknowledged row {key} is lost" for key in sorted(inserted - deleted - perhaps - there)]
        found += [f"deleted row {key} is back" for key in sorted(deleted & there)]
        found += [f"row {key} is there, but its insert was refused" for key in sorted(there - inserted - tried)]
        if approach.proven:
            missed = [one for one in history if one.kind == "read" and one.outcome == "done" and not one.found]
            found += [f"row {one.key} was not found by a reader" for one in missed]
        return found
