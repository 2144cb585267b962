"""A page that is decoded when somebody first looks into it.

Of a million tablets a process uses only those of its keys; decoding all of them would be most of the time it takes to
load. The reader checked the bytes as a whole, see `snapshot_codec`. The number of tablets is known without decoding.
"""

from dataclasses import fields
from typing import Any

from balancer.directory.page_codec import pack_page, unpack_page
from balancer.directory.pages import Page
from balancer.errors import Damaged

_FIELDS = tuple(field.name for field in fields(Page))


class StoredPage(Page):
    """Once decoded it is like any other page; two threads that decode it at once get the same result."""

    __slots__ = ("_data", "_rows")

    def __init__(self, data: memoryview, rows: int) -> None:
        object.__setattr__(self, "_data", data)
        object.__setattr__(self, "_rows", rows)

    def __len__(self) -> int:
        return int(self._rows)

    def __getattr__(self, name: str) -> Any:
        """Called only for fields that are not there yet."""
        if name not in _FIELDS:
            raise AttributeError(name)
        page = unpack_page(bytes(self._data))
        if len(page) != self._rows:
            raise Damaged("the directory contains damaged data: a page has another number of tablets than was said")
        for field in _FIELDS:
            object.__setattr__(self, field, getattr(page, field))
        return getattr(self, name)

    def stored(self) -> bytes:
        """As it was stored."""
        return bytes(self._data)


def stored_bytes(page: Page) -> bytes:
    """A page as stored bytes, without decoding one that has not been decoded."""
    return page.stored() if isinstance(page, StoredPage) else pack_page(page)
