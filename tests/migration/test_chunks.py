"""A copy in chunks: rows that change while it goes on, interruptions at every point, and what they cost."""

import importlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.directory.model import MigrationMode
from balancer.migration import copy, replay
from balancer.migration.begin import begin_move
from balancer.migration.journal import read_detail
from balancer.migration.machine import State
from balancer.migration.runner import recover
from balancer.nodes.tablets import checksum
from balancer.nodes.tablets.copy import Chunk, missing
from tests.support.cluster import AMPLE, Cluster
from tests.support.directed import LEAF, TABLET, complaints, move
from tests.support.failing import end_sessions
from tests.support.sampling import sampled
from tests.support.spy import Spy

pytestmark = pytest.mark.always

PAGE = 8192
WIDE = f"UPDATE {LEAF} SET note = repeat('x', 200) RETURNING id"


INTERRUPTED = [
    (what, point)
    for what in (
        "balancer.migration.replay.replay_and_forget",
        "balancer.migration.replay.complete_rows",
        "balancer.migration.copy._make_slot",
        "balancer.nodes.tablets.replication.create_subscription",
        "balancer.migration.copy._start_streaming",
    )
    for point in ("before", "after")
]


class Killed(BaseException):
    """The daemon has died here."""


class Between:
    """Work that is done right before a chunk is copied, by the number of chunks before it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.work: dict[int, Callable[[], object]] = {}
        self.copied: list[Chunk] = []
        original = copy._copy_chunk

        def copy_chunk(ctx: Any, chunk: Chunk, *rest: Any) -> None:
            work = self.work.pop(len(self.copied), None)
            if work is not None:
                work()
            original(ctx, chunk, *rest)
            self.copied.append(chunk)

        patch.setattr(copy, "_copy_chunk", copy_chunk)


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Between:
    monkeypatch.setattr(replay, "FEW", 0)  # entries are forgotten after each replay
    return Between(monkeypatch)


@pytest.fixture
def paged(cluster: Cluster) -> Cluster:
    """The tablet that is moved has some pages, all full, and a chunk is one."""
    cluster.settings = replace(cluster.settings, **AMPLE, chunk_size=PAGE, chunks_at_once=1)
    cluster.query("a", WIDE)
    with cluster.connect("a") as connection:
        connection.execute(f"VACUUM FULL {LEAF}".encode())
        pages = by_page(cluster)
        connection.execute(f"DELETE FROM {LEAF} WHERE id = ANY(%s)".encode(), (pages[max(pages)],))
        connection.execute(f"VACUUM {LEAF}".encode())
    return cluster


def content(cluster: Cluster, node: str) -> list[tuple[object, ...]]:
    return sorted(cluster.query(node, f"SELECT id, n, note FROM {LEAF}"), key=repr)


def by_page(cluster: Cluster) -> dict[int, list[int]]:
    """Page → ids of its rows on the source."""
    found: dict[int, list[int]] = {}
    for page, key in cluster.query("a", f"SELECT (ctid::text::point)[0]::int, id FROM {LEAF} ORDER BY ctid"):
        found.setdefault(int(str(page)), []).append(int(str(key)))
    return found


@pytest.mark.quick
@given(st.lists(st.integers(1, 9), max_size=8), st.data(), st.integers(0, 40), st.integers(0, 7))
def test_what_is_missing_and_what_is_there_is_every_page_once(
    sizes: list[int], data: st.DataObject, pages: int, size: int
) -> None:
    noted, begin = [], 0
    for length in sizes:
        if data.draw(st.booleans()):
            noted.append(Chunk(0, begin, begin + length))
        begin += length
    if data.draw(st.booleans()):
        noted.append(Chunk(0, begin, None))
    every = sorted([*noted, *missing(0, noted, pages, size)])
    assert every[0].first == 0
    assert [one.end for one in every[:-1]] == [one.first for one in every[1:]]
    assert every[-1].end is None
    assert list(missing(0, every, pages, size)) == []


@pytest.mark.parametrize(("mode", "at_once"), [(MigrationMode.REPLICATE, 3), (MigrationMode.READ_ONLY, 1)])
def test_chunks_together_are_the_tablet(paged: Cluster, between: Between, mode: MigrationMode, at_once: int) -> None:
    paged.settings = replace(paged.settings, chunks_at_once=at_once)
    before = content(paged, "a")
    done = move(paged, {}, mode)
    assert (done.state, done.error) == ("done", "")
    assert content(paged, "b") == before
    assert len(between.copied) > 5
    assert read_detail(done).rows == len(before)
    assert complaints(paged) == []


def test_a_row_that_changes_its_page_between_two_chunks_arrives_once(paged: Cluster, between: Between) -> None:
    """From a page that was copied to one that was not, and the other way; and keys that come, go and change."""
    pages = by_page(paged)
    first, last = pages[0], pages[max(pages)]

    def change() -> None:
        with paged.connect("a") as connection:
            # Room on the first page for rows of the last one.
            connection.execute(f"DELETE FROM {LEAF} WHERE id = ANY(%s)".encode(), (first[:8],))
            connection.execute(f"VACUUM {LEAF}".encode())
            connection.execute(f"UPDATE {LEAF} SET n = n + 1 WHERE id = ANY(%s)".encode(), (last[:4],))
            connection.execute(f"UPDATE {LEAF} SET n = n + 1 WHERE id = ANY(%s)".encode(), (first[8:],))
            connection.execute(f"UPDATE orders SET id = id + 1000000 WHERE id = {pages[3][0]}".encode())
        now = by_page(paged)
        assert {*last[:4]} & {*now[0]}, "no row has come to a page that was copied"
        assert {*first[8:]} - {*now[0]}, "no row has left a page that was copied"

    seen: list[list[tuple[object, ...]]] = []
    between.work = {2: change}
    done = move(paged, {"entered:fencing": lambda: seen.append(content(paged, "a"))})
    assert (done.state, done.error) == ("done", "")
    assert content(paged, "b") == seen[0]
    assert complaints(paged) == []


def test_unique_values_that_change_hands_between_two_chunks_arrive(paged: Cluster, between: Between) -> None:
    pages = by_page(paged)
    one, other = pages[0][0], pages[max(pages)][0]
    with paged.connect("a") as connection:
        connection.execute(f"UPDATE {LEAF} SET n = id".encode())
        connection.execute(f"CREATE UNIQUE INDEX held ON {LEAF} (n)".encode())

    def swap() -> None:
        with paged.connect("a") as connection:
            for key, value in ((one, -1), (other, one), (one, other)):
                connection.execute(f"UPDATE {LEAF} SET n = {value} WHERE id = {key}".encode())

    between.work = {2: swap}
    done = move(paged, {})
    assert (done.state, done.error) == ("done", "")
    assert paged.query("b", f"SELECT id, n FROM {LEAF} WHERE id IN ({one}, {other}) ORDER BY id = {other}") == [
        (one, other),
        (other, one),
    ]


def test_what_changes_while_a_replay_runs_is_not_forgotten(
    paged: Cluster, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed after the replay's snapshot, and before its entries are forgotten."""
    key = by_page(paged)[1][0]
    original = checksum.take_out
    written: list[tuple[object, ...]] = []

    def take_out(*given: Any) -> None:
        original(*given)
        if not written:
            written.extend(paged.query("a", f"UPDATE {LEAF} SET n = 7 WHERE id = {key} RETURNING n"))

    monkeypatch.setattr(checksum, "take_out", take_out)
    between.work = {2: lambda: paged.query("a", f"UPDATE {LEAF} SET n = 1 WHERE id = {key} RETURNING n")}
    done = move(paged, {})
    assert (done.state, done.error, written) == ("done", "", [(7,)])
    assert paged.query("b", f"SELECT n FROM {LEAF} WHERE id = {key}") == [(7,)]


def test_a_table_that_is_rewritten_between_two_chunks_ends_the_move(paged: Cluster, between: Between) -> None:
    """Its rows have other places then, without an entry in the log."""

    def rewrite() -> None:
        with paged.connect("a") as connection:
            connection.execute(f"CLUSTER {LEAF} USING orders_t2_pkey".encode())

    between.work = {2: rewrite}
    done = move(paged, {})
    assert done.state == "failed"
    assert "was changed while the migration ran" in done.error
    assert complaints(paged) == []


@pytest.mark.parametrize("chunk", sampled((0, 1, 5), 1, "chunks"))
def test_a_successor_copies_only_the_chunks_that_are_missing(paged: Cluster, between: Between, chunk: int) -> None:
    between.work = {chunk: lambda: change_and_die(paged)}
    interrupted(paged)
    before = [*between.copied]
    assert len(before) == chunk
    change(paged)
    succeeded(paged)
    assert not {*before} & {*between.copied[chunk:]}, "a chunk that was there was copied again"
    assert len(between.copied) > 6


def test_a_chunk_of_another_size_that_is_still_being_written_is_waited_for(
    paged: Cluster, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a lost session, whose COMMIT is on its way: the setting has changed since, and a smaller chunk overlaps it."""
    original, before = copy.copy_chunks, content(paged, "a")
    lost = paged.connect("b")
    late = threading.Timer(0.5, lambda: lost.execute("COMMIT"))

    def copy_chunks(ctx: Any, shapes: Any) -> None:
        if not late.is_alive() and not late.finished.is_set():
            lost.execute("BEGIN")
            lost.execute("SET LOCAL session_replication_role TO replica")
            lost.execute(f"INSERT INTO balancer.chunks_{ctx.id} (part, first, until) VALUES (0, 0, 2)".encode())
            with paged.connect("a") as source:
                rows = source.execute(f"SELECT id, n, note FROM {LEAF} WHERE ctid < '(2,0)'".encode()).fetchall()
            lost.cursor().executemany(f"INSERT INTO {LEAF} (id, n, note) VALUES (%s, %s, %s)".encode(), rows)
            late.start()
        original(ctx, shapes)

    monkeypatch.setattr(copy, "copy_chunks", copy_chunks)
    record = move(paged, {})
    lost.close()
    assert (record.state, record.error) == (State.DONE, "")
    assert content(paged, "b") == before
    assert between.copied[0].first == 2


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_chunk_is_there_with_its_note_or_not_at_all(
    paged: Cluster, between: Between, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The leader dies when the rows of a chunk have been sent, and its transaction has not been committed."""
    with monkeypatch.context() as patch:
        between.work = {
            2: lambda: dying_at(patch, "balancer.nodes.tablets.copy.note_size", point, lambda: change_and_die(paged))
        }
        interrupted(paged)
    assert len(between.copied) == 2
    succeeded(paged)


@pytest.mark.parametrize(("what", "point"), sampled(INTERRUPTED, 2, "interrupted"))
def test_whatever_was_interrupted_is_done_once_more(
    paged: Cluster, between: Between, monkeypatch: pytest.MonkeyPatch, what: str, point: str
) -> None:
    between.work = {1: lambda: change(paged)}
    with monkeypatch.context() as patch:
        dying_at(patch, what, point, lambda: change_and_die(paged))
        interrupted(paged)
    copied = len(between.copied)
    change(paged)
    succeeded(paged)
    assert len(between.copied) == copied


def test_the_same_leader_goes_on_when_its_sessions_were_lost(paged: Cluster, between: Between) -> None:
    def lose() -> None:
        change(paged)
        end_sessions(paged.dsns["b"])
        end_sessions(paged.dsns["a"])

    between.work = {3: lose, 5: lose}
    done = move(paged, spy := Spy())
    assert (done.state, done.error) == ("done", "")
    assert (read_detail(done).restarts, read_detail(done).retries) == (0, 2)
    assert State.RESTARTING not in spy.states
    assert len({*between.copied}) == len(between.copied)
    assert complaints(paged) == []


def test_a_target_that_has_lost_a_replay_ends_the_move(paged: Cluster, between: Between) -> None:
    """Its entries were forgotten: what it changed is known to nobody any more."""
    lost = "DELETE FROM balancer.marker RETURNING number"
    between.work = {1: lambda: change(paged)}
    original = replay.replay_until_near
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "replay_until_near", lambda *given: (paged.query("b", lost), original(*given)))
        done = move(paged, {})
    assert done.state == "failed"
    assert "did it go back in time?" in done.error
    assert complaints(paged) == []


def change(cluster: Cluster) -> None:
    """Rows of every page change, some go and some come."""
    with cluster.connect("a") as connection:
        connection.execute(f"UPDATE {LEAF} SET n = n + 1 WHERE id % 3 = 0".encode())
        connection.execute(f"DELETE FROM {LEAF} WHERE id IN (SELECT id FROM {LEAF} ORDER BY id DESC LIMIT 3)".encode())


def change_and_die(cluster: Cluster) -> None:
    change(cluster)
    raise Killed


def dying_at(patch: pytest.MonkeyPatch, what: str, point: str, die: Callable[[], object]) -> None:
    """At the first call of a function, or right after it."""
    module, _, name = what.rpartition(".")
    owner = importlib.import_module(module)
    original = getattr(owner, name)

    def dying(*given: Any, **named: Any) -> None:
        if point == "after":
            original(*given, **named)
        die()

    patch.setattr(owner, name, dying)


def interrupted(cluster: Cluster) -> None:
    """A move whose leader dies in the middle of it."""
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    begun = begin_move(directory, leadership, TABLET, "b")
    with pytest.raises(Killed):
        cluster.runner(directory, leadership).run(begun.id)
    leadership.resign()


def succeeded(cluster: Cluster) -> None:
    """A new leader goes on with what it finds, and every row arrives."""
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    seen: list[list[tuple[object, ...]]] = []
    runner = cluster.runner(directory, leadership, Spy({"entered:fencing": lambda: seen.append(content(cluster, "a"))}))
    [done] = [runner.run(record.id) for record in recover(directory, leadership)]
    assert (done.state, done.error) == ("done", "")
    assert content(cluster, "b") == seen[0]
    assert complaints(cluster) == []
