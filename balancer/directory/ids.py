"""Which page a tablet is in, by its id: four bytes for each id, copied by the block when something changes.

Ids come from a counter, so blocks of consecutive ids are dense; a dictionary would cost more than the tablets do.
Used by `snapshot` and `delta` only.
"""

from array import array
from collections.abc import Iterable, Mapping

_BITS = 10
_MASK = (1 << _BITS) - 1
_ABSENT = 0  # pages are numbered from 1
_EMPTY_BLOCK = array("I", bytes(4 << _BITS))


class IdIndex:
    """An immutable mapping of tablet id to page number."""

    __slots__ = ("_blocks",)

    def __init__(self, blocks: "Mapping[int, array[int]] | None" = None) -> None:
        self._blocks: Mapping[int, array[int]] = blocks or {}

    def get(self, tablet_id: int) -> int | None:
        block = self._blocks.get(tablet_id >> _BITS)
        return (block[tablet_id & _MASK] or None) if block else None

    def changed(self, updates: Iterable[tuple[int, int | None]]) -> "IdIndex":
        """A new index with these ids put elsewhere, or away; later updates win."""
        blocks = dict(self._blocks)
        own: dict[int, array[int]] = {}
        for tablet_id, number in updates:
            high = tablet_id >> _BITS
            block = own.get(high)
            if block is None:
                block = own[high] = blocks[high] = array("I", blocks.get(high, _EMPTY_BLOCK))
            block[tablet_id & _MASK] = number or _ABSENT
        for high, block in own.items():
            if not any(block):
                del blocks[high]
        return IdIndex(blocks)
