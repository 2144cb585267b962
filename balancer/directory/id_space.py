"""Ids of rows: how the number of a block becomes ids, and how an export carries over what has been handed out.

Clients take whole blocks by number (`Directory.take_block`), with the reader's credential. That only counts up: a
client cannot make the directory hand out a block twice. A table's ids start from a counter in the map, which only the
writer changes: ids that an earlier version handed out, or those of an imported directory.
"""

from collections.abc import Mapping
from typing import Final

from balancer.directory.model import Counter
from balancer.directory.snapshot import Snapshot

BLOCK: Final = 1 << 16
"""Ids of one block. There are 2 ** 31 blocks of a table, as many as ZooKeeper counts versions: 2 ** 47 ids."""
MOST_BLOCKS: Final = (1 << 31) - 1


def counter_of(snapshot: Snapshot, table: int) -> Counter:
    """Where the ids of a table start."""
    name = f"ids {table}"
    return snapshot.counters.get(name) or Counter(name)


def carried_over(snapshot: Snapshot, taken: Mapping[int, int]) -> list[Counter]:
    """The counters with which another directory continues after the blocks that were taken from this one."""
    return [
        Counter(start.name, start.next + blocks * BLOCK)
        for table, blocks in sorted(taken.items())
        if blocks and table in snapshot.tables
        for start in [counter_of(snapshot, table)]
    ]
