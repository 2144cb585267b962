"""Fences raised and sealed in one call each: migrations send their parts with other statements."""

from collections.abc import Sequence

from balancer.naming import Name
from balancer.nodes.session.connection import Cursor, last_rows, run_together
from balancer.nodes.tablets.fence import (
    Fence,
    announced,
    check_standing,
    deadline_statement,
    raise_statements,
    seal_statements,
    sealed_by,
)


def raise_fence(cursor: Cursor, partitions: Sequence[Name], fence: Fence, seconds: float, lock_timeout: float) -> Fence:
    """Fences these partitions for this many seconds; returns the fence with its deadline. `fence.until` is ignored."""
    run_together(cursor, [deadline_statement(seconds)])
    standing = announced(last_rows(cursor)[0], fence)
    locks, triggers = raise_statements(partitions, standing, lock_timeout)
    run_together(cursor, [*locks, *triggers])
    return standing


def seal_fence(cursor: Cursor, partitions: Sequence[Name], fence: Fence, lock_timeout: float) -> Fence:
    """Makes a fence permanent, if it is this very one and still stands. Raises `Refused` if not."""
    transaction = check_standing(cursor, partitions, fence, lock_timeout)
    run_together(cursor, seal_statements(partitions, fence))
    return sealed_by(fence, transaction)
