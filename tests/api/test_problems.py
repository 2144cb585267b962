"""Every error has one shape, and tells what is wrong without telling a secret."""

import httpx
import pytest

from balancer.directory.contract import Directory
from balancer.errors import Unavailable
from tests.support.instance import Instance, bearer, serving

pytestmark = pytest.mark.quick


def check(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == status
    assert document["type"] == "about:blank"
    assert document["title"]
    return str(document.get("detail", ""))


def test_not_found_and_not_allowed(reader: httpx.Client) -> None:
    check(reader.get("/nowhere"), 404)
    check(reader.get("/v1/status/"), 404)
    answer = reader.delete("/v1/status", headers=bearer())
    check(answer, 405)
    assert answer.headers["allow"] == "GET"


def test_wrong_parameters_are_all_named(reader: httpx.Client) -> None:
    detail = check(reader.get("/v1/tablets", params={"limit": 100_000, "state": "odd"}), 422)
    assert "limit" in detail
    assert "state" in detail
    assert "cursor" not in detail
    assert "next" in check(reader.get("/v1/tablets", params={"cursor": "x"}), 422)
    check(reader.get("/v1/tablets/none"), 422)
    check(reader.get("/v1/heatmap", params={"bundle": "shop", "table": "orders", "dimension": "smell"}), 422)


def test_a_wrong_value_is_not_repeated(reader: httpx.Client) -> None:
    body = {"verb": "drain", "password": "hush-hush"}
    answer = reader.post("/v1/commands", json=body, headers=bearer())
    check(answer, 422)
    assert "hush-hush" not in answer.text


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"verb": 7}', b"\xff\xfe", b"null"])
def test_what_is_no_command_is_refused(reader: httpx.Client, body: bytes) -> None:
    headers = {**bearer(), "Content-Type": "application/json"}
    check(reader.post("/v1/commands", content=body, headers=headers), 422)


def test_a_body_that_is_too_long_is_refused(reader: httpx.Client) -> None:
    long = b"x" * (257 * 1024)
    check(reader.post("/v1/commands", content=long, headers=bearer()), 413)
    chunks = (b"x" * 65536 for _ in range(5))
    check(reader.post("/v1/commands", content=chunks, headers=bearer()), 413)


class Defective(Instance):
    def tick_age(self) -> float:
        raise ZeroDivisionError("postgresql://balancer:hush@pg-a/shop")


def test_a_defect_is_a_problem_too_and_tells_nothing(instance: Instance) -> None:
    instance.__class__ = Defective
    with serving(instance) as client:
        answer = client.get("/v1/status")
        check(answer, 500)
        assert "hush" not in answer.text
        check(client.get("/nowhere"), 404)


class Away(Instance):
    def directory(self) -> Directory:
        raise Unavailable("the directory cannot be reached")


def test_a_directory_out_of_reach_is_worth_another_try(instance: Instance) -> None:
    instance.__class__ = Away
    with serving(instance) as client:
        answer = client.get("/v1/history")
        assert check(answer, 503) == "the directory cannot be reached"
        assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    "body",
    [
        b'{"verb": "drain", "node": NaN}',
        b'{"verb": "drain", "node": [Infinity]}',
        b'{"verb": "drain", "node": "\\ud800"}',
        b'{"verb": "drain", "\\udfff": 1}',
        b'{"verb": "drain", "author": "\\ud800"}',
        b'{"verb": "\\ud800"}',
        b'{"verb": "drain", "node": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"verb": "drain", "node": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"verb": "drain", "node": 1e999}',
        b'{"verb": "drain", "node": ' + b"9" * 10_000 + b"}",
    ],
)
def test_values_that_no_document_can_keep_are_refused(reader: httpx.Client, body: bytes) -> None:
    headers = {**bearer(), "Content-Type": "application/json"}
    check(reader.post("/v1/commands", content=body, headers=headers), 422)


@pytest.mark.parametrize("key", [b"NaN", b'"\\ud800"', b"1e999", b"9" * 5000])
def test_samples_with_such_values_are_refused(reader: httpx.Client, key: bytes) -> None:
    headers = {**bearer(), "Content-Type": "application/json"}
    body = b'{"table": "events", "reporter": "a", "samples": [{"key": [' + key + b"]}]}"
    check(reader.post("/v1/samples", content=body, headers=headers), 422)
