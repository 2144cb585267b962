"""Which page a tablet is in, by its id: four bytes for each id, copied by the block when something changes.

Ids come from a counter, so blocks of consecutive ids are dense; a dictionary would cost more than the tablets do.
Used by `snapshot` and `delta` only.
"""

from array import array
from collections.abc import Iterable, Mapping

_BITS = 10
_MASK = (1 << _BITS) - 1
_ABSENT = 0  # pages are numbered from 1
_SPARSE = 8  # ids per tablet, above which a flat array would waste too much
_EMPTY_BLOCK = array("I", bytes(4 << _BITS))


class IdIndex:
    """An immutable mapping of tablet id to page number."""

    __slots__ = ("_blocks",)

    BLOCK_BYTES = 4 << _BITS

    def __init__(self, blocks: "Mapping[int, array[int]] | None" = None) -> None:
        self._blocks: Mapping[int, array[int]] = blocks or {}

    def get(self, tablet_id: int) -> int | None:
        block = self._blocks.get(tablet_id >> _BITS)
        return (block[tablet_id & _MASK] or None) if block else None

    def blocks(self) -> "Mapping[int, array[int]]":
        """What it is made of, to be stored: the constructor takes it back."""
        return self._blocks

    @classmethod
    def of(cls, pages: "Mapping[int, array[int]]") -> "IdIndex":
        """The index of whole pages: number → ids. Ids are dense as a rule; then one flat array is filled and cut."""
        highest = max((max(ids) for ids in pages.values() if ids), default=0)
        if highest > _SPARSE * (sum(map(len, pages.values())) + (1 << _BITS)):
            return cls().changed((tablet_id, number) for number, ids in pages.items() for tablet_id in ids)
        flat = array("I", bytes(4 * ((highest | _MASK) + 1)))
        for number, ids in pages.items():
            for tablet_id in ids:
                flat[tablet_id] = number
        cuts = ((high, flat[high << _BITS : (high + 1) << _BITS]) for high in range(len(flat) >> _BITS))
        return cls({high: block for high, block in cuts if block != _EMPTY_BLOCK})

    def changed(self, updates: Iterable[tuple[int, int | None]]) -> "IdIndex":
        """An index with these ids moved, or removed; later updates win. Most commits leave every tablet in its page,
        and then it is the same object."""
        moved = [(tablet_id, number) for tablet_id, number in dict(updates).items() if self.get(tablet_id) != number]
        if not moved:
            return self
        blocks = dict(self._blocks)
        own: dict[int, array[int]] = {}
        for tablet_id, number in moved:
            high = tablet_id >> _BITS
            block = own.get(high)
            if block is None:
                block = own[high] = blocks[high] = array("I", blocks.get(high, _EMPTY_BLOCK))
            block[tablet_id & _MASK] = number or _ABSENT
        for high, block in own.items():
            if not any(block):
                del blocks[high]
        return IdIndex(blocks)
