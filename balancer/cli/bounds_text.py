"""A tablet's part of its table's keys, as people write it: `hash % 16 = 3`, `[10, 20)`, `whole` or `everywhere`."""

from balancer.api.keytext import bound_values
from balancer.directory.model import Table, Tablet
from balancer.policies.hash_leaves import Leaf


def bounds_text(table: Table, tablet: Tablet) -> str:
    """In a few characters; the keys of several columns are in parentheses."""
    bounds = tablet.bounds
    if table.whole:
        return str(table.layout)
    if isinstance(bounds, Leaf):
        return f"hash % {bounds.modulus} = {bounds.remainder}"
    lower, upper = (_side(table, bound) for bound in (bounds.lower, bounds.upper))
    return f"{'(-infinity' if lower is None else f'[{lower}'}, {'infinity' if upper is None else upper})"


def _side(table: Table, bound: bytes) -> str | None:
    values = bound_values(table.key_types, bound)
    if values is None:
        return None
    return values[0] if len(values) == 1 and len(table.columns) == 1 else f"({', '.join(values)})"
