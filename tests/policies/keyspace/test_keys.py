"""Encoded keys: they sort as the values do, and give the values back."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.policies.keyspace.keys import (
    HIGHEST,
    LOWEST,
    KeyMismatch,
    KeyType,
    KeyValue,
    decode_bound,
    decode_key,
    encode_key,
    encode_value,
    parse_value,
    show_value,
)

pytestmark = pytest.mark.quick

VALUES: dict[KeyType, st.SearchStrategy[Any]] = {
    KeyType.SMALLINT: st.integers(-(1 << 15), (1 << 15) - 1),
    KeyType.INTEGER: st.integers(-(1 << 31), (1 << 31) - 1),
    KeyType.BIGINT: st.integers(-(1 << 63), (1 << 63) - 1),
    KeyType.TEXT: st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    KeyType.UUID: st.uuids(),
    KeyType.TIMESTAMPTZ: st.datetimes(timezones=st.just(UTC)),
    KeyType.DATE: st.dates(),
    KeyType.NUMERIC: st.decimals(allow_nan=False),
}

SHAPES = st.lists(st.sampled_from(list(KeyType)), min_size=1, max_size=3).map(tuple)


def _comparable(value: KeyValue) -> Any:
    """Text compares by its bytes; Python compares the rest as PostgreSQL does."""
    return value.encode() if isinstance(value, str) else value


@st.composite
def pairs(draw: st.DrawFn) -> tuple[tuple[KeyType, ...], tuple[Any, ...], tuple[Any, ...]]:
    """Two keys of one shape; often they begin alike."""
    types = draw(SHAPES)
    one = tuple(draw(VALUES[kind]) for kind in types)
    shared = draw(st.integers(0, len(types)))
    return types, one, one[:shared] + tuple(draw(VALUES[kind]) for kind in types[shared:])


@given(pairs())
def test_encoded_keys_compare_as_the_keys_do(
    pair: tuple[tuple[KeyType, ...], tuple[Any, ...], tuple[Any, ...]],
) -> None:
    types, one, other = pair
    left, right = tuple(map(_comparable, one)), tuple(map(_comparable, other))
    assert (encode_key(types, one) < encode_key(types, other)) == (left < right)
    assert (encode_key(types, one) == encode_key(types, other)) == (left == right)


@given(pairs())
def test_keys_come_back_as_they_were(pair: tuple[tuple[KeyType, ...], tuple[Any, ...], tuple[Any, ...]]) -> None:
    types, key, _ = pair
    assert decode_key(types, encode_key(types, key)) == key


@given(pairs(), st.data())
def test_bounds_that_stop_early_lie_around_all_keys_that_begin_so(
    pair: tuple[tuple[KeyType, ...], tuple[Any, ...], tuple[Any, ...]], data: st.DataObject
) -> None:
    types, key, _ = pair
    named = data.draw(st.integers(0, len(types) - 1))
    lowest = encode_key(types, key[:named], prefix=True)
    assert LOWEST <= lowest < encode_key(types, key) < lowest + HIGHEST <= HIGHEST
    assert decode_bound(types, lowest) == (key[:named], False)
    assert decode_bound(types, lowest + HIGHEST) == (key[:named], True)


@given(pairs())
def test_keys_written_as_text_come_back_as_they_were(
    pair: tuple[tuple[KeyType, ...], tuple[Any, ...], tuple[Any, ...]],
) -> None:
    types, key, _ = pair
    texts = [show_value(value) for value in key]
    assert tuple(parse_value(kind, text) for kind, text in zip(types, texts, strict=True)) == key


@pytest.mark.parametrize("kind", [KeyType.DATE, KeyType.TIMESTAMPTZ])
@pytest.mark.parametrize("text", ["infinity", "-infinity"])
def test_infinities_are_written_as_postgresql_writes_them(kind: KeyType, text: str) -> None:
    assert show_value(parse_value(kind, text)) == text
    assert abs(parse_value(kind, text)) == float("inf")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (KeyType.BIGINT, "seven"),
        (KeyType.BIGINT, ""),
        (KeyType.UUID, "7"),
        (KeyType.NUMERIC, "1,5"),
        (KeyType.DATE, "0044-03-15 BC"),
        (KeyType.DATE, "inf"),
        (KeyType.TIMESTAMPTZ, "toinfinity"),
    ],
)
def test_text_that_is_no_value_of_the_type_is_refused(kind: KeyType, text: str) -> None:
    with pytest.raises(KeyMismatch, match=f"^'{text}' is not a value of type {kind}$"):
        parse_value(kind, text)


def test_special_numerics_sort_around_the_finite_ones() -> None:
    texts = ("-Infinity", "-1e300", "-1.5", "-1e-300", "0", "1e-300", "1.5", "1e300", "Infinity", "NaN")
    encoded = [encode_value(KeyType.NUMERIC, Decimal(text)) for text in texts]
    assert encoded == sorted(encoded)
    assert decode_key((KeyType.NUMERIC,), encoded[-1])[0].is_nan()  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [KeyType.DATE, KeyType.TIMESTAMPTZ])
def test_infinities_lie_beyond_every_date(kind: KeyType) -> None:
    finite: KeyValue = date.max if kind is KeyType.DATE else datetime.max.replace(tzinfo=UTC)
    first: KeyValue = date.min if kind is KeyType.DATE else datetime.min.replace(tzinfo=UTC)
    values: list[KeyValue] = [float("-inf"), first, finite, float("inf")]
    encoded = [encode_value(kind, value) for value in values]
    assert encoded == sorted(encoded)
    assert [decode_key((kind,), data)[0] for data in encoded] == values


def test_equal_numerics_of_different_scale_are_one_key() -> None:
    assert encode_value(KeyType.NUMERIC, Decimal("1.500")) == encode_value(KeyType.NUMERIC, Decimal("1.5"))
    assert encode_value(KeyType.NUMERIC, Decimal("-0.0")) == encode_value(KeyType.NUMERIC, 0)


def test_uuid_may_be_given_as_text() -> None:
    text = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    assert encode_value(KeyType.UUID, text) == encode_value(KeyType.UUID, UUID(text))


@pytest.mark.parametrize("key", [(), (1,), (1, 2, 3)])
def test_a_key_has_as_many_values_as_the_table_has_key_columns(key: tuple[int, ...]) -> None:
    with pytest.raises(KeyMismatch, match="2 columns"):
        encode_key((KeyType.BIGINT, KeyType.BIGINT), key)


WRONG: tuple[tuple[KeyType, KeyValue], ...] = (
    (KeyType.SMALLINT, 1 << 15),
    (KeyType.INTEGER, -(1 << 31) - 1),
    (KeyType.BIGINT, "5"),
    (KeyType.BIGINT, False),
    (KeyType.TEXT, "a\0"),
    (KeyType.TEXT, "\udc00"),
    (KeyType.TEXT, 7),
    (KeyType.UUID, "no uuid"),
    (KeyType.DATE, 2.5),
    (KeyType.DATE, datetime(2024, 1, 1, tzinfo=UTC)),
    (KeyType.TIMESTAMPTZ, datetime(2024, 1, 1)),  # noqa: DTZ001 - that it has no zone is the point
    (KeyType.NUMERIC, 0.1),
    (KeyType.NUMERIC, True),
)


@pytest.mark.parametrize(("kind", "value"), WRONG)
def test_what_is_no_value_of_the_type_is_refused(kind: KeyType, value: KeyValue) -> None:
    with pytest.raises(KeyMismatch):
        encode_value(kind, value)
