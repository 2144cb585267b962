"""What supervisors and Prometheus see, and the document that describes the API."""

import re

import httpx
import pytest
from pydantic import TypeAdapter

import balancer
from balancer.api.access import OPEN_PATHS
from balancer.api.command_routes import EXAMPLES, AnyCommand, CommandRequest
from balancer.api.problems import ProblemDocument
from balancer.api.record_shapes import CommandShape
from balancer.api.shapes import RouteShape, SampleRequest, TabletShape
from balancer.directory.contract import Follower
from balancer.errors import Unavailable
from balancer.instruments import declared
from balancer.planner.commands import VERBS
from tests.support.instance import Instance, bearer, serving

pytestmark = pytest.mark.quick


def test_a_loop_that_makes_progress_is_healthy_and_one_that_hangs_is_not(
    instance: Instance, client: httpx.Client
) -> None:
    assert client.get("/healthz").text == "ok\n"
    instance.age = 61.0
    assert client.get("/healthz").status_code == 503
    assert client.get("/readyz").status_code == 200


class Loading(Instance):
    def follower(self) -> Follower:
        raise Unavailable("the directory is being loaded")


def test_an_instance_is_ready_when_its_directory_is_loaded(instance: Instance) -> None:
    instance.__class__ = Loading
    with serving(instance) as client:
        assert client.get("/healthz").status_code == 200
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["detail"]) == (503, "the directory is being loaded")
        assert client.get("/v1/status").status_code == 503


def test_metrics_are_those_that_are_declared(client: httpx.Client) -> None:
    client.get("/v1/status")
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    served = set(re.findall(r"^# TYPE (\S+) ", answer.text, re.MULTILINE))
    assert {name for name in served if not name.endswith("_created")} == {metric.name for metric in declared()}
    assert 'balancer_balance_score{bundle="shop"} 71.5' in answer.text
    assert "balancer_directory_version 1.0" in answer.text
    assert f'balancer_info{{version="{balancer.__version__}"}} 1.0' in answer.text
    assert 'balancer_http_requests_total{route="/v1/status",status="200"} 1.0' in answer.text


def test_requests_are_counted_by_route_never_by_what_was_asked_for(client: httpx.Client) -> None:
    for number in range(1, 9):
        client.get(f"/v1/tablets/{number}")
        client.get(f"/nowhere/{number}")
        client.post("/v1/commands", json={}, headers=bearer("wrong"))
    text = client.get("/metrics").text
    routes = set(re.findall(r'balancer_http_requests_total\{route="([^"]*)"', text))
    assert routes == {"/v1/tablets/{tablet}", "unmatched"}


def test_the_openapi_document_describes_every_endpoint(reader: httpx.Client) -> None:
    document = reader.get("/v1/openapi.json").json()
    wanted = {
        *(
            "status",
            "overview",
            "nodes",
            "tables",
            "tablets",
            "tablets/{tablet}",
            "hot",
            "plans",
            "schedules",
            "heatmap",
        ),
        *("migrations", "history", "route/{table}", "commands", "commands/{command}", "samples"),
        *("checks", "cluster", "series", "explain/tablets/{tablet}", "explain/nodes/{node}", "why-not/{tablet}"),
        *("access", "commands/dry-run"),
    }
    assert {path.removeprefix("/v1/") for path in document["paths"] if path.startswith("/v1/")} == wanted
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation.get("description"), path
            assert "application/problem+json" in operation["responses"]["default"]["content"], path
    assert "schema" in document["paths"]["/v1/status"]["get"]["responses"]["200"]["content"]["application/json"]


def test_the_openapi_document_says_who_may_ask_and_calls_everything_by_a_name(reader: httpx.Client) -> None:
    document = reader.get("/v1/openapi.json").json()
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    tags = {tag["name"] for tag in document["tags"]}
    ids = []
    wanted: list[dict[str, list[str]]]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            wanted = [] if path in OPEN_PATHS else [{"token": []}, {}] if method == "get" else [{"token": []}]
            assert operation["security"] == wanted, path
            assert set(operation["tags"]) <= tags, path
            ids.append(operation["operationId"])
    assert len(ids) == len(set(ids))
    assert {"get_status", "get_tablets", "post_command", "explain_tablet", "get_why_not"} <= set(ids)
    for path in ("/healthz", "/readyz", "/metrics"):
        assert [*document["paths"][path]["get"]["responses"]["200"]["content"]] == ["text/plain"]


def test_times_sizes_and_words_have_types_in_the_openapi_document(reader: httpx.Client) -> None:
    document = reader.get("/v1/openapi.json").json()
    schemas = document["components"]["schemas"]
    lists = {name for name, one in schemas.items() if "items" in one.get("properties", {})}
    assert lists >= {"NodeList", "TableList", "TabletList", "PlanList", "MigrationList", "HistoryList", "CommandList"}
    for name, schema in schemas.items():
        if name == "FieldProblem":  # its `at` is a place
            continue
        for field, about in schema.get("properties", {}).items():
            kinds = [about, *about.get("anyOf", ())]
            if field in ("at", "created", "updated", "since", "begun", "unreachable_since", "pinned_until"):
                assert any(one.get("format") == "date-time" for one in kinds), (name, field)
            if field in ("bytes", "rows", "tablets", "connections") or field.endswith("_bytes"):
                assert all(one.get("type") != "number" for one in kinds), (name, field)
            if field in ("state", "word", "mode", "operation", "layout") and name != "RouteShape":
                assert any("$ref" in one for one in (*kinds, *about.get("allOf", ()))), (name, field)


def test_every_command_is_a_document_of_its_own_and_every_example_is_right(reader: httpx.Client) -> None:
    document = reader.get("/v1/openapi.json").json()
    body = document["paths"]["/v1/commands"]["post"]["requestBody"]["content"]["application/json"]
    assert set(body["schema"]["discriminator"]["mapping"]) == set(VERBS)
    command: TypeAdapter[AnyCommand] = TypeAdapter(CommandRequest)
    for example in EXAMPLES.values():
        command.validate_python(example)
    for model in (RouteShape, TabletShape, CommandShape, SampleRequest, ProblemDocument):
        for example in model.model_json_schema()["examples"]:
            model.model_validate(example)
