"""What the API tells: all of it from the directory and the last tick."""

from dataclasses import replace
from datetime import datetime, timedelta

import httpx
import numpy as np
import pytest

from balancer.directory.notes import InstanceNote, LeaderSpread
from tests.support.bundle_states import report_small
from tests.support.directories import migration, moved, puts, transaction
from tests.support.instance import Instance

pytestmark = pytest.mark.quick


def test_the_status_names_the_leader_and_each_bundle_in_a_sentence(reader: httpx.Client) -> None:
    status = reader.get("/v1/status").json()
    assert status["leader"] == {"name": "host-a", "epoch": 7, "is_self": True}
    (bundle,) = status["bundles"]
    assert (bundle["name"], bundle["word"], bundle["sentence"]) == ("shop", "working", "working: 1 move")
    assert bundle["score"] == {"now": 71.5, "after_plan": 93.0, "bound": 95.0, "limit": 100.0}
    assert bundle["tablets"] == 12


def test_the_status_says_who_should_lead(client: httpx.Client, instance: Instance) -> None:
    assert client.get("/v1/status").json()["spread"] is None
    before = client.get("/v1/overview").headers["etag"]
    other = InstanceNote("host-b", "p", 1, 0.0, 2.0, "it reaches 0 of 3 nodes", 0, "host-b", "")
    instance.leading = replace(instance.leading, spread=LeaderSpread("host-b", "move m1 has ended", (other,)))
    status = client.get("/v1/status").json()
    assert status["spread"] == {
        "wanted": "host-b",
        "waits_for": "move m1 has ended",
        "instances": [{"name": "host-b", "weight": 2.0, "unfit": "it reaches 0 of 3 nodes"}],
    }
    assert status["cluster"] == "directory"
    assert client.get("/v1/overview").headers["etag"] != before


def test_nodes_come_with_loads_and_capacity(reader: httpx.Client) -> None:
    nodes = reader.get("/v1/nodes", params={"bundle": "shop"}).json()["items"]
    assert [node["id"] for node in nodes] == ["pg-a", "pg-b", "pg-c"]
    assert nodes[0]["loads"]["bytes"] == nodes[0]["loads"]["tablets"] * 1_000_000
    assert nodes[0]["capacity"]["bytes"] == 1_000_000_000


def test_tablets_come_in_pages_that_join_without_gap_or_overlap(reader: httpx.Client) -> None:
    seen, cursor = [], ""
    while True:
        page = reader.get("/v1/tablets", params={"limit": 5, "cursor": cursor}).json()
        assert len(page["items"]) <= 5
        seen += [tablet["id"] for tablet in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert sorted(seen) == [*range(1, 9), *range(1001, 1005)]


def test_tablets_are_filtered_by_table_node_and_state(reader: httpx.Client) -> None:
    page = reader.get("/v1/tablets", params={"table": "events", "node": "pg-b"}).json()
    assert [tablet["id"] for tablet in page["items"]] == [1002]
    assert page["items"][0]["lower"] == ["10"]
    assert page["items"][0]["upper"] == ["20"]
    assert page["items"][0]["write_rate"] == 1002
    assert reader.get("/v1/tablets", params={"state": "quarantined"}).json()["items"] == []
    assert reader.get("/v1/tablets", params={"node": "nobody"}).json()["items"] == []


def test_one_tablet_and_an_unknown_one(reader: httpx.Client) -> None:
    tablet = reader.get("/v1/tablets/3").json()
    assert (tablet["modulus"], tablet["remainder"], tablet["node"]) == (8, 2, "pg-c")
    assert reader.get("/v1/tablets/77").status_code == 404


def test_the_hottest_tablets_come_first(reader: httpx.Client) -> None:
    hot = reader.get("/v1/hot", params={"limit": 3}).json()["items"]
    assert [tablet["id"] for tablet in hot] == [1004, 1003, 1002]


def test_a_tablet_of_many_writes_is_not_hidden_by_scans(instance: Instance, client: httpx.Client) -> None:
    state = instance.states()["shop"]
    assert state.view is not None
    columns = state.view.tablets
    writes, reads = np.ones(len(columns)), np.full(len(columns), 5000.0)
    writes[columns.ids == 1003] = 90.0
    tablets = replace(columns, write_rate=writes, read_rate=reads)
    instance.report(replace(state, view=replace(state.view, tablets=tablets)))
    assert client.get("/v1/hot").json()["items"][0]["id"] == 1003


def test_the_plan_says_why_and_why_not(reader: httpx.Client) -> None:
    (plan,) = reader.get("/v1/plans").json()["items"]
    assert plan["actions"][0]["reason"] == "pg-c carries 30 % more"
    assert plan["rejections"][0]["code"] == "pinned"
    assert plan["counts"] == {"pinned": 1}
    assert plan["id"] == "p1"


def test_migrations_come_with_their_progress(instance: Instance, client: httpx.Client) -> None:
    tablet = instance.follower().snapshot.tablet(3)
    running = migration(tablet, "pg-a", "copying")
    version = instance.directory().commit(transaction(puts([running]), instance.follower().snapshot.version))
    note = {"state": "catching_up", "bytes_done": 5, "bytes_total": 10, "waiting_for": "the lag to shrink"}
    instance.directory().publish("progress", running.id, note)
    instance.follower().wait(version - 1, 5)
    page = client.get("/v1/migrations", params={"tablet": 3}).json()
    assert page["items"][0]["state"] == "catching_up"
    assert page["items"][0]["progress"]["waiting_for"] == "the lag to shrink"
    assert client.get("/v1/tablets/3").json()["migration"] == running.id
    assert client.get("/v1/migrations", params={"which": "failed"}).json()["items"] == []


def test_the_history_is_newest_first_and_filtered(instance: Instance, client: httpx.Client) -> None:
    snapshot = instance.follower().snapshot
    changed = moved(snapshot.tablet(3), "pg-a")
    version = instance.directory().commit(transaction(puts([changed]), snapshot.version, reason="because"))
    instance.follower().wait(version - 1, 5)
    entries = client.get("/v1/history", params={"limit": 1}).json()["items"]
    assert [entry["reason"] for entry in entries] == ["because"]
    assert entries[0]["changes"][0]["text"] == "tablet 3 on pg-a, epoch 2, owned"
    by_tablet = client.get("/v1/history", params={"tablet": 3}).json()["items"]
    assert [entry["version"] for entry in by_tablet] == [version, version - 1]
    assert len(client.get("/v1/history", params={"tablet": 4}).json()["items"]) == 1
    assert client.get("/v1/history", params={"node": "pg-z"}).json()["items"] == []
    assert len(client.get("/v1/history", params={"bundle": "shop"}).json()["items"]) == 2


def test_older_history_is_reached_page_by_page(instance: Instance, client: httpx.Client) -> None:
    for number in range(5):
        snapshot = instance.directory().snapshot()
        node = "pg-a" if number % 2 else "pg-b"
        instance.directory().commit(transaction(puts([moved(snapshot.tablet(3), node)]), snapshot.version))
    instance.follower().wait(instance.directory().snapshot().version - 1, 5)
    seen: list[int] = []
    cursor = ""
    while True:
        page = client.get("/v1/history", params={"limit": 2, "cursor": cursor}).json()
        seen += [entry["version"] for entry in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == sorted(seen, reverse=True)
    assert seen == list(range(instance.follower().snapshot.version, 0, -1))


def test_the_schedule_has_todays_strip_and_the_next_windows(instance: Instance, client: httpx.Client) -> None:
    state = instance.states()["shop"]
    closed = type(state.schedule)("hours < 6", "bundle shop", "Europe/Moscow", False, None, state.at)
    report_small(instance, schedule=closed)
    (schedule,) = client.get("/v1/schedules", params={"windows": 3}).json()["items"]
    bits = f"{int(schedule['strip'], 16):01440b}"
    assert bits == "1" * 360 + "0" * 1080
    assert len(schedule["windows"]) == 3
    start, end = (datetime.fromisoformat(schedule["windows"][1][name]) for name in ("start", "end"))
    assert end - start == timedelta(hours=6)


def test_an_unknown_bundle_is_named_in_the_refusal(reader: httpx.Client) -> None:
    for path in ("nodes", "hot", "plans", "schedules"):
        answer = reader.get(f"/v1/{path}", params={"bundle": "nope"})
        assert answer.status_code == 422
        assert "shop" in answer.json()["detail"]


def test_the_overview_is_one_answer_and_cheap_to_ask_again(instance: Instance, client: httpx.Client) -> None:
    first = client.get("/v1/overview")
    document = first.json()
    assert {table["name"] for table in document["tables"]} == {"orders", "events"}
    assert document["status"]["bundles"][0]["word"] == "working"
    assert document["status"]["bundles"][0]["score"]["now"] == 71.5
    again = client.get("/v1/overview", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    report_small(instance, sentence="working: something else")
    assert client.get("/v1/overview", headers={"If-None-Match": first.headers["ETag"]}).status_code == 200


def test_a_standby_whose_directory_is_newer_than_its_last_tick_still_answers(
    instance: Instance, client: httpx.Client
) -> None:
    report_small(instance)
    snapshot = instance.follower().snapshot
    version = instance.directory().commit(transaction(puts([moved(snapshot.tablet(3), "pg-a")]), snapshot.version))
    instance.follower().wait(version - 1, 5)
    assert client.get("/v1/tablets/3").json()["node"] == "pg-a"
    assert client.get("/v1/overview").status_code == 200
