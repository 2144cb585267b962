"""The tablets of a hash table: leaves of a binary trie over the bits of PostgreSQL's partition hash.

Leaf `(modulus, remainder)`, modulus a power of two, owns the keys whose hash is congruent to the remainder. Read the
hash's bits from the lowest up and write them as a fraction: then every leaf is an interval of one 64-bit *position*
space, siblings are neighbours, and coverage, search and order are the same questions as for range tablets.
"""

from collections.abc import Iterable
from typing import NamedTuple

POSITIONS = 1 << 64
_LOWEST_64 = POSITIONS - 1
_REVERSED_BYTES = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
MAX_MODULUS = 1 << 30  # PostgreSQL's moduli are int4


class Leaf(NamedTuple):
    """A vbucket: `hash % modulus == remainder`."""

    modulus: int
    remainder: int

    def children(self) -> tuple["Leaf", "Leaf"]:
        """What a split makes of it, in position order."""
        return Leaf(self.modulus * 2, self.remainder), Leaf(self.modulus * 2, self.remainder + self.modulus)

    def sibling(self) -> "Leaf | None":
        """The leaf it may be merged with; the root has none."""
        half = self.modulus // 2
        return Leaf(self.modulus, self.remainder ^ half) if half else None

    def parent(self) -> "Leaf | None":
        """What a merge with its sibling makes of it."""
        half = self.modulus // 2
        return Leaf(half, self.remainder % half) if half else None

    def start(self) -> int:
        """The first position of its interval."""
        return reverse_bits(self.remainder)

    def width(self) -> int:
        """How many positions it owns."""
        return POSITIONS // self.modulus


def check_leaf(modulus: int, remainder: int) -> Leaf:
    """A leaf, or a ValueError that says what is wrong."""
    if modulus < 1 or modulus > MAX_MODULUS or modulus & (modulus - 1):
        raise ValueError(f"modulus {modulus} is not a power of two between 1 and {MAX_MODULUS}")
    if not 0 <= remainder < modulus:
        raise ValueError(f"remainder {remainder} is not between 0 and {modulus - 1}")
    return Leaf(modulus, remainder)


def descendants(leaf: Leaf, count: int) -> tuple[Leaf, ...]:
    """The leaves that share this one's interval evenly, in the order of their positions."""
    leaves: tuple[Leaf, ...] = (leaf,)
    while len(leaves) < count:
        leaves = tuple(child for parent in leaves for child in parent.children())
    return leaves


def position(hashed: int) -> int:
    """Where a key with this 64-bit hash lies among the leaves."""
    return reverse_bits(hashed)


def reverse_bits(number: int) -> int:
    """The lowest 64 bits of a number in reverse order."""
    return int.from_bytes((number & _LOWEST_64).to_bytes(8, "little").translate(_REVERSED_BYTES), "big")


def uncovered(leaves: Iterable[Leaf]) -> str | None:
    """What is wrong with these leaves as the tablets of a table, or None if they cover every hash exactly once."""
    at = 0
    for leaf in sorted(leaves, key=Leaf.start):
        if leaf.start() != at:
            word = "overlap" if leaf.start() < at else "leave a gap"
            return f"the leaves {word} before {tuple(leaf)}"
        at += leaf.width()
    return None if at == POSITIONS else "the leaves leave a gap at the end"
