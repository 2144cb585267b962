"""The quick lookup gives the plain one's answers, for every layout and key, and after every commit."""

from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.client.keys import lookup
from balancer.client.keys.bulk import BulkMap
from balancer.client.keys.lookup import LOW_BITS, Maps, low_hash, slot_finder
from balancer.directory.invariants import TABLET_COUNTER
from balancer.directory.locate import locate_key, parse_key
from balancer.directory.model import Counter, KeyColumn, Layout, Put, RangeBounds, Record, Table, Tablet
from balancer.directory.open import open_directory
from balancer.directory.snapshot import Snapshot
from balancer.errors import UserError
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.keyspace.hashing import partition_hash
from balancer.policies.keyspace.keys import HIGHEST, LOWEST, KeyType, KeyValue, encode_key
from tests.support.directories import fill, frame, moved, transaction
from tests.support.keys import random_keys

pytestmark = pytest.mark.quick

SEED = 20
NODES = ("pg-a", "pg-b", "pg-c")


FIND = slot_finder([str(slot) for slot in range(1 << LOW_BITS)], str)
"""Each slot holds its own number."""


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_the_quick_hash_of_an_integer_is_the_partition_hash(value: int) -> None:
    whole = partition_hash((KeyType.BIGINT,), (value,))
    assert low_hash(value) == whole & 0xFFFFFFFF
    assert FIND(value) == str(whole & 0xFFFF)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60))
def test_the_quick_hash_of_a_text_is_the_partition_hash(value: str) -> None:
    assert lookup.low_bits(value.encode()) == partition_hash((KeyType.TEXT,), (value,)) & 0xFFFF


@pytest.mark.parametrize("length", range(lookup.LONGEST + 1))
def test_a_text_of_every_length_is_hashed_right(length: int) -> None:
    value = "abcdefghijk"[: length % 11] + "0123456789z" * (length // 11)
    assert lookup.low_bits(value.encode()) == partition_hash((KeyType.TEXT,), (value,)) & 0xFFFF


def random_leaves(chance: Random, count: int) -> list[Leaf]:
    """Leaves of different depths that cover every hash."""
    leaves = [Leaf(1, 0)]
    while len(leaves) < count:
        leaf = leaves.pop(chance.randrange(len(leaves)))
        leaves.extend(leaf.children())
    return leaves


def hash_table(chance: Random, kind: KeyType, number: int, count: int) -> list[Record]:
    table = Table(
        number, f"h_{kind}".replace(" ", "_"), "shop", Layout.HASH, (KeyColumn("k", kind),), (f"public.h{number}",)
    )
    leaves = random_leaves(chance, count)
    return [
        table,
        *(Tablet(number * 1000 + i, number, leaf, chance.choice(NODES)) for i, leaf in enumerate(leaves)),
    ]


def range_table(chance: Random, kinds: tuple[KeyType, ...], number: int, count: int) -> list[Record]:
    columns = tuple(KeyColumn(f"k{i}", kind) for i, kind in enumerate(kinds))
    name = f"r_{'_'.join(kinds)}".replace(" ", "_")
    table = Table(number, name, "shop", Layout.RANGE, columns, (f"public.r{number}",))
    values = zip(*(random_keys(kind, count, SEED + number) for kind in kinds), strict=True)
    edges = [LOWEST, *sorted({encode_key(kinds, value) for value in values}), HIGHEST]
    tablets = [
        Tablet(number * 1000 + i, number, RangeBounds(low, high), chance.choice(NODES))
        for i, (low, high) in enumerate(pairwise(edges))
    ]
    return [table, *tablets]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    print(f"seed {SEED}")
    chance = Random(SEED)
    records = [*frame(NODES), Counter(TABLET_COUNTER, 1_000_000)]
    for number, kind in enumerate(KeyType, 1):
        records += hash_table(chance, kind, number, 40)
        records += range_table(chance, (kind,), 20 + number, 30)
    records += range_table(chance, (KeyType.INTEGER, KeyType.TEXT), 40, 30)
    file = tmp_path_factory.mktemp("directory") / "d.sqlite"
    with open_directory(f"sqlite://{file}") as directory:
        return fill(directory, records)


@pytest.mark.parametrize("kind", KeyType)
@pytest.mark.parametrize("layout", ["h", "r"])
def test_quick_plain_and_bulk_agree(cluster: Snapshot, kind: KeyType, layout: str) -> None:
    name = f"{layout}_{kind}".replace(" ", "_")
    known = Maps(cluster).table(name)
    keys = random_keys(kind, 300, SEED)
    plain = [locate_key(cluster, name, key) for key in keys]
    assert [known.locate(key) for key in keys] == plain
    assert [known.locate((key,)) for key in keys] == plain, "a tuple of one value is the same key"
    assert [known.locate(key) for key in keys] == plain, "and so it is from memory"
    assert grouped(cluster, name, keys) == [found.node for found in plain]


def grouped(snapshot: Snapshot, name: str, keys: list[KeyValue]) -> list[str]:
    groups = BulkMap(snapshot, Maps(snapshot).table(name)).group(keys)
    nodes = [""] * len(keys)
    for node, rows in groups.items():
        assert list(rows) == sorted(rows), "keys keep their order"
        for row in rows:
            nodes[row] = node
    return nodes


def test_a_key_of_several_columns_is_a_tuple(cluster: Snapshot) -> None:
    integers = random_keys(KeyType.INTEGER, 200, SEED)
    keys = list(zip(integers, random_keys(KeyType.TEXT, 200, SEED), strict=True))
    bulk = BulkMap(cluster, Maps(cluster).table("r_integer_text"))
    by_rows, by_columns = bulk.group(keys), bulk.group((np.array(integers), [text for _, text in keys]))
    for node, rows in by_rows.items():
        assert list(rows) == list(by_columns[node])
        assert all(locate_key(cluster, "r_integer_text", keys[row]).node == node for row in rows)


def test_null_has_its_place_in_a_hash_table_and_none_in_a_range_table(cluster: Snapshot) -> None:
    maps = Maps(cluster)
    assert maps.table("h_bigint").locate(None) == locate_key(cluster, "h_bigint", None)
    with pytest.raises(UserError, match="NULL"):
        maps.table("r_bigint").locate(None)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("h_bigint", 1 << 63),
        ("h_integer", 1 << 31),
        ("h_bigint", "7"),
        ("r_bigint", True),
        ("h_bigint", (1, 2)),
        ("r_uuid", "x"),
    ],
)
def test_a_key_that_does_not_fit_is_refused_in_one_sentence(cluster: Snapshot, name: str, key: object) -> None:
    with pytest.raises(UserError, match=f"does not fit table {name}"):
        Maps(cluster).table(name).locate(key)  # type: ignore[arg-type]


def test_an_unknown_table_is_named_with_the_known_ones(cluster: Snapshot) -> None:
    with pytest.raises(UserError, match=r"no table 'nope'.*h_bigint"):
        Maps(cluster).table("nope")


def test_after_a_commit_only_the_changed_table_is_made_anew(tmp_path: Path) -> None:
    chance = Random(SEED)
    records = [*frame(NODES), Counter(TABLET_COUNTER, 1_000_000)]
    records += [*hash_table(chance, KeyType.BIGINT, 1, 64), *range_table(chance, (KeyType.BIGINT,), 2, 50)]
    with open_directory(f"sqlite://{tmp_path}/d.sqlite") as directory:
        maps = Maps(fill(directory, records))
        keys = random_keys(KeyType.BIGINT, 300, SEED)
        for _ in range(20):
            for name in ("h_bigint", "r_bigint"):
                assert [maps.table(name).locate(key) for key in keys] == [
                    locate_key(maps.snapshot, name, key) for key in keys
                ]
            chosen = chance.choice(list(maps.snapshot.tablets(chance.choice((1, 2)))))
            other = chance.choice([node for node in NODES if node != chosen.node])
            directory.commit(transaction([Put(moved(chosen, other))], maps.snapshot.version))
            untouched = "r_bigint" if chosen.table == 1 else "h_bigint"
            following = Maps(directory.snapshot(), maps)
            assert following.table(untouched) is maps.table(untouched)
            maps = following


def test_keys_are_read_from_text_by_type(cluster: Snapshot) -> None:
    for kind, text in (
        ("bigint", "-5"),
        ("uuid", "00000000-0000-0000-0000-000000000001"),
        ("date", "2024-02-29"),
        ("numeric", "1.50"),
        ("text", "5"),
        ("timestamp_with_time_zone", "2024-01-01T00:00:00+02:00"),
    ):
        table = cluster.table(f"h_{kind}")
        assert locate_key(cluster, table.name, parse_key(table, [text])).node in NODES
    with pytest.raises(UserError, match="'x' is not a value of type bigint, which key column k has"):
        parse_key(cluster.table("h_bigint"), ["x"])
    with pytest.raises(UserError, match=r"has the key \(k0, k1\): 2 values, not 1"):
        parse_key(cluster.table("r_integer_text"), ["1"])
