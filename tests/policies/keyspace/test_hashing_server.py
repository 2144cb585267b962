"""The partition hash against the server's own `satisfies_hash_partition`, on 100,000 random keys of each type.

A modulus fits into 31 bits and the hash has 64, so three coprime moduli are asked about every key: they agree only if
all bits of the hash do.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import psycopg
import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.policies.keyspace.hashing import partition_hash
from balancer.policies.keyspace.hashing_columns import UInts, partition_hashes
from balancer.policies.keyspace.keys import KeyType, KeyValue, encode_key
from tests.support.keys import random_keys

COUNT = 100_000
SEED = 20240229
MODULI = (1 << 30, 2147483647, 2147483629)

COMBINATIONS: tuple[tuple[KeyType, ...], ...] = (
    *((kind,) for kind in KeyType),
    (KeyType.BIGINT, KeyType.TEXT),
    (KeyType.NUMERIC, KeyType.TIMESTAMPTZ),
    (KeyType.UUID, KeyType.DATE, KeyType.SMALLINT, KeyType.INTEGER),
)


def _name(types: tuple[KeyType, ...]) -> str:
    return ",".join(types)


@cache
def _columns(types: tuple[KeyType, ...]) -> list[list[KeyValue | None]]:
    """Random keys; in a key of several columns some values are NULL."""
    columns: list[list[KeyValue | None]] = []
    for place, kind in enumerate(types):
        values: list[KeyValue | None] = list(random_keys(kind, COUNT, SEED + place))
        if len(types) > 1:
            values[place :: 7 + place] = [None] * len(values[place :: 7 + place])
        columns.append(values)
    return columns


@cache
def _hashes(types: tuple[KeyType, ...]) -> UInts:
    return partition_hashes(types, _columns(types))


@pytest.mark.parametrize("types", COMBINATIONS, ids=_name)
def test_hash_of_columns_is_what_the_server_computes(any_postgres: PostgresServer, types: tuple[KeyType, ...]) -> None:
    print("seed", SEED)
    names = [f"k{place}" for place in range(len(types))]
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, types, strict=True))
    with psycopg.connect(any_postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE TEMP TABLE hashed ({columns}) PARTITION BY HASH ({', '.join(names)})")
        connection.execute(f"CREATE TEMP TABLE keys ({columns}, r0 int, r1 int, r2 int)")
        with connection.cursor().copy("COPY keys FROM STDIN") as copy:
            for row in zip(*_columns(types), *_remainders(_hashes(types)), strict=True):
                copy.write_row([_as_copied(value) for value in row])
        checks = " AND ".join(
            f"satisfies_hash_partition('hashed'::regclass, {modulus}, r{place}, {', '.join(names)})"
            for place, modulus in enumerate(MODULI)
        )
        found = connection.execute(f"SELECT count(*), count(*) FILTER (WHERE {checks}) FROM keys").fetchone()
    assert found == (COUNT, COUNT)


def _as_copied(value: KeyValue | None) -> KeyValue | None:
    """psycopg does not know that the infinities may be dates."""
    return ("infinity" if value > 0 else "-infinity") if isinstance(value, float) else value


def _remainders(hashes: UInts) -> Sequence[list[int]]:
    return [(hashes % np.uint64(modulus)).tolist() for modulus in MODULI]


@pytest.mark.parametrize("types", COMBINATIONS, ids=_name)
def test_hash_of_one_key_is_that_of_the_column(types: tuple[KeyType, ...]) -> None:
    print("seed", SEED)
    count = COUNT if len(types) == 1 else COUNT // 10
    keys = zip(*(column[:count] for column in _columns(types)), strict=True)
    assert [partition_hash(types, key) for key in keys] == _hashes(types)[:count].tolist()


@pytest.mark.parametrize("kind", KeyType)
def test_encoded_keys_sort_as_the_server_sorts_them(any_postgres: PostgresServer, kind: KeyType) -> None:
    print("seed", SEED)
    values = random_keys(kind, 5000, SEED)
    collation = 'COLLATE "C"' if kind is KeyType.TEXT else ""
    with psycopg.connect(any_postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE TEMP TABLE keys (place int, k {kind} {collation})")
        with connection.cursor().copy("COPY keys FROM STDIN") as copy:
            for place, value in enumerate(values):
                copy.write_row([place, _as_copied(value)])
        ranks = connection.execute("SELECT dense_rank() OVER (ORDER BY k) FROM keys ORDER BY place").fetchall()
    encoded = [encode_key((kind,), (value,)) for value in values]
    order = {data: rank for rank, data in enumerate(sorted(set(encoded)), 1)}
    assert [order[data] for data in encoded] == [rank for (rank,) in ranks]
