"""Retry a commit on the newest snapshot: one rule for every caller that can decide again without help."""

from collections.abc import Callable
from typing import Final, TypeVar

from balancer.directory.contract import Directory
from balancer.directory.model import Transaction
from balancer.directory.snapshot import Snapshot
from balancer.errors import Conflict

ATTEMPTS: Final = 5
"""Being overtaken several times in a row is rare; this many times means that something is wrong."""

Result = TypeVar("Result")


def commit_on_newest(
    directory: Directory, propose: Callable[[Snapshot], tuple[Transaction | None, Result]], failure: str
) -> Result:
    """Commits what `propose` makes of the newest snapshot, and returns what came with it; None: nothing to do.

    Raises `Conflict` with the text of `failure` if others were faster each time.
    """
    for _ in range(ATTEMPTS):
        transaction, result = propose(directory.snapshot())
        try:
            if transaction is not None:
                directory.commit(transaction)
        except Conflict:
            continue
        return result
    raise Conflict(f"{failure}: others kept changing the directory")
