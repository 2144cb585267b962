"""One document for each verb: what fits reaches the leader's code as it understands it, what does not is refused."""

from typing import Any

import httpx
import pytest

from balancer.planner.commands import VERBS
from tests.support.instance import bearer

pytestmark = pytest.mark.quick

DOCUMENTS: dict[str, dict[str, Any]] = {
    "apply": {"plan": "p1", "actions": [1]},
    "cancel": {"migration": "m1"},
    "close": {"node": "pg-a"},
    "decide": {"transaction": "t", "home": "pg-a", "commit": False, "reason": "gone"},
    "double": {"bundle": "shop", "table": "orders", "at_once": True},
    "drain": {"node": "pg-a", "reason": "a disk"},
    "expire": {"tablets": [1001]},
    "halve": {"bundle": "shop", "table": "orders"},
    "hold-expiry": {"bundle": "shop"},
    "lost": {"node": "pg-a", "accept_loss": True},
    "merge": {"tablets": [1, 5], "mode": "read-only"},
    "move": {"tablet": 3, "node": "pg-a", "mode": "replicate"},
    "pause": {"bundle": "shop", "seconds": 60},
    "pin": {"tablet": 3, "seconds": 60},
    "plan": {"bundle": "shop"},
    "rejoin": {"node": "pg-a", "accept_loss": True},
    "release": {"tablet": 3},
    "release-expiry": {"bundle": "shop"},
    "resume": {"migration": "m1"},
    "run-now": {"bundle": "shop"},
    "split": {"tablet": 1003, "keys": [[25]]},
    "tablet-lost": {"tablet": 3, "node": "pg-a", "empty": True, "accept_loss": True},
    "undrain": {"node": "pg-a"},
    "unpin": {"tablet": 3},
}


def tried(client: httpx.Client, verb: str, **fields: Any) -> httpx.Response:
    return client.post("/v1/commands/dry-run", json={"verb": verb, **fields}, headers=bearer())


def test_every_verb_is_understood_as_it_is_documented(reader: httpx.Client) -> None:
    assert set(DOCUMENTS) == set(VERBS)
    for verb, fields in DOCUMENTS.items():
        answer = tried(reader, verb, **fields)
        assert answer.status_code in (200, 409), (verb, answer.text)
        assert "not understood" not in answer.text, verb
        assert "needs '" not in answer.text, verb


def test_keys_are_written_as_people_write_them(reader: httpx.Client) -> None:
    answer = tried(reader, "split", tablet=1003, keys=[[25], ["27"]]).json()
    assert answer["result"] == "split of tablet 1003 of events into 3 on pg-c"
    assert answer["line"] == "", "the command line takes keys in another form"
    assert tried(reader, "split", tablet=1003, keys=[["x"]]).status_code == 422
    assert tried(reader, "split", tablet=1003, keys=[[25, 26]]).status_code == 422
    assert tried(reader, "split", tablet=3, keys=[[25]]).status_code == 422, "a vbucket is not cut at keys"
    assert tried(reader, "split", tablet=1003, keys=[[35]]).status_code == 409, "it is in another tablet"


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"verb": "explode"},
        {"verb": "move", "tablet": 3},
        {"verb": "move", "tablet": "three", "node": "pg-a"},
        {"verb": "move", "tablet": 0, "node": "pg-a"},
        {"verb": "move", "tablet": 3, "node": "pg-a", "mode": "slowly"},
        {"verb": "move", "tablet": 3, "node": "pg-a", "arguments": {}},
        {"verb": "pause"},
        {"verb": "pause", "bundle": "shop", "migration": "m"},
        {"verb": "pause", "bundle": "shop", "seconds": -1},
        {"verb": "pin", "tablet": 3, "seconds": 1e300},
        {"verb": "decide", "transaction": "t", "home": "a", "reason": "r"},
        {"verb": "apply", "plan": "p", "actions": []},
        {"verb": "apply", "plan": "p", "actions": [0]},
        {"verb": "merge", "tablets": []},
    ],
)
def test_what_fits_no_verb_is_refused_with_the_field(reader: httpx.Client, document: dict[str, Any]) -> None:
    answer = reader.post("/v1/commands/dry-run", json=document, headers=bearer())
    assert answer.status_code == 422
    assert answer.json()["errors"]
