"""Routes that follow the directory, commands that reach the leader, samples that reach the poll."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest

from balancer.api.directory_feed import Turns
from balancer.directory.model import CommandState, Put
from balancer.directory.snapshot import Snapshot
from balancer.planner.commands import decide
from balancer.planner.hot_keys import Samples
from balancer.policies.keyspace.hash_leaves import position
from balancer.policies.keyspace.hashing import partition_hash
from balancer.policies.keyspace.keys import KeyType, encode_key
from tests.support.bundle_states import view_of_snapshot
from tests.support.directories import migration, moved, puts, transaction
from tests.support.instance import Instance, bearer, serving


def move(instance: Instance, tablet: int, node: str) -> int:
    snapshot = instance.directory().snapshot()
    return instance.directory().commit(transaction(puts([moved(snapshot.tablet(tablet), node)]), snapshot.version))


def later(seconds: float, work: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        time.sleep(seconds)
        work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("key", [0, 1, -5, 123456789, 2**63 - 1])
def test_a_hash_key_is_routed_as_postgresql_would(instance: Instance, client: httpx.Client, key: int) -> None:
    answer = client.get("/v1/route/orders", params={"key": key}, headers=bearer()).json()
    remainder = partition_hash((KeyType.BIGINT,), (key,)) % 8
    owner = instance.follower().snapshot.tablet(remainder + 1)
    assert (answer["tablet"], answer["node"], answer["epoch"]) == (owner.id, owner.node, owner.epoch)
    assert answer["dsn"] == f"postgresql://balancer@{owner.node}/shop"


def test_a_range_key_is_routed_by_its_bounds(reader: httpx.Client) -> None:
    found = {key: reader.get("/v1/route/events", params={"key": key}).json()["tablet"] for key in (-1, 10, 19, 30)}
    assert found == {-1: 1001, 10: 1002, 19: 1002, 30: 1004}


@pytest.mark.parametrize("query", [{}, {"key": "x"}, {"key": ["1", "2"]}, {"key": str(2**63)}])
def test_what_is_no_key_of_the_table_is_refused(reader: httpx.Client, query: dict[str, str]) -> None:
    assert reader.get("/v1/route/events", params=query).status_code == 422


def test_an_unknown_table_is_not_found(reader: httpx.Client) -> None:
    assert reader.get("/v1/route/nothing", params={"key": "1"}).status_code == 404


def test_a_route_is_confirmed_by_its_tag_until_the_directory_changes(instance: Instance, client: httpx.Client) -> None:
    first = client.get("/v1/route/events", params={"key": 5})
    tag = {"If-None-Match": first.headers["ETag"]}
    assert first.headers["ETag"] == f'"{first.json()["version"]}"'
    assert client.get("/v1/route/events", params={"key": 5}, headers=tag).status_code == 304
    version = move(instance, 1001, "pg-b")
    instance.follower().wait(version - 1, 5)
    second = client.get("/v1/route/events", params={"key": 5}, headers=tag)
    assert (second.status_code, second.json()["node"], second.json()["epoch"]) == (200, "pg-b", 2)


def test_few_go_on_at_once_and_many_one_after_another() -> None:
    turns = Turns(per_second=10, at_once=3)
    assert [round(turns.take(100.0), 3) for _ in range(6)] == [0, 0, 0, 0.1, 0.2, 0.3]
    assert round(turns.take(100.2), 3) == 0.2, "those before it have theirs"
    assert [round(turns.take(200.0), 3) for _ in range(4)] == [0, 0, 0, 0.1]


def test_many_who_wait_are_all_told_the_newest(instance: Instance) -> None:
    """More than are answered at once, and changes while they wait for their turn."""
    many = 250

    async def ask(client: httpx.AsyncClient, tag: str) -> int:
        answer = await client.get("/v1/route/events?key=5&wait=30", headers={"If-None-Match": tag})
        return int(answer.json()["version"])

    async def everybody(url: str, tag: str) -> list[int]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
            waiting = [asyncio.create_task(ask(client, tag)) for _ in range(many)]
            await asyncio.sleep(1.0)
            changes = [await asyncio.to_thread(move, instance, 1001, node) for node in ("pg-b", "pg-c")]
            versions = await asyncio.gather(*waiting)
            assert min(versions) >= changes[0]
            return versions

    with serving(instance) as client:
        tag = client.get("/v1/route/events?key=5").headers["ETag"]
        assert len(asyncio.run(everybody(str(client.base_url), tag))) == many


def test_a_long_poll_answers_when_the_owner_changes(instance: Instance, client: httpx.Client) -> None:
    tag = {"If-None-Match": client.get("/v1/route/events", params={"key": 5}).headers["ETag"]}
    began = time.monotonic()
    thread = later(0.3, lambda: move(instance, 1001, "pg-c"))
    answer = client.get("/v1/route/events", params={"key": 5, "wait": 15}, headers=tag)
    thread.join()
    assert answer.json()["node"] == "pg-c"
    assert 0.2 < time.monotonic() - began < 10


def test_a_long_poll_without_news_ends_in_time(reader: httpx.Client) -> None:
    tag = {"If-None-Match": reader.get("/v1/route/events", params={"key": 5}).headers["ETag"]}
    answer = reader.get("/v1/route/events", params={"key": 5, "wait": 0.3}, headers=tag)
    assert answer.status_code == 304


def test_a_follower_that_does_not_wait_is_not_asked_all_the_time(
    instance: Instance, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was closed, as when an instance stops, answers at once: a loop over that would take a core."""
    follower = instance.follower()
    tag = {"If-None-Match": client.get("/v1/route/events", params={"key": 5}).headers["ETag"]}
    asked: list[int] = []
    wait = follower.wait

    def counted(after: int, timeout: float) -> Snapshot:
        asked.append(after)
        return wait(after, timeout)

    monkeypatch.setattr(follower, "wait", counted)
    follower.close()
    assert client.get("/v1/route/events", params={"key": 5, "wait": 0.4}, headers=tag).status_code == 304
    assert 1 <= len(asked) < 10


def test_hundreds_of_long_polls_do_not_keep_others_waiting(instance: Instance) -> None:
    with serving(instance) as client:
        limits = httpx.Limits(max_connections=300)
        tag = {"If-None-Match": client.get("/v1/route/events", params={"key": 5}).headers["ETag"]}
        with httpx.Client(base_url=client.base_url, limits=limits, timeout=30) as many:
            answers: list[int] = []

            def ask() -> None:
                answers.append(many.get("/v1/route/events", params={"key": 5, "wait": 20}, headers=tag).status_code)

            threads = [threading.Thread(target=ask) for _ in range(200)]
            for thread in threads:
                thread.start()
            began = time.monotonic()
            assert client.get("/v1/status").status_code == 200
            assert time.monotonic() - began < 10
            move(instance, 1001, "pg-c")
            for thread in threads:
                thread.join()
        assert answers == [200] * 200


def test_a_server_that_stops_lets_long_polls_go(instance: Instance) -> None:
    answers: list[int] = []
    with serving(instance) as client:
        tag = {"If-None-Match": client.get("/v1/route/events", params={"key": 5}).headers["ETag"]}
        url = f"{client.base_url}/v1/route/events?key=5&wait=50"
        waiting = threading.Thread(target=lambda: answers.append(httpx.get(url, headers=tag, timeout=60).status_code))
        waiting.start()
        time.sleep(0.5)
        began = time.monotonic()
    waiting.join()
    assert answers == [304]
    assert time.monotonic() - began < 10


def answer_command(instance: Instance) -> None:
    """What the leader does with a command, as soon as there is one."""
    snapshot = instance.directory().snapshot()
    while not snapshot.commands:
        time.sleep(0.02)
        snapshot = instance.directory().snapshot()
    (command,) = snapshot.commands.values()
    done, outcome = decide(command, snapshot, instance.clock.now())
    assert command.state is CommandState.WAITING
    instance.directory().commit(transaction([Put(done), *outcome.changes], snapshot.version))


def test_a_command_is_given_to_the_leader_and_its_answer_comes_back(instance: Instance, client: httpx.Client) -> None:
    thread = later(0.3, lambda: answer_command(instance))
    body = {"verb": "drain", "node": "pg-b", "author": "ann"}
    answer = client.post("/v1/commands?wait=15", json=body, headers=bearer())
    thread.join()
    assert answer.status_code == 200
    assert answer.json()["state"] == "done"
    assert answer.json()["author"] == "ann@127.0.0.1"
    assert instance.directory().snapshot().nodes["pg-b"].state == "draining"
    assert client.get(answer.headers["Location"]).json() == answer.json()


def test_what_the_leader_would_refuse_is_refused_at_once(instance: Instance, client: httpx.Client) -> None:
    for body, status in (
        ({"verb": "move", "tablet": 3, "node": "pg-c"}, 409),
        ({"verb": "drain", "node": "pg-z"}, 404),
    ):
        answer = client.post("/v1/commands?wait=15", json=body, headers=bearer())
        assert answer.status_code == status
        assert body["node"] in answer.json()["detail"]
    assert not instance.directory().snapshot().commands, "nothing is left waiting where nobody leads"


def test_a_command_that_waits_can_be_asked_for_later(instance: Instance, client: httpx.Client) -> None:
    given = client.post("/v1/commands", json={"verb": "plan", "bundle": "shop"}, headers=bearer())
    assert given.status_code == 202
    assert given.json()["state"] == "waiting"
    thread = later(0.2, lambda: answer_command(instance))
    assert client.get(given.headers["Location"], params={"wait": 15}).json()["state"] == "done"
    thread.join()
    assert client.get("/v1/commands/unknown").status_code == 404


def test_an_unknown_verb_is_refused_at_once(instance: Instance, client: httpx.Client) -> None:
    answer = client.post("/v1/commands", json={"verb": "destroy"}, headers=bearer())
    assert answer.status_code == 422
    assert "drain" in answer.json()["detail"]
    assert not instance.directory().snapshot().commands


def test_samples_reach_the_tick_as_those_of_the_client_library_do(instance: Instance, client: httpx.Client) -> None:
    for table, keys in (("events", [5, 15]), ("orders", [7])):
        reported = [{"key": [key], "weight": 2.5, "write": False} for key in keys]
        body = {"table": table, "reporter": "shop-web-1", "samples": reported}
        answer = client.post("/v1/samples", json=body, headers=bearer())
        assert (answer.status_code, answer.json()) == (202, {"taken": len(keys)})
    samples = Samples(instance.directory())
    samples.gather(instance.clock.now().timestamp())
    view, snapshot = view_of_snapshot(instance.follower().snapshot), instance.follower().snapshot
    found = samples.of(view, snapshot, [1001, 1002], NobodyKnows(), enough=1)
    assert found[1001].keys == (encode_key((KeyType.BIGINT,), (5,)),)
    assert found[1002].keys == (encode_key((KeyType.BIGINT,), (15,)),)
    assert found[1002].weights == (2.5,)
    assert found[1002].writes == (False,)
    owner = snapshot.locate(1, position(partition_hash((KeyType.BIGINT,), (7,)))).id
    (place,) = samples.of(view, snapshot, [owner], NobodyKnows(), enough=1)[owner].keys
    assert place == position(partition_hash((KeyType.BIGINT,), (7,))).to_bytes(8, "big")


class NobodyKnows:
    """A node that has nothing to tell about keys."""

    def ask(self, tablet_id: int) -> None:
        return None

    def row_keys(self, tablet_id: int) -> tuple[bytes, ...]:
        return ()


@pytest.mark.parametrize(
    "change",
    [
        {"table": "nothing"},
        {"reporter": "a/b"},
        {"samples": []},
        {"samples": [{"key": ["x"]}]},
        {"samples": [{"key": [1], "weight": 0}]},
        {"samples": [{"key": [1]}] * 1001},
    ],
)
def test_samples_that_are_wrong_or_too_many_are_refused(
    instance: Instance, client: httpx.Client, change: dict[str, object]
) -> None:
    body = {"table": "events", "reporter": "web", "samples": [{"key": [1]}]} | change
    assert client.post("/v1/samples", json=body, headers=bearer()).status_code in (404, 422)
    assert not instance.directory().published("samples")


def test_a_tablet_that_moves_is_marked(instance: Instance, client: httpx.Client) -> None:
    snapshot = instance.follower().snapshot
    running = replace(migration(snapshot.tablet(1001), "pg-b", "fencing"), reason="test")
    version = instance.directory().commit(transaction(puts([running]), snapshot.version))
    instance.follower().wait(version - 1, 5)
    assert client.get("/v1/route/events", params={"key": 5}).json()["moving"] is True
    assert client.get("/v1/route/events", params={"key": 15}).json()["moving"] is False
