"""The partition hash of one text, made fast: `policies.hashing.hash_bytes` without its calls and unneeded steps.

`lookup` calls it for every key that is one text column. Equal to `policies.hashing.partition_hash` in the bits it
makes; the tests compare the two. A line of the mixing costs about 0.2 µs in Python and there are seventeen for every
twelve bytes, so a text not seen before takes some microseconds, however this is written.
"""

from struct import Struct

from balancer.policies.hashing import COMBINE, seeded_state

_STATES = tuple(seeded_state(length) for length in range(256))
_UNPACK = tuple(Struct(f"<{3 * blocks}I").unpack for blocks in range(1, len(_STATES) // 12 + 2))
_ADDED = COMBINE & 0xFFFFFFFF

LONGEST = len(_STATES) - 1
"""In bytes; longer ones are left to `policies.hashing`."""


def low_bits(data: bytes) -> int:
    """The low 16 bits of the partition hash of a key that is this text, in UTF-8 and no longer than `LONGEST`."""
    length = len(data)
    a, b, c = _STATES[length]
    blocks = length // 12
    words: tuple[int, ...] = _UNPACK[blocks](data.ljust(12 * blocks + 12, b"\0"))
    # Sums are cut to 32 bits only before a rotation looks at their high bits.
    for at in range(0, 3 * blocks, 3):
        c = (c + words[at + 2]) & 0xFFFFFFFF
        b += words[at + 1]
        a = (a + words[at] - c ^ (c << 4 | c >> 28)) & 0xFFFFFFFF
        c += b
        b = (b - a ^ (a << 6 | a >> 26)) & 0xFFFFFFFF
        a += c
        c = (c - b ^ (b << 8 | b >> 24)) & 0xFFFFFFFF
        b += a
        a = (a - c ^ (c << 16 | c >> 16)) & 0xFFFFFFFF
        c += b
        b = (b - a ^ (a << 19 | a >> 13)) & 0xFFFFFFFF
        a += c
        c = (c - b ^ (b << 4 | b >> 28)) & 0xFFFFFFFF
        b += a
    b = (b + words[-2]) & 0xFFFFFFFF
    # The length is in the lowest byte of the last word: the tail's last bytes are above it.
    c = ((c + (words[-1] << 8) ^ b) - (b << 14 | b >> 18)) & 0xFFFFFFFF
    a = ((a + words[-3] ^ c) - (c << 11 | c >> 21)) & 0xFFFFFFFF
    b = ((b ^ a) - (a << 25 | a >> 7)) & 0xFFFFFFFF
    c = ((c ^ b) - (b << 16 | b >> 16)) & 0xFFFFFFFF
    a = ((a ^ c) - (c << 4 | c >> 28)) & 0xFFFFFFFF
    b = (b ^ a) - (a << 14 | a >> 18)
    return ((c ^ b) - (b >> 8) + _ADDED) & 0xFFFF
