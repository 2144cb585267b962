"""The OpenAPI document: what FastAPI makes of the endpoints, and who may call them, which the guard decides."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from balancer.api.access import OPEN_PATHS, READING
from balancer.api.problems import ProblemDocument

_SCHEME: Final = "token"
_REFERENCE: Final = "#/components/schemas/{model}"
_SCHEMES: Final = {
    _SCHEME: {
        "type": "http",
        "scheme": "bearer",
        "description": "`token` of [http] reads and changes everything, `read_token` only reads. Reading needs none"
        " where the instance listens on loopback or has read_requires_token = false.",
    }
}
_TAGS: Final = (
    ("cluster", "Bundles, nodes, tables and tablets in their current state."),
    ("records", "What is planned, what is running, what has ended, and what the consistency checker has found."),
    ("pictures", "The cluster over space and time."),
    ("questions", "Why, and why not."),
    ("commands", "What operators ask the leader to do."),
    ("routing", "Which node owns a key, and which keys are in use."),
    ("health", "For supervisors and Prometheus."),
)


def description(app: FastAPI) -> dict[str, Any]:
    """The document, made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            tags=[{"name": name, "description": about} for name, about in _TAGS],
        )
        components = made.setdefault("components", {})
        components["securitySchemes"] = _SCHEMES
        _, problems = models_json_schema([(ProblemDocument, "serialization")], ref_template=_REFERENCE)
        components.setdefault("schemas", {}).update(problems["$defs"])
        _drop_unused(made, components["schemas"])
        for path, operations in made["paths"].items():
            for method, operation in operations.items():
                operation["security"] = _security(path, method.upper())
        app.openapi_schema = made
    return app.openapi_schema


def _security(path: str, method: str) -> list[dict[str, list[str]]]:
    """An empty requirement among others says that it may be left out."""
    if path in OPEN_PATHS:
        return []
    return [{_SCHEME: []}, {}] if method in READING else [{_SCHEME: []}]


def _drop_unused(made: dict[str, Any], schemas: dict[str, Any]) -> None:
    """FastAPI describes its own answer to wrong parameters, which nobody ever gets: ours is a problem document."""
    for operations in made["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
