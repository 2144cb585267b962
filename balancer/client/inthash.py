"""The partition hash of one integer, made fast: what does not depend on the key is computed once, on import.

`lookup` uses it for every key of the usual kind (one integer column). Equal to `policies.hashing.partition_hash` in
the bits it makes; the tests compare the two.
"""

from collections.abc import Callable
from typing import TypeVar

from balancer.policies.hashing import COMBINE, seeded_state

_M32 = 0xFFFFFFFF
_A, _B, _C = seeded_state(4)
# The first step of the final mixing sees neither the key nor anything derived from it.
_C = ((_C ^ _B) - (_B << 14 | _B >> 18)) & _M32
_TURNED = (_C << 11 | _C >> 21) & _M32
_ADDED = COMBINE & _M32

LOW_BITS = 16

Found = TypeVar("Found")


def slot_finder(slots: list[Found | None], fill: Callable[[int], Found]) -> Callable[[int], Found]:
    """What a key finds in the slot that the low bits of its hash name; if that is empty, `fill(key)`.

    There are 2 ** `LOW_BITS` slots at most, and the caller has checked the key's width. One function for the hash and
    the lookup, with its constants at hand: calls and names cost more here than arithmetic.
    """
    start, second, third, turned, added, mask = _A, _B, _C, _TURNED, _ADDED, len(slots) - 1

    def find(key: int) -> Found:
        value = key
        if not -0x80000000 <= value <= 0x7FFFFFFF:
            value ^= value >> 32 if value >= 0 else ~(value >> 32)
        a = (((value + start) & 0xFFFFFFFF ^ third) - turned) & 0xFFFFFFFF
        b = ((second ^ a) - (a << 25 | a >> 7)) & 0xFFFFFFFF
        c = ((third ^ b) - (b << 16 | b >> 16)) & 0xFFFFFFFF
        a = ((a ^ c) - (c << 4 | c >> 28)) & 0xFFFFFFFF
        # From here on only what can reach the low bits: b rotated by 24 leaves its bits from the 8th on there.
        b = (b ^ a) - (a << 14 | a >> 18)
        return slots[(c ^ b) - (b >> 8) + added & mask] or fill(key)

    return find


def low_hash(value: int) -> int:
    """The low 32 bits of a key's hash, more than any modulus has."""
    if not -0x80000000 <= value <= 0x7FFFFFFF:
        value ^= value >> 32 if value >= 0 else ~(value >> 32)
    a = (((value + _A) & _M32 ^ _C) - _TURNED) & _M32
    b = ((_B ^ a) - (a << 25 | a >> 7)) & _M32
    c = ((_C ^ b) - (b << 16 | b >> 16)) & _M32
    a = ((a ^ c) - (c << 4 | c >> 28)) & _M32
    b = ((b ^ a) - (a << 14 | a >> 18)) & _M32
    return ((c ^ b) - (b << 24 | b >> 8) + _ADDED) & _M32
