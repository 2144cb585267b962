"""Cuts fall where the rows are, hot keys are found by their rows' age, and each says how sure it is."""

import random
from bisect import bisect_right
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.errors import Refused, Unavailable
from balancer.naming import Name
from balancer.nodes.catalog.bounds import KeyColumn
from balancer.nodes.session.connection import Connection, translated
from balancer.nodes.tablets import key_samples
from balancer.nodes.tablets.key_samples import (
    Point,
    SplitKeys,
    current_xid,
    cuts,
    row_age_samples,
    split_keys,
    statistics_samples,
)
from balancer.policies.keyspace.hash_leaves import position
from balancer.policies.keyspace.hashing import partition_hash
from balancer.policies.keyspace.keys import KeyType, decode_key, encode_key

PART = Name("public", "Part")
ID = KeyColumn("id", KeyType.BIGINT)


def fill(connection: Connection, rows: str, columns: str = "id bigint, note text") -> None:
    connection.execute("SELECT setseed(0.25)")  # what a statement calls random is the same in each run
    connection.execute(f'CREATE TABLE "Part" ({columns}) WITH (autovacuum_enabled = off)')
    connection.execute(f'INSERT INTO "Part" {rows}')
    connection.execute('ANALYZE "Part"')


def shares(connection: Connection, found: SplitKeys) -> list[float]:
    """What part of the rows falls into each part."""
    keys = [decode_key([ID.type], key)[0] for key in found.keys]
    ids = [row[0] for row in connection.execute('SELECT id FROM "Part"')]
    counts = [0] * (len(keys) + 1)
    for number in ids:
        counts[bisect_right(keys, number)] += 1
    return [count / len(ids) for count in counts]


def test_a_small_tablet_is_cut_exactly(connection: Connection) -> None:
    fill(connection, "SELECT n * n FROM generate_series(1, 1000) n")
    found = split_keys(connection, [PART], [ID], 4)
    assert (found.method, found.confidence) == ("exact", 1.0)
    assert shares(connection, found) == [0.25] * 4


@pytest.mark.parametrize("parts", [2, 8])
def test_a_large_tablet_is_cut_by_statistics(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    monkeypatch.setattr(key_samples, "EXACT_ROWS", 1000)
    fill(connection, "SELECT (random() ^ 3 * 1e9)::bigint FROM generate_series(1, 50000) n")
    found = split_keys(connection, [PART], [ID], parts)
    assert found.method == "statistics"
    assert 0.8 < found.confidence < 1
    assert max(shares(connection, found)) < 1 / parts + 0.05
    assert len(found.keys) == parts - 1


def test_a_stale_or_missing_histogram_gives_way_to_a_sample(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_samples, "EXACT_ROWS", 1000)
    monkeypatch.setattr(key_samples, "MAX_BLOCKS", 100)
    fill(connection, "SELECT random() * 1e9, repeat('x', 100) FROM generate_series(1, 50000) n")
    connection.execute("DELETE FROM pg_statistic WHERE starelid = '\"Part\"'::regclass")
    found = split_keys(connection, [PART], [ID], 2)
    assert found.method == "sample"
    assert 0.5 < found.confidence < 0.9
    assert abs(shares(connection, found)[0] - 0.5) < 0.1


def test_keys_of_several_columns_and_types_are_cut(connection: Connection) -> None:
    fill(
        connection,
        "SELECT 'k' || n % 10, n FROM generate_series(1, 1000) n",
        'who text COLLATE "POSIX", at numeric',
    )
    columns = [KeyColumn("who", KeyType.TEXT), KeyColumn("at", KeyType.NUMERIC)]
    found = split_keys(connection, [PART], columns, 2)
    assert decode_key([KeyType.TEXT, KeyType.NUMERIC], found.keys[0]) == ("k5", 5)


@pytest.mark.parametrize("exact", [1000, 10_000_000])
def test_neighbours_are_cut_together(connection: Connection, monkeypatch: pytest.MonkeyPatch, exact: int) -> None:
    monkeypatch.setattr(key_samples, "EXACT_ROWS", exact)
    fill(connection, "SELECT n FROM generate_series(1, 6000) n")
    connection.execute("CREATE TABLE other AS SELECT n::bigint AS id FROM generate_series(6001, 24000) n")
    connection.execute("ANALYZE other")
    found = split_keys(connection, [PART, Name("public", "other")], [ID], 3)
    assert found.method == ("statistics" if exact == 1000 else "exact")
    assert [decode_key([ID.type], key)[0] for key in found.keys] == pytest.approx([8001, 16001], rel=0.1)


def test_repeated_keys_give_fewer_cuts_and_none_is_refused(connection: Connection) -> None:
    fill(connection, "SELECT CASE WHEN n < 900 THEN 1 ELSE 2 END FROM generate_series(1, 1000) n")
    assert [decode_key([ID.type], key) for key in split_keys(connection, [PART], [ID], 16).keys] == [(2,)]
    connection.execute('DELETE FROM "Part" WHERE id = 2')
    with pytest.raises(Refused, match="no two different keys"):
        split_keys(connection, [PART], [ID], 2)
    connection.execute('TRUNCATE "Part"')
    with pytest.raises(Refused, match="no two different keys"):
        split_keys(connection, [PART], [ID], 2)
    with pytest.raises(Refused, match="there is no partition"):
        split_keys(connection, [Name("public", "gone")], [ID], 2)


def test_a_hot_tail_is_found_by_the_age_of_its_rows(connection: Connection) -> None:
    fill(connection, "SELECT n FROM generate_series(1, 20000) n")
    with connection.cursor() as cursor:
        baseline = current_xid(cursor)
    assert row_age_samples(connection, PART, [ID], baseline).keys == ()
    connection.execute("UPDATE \"Part\" SET note = 'hot' WHERE id > 19800")
    found = row_age_samples(connection, PART, [ID], baseline)
    assert {decode_key([ID.type], key)[0] for key in found.keys} == set(range(19801, 20001))
    assert found.weights == (1.0,) * 200
    assert 0.8 < found.confidence < 1


def test_a_sample_of_the_blocks_stands_for_the_rest(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    with connection.cursor() as cursor:
        baseline = current_xid(cursor)
    fill(connection, "SELECT n FROM generate_series(1, 50000) n")
    monkeypatch.setattr(key_samples, "MAX_BLOCKS", 100)
    found = row_age_samples(connection, PART, [ID], baseline)
    assert 1000 < len(found.keys) < 45000
    assert sum(found.weights) == pytest.approx(50000, rel=0.5)


def test_keys_of_hash_tablets_are_positions(connection: Connection) -> None:
    with connection.cursor() as cursor:
        baseline = current_xid(cursor)
    fill(connection, "VALUES (7)")
    found = row_age_samples(connection, PART, [ID], baseline, hashed=True)
    assert found.keys == (position(partition_hash([ID.type], [7])).to_bytes(8, "big"),)


@pytest.mark.parametrize("kind", [KeyType.BIGINT, KeyType.TEXT, KeyType.TIMESTAMPTZ])
def test_rows_without_a_key_are_left_out_of_a_hash_tablets_samples(connection: Connection, kind: KeyType) -> None:
    before = current_xid(connection.cursor())
    fill(connection, "VALUES (NULL), (NULL)", f"id {kind}")
    assert row_age_samples(connection, PART, [KeyColumn("id", kind)], before, hashed=True).keys == ()


def test_statistics_are_a_poor_source_and_say_so(connection: Connection) -> None:
    fill(connection, "SELECT n FROM generate_series(1, 5000) n")
    found = statistics_samples(connection, PART, ID)
    assert len(found.keys) > 50
    assert sum(found.weights) == pytest.approx(1)
    assert found.confidence <= 0.3


def test_sampling_ends_in_time(connection: Connection) -> None:
    fill(connection, "SELECT n FROM generate_series(1, 100000) n")
    with pytest.raises(Unavailable), translated("a"):
        split_keys(connection, [PART], [ID], 2, seconds=0.001)
    assert connection.execute("SHOW statement_timeout").fetchone() == ("30s",)


@pytest.mark.quick
@given(st.lists(st.integers(0, 50), min_size=1, max_size=200), st.integers(2, 10))
def test_cuts_are_increasing_and_balanced(numbers: list[int], parts: int) -> None:
    points = [Point(encode_key([KeyType.INTEGER], [n]), 1.0) for n in sorted(numbers)]
    found = cuts(points, parts)
    assert list(found) == sorted(set(found))
    assert len(found) < parts
    assert points[0].key not in found
    most = max(numbers.count(number) for number in numbers)
    assert max(_loads(points, found)) <= len(numbers) / parts + most + 1


def _loads(points: Sequence[Point], found: Sequence[bytes]) -> list[int]:
    loads = [0] * (len(found) + 1)
    for point in points:
        loads[bisect_right(found, point.key)] += 1
    return loads


@pytest.mark.quick
def test_cuts_follow_the_weights() -> None:
    seed = 20261116
    print(f"seed {seed}")
    order = random.Random(seed)
    points = sorted(Point(order.randbytes(4), order.random()) for _ in range(1000))
    total = sum(point.weight for point in points)
    below = sum(point.weight for point in points if point.key < cuts(points, 2)[0])
    assert below == pytest.approx(total / 2, abs=1)


def test_questions_about_heat_do_not_count_as_load(connection: Connection) -> None:
    fill(connection, "SELECT n FROM generate_series(1, 5000) n")

    def counted() -> int:
        connection.execute("SELECT pg_stat_force_next_flush()")
        row = connection.execute("""SELECT pg_stat_get_tuples_returned('"Part"'::regclass)""").fetchone()
        assert row is not None
        return int(row[0])

    before = counted()
    assert len(row_age_samples(connection, PART, [ID], newer_than=0).keys) == 5000
    split_keys(connection, [PART], [ID], 4)
    assert counted() == before
    connection.execute('SELECT count(*) FROM "Part"')
    assert counted() == before + 5000, "and everybody else's reads are counted as ever"
