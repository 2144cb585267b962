"""Random keys of every type, from a seed that the test prints: ordinary values, edges and what lies between."""

import random
import string
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from balancer.policies.keyspace.keys import KeyType, KeyValue

_ALPHABET = string.ascii_letters + string.digits + " _-/.:\x01éжß漢😀"
_INFINITIES = (float("inf"), float("-inf"))


def random_keys(kind: KeyType, count: int, seed: int) -> list[KeyValue]:
    """This many values of a type; about one in a hundred is an edge case."""
    chance = random.Random(f"{kind} {seed}")
    make, edges = _MAKERS[kind], _EDGES[kind]
    return [chance.choice(edges) if chance.random() < 0.01 else make(chance) for _ in range(count)]


def _integer(bits: int) -> Callable[[random.Random], KeyValue]:
    def make(chance: random.Random) -> KeyValue:
        magnitude = chance.getrandbits(chance.randint(1, bits - 1))
        return -magnitude if chance.random() < 0.5 else magnitude

    return make


def _text(chance: random.Random) -> KeyValue:
    return "".join(chance.choices(_ALPHABET, k=chance.randint(0, 40)))


def _timestamptz(chance: random.Random) -> KeyValue:
    return datetime(1, 1, 2, tzinfo=UTC) + timedelta(microseconds=chance.randrange(315537811200_000000))


def _numeric(chance: random.Random) -> KeyValue:
    digits = chance.getrandbits(chance.randint(1, 160))
    return Decimal(digits if chance.random() < 0.5 else -digits).scaleb(chance.randint(-30, 30))


_MAKERS: dict[KeyType, Callable[[random.Random], KeyValue]] = {
    KeyType.SMALLINT: _integer(16),
    KeyType.INTEGER: _integer(32),
    KeyType.BIGINT: _integer(64),
    KeyType.TEXT: _text,
    KeyType.UUID: lambda chance: UUID(int=chance.getrandbits(128)),
    KeyType.TIMESTAMPTZ: _timestamptz,
    KeyType.DATE: lambda chance: date.fromordinal(chance.randint(1, date.max.toordinal())),
    KeyType.NUMERIC: _numeric,
}

_EDGES: dict[KeyType, tuple[KeyValue, ...]] = {
    KeyType.SMALLINT: (0, -1, -(1 << 15), (1 << 15) - 1),
    KeyType.INTEGER: (0, -1, -(1 << 31), (1 << 31) - 1),
    KeyType.BIGINT: (0, -1, -(1 << 63), (1 << 63) - 1, 1 << 32, -(1 << 32)),
    KeyType.TEXT: ("", "a" * 11, "a" * 12, "a" * 13, "a" * 3000),
    KeyType.UUID: (UUID(int=0), UUID(int=(1 << 128) - 1)),
    KeyType.TIMESTAMPTZ: (*_INFINITIES, datetime(2000, 1, 1, tzinfo=UTC), datetime(1999, 12, 31, tzinfo=UTC)),
    KeyType.DATE: (*_INFINITIES, date(2000, 1, 1), date(1999, 12, 31)),
    KeyType.NUMERIC: (
        *map(Decimal, ("0", "0.000", "NaN", "Infinity", "-Infinity", "10000", "0.0001", "1.10000")),
        *map(Decimal, ("1e-1000", "5e3000", "-9999.9999", "1e-9")),
    ),
}
