"""The pages of a snapshot by their numbers, in blocks that successive snapshots share.

Every commit would copy a plain dictionary, and just visiting two thousand pages to copy them takes longer than
everything else that a commit of one tablet computes. `snapshot` reads it, `delta` makes the next one.
"""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

_BITS = 6
_Page = TypeVar("_Page")


class PageMap(Mapping[int, _Page]):
    """An immutable mapping of page number to page."""

    __slots__ = ("_blocks",)

    def __init__(self, pages: Mapping[int, _Page] | None = None) -> None:
        self._blocks: dict[int, dict[int, _Page]] = {}
        for number, page in (pages or {}).items():
            self._blocks.setdefault(number >> _BITS, {})[number] = page

    def __getitem__(self, number: int) -> _Page:
        return self._blocks[number >> _BITS][number]

    def __iter__(self) -> Iterator[int]:
        return (number for block in self._blocks.values() for number in block)

    def __len__(self) -> int:
        return sum(map(len, self._blocks.values()))

    def changed(self, updates: Mapping[int, _Page | None]) -> "PageMap[_Page]":
        """A new mapping with these pages put in place, or removed (None); blocks without any of them are shared."""
        result: PageMap[_Page] = PageMap()
        blocks = result._blocks = dict(self._blocks)
        for high in {number >> _BITS for number in updates}:
            blocks[high] = dict(blocks.get(high, ()))
        for number, page in updates.items():
            if page is None:
                blocks[number >> _BITS].pop(number, None)
            else:
                blocks[number >> _BITS][number] = page
        return result


class Draft(Generic[_Page]):
    """The pages of the next snapshot while they are being made: changes over what is there."""

    def __init__(self, before: PageMap[_Page]) -> None:
        self._before = before
        self._changes: dict[int, _Page | None] = {}

    def get(self, number: int) -> _Page | None:
        """A page as it is by now; None if there is none."""
        return self._changes[number] if number in self._changes else self._before.get(number)

    def __getitem__(self, number: int) -> _Page:
        page = self.get(number)
        if page is None:
            raise KeyError(number)
        return page

    def __contains__(self, number: int) -> bool:
        return self.get(number) is not None

    def __setitem__(self, number: int, page: _Page) -> None:
        self._changes[number] = page

    def __delitem__(self, number: int) -> None:
        self._changes[number] = None

    def finished(self) -> PageMap[_Page]:
        """The mapping with all changes."""
        return self._before.changed(self._changes) if self._changes else self._before
