"""The checkers themselves: what they accept, and what they must reject."""

from itertools import chain, combinations, permutations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.workloads.approach import HELD, PLAIN
from tests.support.workloads.bank import EACH, Bank
from tests.support.workloads.hot_registers import HotRegisters
from tests.support.workloads.linearizable import Deed, after, is_linearizable
from tests.support.workloads.list_append import Beginning, list_faults
from tests.support.workloads.set_of_ids import SetOfIds
from tests.support.workloads.workload import Occurrence

pytestmark = pytest.mark.quick


def cas(began: float, ended: float, old: int, new: int, took: bool = True) -> Deed:
    return Deed("cas", began, ended, old, new, took)


def read(began: float, ended: float, value: int) -> Deed:
    return Deed("read", began, ended, old=value)


GOOD = {
    "nothing": [],
    "one after another": [cas(0, 1, 0, 5), read(2, 3, 5), cas(4, 5, 5, 6), read(6, 7, 6)],
    "a read beside a write sees either": [cas(0, 4, 0, 5), read(1, 2, 5), read(2.5, 3, 5)],
    "two that overlap, in the order of the answers": [cas(0, 9, 0, 5), cas(1, 8, 5, 6), read(10, 11, 6)],
    "one that failed saw another value": [cas(0, 1, 0, 5), cas(2, 3, 0, 6, took=False), read(4, 5, 5)],
    "an unknown one happened": [cas(0, inf, 0, 5), read(2, 3, 5)],
    "an unknown one did not happen": [cas(0, inf, 0, 5), read(2, 3, 0)],
    "an unknown one happened late": [cas(0, inf, 0, 5), read(2, 3, 0), read(4, 5, 5)],
}
BAD = {
    "a lost write": [cas(0, 1, 0, 5), read(2, 3, 0)],
    "a stale read after a fresh one": [cas(0, 9, 0, 5), read(1, 2, 5), read(3, 4, 0)],
    "two that both came through": [cas(0, 1, 0, 5), cas(0.5, 2, 0, 6)],
    "one that failed without a reason": [cas(0, 1, 0, 5, took=False), read(2, 3, 0)],
    "an unknown one that was undone": [cas(0, inf, 0, 5), read(2, 3, 5), read(4, 5, 0)],
    "a value that nobody wrote": [read(0, 1, 7)],
    "an effect before its cause": [read(0, 1, 5), cas(2, 3, 0, 5)],
}


@pytest.mark.parametrize("name", list(GOOD))
def test_what_could_have_happened_is_accepted(name: str) -> None:
    assert is_linearizable(GOOD[name])


@pytest.mark.parametrize("name", list(BAD))
def test_what_could_not_is_rejected(name: str) -> None:
    assert not is_linearizable(BAD[name])


def explained(deeds: list[Deed]) -> bool:
    """By trying every order of every choice of the unanswered ones."""
    answered = [deed for deed in deeds if deed.ended != inf]
    open_ones = [deed for deed in deeds if deed.ended == inf]
    chosen = chain.from_iterable(combinations(open_ones, count) for count in range(len(open_ones) + 1))
    return any(_ordered(order) for some in chosen for order in permutations([*answered, *some]))


def _ordered(order: tuple[Deed, ...]) -> bool:
    for place, later in enumerate(order):
        if any(later.ended < earlier.began for earlier in order[:place]):
            return False
    value = 0
    for deed in order:
        following = after(value, deed)
        if following is None:
            return False
        value = following
    return True


@st.composite
def histories(draw: st.DrawFn) -> list[Deed]:
    count = draw(st.integers(1, 5))
    times = draw(st.permutations(range(2 * count)))
    made = []
    for began, ended in ((min(pair), max(pair)) for pair in zip(times[::2], times[1::2], strict=True)):
        old, new = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        kind = draw(st.sampled_from(["read", "write", "cas", "cas"]))
        known = kind == "read" or draw(st.booleans()) or draw(st.booleans())
        took = not known or draw(st.booleans())
        made.append(Deed(kind, began, ended if known else inf, old, new, took))
    return made


@given(histories())
def test_the_search_finds_what_trying_everything_finds(deeds: list[Deed]) -> None:
    assert is_linearizable(deeds) == explained(deeds)


def appended(token: str, found: str | None, began: float, outcome: str = "done") -> Occurrence:
    return Occurrence("append", 1, token, Beginning.of(found), outcome, began, began + 0.5)


def test_lists() -> None:
    right = [appended("a;", "a;", 0), appended("b;", "a;b;", 1), appended("c;", None, 2, "unknown")]
    assert list_faults(1, right, "a;b;", True) == []
    assert list_faults(1, right, "a;b;c;", True) == []
    assert list_faults(1, right, "a;c;", True)[0] == "row 1 has lost b;"
    assert list_faults(1, right, "a;b;b;", True)[0] == "row 1 has b; twice"
    assert "row 1 has x;, which was refused" in list_faults(1, right, "a;b;x;", True)
    assert list_faults(1, right, "b;a;", True)[-1].endswith("before a token that was acknowledged earlier")
    assert list_faults(1, right, None, False) == ["row 1 is lost"]
    stale = Occurrence("read", 1, "", Beginning.of("a;"), "done", 3, 4)
    assert list_faults(1, [*right, stale], "a;b;", True) == ["row 1 was read 2 characters too old"]
    assert list_faults(1, [*right, stale], "a;b;", False) == [], "plain SQL may ask a former owner"
    fork = Occurrence("read", 1, "", Beginning.of("a;z;"), "done", 3, 4)
    assert list_faults(1, [*right, fork], "a;b;", False) == ["row 1 was read as …a;z; and ended as something else"]


def test_sets() -> None:
    def done(kind: str, key: int, outcome: str = "done") -> Occurrence:
        return Occurrence(kind, key, 0, None, outcome, 0, 1)

    def shown(*ids: int) -> dict[str, list[tuple[int, int, int, str | None]]]:
        return {"a": [(0, key, 0, None) for key in ids]}

    history = [done("insert", 1), done("insert", 2), done("delete", 2), done("insert", 3, "unknown")]
    check = SetOfIds().faults
    assert check(history, shown(1), HELD) == []
    assert check(history, shown(1, 3), HELD) == []
    assert check(history, shown(), HELD) == ["acknowledged row 1 is lost"]
    assert check(history, shown(1, 2), HELD) == ["deleted row 2 is back"]
    assert check(history, shown(1, 9), HELD) == ["row 9 is there, but its insert was refused"]
    assert check(history, {**shown(1), "b": [(0, 1, 0, None)]}, HELD) == ["row 1 is there 2 times: on a, b"]


def test_banks() -> None:
    def shown(first: int) -> dict[str, list[tuple[int, int, int, str | None]]]:
        return {"a": [(0, 1, first, None), (1, 1, EACH, None)]}

    def summed(text: str) -> Occurrence:
        return Occurrence("sum", 0, 0, text, "done", 0, 1)

    check = Bank([1]).faults
    assert check([summed("2:2000")], shown(EACH), HELD) == []
    assert check([], shown(EACH - 1), HELD) == ["in the end the bank has accounts:money 2:1999 and not 2:2000"]
    assert check([summed("2:1993")], shown(EACH), PLAIN) == ["a reader saw accounts:money 2:1993 and not 2:2000"]
    assert check([summed("0:0")], shown(EACH), PLAIN) == []
    assert check([summed("0:0")], shown(EACH), HELD) == ["a reader saw accounts:money 0:0 and not 2:2000"]


def test_registers() -> None:
    history = [Occurrence("cas", 1, (0, 5), 1, "done", 0, 1), Occurrence("cas", 1, (0, 6), 0, "done", 2, 3)]
    check = HotRegisters([1]).faults
    assert check(history, {"a": [(0, 1, 5, None)]}, HELD) == []
    assert len(check(history, {"a": [(0, 1, 0, None)]}, HELD)) == 1
    assert check(history, {}, HELD) == ["row 1 is lost"]
    refused = Occurrence("cas", 1, (5, 7), 0, "done", 4, 5)
    assert check([*history, refused], {"a": [(0, 1, 5, None)]}, PLAIN) == [], "0 rows may mean another node"
    assert len(check([*history, refused], {"a": [(0, 1, 5, None)]}, HELD)) == 1
