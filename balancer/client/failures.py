"""What a driver's error means to a client of a cluster whose tablets move. No I/O."""

from enum import StrEnum

import psycopg

MOVING = "TB001"
MOVED = "TB002"
"""The first word of the detail of a node's refusal, whose SQLSTATE is one that every retry loop knows."""

_LOST = {"57P01", "57P02", "57P03", "57P05"}  # the server ends the session, or is starting up or shutting down
_AGAIN = {"40001", "40P01"}  # serialization failure, deadlock: PostgreSQL asks for a retry


class Failure(StrEnum):
    """What to do about an error."""

    MOVING = "moving"  # wait a moment
    MOVED = "moved"  # look the key up again
    LOST = "lost"  # connect again
    AGAIN = "again"  # run the transaction again
    OTHER = "other"  # the application's own


def classify(error: psycopg.Error) -> Failure:
    """For an error while a transaction runs: statements are the application's."""
    state, word = error.sqlstate, refusal(error)
    if word == MOVING:
        return Failure.MOVING
    if word == MOVED or _no_partition(error):
        return Failure.MOVED
    if state in _AGAIN:
        return Failure.AGAIN
    broken = state is None and isinstance(error, psycopg.OperationalError)
    return Failure.LOST if broken or state in _LOST or (state or "").startswith("08") else Failure.OTHER


def classify_entry(error: psycopg.Error) -> Failure:
    """For an error while a transaction begins: all statements are ours."""
    if error.sqlstate in ("55P03", "40P01"):  # a lock was not granted: a switch is under way
        return Failure.MOVING
    if error.sqlstate == "42P01":  # a partition was dropped between our look and our lock
        return Failure.MOVED
    return classify(error)


def refusal(error: psycopg.Error) -> str:
    """`MOVING` or `MOVED` if a node has refused because of a move; empty for every other error."""
    word = (error.diag.message_detail or "").partition(" ")[0] if error.sqlstate == "40001" else ""
    return word if word in (MOVING, MOVED) else ""


def _no_partition(error: psycopg.Error) -> bool:
    """A row for which this node has no partition: a check violation that names no constraint."""
    return error.sqlstate == "23514" and not error.diag.constraint_name
