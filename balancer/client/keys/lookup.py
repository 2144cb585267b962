"""Finds a key's tablet half a million times a second: per table, what a snapshot says, prepared for one question.

A `TableMap` belongs to one version of one table. The next version takes over every page that a commit has left alone,
so following a directory of a million tablets costs what the commits cost. `locate` of a map is a function chosen by
the table's layout and key; a hash table of reasonable size answers from an array indexed by the hash's low bits, which
fills as keys are asked for. Repeated keys are answered from a dictionary. Maps may be used from several threads: two
that fill the same entry write the same value.

The partition hash of one integer, made fast: what does not depend on the key is computed once, on import.

`lookup` uses it for every key of the usual kind (one integer column). Equal to
`policies.keyspace.hashing.partition_hash` in the bits it makes; the tests compare the two.

The partition hash of one text, made fast: `policies.keyspace.hashing.hash_bytes` without its calls and unneeded steps.

`lookup` calls it for every key that is one text column. Equal to `policies.keyspace.hashing.partition_hash` in the bits
it makes; the tests compare the two. A line of the mixing costs about 0.2 µs in Python and there are seventeen for every
twelve bytes, so a text not seen before takes some microseconds, however this is written."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from struct import Struct
from typing import TypeVar

from balancer.directory.locate import POSITION_BITS, AnyKey, Location, RowId, key_position
from balancer.directory.model import Table
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.pages import Page
from balancer.errors import UserError
from balancer.policies.keyspace.hash_leaves import reverse_bits
from balancer.policies.keyspace.hashing import COMBINE, key_hasher, seeded_state
from balancer.policies.keyspace.keys import KeyMismatch, KeyType, encode_value, integer_limits

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
        hashed, longest = low_bits, LONGEST

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


_STATES = tuple(seeded_state(length) for length in range(256))
_UNPACK = tuple(Struct(f"<{3 * blocks}I").unpack for blocks in range(1, len(_STATES) // 12 + 2))
_TEXT_ADDED = COMBINE & 0xFFFFFFFF

LONGEST = len(_STATES) - 1
"""In bytes; longer ones are left to `policies.keyspace.hashing`."""


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
    return ((c ^ b) - (b >> 8) + _TEXT_ADDED) & 0xFFFF
