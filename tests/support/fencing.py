"""Fences raised and sealed in one call each: migrations send their parts with other statements."""

from collections.abc import Sequence

from balancer.nodes.connection import Cursor, last_rows, run_together
from balancer.nodes.fence import (
    Fence,
    check_standing,
    lock_statements,
    locked_fence,
    seal_statements,
    sealed_by,
    trigger_statements,
)
from balancer.nodes.names import Name


def raise_fence(cursor: Cursor, partitions: Sequence[Name], fence: Fence, seconds: float, lock_timeout: float) -> Fence:
    """Fences these partitions for so many seconds; returns the fence with its deadline. `fence.until` is ignored."""
    run_together(cursor, lock_statements(partitions, seconds, lock_timeout))
    standing = locked_fence(last_rows(cursor)[0], fence)
    run_together(cursor, trigger_statements(partitions, standing))
    return standing


def seal_fence(cursor: Cursor, partitions: Sequence[Name], fence: Fence, lock_timeout: float) -> Fence:
    """Makes a fence permanent, if it is this very one and still stands. Raises `Refused` if not."""
    transaction = check_standing(cursor, partitions, fence, lock_timeout)
    run_together(cursor, seal_statements(partitions, fence))
    return sealed_by(fence, transaction)
