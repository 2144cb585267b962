"""What a workload says about itself, and what its history is made of. `crew` runs it; tests ask it for faults."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import NamedTuple

from balancer.directory.model import RangeBounds
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.hashing import partition_hash
from balancer.policies.keyspace.keys import KeyType, encode_key
from tests.support.workloads.approach import Approach
from tests.support.workloads.caller import Caller

Content = tuple[int, str | None]
Shown = Mapping[str, Sequence[tuple[int, int, int, str | None]]]
"""What each node shows in the end: node → (number of the root, id, n, note)."""


class Occurrence(NamedTuple):
    """Something that a client did, answered or not."""

    kind: str
    key: int
    value: int | str | tuple[int, int]
    found: int | str | tuple[int, bytes, str] | None
    outcome: str  # done, refused or unknown
    began: float
    ended: float


@dataclass
class Client:
    """One client's memory. It belongs to one thread."""

    number: int
    chance: Random
    approach: Approach
    bounds: tuple[Leaf | RangeBounds, ...]
    history: list[Occurrence] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    mine: list[int] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)
    serial: int = 0

    def __post_init__(self) -> None:
        self._fresh = ids_within(self.bounds, 1_000_000 * (self.number + 1))

    def fresh_id(self) -> int:
        """An unused id, in the tablets that are migrated."""
        return next(self._fresh)

    def fresh_value(self) -> int:
        """One that nobody else writes."""
        self.serial += 1
        return (self.number + 1) * 10_000_000 + self.serial


class Workload(ABC):
    """Values that a process of clients is started with; the same object checks the account in the end."""

    name: str
    keys: tuple[int, ...] = ()
    """Rows that exist before the clients come."""
    roots: int = 1

    @abstractmethod
    def write(self, caller: Caller, client: Client) -> None:
        """One operation that changes something."""

    @abstractmethod
    def read(self, caller: Caller, client: Client) -> None:
        """One that does not."""

    @abstractmethod
    def faults(self, history: Sequence[Occurrence], shown: Shown, approach: Approach) -> list[str]:
        """What is wrong with a history, given what the nodes show in the end."""

    def present(self) -> Iterator[tuple[int, int, int, str]]:
        """The rows before the clients come: (number of the root, id, n, note)."""
        return ((0, key, 0, "") for key in self.keys)


def is_within(bounds: Sequence[Leaf | RangeBounds], number: int) -> bool:
    """Whether an id belongs to one of these tablets."""
    return any(_holds(part, number) for part in bounds)


def _holds(part: Leaf | RangeBounds, number: int) -> bool:
    if isinstance(part, Leaf):
        return partition_hash((KeyType.BIGINT,), (number,)) % part.modulus == part.remainder
    encoded = encode_key((KeyType.BIGINT,), (number,))
    return part.lower <= encoded < part.upper


def ids_within(bounds: Sequence[Leaf | RangeBounds], first: int) -> Iterator[int]:
    """Ids of these tablets from a first one on."""
    return (number for number in count(first) if is_within(bounds, number))


def misplaced(shown: Shown) -> list[str]:
    """Rows that are there more than once."""
    places: dict[tuple[int, int], list[str]] = {}
    for node, rows in shown.items():
        for root, key, _, _ in rows:
            places.setdefault((root, key), []).append(node)
    return [f"row {key} is there {len(on)} times: on {', '.join(on)}" for (_, key), on in places.items() if len(on) > 1]


def contents(shown: Shown, root: int = 0) -> dict[int, Content]:
    """The rows of a root over all nodes."""
    return {key: (n, note) for rows in shown.values() for number, key, n, note in rows if number == root}
