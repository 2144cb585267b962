"""How a node refused, as one word: ours (TB001, TB002) if a move is the reason, otherwise the SQLSTATE."""

import psycopg

from balancer.client.transaction.failures import refusal


def refused_with(error: psycopg.Error) -> str | None:
    return refusal(error) or error.sqlstate
