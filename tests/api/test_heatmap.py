"""The heat map's document: what the page draws."""

import base64
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import numpy as np
import pytest

from balancer.planner.recorder import Recorder
from tests.support.bundle_states import state_of, view_of_snapshot
from tests.support.instance import Instance

pytestmark = pytest.mark.quick


def record(instance: Instance, slots: int, hot: int = -1) -> None:
    """So many slots; the range table's tablet in place `slot % 4` is as hot as the slot's number plus one."""
    instance.recorder = Recorder()
    view = view_of_snapshot(instance.follower().snapshot)
    first = view.tables[1].first
    start = instance.clock.now() - timedelta(seconds=10 * slots)
    for slot in range(slots):
        rates = np.zeros(len(view.tablets))
        rates[first + slot % 4] = slot + 1 if hot < 0 else hot
        moment = replace(view, tablets=replace(view.tablets, write_rate=rates))
        instance.recorder.record(replace(state_of(moment), at=start + timedelta(seconds=10 * slot)))


def unpacked(document: dict[str, Any], name: str = "cells") -> Any:
    cells = np.frombuffer(base64.b64decode(document[name]), dtype=np.uint8)
    return cells.reshape(len(document["times"]), len(document["bins"]))


def values(document: dict[str, Any]) -> Any:
    return np.expm1(unpacked(document) / 255 * np.log1p(document["max"]))


def ask(client: httpx.Client, **query: int) -> dict[str, Any]:
    answer = client.get("/v1/heatmap", params={"bundle": "shop", "table": "events", **query})
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_columns_are_tablets_in_key_order_and_rows_are_moments(instance: Instance, client: httpx.Client) -> None:
    record(instance, 4)
    document = ask(client)
    assert [one["first"] for one in document["bins"]] == [1001, 1002, 1003, 1004]
    assert [(one["lower"], one["upper"]) for one in document["bins"]] == [
        ("", "10"),
        ("10", "20"),
        ("20", "30"),
        ("30", ""),
    ]
    assert np.allclose(values(document), np.diag([1, 2, 3, 4]), rtol=0.02)
    assert document["times"] == sorted(document["times"])


def test_owners_are_named(instance: Instance, client: httpx.Client) -> None:
    record(instance, 1)
    document = ask(client)
    names = [document["nodes"][number] for number in unpacked(document, "owners")[0]]
    assert names == ["pg-a", "pg-b", "pg-c", "pg-a"]


@pytest.mark.parametrize(("slots", "rows"), [(8, 4), (9, 4), (7, 3), (5, 1), (3, 100)])
def test_moments_are_joined_without_losing_the_hottest(
    instance: Instance, client: httpx.Client, slots: int, rows: int
) -> None:
    record(instance, slots)
    document = ask(client, rows=rows)
    assert len(document["times"]) <= rows
    assert document["max"] == slots
    assert values(document).max(axis=0).max() == pytest.approx(slots, rel=0.02)
    assert len(document["times"]) == len(set(document["times"]))


def test_a_table_at_rest_is_all_zero(instance: Instance, client: httpx.Client) -> None:
    record(instance, 2, hot=0)
    document = ask(client)
    assert document["max"] == 0
    assert not unpacked(document).any()


def test_a_table_that_was_not_recorded_is_refused_with_those_that_were(client: httpx.Client) -> None:
    answer = client.get("/v1/heatmap", params={"bundle": "shop", "table": "nothing"})
    assert answer.status_code == 422
    assert "shop/orders" in answer.json()["detail"]
