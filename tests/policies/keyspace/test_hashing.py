"""The partition hash without a server: figures a server gave, and what columns and single keys have in common."""

from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.policies.keyspace.hash_leaves import position
from balancer.policies.keyspace.hashing import hash_value, key_hasher, partition_hash
from balancer.policies.keyspace.hashing_columns import CHUNK, Column, partition_hashes, positions
from balancer.policies.keyspace.keys import KeyMismatch, KeyType, KeyValue
from tests.support.keys import random_keys

pytestmark = pytest.mark.quick

SEED = 7


# What `SELECT hash…extended(value, 8816678312871386365)` prints, as an unsigned number.
KNOWN: tuple[tuple[KeyType, KeyValue, int], ...] = (
    (KeyType.SMALLINT, -7, 0x9AB6F7552964A3F7),
    (KeyType.INTEGER, 1, 0x52D621058124E6D5),
    (KeyType.BIGINT, -1099511627776, 0x2378A024A6058847),
    (KeyType.TEXT, "Привет, PostgreSQL", 0xEB72EE9A0EFDF142),
    (KeyType.TEXT, "", 0xB0E33D0B543FBFC3),
    (KeyType.UUID, UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8"), 0xE2D8106B9773F303),
    (KeyType.TIMESTAMPTZ, datetime(2024, 2, 29, 12, 30, 0, 5, UTC), 0x0B91D28E9EB9CBBA),
    (KeyType.DATE, date(2024, 2, 29), 0x98F4C43666DF1404),
    (KeyType.NUMERIC, Decimal("-12345.678900"), 0x59731BD268D46EE3),
)


@pytest.mark.parametrize(("kind", "value", "expected"), KNOWN)
def test_hash_is_the_one_a_server_printed(kind: KeyType, value: KeyValue, expected: int) -> None:
    assert hash_value(kind, value) == expected


@given(st.integers(-(1 << 15), (1 << 15) - 1))
def test_integers_of_all_widths_hash_alike(value: int) -> None:
    kinds = (KeyType.SMALLINT, KeyType.INTEGER, KeyType.BIGINT)
    assert len({partition_hash((kind,), (value,)) for kind in kinds}) == 1


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6), st.integers(1, 9))
def test_trailing_zeros_of_a_numeric_do_not_count(value: Decimal, zeros: int) -> None:
    longer = Decimal(f"{value:f}" + "0" * zeros)
    assert hash_value(KeyType.NUMERIC, longer) == hash_value(KeyType.NUMERIC, value)


def test_nulls_are_skipped() -> None:
    types = (KeyType.BIGINT, KeyType.TEXT)
    assert partition_hash(types, (None, None)) == 0
    assert partition_hash(types, (5, None)) == partition_hash(types[:1], (5,))
    assert partition_hashes(types, ([None, 5], [None, None])).tolist() == [0, partition_hash(types, (5, None))]


@pytest.mark.parametrize("types", [(KeyType.BIGINT,), (KeyType.TEXT,), (KeyType.UUID, KeyType.DATE)])
def test_hasher_made_for_a_table_gives_the_same(types: tuple[KeyType, ...]) -> None:
    hasher = key_hasher(types)
    for key in zip(*(random_keys(kind, 50, SEED) for kind in types), strict=True):
        assert hasher(key) == partition_hash(types, key)
    assert hasher((None,) * len(types)) == 0
    with pytest.raises(KeyMismatch, match="columns"):
        hasher((1, 2, 3))


ARRAYS: tuple[tuple[KeyType, Column, list[KeyValue]], ...] = (
    (KeyType.SMALLINT, np.array([-3, 7], np.int8), [-3, 7]),
    (KeyType.BIGINT, np.array([0, 1 << 62], np.uint64), [0, 1 << 62]),
    (KeyType.DATE, np.array([-1, 0], np.int32), [date(1999, 12, 31), date(2000, 1, 1)]),
    (KeyType.DATE, np.array(["1999-12-31", "2024-02-29"], "datetime64[D]"), [date(1999, 12, 31), date(2024, 2, 29)]),
    (KeyType.TIMESTAMPTZ, np.array(["1970-01-01T00:00:01"], "datetime64[s]"), [datetime(1970, 1, 1, 0, 0, 1, 0, UTC)]),
    (KeyType.TIMESTAMPTZ, np.array([86_400_000_000]), [datetime(2000, 1, 2, tzinfo=UTC)]),
    (
        KeyType.UUID,
        np.arange(32, dtype=np.uint8).reshape(2, 16),
        [UUID(bytes=bytes(range(at, at + 16))) for at in (0, 16)],
    ),
    (KeyType.TEXT, np.array(["a", "bcd"]), ["a", "bcd"]),
    (KeyType.NUMERIC, np.array([Decimal("1.5")], object), [Decimal("1.5")]),
)


@pytest.mark.parametrize(("kind", "array", "values"), ARRAYS)
def test_arrays_are_read_as_the_values_they_stand_for(kind: KeyType, array: Column, values: list[KeyValue]) -> None:
    expected = [partition_hash((kind,), (value,)) for value in values]
    assert partition_hashes((kind,), (array,)).tolist() == expected


def test_columns_longer_than_a_chunk_are_hashed_to_their_end() -> None:
    values = np.arange(CHUNK + 3)
    hashes = partition_hashes((KeyType.BIGINT,), (values,))
    assert hashes[-1] == partition_hash((KeyType.BIGINT,), (CHUNK + 2,))
    assert hashes[CHUNK - 1] == partition_hash((KeyType.BIGINT,), (CHUNK - 1,))


@given(st.lists(st.integers(0, (1 << 64) - 1)))
def test_positions_of_a_column_are_those_of_its_hashes(hashes: list[int]) -> None:
    assert positions(np.array(hashes, np.uint64)).tolist() == [position(hashed) for hashed in hashes]


WRONG: tuple[tuple[KeyType, KeyValue], ...] = (
    (KeyType.SMALLINT, 40000),
    (KeyType.INTEGER, "7"),
    (KeyType.BIGINT, True),
    (KeyType.TEXT, 5),
    (KeyType.TEXT, "a\0b"),
    (KeyType.TEXT, "\ud800"),
    (KeyType.UUID, "no uuid"),
    (KeyType.TIMESTAMPTZ, datetime(2024, 1, 1)),  # noqa: DTZ001 - that it has no zone is the point
    (KeyType.TIMESTAMPTZ, 1.5),
    (KeyType.DATE, datetime(2024, 1, 1, tzinfo=UTC)),
    (KeyType.NUMERIC, 1.5),
    (KeyType.NUMERIC, True),
)


@pytest.mark.parametrize(("kind", "value"), WRONG)
def test_values_of_another_type_are_refused_by_both(kind: KeyType, value: KeyValue) -> None:
    with pytest.raises(KeyMismatch):
        partition_hash((kind,), (value,))
    with pytest.raises(KeyMismatch):
        partition_hashes((kind,), ([value],))


@pytest.mark.parametrize(
    ("types", "columns"),
    [
        ((KeyType.BIGINT,), ()),
        ((), ()),
        ((KeyType.BIGINT, KeyType.BIGINT), ([1], [1, 2])),
        ((KeyType.SMALLINT,), (np.array([1 << 20]),)),
        ((KeyType.BIGINT,), (np.array([0.5]),)),
        ((KeyType.DATE,), (np.array(["NaT"], "datetime64[D]"),)),
    ],
)
def test_columns_that_do_not_fit_the_key_are_refused(types: tuple[KeyType, ...], columns: tuple[Column, ...]) -> None:
    with pytest.raises(KeyMismatch):
        partition_hashes(types, columns)
