"""A client that a generator makes of the OpenAPI document works against every endpoint, with its types."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from tests.api.conftest import small
from tests.support.instance import TOKEN, Instance, serving

PACKAGE = "made_client"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Instance, httpx.Client]]:
    with small(tmp_path_factory.mktemp("generated")) as instance, serving(instance) as client:
        yield instance, client


@pytest.fixture(scope="module")
def made(served: tuple[Instance, httpx.Client], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("client")
    document, config = folder / "openapi.json", folder / "config.yml"
    document.write_text(served[1].get("/v1/openapi.json").text)
    config.write_text("post_hooks: []\n")
    words = ["--path", document, "--config", config, "--meta", "none", "--output-path", folder / PACKAGE]
    command = [str(Path(sys.prefix, "generator", "bin", "openapi-python-client")), "generate", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr, "the generator leaves something out:\n" + done.stdout
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module(PACKAGE)
    finally:
        sys.path.remove(str(folder))


def models(made: ModuleType) -> Any:
    return importlib.import_module(f"{made.__name__}.models")


def call(made: ModuleType, tag: str, operation: str, url: str, **arguments: Any) -> Any:
    module = importlib.import_module(f"{made.__name__}.api.{tag}.{operation}")
    with made.AuthenticatedClient(base_url=url, token=TOKEN) as client:
        return module.sync_detailed(client=client, **arguments)


ARGUMENTS: dict[str, dict[str, Any]] = {
    "get_tablet": {"tablet": 3},
    "get_heatmap": {"bundle": "shop", "table": "orders"},
    "get_cluster": {"bundle": "shop"},
    "get_series": {"bundle": "shop", "day": True},
    "explain_tablet": {"tablet": 3},
    "explain_node": {"node": "pg-a"},
    "get_why_not": {"tablet": 3, "node": "pg-a"},
    "get_route": {"table": "events", "key": ["5"]},
}
"""What an operation needs; those that are not here need nothing."""


def test_every_endpoint_answers_the_client_that_was_made_for_it(
    made: ModuleType, served: tuple[Instance, httpx.Client]
) -> None:
    instance, http = served
    url = str(http.base_url).rstrip("/")
    document = http.get("/v1/openapi.json").json()
    kinds = models(made)
    bodies = {
        "post_dry_run": kinds.MoveCommand(verb="move", tablet=3, node="pg-a"),
        "post_command": kinds.PinCommand(verb="pin", tablet=4, seconds=60.0, author="ann"),
        "post_samples": kinds.SampleRequest(
            table="events", reporter="web-1", samples=[kinds.Sample(key=[5], weight=2.0, write=True)]
        ),
    }
    seen, order = set(), {"post_command": 0, "get_command": 1}
    operations = [(op, method) for path in document["paths"].values() for method, op in path.items()]
    for operation, _ in sorted(operations, key=lambda one: order.get(one[0]["operationId"], 0)):
        name, (tag,) = operation["operationId"], operation["tags"]
        arguments = dict(ARGUMENTS.get(name, {}))
        if name in bodies:
            arguments["body"] = bodies[name]
        if name == "get_command":
            arguments["command"] = next(iter(instance.directory().snapshot().commands))
        answer = call(made, tag, name, url, **arguments)
        assert answer.status_code in (200, 202), (name, answer.content)
        assert answer.parsed is not None, name
        seen.add(name)
    assert len(seen) == len(operations), "operation ids are unique"
    (command,) = instance.directory().snapshot().commands.values()
    assert (command.verb, dict(command.arguments)) == ("pin", {"tablet": 4, "seconds": 60.0})


def test_what_comes_back_has_types(made: ModuleType, served: tuple[Instance, httpx.Client]) -> None:
    url = str(served[1].base_url).rstrip("/")
    kinds = models(made)
    status = call(made, "cluster", "get_status", url).parsed
    (bundle,) = status.bundles
    assert bundle.word is kinds.StateWord.WORKING
    assert isinstance(bundle.at, datetime)
    assert bundle.at.utcoffset() is not None
    seen: list[int] = []
    cursor: Any = ""
    while cursor is not None:
        page = call(made, "cluster", "get_tablets", url, limit=5, cursor=cursor).parsed
        seen += [tablet.id for tablet in page.items]
        assert all(isinstance(tablet.bytes_, int) for tablet in page.items)
        cursor = page.next_
    assert len(seen) == len(set(seen)) == 12
    refused = call(made, "commands", "post_dry_run", url, body=kinds.MoveCommand(verb="move", tablet=3, node="pg-c"))
    assert refused.status_code == 409
    assert "pg-c" in json.loads(refused.content)["detail"]
