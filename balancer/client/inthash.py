"""The partition hash of one integer, made quick: what does not depend on the key is computed once, when imported.

`lookup` calls it for every key of the usual kind (one integer column). Only the low 32 bits are made, because no
modulus is larger than 2 ** 30. Equal to `policies.hashing.partition_hash` in those bits; the tests compare the two.
"""

from policies.hashing import COMBINE, seeded_state

_M32 = 0xFFFFFFFF
_A, _B, _C = seeded_state(4)
# The first step of the final mixing sees neither the key nor anything made of it.
_C = ((_C ^ _B) - (_B << 14 | _B >> 18)) & _M32
_TURNED = (_C << 11 | _C >> 21) & _M32
_ADDED = COMBINE & _M32


def low_hash(value: int) -> int:
    """The low 32 bits of the partition hash of a key that is this integer; the caller has checked its width."""
    if not -0x80000000 <= value <= 0x7FFFFFFF:
        value ^= value >> 32 if value >= 0 else ~(value >> 32)
    a = (((value + _A) & _M32 ^ _C) - _TURNED) & _M32
    b = ((_B ^ a) - (a << 25 | a >> 7)) & _M32
    c = ((_C ^ b) - (b << 16 | b >> 16)) & _M32
    a = ((a ^ c) - (c << 4 | c >> 28)) & _M32
    b = ((b ^ a) - (a << 14 | a >> 18)) & _M32
    return ((c ^ b) - (b << 24 | b >> 8) + _ADDED) & _M32
