"""Compare-and-set on very few rows by many clients. Each row must be linearizable."""

from collections.abc import Sequence
from math import inf

from tests.support.workloads.approach import Approach
from tests.support.workloads.caller import Caller
from tests.support.workloads.linearizable import Deed, is_linearizable
from tests.support.workloads.workload import Client, Occurrence, Shown, Workload, contents, misplaced


class HotRegisters(Workload):
    """A client compares with what it saw last: about one in n succeeds, with n clients."""

    name = "register"

    def __init__(self, keys: Sequence[int]) -> None:
        self.keys = tuple(keys)

    def write(self, caller: Caller, client: Client) -> None:
        key, new = client.chance.choice(self.keys), client.fresh_value()
        old = client.seen.get(key, 0)
        reply = caller.write(
            [key],
            lambda relation: (
                f"UPDATE {relation(key, 0)} SET n = {new} WHERE id = {key} AND n = {old};"
                f" SELECT n FROM {relation(key, 0)} WHERE id = {key}"  # for the next attempt
            ),
        )
        found = reply.changed if reply.rows else None
        client.history.append(Occurrence("cas", key, (old, new), found, reply.outcome, reply.began, reply.ended))
        if reply.rows:
            client.seen[key] = int(reply.rows[-1][0])
        elif reply.outcome == "done" and client.approach.proven:
            client.surprises.append(f"row {key} was not there to be compared")

    def read(self, caller: Caller, client: Client) -> None:
        key = client.chance.choice(self.keys)
        reply = caller.read([key], lambda relation: f"SELECT n FROM {relation(key, 0)} WHERE id = {key}")
        found = int(reply.rows[0][0]) if reply.rows else None
        client.history.append(Occurrence("read", key, 0, found, reply.outcome, reply.began, reply.ended))

    def faults(self, history: Sequence[Occurrence], shown: Shown, approach: Approach) -> list[str]:
        rows = contents(shown)
        found = misplaced(shown)
        for key in self.keys:
            if key not in rows:
                found.append(f"row {key} is lost")
                continue
            deeds = [deed for one in history if one.key == key for deed in deeds_of(one, approach.proven)]
            end = max((deed.ended for deed in deeds if deed.ended != inf), default=0.0) + 1.0
            if not is_linearizable([*deeds, Deed("read", end, end + 1.0, old=rows[key][0])]):
                found.append(f"row {key} is not linearizable: {len(deeds)} operations, in the end {rows[key][0]}")
        return found


def deeds_of(one: Occurrence, proven: bool) -> list[Deed]:
    """What a register's history says about an occurrence: nothing if nothing was promised."""
    if one.kind == "read":
        told = proven and one.outcome == "done" and isinstance(one.found, int)
        return [Deed("read", one.began, one.ended, old=int(str(one.found)))] if told and one.found is not None else []
    assert isinstance(one.value, tuple)
    old, new = one.value
    if one.outcome == "unknown":
        return [Deed("cas", one.began, old=old, new=new)]
    if one.outcome == "done" and (one.found == 1 or (proven and one.found == 0)):
        return [Deed("cas", one.began, one.ended, old, new, took=one.found == 1)]
    return []
