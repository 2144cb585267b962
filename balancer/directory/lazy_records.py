"""Records of one kind, some of which are decoded when somebody looks at them. `cold_codec` makes them."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any


class LazyRecords(MutableMapping[Any, Any]):
    """Records of one kind by key, some of them still as stored. Two threads that decode one get the same."""

    def __init__(self, read: Callable[[str, bytes], Any], held: dict[Any, Any]) -> None:
        self._read = read
        self._held = held

    def __getitem__(self, key: Any) -> Any:
        found = self._held[key]
        if isinstance(found, bytes):
            found = self._held[key] = self._read(key, found)
        return found

    def __setitem__(self, key: Any, record: Any) -> None:
        self._held[key] = record

    def __delitem__(self, key: Any) -> None:
        del self._held[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def copy(self) -> "LazyRecords":
        """A second mapping of the same records; what is not decoded stays so."""
        return LazyRecords(self._read, dict(self._held))


def copied(records: Mapping[Any, Any]) -> MutableMapping[Any, Any]:
    """A mapping of the same records that may be changed."""
    return records.copy() if isinstance(records, LazyRecords) else dict(records)
