"""Small helpers for answers of every tablet: `Router.map` yields parts, these combine them. Pure."""

import heapq
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Any, Protocol


class HasRows(Protocol):
    """What `Router.map` yields."""

    @property
    def rows(self) -> list[tuple[Any, ...]]: ...


def summed(answers: Iterable[HasRows]) -> tuple[Any, ...]:
    """The rows of all tablets added up, column by column: for `SELECT count(*), sum(…)`. NULL counts as nothing.

    Averages are not sums: ask for the sum and the count, and divide.
    """
    total: list[Any] = []
    for row in chain.from_iterable(answer.rows for answer in answers):
        total = total or [None] * len(row)
        total = [new if old is None else old if new is None else old + new for old, new in zip(total, row, strict=True)]
    return tuple(total)


def top(
    answers: Iterable[HasRows], count: int, key: Callable[[tuple[Any, ...]], Any], *, reverse: bool = True
) -> list[tuple[Any, ...]]:
    """The first rows of all by a key: each tablet returns its own first `count` (`ORDER BY … LIMIT …`)."""
    merged = heapq.merge(
        *(sorted(answer.rows, key=key, reverse=reverse) for answer in answers), key=key, reverse=reverse
    )
    return list(islice(merged, count))
