"""Which directory this is, whatever it is called: a random number that is made once and stays with its records.

A node remembers it together with the directory's name, so that two directories of one name are two clusters to it. It
is kept as a counter, which no version of this software loses: an export has it, an import brings it along, a restored
backup is the same cluster as before, and a former version that commits here leaves it alone. The first leader makes it.
"""

import secrets

from balancer.directory.contract import Directory, commit_on_newest
from balancer.directory.invariants import IDENTITY as NAME
from balancer.directory.model import Counter, Put, Record, Transaction
from balancer.directory.snapshot import Snapshot

_LEAST, _MOST = 1 << 48, 1 << 52  # fixed length as text, and a number that other JSON readers do not round


def identity_of(snapshot: Snapshot) -> str:
    """The identity as nodes know it; empty: it has none yet."""
    found = snapshot.counters.get(NAME)
    return "" if found is None else f"{found.next:x}"


def counter_of_identity(identity: str) -> Counter:
    """The record of an identity that nodes know."""
    return Counter(NAME, int(identity, 16))


def made_identity(author: str, directory: Directory, leader_epoch: int | None = None) -> str:
    """The identity; made now if there is none. If several make one at the same time, all get the same."""

    def propose(snapshot: Snapshot) -> tuple[Transaction | None, str]:
        if known := identity_of(snapshot):
            return None, known
        made = Counter(NAME, _LEAST + secrets.randbelow(_MOST - _LEAST))
        reason = "the directory is given its identity"
        return Transaction((Put(made),), snapshot.version, reason, author, leader_epoch), f"{made.next:x}"

    return commit_on_newest(directory, propose, "the directory could not be given an identity")


def with_identity(records: list[Record], snapshot: Snapshot) -> list[Record]:
    """Records to import over this snapshot: if they have no identity (a former version's export), the directory keeps
    its own."""
    known = snapshot.counters.get(NAME)
    there = any(isinstance(one, Counter) and one.name == NAME for one in records)
    return records if known is None or there else [*records, known]
