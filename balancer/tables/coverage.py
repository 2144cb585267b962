"""Whether what was found on all nodes covers a table's key space exactly once. Pure; a refusal names partitions.

Adoption and creation ask it before the directory does, because only here are the partitions' names known.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from balancer.errors import Refused
from balancer.nodes.bounds import KeyColumn, KeyRange, Part, show_part
from balancer.nodes.names import Name
from balancer.policies.hash_leaves import POSITIONS, Leaf
from balancer.policies.keys import HIGHEST, LOWEST


@dataclass(frozen=True, slots=True)
class FoundTablet:
    """A part of the key space on a node, with one partition per root."""

    node: str
    part: Part
    partitions: tuple[Name, ...]

    def __str__(self) -> str:
        return f"{self.partitions[0]} on node {self.node}"


def in_key_order(tablets: Sequence[FoundTablet]) -> list[FoundTablet]:
    """Ranges by their lower bound, leaves by their position."""
    return sorted(tablets, key=lambda tablet: _interval(tablet.part)[0])


def check_coverage(table: str, columns: Sequence[KeyColumn], tablets: Sequence[FoundTablet]) -> None:
    """Raises `Refused` for the first gap or overlap in key order."""
    if not tablets:
        raise Refused(f"table {table} has no partitions on any node: make them with `balancer table create`")
    ordered = in_key_order(tablets)
    hashed = isinstance(ordered[0].part, Leaf)
    at: bytes | int = 0 if hashed else LOWEST
    before: FoundTablet | None = None
    for tablet in ordered:
        start, end = _interval(tablet.part)
        if before is not None and start < at:  # type: ignore[operator]  # both are positions, or both are keys
            raise Refused(f"table {table}: {before} and {tablet} overlap; every key needs exactly one owner")
        if start != at:
            raise Refused(f"table {table} leaves a gap {_gap(before, tablet)}; {_remedy(columns, at, start)}")
        at, before = end, tablet
    last: bytes | int = POSITIONS if hashed else HIGHEST
    if at != last:
        raise Refused(f"table {table} leaves a gap {_gap(before, None)}; {_remedy(columns, at, last)}")


def overlap(first: Part, second: Part) -> bool:
    """Whether two parts of one key space have a key in common."""
    (start, end), (other_start, other_end) = _interval(first), _interval(second)
    return start < other_end and other_start < end  # type: ignore[operator]  # both are positions, or both are keys


def _interval(part: Part) -> tuple[bytes | int, bytes | int]:
    if isinstance(part, Leaf):
        return part.start(), part.start() + part.width()
    return part.lower, part.upper


def _gap(before: FoundTablet | None, after: FoundTablet | None) -> str:
    if before is not None and after is not None:
        return f"between {before} and {after}"
    return f"before {after}" if after is not None else f"after {before}"


def _remedy(columns: Sequence[KeyColumn], start: bytes | int, end: bytes | int) -> str:
    if isinstance(start, bytes) and isinstance(end, bytes):
        return f"make a partition {show_part(columns, KeyRange(start, end))} on one of the nodes"
    return "every remainder of the modulus needs a partition on one of the nodes"
