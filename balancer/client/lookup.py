"""Finds a key's tablet half a million times a second: per table, what a snapshot says, prepared for one question.

A `TableMap` belongs to one version of one table. The next version takes over every page that a commit has left alone,
so following a directory of a million tablets costs what the commits cost. `locate` of a map is a function chosen by
the table's layout and key; a hash table of reasonable size answers from an array indexed by the hash's low bits, which
fills as keys are asked for. Repeated keys are answered from a dictionary. Maps may be used from several threads: two
that fill the same entry write the same value.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from struct import Struct

from balancer.client import texthash
from balancer.client.inthash import LOW_BITS, low_hash, slot_finder
from balancer.client.locate import POSITION_BITS, AnyKey, Location, RowId, key_position
from balancer.directory.model import Table
from balancer.directory.pages import Page
from balancer.directory.snapshot import Snapshot
from balancer.errors import UserError
from balancer.policies.hash_leaves import reverse_bits
from balancer.policies.hashing import key_hasher
from balancer.policies.keys import KeyMismatch, KeyType, encode_value, integer_limits

Locator = Callable[[AnyKey], Location]

MOST_SLOTS = 1 << LOW_BITS
MOST_REMEMBERED = 1 << 16
"""Keys per table whose answers are kept: some megabytes, and most keys in use are used again."""
_SLOTS_PER_TABLET = 4  # leaves differ in depth: some room above the average
_FAST_INTEGERS = (KeyType.INTEGER, KeyType.BIGINT)
_PREFIX = encode_value(KeyType.BIGINT, 0)[:1]
_SIGN = 1 << 63
_pack = Struct(">Q").pack


class PageMap:
    """A page and the locations made of its rows so far."""

    __slots__ = ("_locations", "page")

    def __init__(self, page: Page) -> None:
        self.page = page
        self._locations: list[Location | None] = [None] * len(page)

    def at(self, row: int) -> Location:
        return self._locations[row] or self._made(row)

    def _made(self, row: int) -> Location:
        page = self.page
        made = self._locations[row] = Location(page.names[page.node[row]], page.ids[row], page.epochs[row])
        return made


class LookupMemory(dict[AnyKey, Location]):
    """Answers given so far; a missing key is located. Equal keys have equal places, whatever their types."""

    def __init__(self, locate: Locator) -> None:
        super().__init__()
        self._locate = locate

    def __missing__(self, key: AnyKey) -> Location:
        found = self._locate(key)
        if len(self) >= MOST_REMEMBERED:
            self.clear()
        self[key] = found
        return found


class TableMap:
    """One table at one version."""

    def __init__(self, snapshot: Snapshot, table: Table, former: "TableMap | None" = None) -> None:
        self.table = table
        self.index = snapshot.index[table.id]
        known = dict(zip(former.index.numbers, former.pages, strict=True)) if former else {}
        self.pages: list[PageMap] = [_kept(known.get(number), snapshot.pages[number]) for number in self.index.numbers]
        self._slots = _slots_for(self.pages)
        self.locate: Locator = self._chosen()
        self.memory = LookupMemory(self.locate)

    def describes(self, snapshot: Snapshot) -> bool:
        """Whether the table is the same in this snapshot: a commit elsewhere leaves its pages alone.

        A change of owner leaves the index as it is, because no page starts elsewhere: so the pages are compared too.
        """
        table = self.table.id
        if snapshot.index.get(table) is not self.index or snapshot.tables.get(table) is not self.table:
            return False
        pages = zip(self.index.numbers, self.pages, strict=True)
        return all(snapshot.pages[number] is mine.page for number, mine in pages)

    def at(self, position: int | bytes) -> Location:
        """The owner of a position."""
        page = self.pages[bisect_right(self.index.starts, position) - 1]
        return page.at(page.page.row_at(position))

    def _chosen(self) -> Locator:
        types = self.table.key_types
        quick = len(types) == 1 and types[0] in _FAST_INTEGERS
        if self.table.whole:
            return self._by_position
        if self.table.hashed:
            if types == (KeyType.TEXT,):
                return self._by_text_hash(self._by_hash())
            return self._by_integer_hash(types[0]) if quick else self._by_hash()
        return self._by_integer(types[0]) if quick else self._by_position

    def _by_position(self, key: AnyKey) -> Location:
        if isinstance(key, RowId):
            return self._by_id(key)
        return self.at(key_position(self.table, key))

    def _by_id(self, key: RowId) -> Location:
        position = key_position(self.table, key)
        page = self.pages[bisect_right(self.index.starts, position) - 1].page
        if page.bits[page.row_at(position)] > POSITION_BITS:
            raise UserError(f"table {self.table.name} has finer vbuckets than its ids can distinguish; give the key")
        return self.at(position)

    def _by_integer(self, kind: KeyType) -> Locator:
        lowest, highest = integer_limits(kind)
        at, general = self.at, self._by_position

        def locate(key: AnyKey) -> Location:
            if type(key) is int and lowest <= key <= highest:
                return at(_PREFIX + _pack(key + _SIGN))
            return general(key)

        return locate

    def _by_hash(self) -> Locator:
        slots, fill = self._slots, self._fill
        mask = len(slots) - 1
        hashed, general = key_hasher(self.table.key_types), self._by_position

        def locate(key: AnyKey) -> Location:
            try:
                low = hashed(key if isinstance(key, tuple) else (key,))
            except KeyMismatch:
                return general(key)  # a list, a row's id, or a key that is refused with a better sentence
            return slots[low & mask] or fill(low)

        return locate

    def _by_text_hash(self, general: Locator) -> Locator:
        slots = self._slots
        mask = len(slots) - 1
        hashed, longest = texthash.low_bits, texthash.LONGEST

        def locate(key: AnyKey) -> Location:
            if type(key) is str and len(key) <= longest and key.isascii() and "\0" not in key:
                return slots[hashed(key.encode()) & mask] or general(key)
            return general(key)

        return locate

    def _by_integer_hash(self, kind: KeyType) -> Locator:
        lowest, highest = integer_limits(kind)
        find, general = slot_finder(self._slots, lambda key: self._fill(low_hash(key))), self._by_position

        def locate(key: AnyKey) -> Location:
            return find(key) if type(key) is int and lowest <= key <= highest else general(key)

        return locate

    def _fill(self, low: int) -> Location:
        """The answer, kept in its slot if it is the same for all positions that share the slot."""
        position = reverse_bits(low)
        page = self.pages[bisect_right(self.index.starts, position) - 1]
        row = page.page.row_at(position)
        found = page.at(row)
        size = len(self._slots)
        if 1 << page.page.bits[row] <= size:
            self._slots[low & (size - 1)] = found
        return found


def _slots_for(pages: Sequence[PageMap]) -> list[Location | None]:
    count = sum(len(page.page) for page in pages) * _SLOTS_PER_TABLET
    return [None] * min(MOST_SLOTS, 1 << (count - 1).bit_length())


def _kept(former: PageMap | None, page: Page) -> PageMap:
    return former if former is not None and former.page is page else PageMap(page)


class Maps:
    """The tables of one snapshot, each made when first asked for; the next snapshot's reuse what they can."""

    def __init__(self, snapshot: Snapshot, former: "Maps | None" = None) -> None:
        self.snapshot = snapshot
        self._former: dict[str, TableMap] = dict(former.tables) if former else {}
        self.tables: dict[str, TableMap] = {
            name: known for name, known in self._former.items() if known.describes(snapshot)
        }
        self.memories = Memories(self)

    def table(self, name: str) -> TableMap:
        """The map of a table; `UserError` if there is none of that name."""
        return self.tables.get(name) or self._made(name)

    def _made(self, name: str) -> TableMap:
        record = self.snapshot.table(name)
        former = self._former.get(name)
        same = former is not None and former.table.id == record.id
        made = self.tables[name] = TableMap(self.snapshot, record, former if same else None)
        return made


class Memories(dict[str, LookupMemory]):
    """The memories of the tables by name: `memories[table][key]` is all there is to a lookup."""

    def __init__(self, maps: Maps) -> None:
        super().__init__()
        self._maps = maps

    def __missing__(self, name: str) -> LookupMemory:
        found = self[name] = self._maps.table(name).memory
        return found
