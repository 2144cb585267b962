"""Every list has one envelope and one kind of cursor: pages join, whatever happens in between."""

from dataclasses import replace
from typing import Any

import httpx
import pytest

from balancer.api.shapes import cut_at, read_cursor, write_cursor
from balancer.directory.model import Change, Command, CommandState, Put, RangeBounds, RecordKind, Remove
from balancer.errors import UserError
from tests.support.directories import key, migration, transaction
from tests.support.instance import Instance

pytestmark = pytest.mark.quick


def commit(instance: Instance, *changes: Change) -> None:
    version = instance.directory().commit(transaction(list(changes), instance.directory().snapshot().version))
    instance.follower().wait(version - 1, 5)


def pages(client: httpx.Client, path: str, **query: Any) -> list[list[dict[str, Any]]]:
    found: list[list[dict[str, Any]]] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = client.get(path, params={**query, "cursor": cursor})
        assert answer.status_code == 200, answer.text
        document = answer.json()
        assert set(document) == {"items", "next"}
        found.append(document["items"])
        assert len(found) < 50, f"{path} does not end"
        cursor = document["next"]
    return found


def called(entry: dict[str, Any]) -> Any:
    return next(entry[name] for name in ("id", "name", "version", "bundle") if name in entry)


LISTS = ("nodes", "tables", "tablets", "plans", "schedules", "migrations", "history", "commands", "checks", "hot")


def test_lists_are_read_entry_by_entry_as_well_as_at_once(instance: Instance, client: httpx.Client) -> None:
    snapshot = instance.directory().snapshot()
    for number, state in ((3, "copying"), (4, "done"), (5, "done"), (6, "failed")):
        record = migration(snapshot.tablet(number), "pg-a" if number != 4 else "pg-b", state)
        commit(instance, Put(replace(record, finished=state != "copying", updated=100.0 * number)))
    for number in range(3):
        commit(instance, Put(Command(f"c{number}", "pin", {"tablet": 1}, "ann", float(number), CommandState.DONE)))
    for name in LISTS:
        whole = pages(client, f"/v1/{name}", limit=100)
        single = pages(client, f"/v1/{name}", limit=1) if name != "hot" else whole
        assert [called(one) for part in single for one in part] == [called(one) for one in whole[0]], name
        assert len(whole) == 1
    assert [one["id"] for one in pages(client, "/v1/commands")[0]] == ["c2", "c1", "c0"]
    assert [one["state"] for one in pages(client, "/v1/migrations")[0]] == ["copying", "failed", "done", "done"]


@pytest.mark.parametrize("cursor", ["x", "%%%", write_cursor(("a", 1)), write_cursor(()), "W10", "A" * 3000, "bnVsbA"])
def test_a_cursor_of_something_else_is_refused_or_ends_the_list(reader: httpx.Client, cursor: str) -> None:
    for name in LISTS:
        answer = reader.get(f"/v1/{name}", params={"cursor": cursor})
        assert answer.status_code in (200, 422), (name, answer.text)


def test_a_split_between_two_pages_hides_no_key_and_shows_none_twice(instance: Instance, client: httpx.Client) -> None:
    first = client.get("/v1/tablets", params={"table": "events", "limit": 2}).json()
    assert [one["id"] for one in first["items"]] == [1001, 1002]
    snapshot = instance.directory().snapshot()
    for number, low, cut, high in ((1001, None, 5, 10), (1003, 20, 25, 30)):  # one that was shown, one that was not
        whole = snapshot.tablet(number)
        lower = RangeBounds(upper=key(cut)) if low is None else RangeBounds(key(low), key(cut))
        parts = [replace(whole, id=number + 100, bounds=lower)]
        parts.append(replace(whole, id=number + 200, bounds=RangeBounds(key(cut), key(high))))
        commit(instance, Remove(RecordKind.TABLET, str(number)), *map(Put, parts))
    second = client.get("/v1/tablets", params={"table": "events", "cursor": first["next"]}).json()
    assert [one["id"] for one in second["items"]] == [1103, 1203, 1004]


def test_entries_that_come_and_go_move_no_others() -> None:
    found = [1, 2, 3, 5, 6]
    part, cursor = cut_at(found, lambda one: (one,), 3, "")
    assert (list(part), read_cursor(cursor or "")) == ([1, 2, 3], (3,))
    assert list(cut_at([2, 3, 4, 6], lambda one: (one,), 3, cursor or "")[0]) == [4, 6]
    assert cut_at(found, lambda one: (one,), 5, "")[1] is None
    with pytest.raises(UserError, match="is not a cursor"):
        cut_at(found, lambda one: (one,), 3, write_cursor(("x",)))
