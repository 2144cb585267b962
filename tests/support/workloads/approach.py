"""How a client of a workload reaches its rows, and what the errors that it gets mean. Pure values."""

from dataclasses import dataclass
from enum import StrEnum

import psycopg

RETRIED = frozenset({"TB001", "TB002", "40001", "40P01", "55P03", "57014", "53100"})
"""Nothing happened, try again. 57014: the client's own statement_timeout; 53100: its server's disk is full."""


class Proof(StrEnum):
    """Whether the node proves that it owns the tablet, and with which isolation."""

    PLAIN = "plain"
    HOLD = "hold"
    HOLD_SNAPSHOT = "hold in repeatable read"

    @property
    def isolation(self) -> str:
        return "REPEATABLE READ" if self is Proof.HOLD_SNAPSHOT else "READ COMMITTED"


class Way(StrEnum):
    """The name by which the rows are written. They are read through the root: a partition's name is not for readers."""

    ROOT = "root"
    LEAF = "leaf"
    FORWARDED = "balancer_all"


@dataclass(frozen=True, slots=True)
class Approach:
    """A client's habits. Forwarded rows cannot be held as well: the client does not know the node."""

    proof: Proof = Proof.HOLD
    way: Way = Way.ROOT

    def __str__(self) -> str:
        return f"{self.proof}, {self.way}"

    @property
    def proven(self) -> bool:
        """Whether 0 rows are an answer. In plain SQL they may also mean that the rows are on another node."""
        return self.proof is not Proof.PLAIN


PLAIN = Approach(Proof.PLAIN)
HELD = Approach(Proof.HOLD)
HELD_SNAPSHOT = Approach(Proof.HOLD_SNAPSHOT)
PLAIN_LEAF = Approach(Proof.PLAIN, Way.LEAF)
HELD_LEAF = Approach(Proof.HOLD, Way.LEAF)
HELD_SNAPSHOT_LEAF = Approach(Proof.HOLD_SNAPSHOT, Way.LEAF)
FORWARDED = Approach(Proof.PLAIN, Way.FORWARDED)

DIRECT = (PLAIN, HELD, HELD_SNAPSHOT, PLAIN_LEAF, HELD_LEAF, HELD_SNAPSHOT_LEAF)
"""Everything that needs no foreign tables."""


def is_retried(error: psycopg.Error, way: Way) -> bool:
    """Whether nothing happened and the client should try again, by the newest map."""
    if error.sqlstate in RETRIED:
        return True
    if error.sqlstate == "23514":  # no partition for the row; with a constraint's name it would be the application's
        return error.diag.constraint_name is None
    # The partition was dropped, or the foreign table leads to one that was.
    return error.sqlstate == "42P01" and way is not Way.ROOT


def is_unknown(error: psycopg.Error, way: Way) -> bool:
    """Whether the other end of a forwarded write was lost: it may have committed there."""
    return way is Way.FORWARDED and (error.sqlstate or "").startswith("08")


def breaks_promise(error: psycopg.Error, approach: Approach) -> bool:
    """Whether a node refused what it had proven to own. A partition may have been replaced under its old name."""
    if not approach.proven or approach.way is Way.LEAF:
        return False
    refused_row = error.sqlstate == "23514" and error.diag.constraint_name is None
    return refused_row or "refuse_write" in (error.diag.context or "")
