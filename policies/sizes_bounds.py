"""The size range for a table's tablets: the table's settings, then the bundle's, then the defaults, as in YT.

`sizes` asks for the bounds before it looks at tablets; the command line shows them with their source.
"""

from dataclasses import dataclass

from balancer.policies.options import BalancerOptions, InMemoryMode, TableOptions

MAX_TABLETS = 10000
"""Per table: neither the user's settings nor the table's growth leads beyond it."""

_FACTOR = (19, 10)  # 1.9: two tablets that are merged at min, or one that is split at max, end up well inside


@dataclass(frozen=True, slots=True)
class SizeBounds:
    """Bytes; a tablet is left alone while `min <= size <= max`."""

    min: int
    desired: int
    max: int
    source: str
    """Which options they come from, for people."""
    min_count: int = 0
    """The table is not merged down below this."""

    def good(self, size: int) -> bool:
        """Whether a range of this size yields tablets inside the bounds."""
        return self.min <= size // self.count(size) <= self.max

    def count(self, size: int) -> int:
        """Into how many tablets a range of this size is cut."""
        return max(1, min(round_half_up(size, self.desired), MAX_TABLETS))


def size_bounds(options: BalancerOptions, table_options: TableOptions, table_bytes: int, node_count: int) -> SizeBounds:
    """The bounds of one table of this size on this many nodes."""
    count = table_options.desired_tablet_count
    low, desired, high, source = _wished(options, table_options, table_bytes)
    if count is None:
        cap = max(1, min(int(node_count * options.tablet_to_cell_ratio), MAX_TABLETS))
        limit = ceil_div(table_bytes, cap)
        if desired < limit:
            desired, high = limit, _above(limit)
            low = _below(limit) if cap == MAX_TABLETS else low
            source += f", raised because the table may have {cap} tablets"
    minimum = table_options.min_tablet_count
    if minimum is not None and desired > table_bytes // minimum:
        desired = max(2, table_bytes // minimum)
        low = min(low, desired - 1)
        source += f", lowered because min_tablet_count is {minimum}"
    floor = options.min_desired_tablet_size
    if desired < floor:
        low, desired, high = min(floor // 2, low), floor, max(2 * floor, high)
        source += ", raised to min_desired_tablet_size"
    return SizeBounds(low, max(1, desired), high, source, minimum or 0)


def round_half_up(size: int, desired: int) -> int:
    """The quotient, and one more if the remainder is at least half of the divisor."""
    whole, rest = divmod(size, desired)
    return whole + (rest >= (desired + 1) // 2)


def ceil_div(size: int, count: int) -> int:
    """The quotient rounded up."""
    return -(-size // count)


def _wished(options: BalancerOptions, table: TableOptions, table_bytes: int) -> tuple[int, int, int, str]:
    """Min, desired and max before caps and floors."""
    if table.desired_tablet_count is not None:
        count = max(1, min(table.desired_tablet_count, MAX_TABLETS))
        desired = ceil_div(table_bytes, count)
        return _below(desired), desired, _above(desired), f"desired_tablet_count = {table.desired_tablet_count}"
    own = _own_sizes(table)
    if own is not None:
        return *own, "the table's sizes"
    if table.in_memory_mode is not InMemoryMode.NONE:
        sizes = (options.min_in_memory_tablet_size, options.desired_in_memory_tablet_size)
        return *sizes, options.max_in_memory_tablet_size, "the bundle's in-memory sizes"
    return options.min_tablet_size, options.desired_tablet_size, options.max_tablet_size, "the bundle's sizes"


def _own_sizes(table: TableOptions) -> tuple[int, int, int] | None:
    """The table's three sizes, which count only when all are given and strictly increasing."""
    low, desired, high = table.min_tablet_size, table.desired_tablet_size, table.max_tablet_size
    if low is None or desired is None or high is None or not low < desired < high:
        return None
    return low, desired, high


def _above(desired: int) -> int:
    return desired * _FACTOR[0] // _FACTOR[1]


def _below(desired: int) -> int:
    return desired * _FACTOR[1] // _FACTOR[0]
