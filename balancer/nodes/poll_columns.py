"""A node's partitions and claims as a poll brings them: columns of numbers, shared with the previous poll where they
are the same.

An object for each would cost more than the answer. Digests are the node's own, of what it would have sent; equal ones
mean that it says the same as before.
"""

from binascii import a2b_base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from balancer.nodes.names import Name
from balancer.nodes.schema import OwnState
from balancer.policies.bundle_view import Floats, Ints

_STATES = {str(state): state for state in OwnState}


class PartitionStats(NamedTuple):
    """One attached partition. Counters are since the last reset; a poll shows them up to a second late."""

    root: int
    """Index of its root among those asked for."""
    schema: str
    name: str
    oid: int
    heap_bytes: int
    toast_bytes: int
    index_bytes: int
    rows: int
    inserted: int
    updated: int
    deleted: int
    sequential_reads: int
    """Rows read by sequential scans."""
    index_reads: int
    """Rows fetched through indexes."""
    sequential_scans: int

    @property
    def bytes(self) -> int:
        return self.heap_bytes + self.toast_bytes + self.index_bytes


FIGURES: Final = PartitionStats._fields[3:]
"""The numbers, in the order in which they are packed."""
_BYTES = [FIGURES.index(field) for field in ("heap_bytes", "toast_bytes", "index_bytes")]


@dataclass(frozen=True, slots=True, eq=False)
class PartitionNames:
    """What the partitions are called; the same object for as long as the names are the same."""

    roots: tuple[Name, ...]
    """Those that were asked for."""
    places: bytes | tuple[int, ...]
    """For each partition, the place of its root among them."""
    text: str
    """The names without schemas, with NUL between them: as objects they would take five times as much."""

    @classmethod
    def of(cls, roots: Sequence[Name], places: Sequence[int], names: Sequence[str]) -> "PartitionNames":
        """The n-th name is that of a partition of the n-th place."""
        if len(places) != len(names) or any("\0" in name for name in names):
            raise ValueError("the names of partitions do not fit together")
        packed = bytes(places) if len(roots) < 256 else tuple(places)
        return cls(tuple(roots), packed, "\0".join(names))

    def __len__(self) -> int:
        return len(self.places)

    def all(self) -> list[Name]:
        """Schema and name of each."""
        names = self.text.split("\0") if self.places else []
        schemas = [root.schema for root in self.roots]
        return [Name(schemas[place], name) for place, name in zip(self.places, names, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class Partitions:
    """The attached partitions of a node."""

    named: PartitionNames
    numbers: Ints
    """One row for each of `FIGURES`, one column for each partition."""
    names_digest: str = ""
    numbers_digest: str = ""

    @classmethod
    def of(cls, rows: Sequence[PartitionStats]) -> "Partitions":
        """From single partitions."""
        schema_of = {row.root: row.schema for row in rows}
        schemas = [Name(schema_of.get(root, ""), "") for root in range(max(schema_of, default=-1) + 1)]
        named = PartitionNames.of(schemas, [row.root for row in rows], [row.name for row in rows])
        return cls(named, np.array([row[3:] for row in rows], np.int64).reshape(len(rows), len(FIGURES)).T)

    def __len__(self) -> int:
        return len(self.named)

    def __iter__(self) -> Iterator[PartitionStats]:
        for root, name, numbers in zip(self.named.places, self.named.all(), self.numbers.T.tolist(), strict=True):
            yield PartitionStats(root, name.schema, name.name, *numbers)

    def bytes(self) -> int:
        """The total over all of them."""
        return int(self.numbers[_BYTES].sum())

    def names(self) -> list[Name]:
        """Schema and name of each."""
        return self.named.all()

    def figures(self, *fields: str) -> Floats:
        """Numbers by the names of their fields: one row per field, one column per partition."""
        return self.numbers[[FIGURES.index(field) for field in fields]].astype(np.float64)


class Claim(NamedTuple):
    """What the node says about a tablet."""

    tablet: int
    epoch: int
    state: OwnState
    moved_to: str | None
    migration: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Claims:
    """What the node says about all its tablets. Nearly all are simply owned: for these there are only numbers."""

    ids: Ints
    """Ids of tablets that are owned, with nothing else to say about them; increasing."""
    epochs: Ints
    others: tuple[Claim, ...] = ()
    digest: str = ""

    @classmethod
    def of(cls, claims: Sequence[Claim]) -> "Claims":
        """From single claims."""
        plain = sorted(claim for claim in claims if _plain(claim))
        ids, epochs = (np.array([claim[at] for claim in plain], np.int64) for at in (0, 1))
        return cls(ids, epochs, tuple(claim for claim in claims if not _plain(claim)))

    def __len__(self) -> int:
        return len(self.ids) + len(self.others)

    def __iter__(self) -> Iterator[Claim]:
        for tablet, epoch in zip(self.ids.tolist(), self.epochs.tolist(), strict=True):
            yield Claim(tablet, epoch, OwnState.OWNED, None)
        yield from self.others


NO_CLAIMS: Final = Claims(np.zeros(0, np.int64), np.zeros(0, np.int64))


def _plain(claim: Claim) -> bool:
    return claim.state is OwnState.OWNED and claim.moved_to is None and claim.migration is None


def read_partitions(roots: Sequence[Name], row: tuple[Any, ...], before: Partitions | None) -> Partitions:
    """From the answer's only row. Where a digest is the known one, that part was not sent."""
    names_digest, numbers_digest, places, names, packed = row
    if before is not None and names_digest == before.names_digest:
        named = before.named
        if numbers_digest == before.numbers_digest:
            return before
    else:
        named = PartitionNames.of(roots, places or (), names or ())
    if before is not None and numbers_digest == before.numbers_digest:
        numbers = before.numbers
    else:
        numbers = _unpacked(packed, len(FIGURES))
    if numbers.shape[1] != len(named):
        raise ValueError(f"{len(named)} partitions have names, and {numbers.shape[1]} have numbers")
    return Partitions(named, numbers, names_digest, numbers_digest)


def read_claims(rows: Sequence[tuple[Any, ...]], before: Claims | None) -> Claims:
    """From the answer: one row with the packed numbers, one for each of the others, or one with only the digest."""
    digest = rows[0][0]
    if before is not None and digest == before.digest:
        return before
    numbers = _unpacked(next(row[-1] for row in rows if row[-1] is not None), 2)
    others = tuple(
        Claim(tablet, epoch, _STATES[state], moved_to, migration)
        for _, tablet, epoch, state, moved_to, migration, packed in rows
        if packed is None
    )
    return Claims(numbers[0], numbers[1], others, digest)


def _unpacked(packed: str, width: int) -> Ints:
    """Numbers of eight bytes each, sent row by row, as columns."""
    numbers = np.frombuffer(a2b_base64(packed), ">i8").reshape(-1, width)
    return np.ascontiguousarray(numbers.T, dtype=np.int64)
