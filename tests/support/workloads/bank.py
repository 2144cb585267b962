"""Money goes back and forth between two colocated roots, in one transaction. Every snapshot has the same sum."""

from collections.abc import Iterator, Sequence

from tests.support.workloads.approach import Approach
from tests.support.workloads.caller import Caller
from tests.support.workloads.workload import Client, Occurrence, Shown, Workload, misplaced

EACH = 1000


class Bank(Workload):
    """An id has an account in each root."""

    name = "bank"
    roots = 2

    def __init__(self, keys: Sequence[int]) -> None:
        self.keys = tuple(keys)

    def present(self) -> Iterator[tuple[int, int, int, str]]:
        return ((root, key, EACH, "") for root in range(self.roots) for key in self.keys)

    def write(self, caller: Caller, client: Client) -> None:
        giver, taker = client.chance.sample(self.keys, 2)
        amount, root = client.chance.randint(1, 9), client.chance.randrange(2)
        reply = caller.write(
            [giver, taker],
            lambda relation: "; ".join(
                # The first root first, whichever gives: no two transfers wait for each other.
                f"UPDATE {relation(key, number)} SET n = n + {change} WHERE id = {key}"
                for number, key, change in sorted(((root, giver, -amount), (1 - root, taker, amount)))
            ),
        )
        if reply.outcome == "done" and reply.changed != 2 and (client.approach.proven or reply.changed == 1):
            # Both statements were sent as one transaction, so plain SQL finds both rows or none.
            client.surprises.append(f"{reply.changed} of 2 accounts were changed ({giver} and {taker})")
        client.history.append(Occurrence("pay", giver, 0, None, reply.outcome, reply.began, reply.ended))

    def read(self, caller: Caller, client: Client) -> None:
        ids = ", ".join(map(str, self.keys))
        reply = caller.read(
            self.keys,
            lambda relation: (
                "SELECT count(*), coalesce(sum(n), 0) FROM ("
                + " UNION ALL ".join(
                    f"SELECT n FROM {relation(self.keys[0], root)} WHERE id IN ({ids})" for root in range(self.roots)
                )
                + ") AS accounts"
            ),
        )
        told = f"{reply.rows[0][0]}:{reply.rows[0][1]}" if reply.rows else None
        client.history.append(Occurrence("sum", 0, 0, told, reply.outcome, reply.began, reply.ended))

    def faults(self, history: Sequence[Occurrence], shown: Shown, approach: Approach) -> list[str]:
        accounts = self.roots * len(self.keys)
        right = f"{accounts}:{EACH * accounts}"
        found = misplaced(shown)
        rows = [row for content in shown.values() for row in content]
        last = f"{len(rows)}:{sum(row[2] for row in rows)}"
        if last != right:
            found.append(f"in the end the bank has accounts:money {last} and not {right}")
        sums = {str(one.found) for one in history if one.kind == "sum" and one.found is not None}
        if not approach.proven:  # on another node there is nothing, and a detached root takes its half along
            sums = {one for one in sums if one.startswith(f"{accounts}:")}
        return found + [f"a reader saw accounts:money {one} and not {right}" for one in sorted(sums - {right})]
