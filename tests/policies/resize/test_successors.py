"""The key right after a key: nothing fits between the two, and PostgreSQL can name both."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.policies.keyspace.keys import HIGHEST, KeyType, KeyValue, decode_bound, encode_key
from balancer.policies.resize.heat_judge import successor

pytestmark = pytest.mark.quick

INFINITY = float("inf")

PAIRS: tuple[tuple[KeyType, KeyValue, KeyValue], ...] = (
    (KeyType.SMALLINT, -1, 0),
    (KeyType.INTEGER, 41, 42),
    (KeyType.BIGINT, (1 << 31) - 1, 1 << 31),
    (KeyType.TEXT, "", "\x01"),
    (KeyType.TEXT, "straße", "straße\x01"),
    (KeyType.UUID, UUID(int=255), UUID(int=256)),
    (KeyType.DATE, date(2024, 2, 28), date(2024, 2, 29)),
    (KeyType.DATE, date.max, INFINITY),
    (KeyType.TIMESTAMPTZ, datetime(1999, 12, 31, 23, 59, 59, 999999, UTC), datetime(2000, 1, 1, tzinfo=UTC)),
    (KeyType.TIMESTAMPTZ, datetime.max.replace(tzinfo=UTC), INFINITY),
)


@pytest.mark.parametrize(("kind", "value", "following"), PAIRS)
def test_next_value_of_each_type(kind: KeyType, value: KeyValue, following: KeyValue) -> None:
    assert successor((kind,), encode_key((kind,), (value,))) == encode_key((kind,), (following,))


@pytest.mark.parametrize(
    ("kind", "value"),
    [(KeyType.SMALLINT, (1 << 15) - 1), (KeyType.BIGINT, (1 << 63) - 1), (KeyType.UUID, UUID(int=(1 << 128) - 1))],
)
def test_after_the_greatest_value_comes_the_end(kind: KeyType, value: KeyValue) -> None:
    assert successor((kind,), encode_key((kind,), (value,))) == HIGHEST
    types = (KeyType.TEXT, kind)
    bound = successor(types, encode_key(types, ("a", value)))
    assert bound is not None
    assert decode_bound(types, bound) == (("a",), True)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(KeyType.NUMERIC, Decimal("1.5")), (KeyType.DATE, INFINITY), (KeyType.TIMESTAMPTZ, -INFINITY)],
)
def test_some_values_have_no_next_one(kind: KeyType, value: KeyValue) -> None:
    assert successor((kind,), encode_key((kind,), (value,))) is None


VALUES: dict[KeyType, st.SearchStrategy[Any]] = {
    KeyType.INTEGER: st.integers(-(1 << 31), (1 << 31) - 1),
    KeyType.TEXT: st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    KeyType.UUID: st.uuids(),
    KeyType.DATE: st.dates(),
    KeyType.TIMESTAMPTZ: st.datetimes(timezones=st.just(UTC)),
}


@given(st.sampled_from(list(VALUES)), st.data())
def test_no_key_lies_between_a_key_and_its_successor(kind: KeyType, data: st.DataObject) -> None:
    one, other = data.draw(VALUES[kind]), data.draw(VALUES[kind])
    if kind is KeyType.TEXT and data.draw(st.booleans()):
        other = one + other
    if isinstance(one, datetime) and data.draw(st.booleans()) and one < datetime.max.replace(tzinfo=UTC):
        other = one + timedelta(microseconds=1)
    types = (kind,)
    key, between = encode_key(types, (one,)), encode_key(types, (other,))
    bound = successor(types, key)
    assert bound is not None
    assert key < bound
    assert not key < between < bound
