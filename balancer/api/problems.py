"""Errors in one shape, whatever raised them: RFC 9457 `application/problem+json`. Texts never contain a secret."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from balancer.directory.snapshot import NotFound
from balancer.errors import (
    BalancerError,
    Conflict,
    Damaged,
    Fenced,
    OutcomeUnknown,
    Refused,
    TooLarge,
    Unavailable,
    UserError,
)
from balancer.logs import mask

MEDIA_TYPE: Final = "application/problem+json"

_STATUSES: Final[tuple[tuple[type[BalancerError], int], ...]] = (
    (NotFound, 404),
    (UserError, 422),
    (Damaged, 500),
    (Refused, 409),
    (Conflict, 409),
    (Fenced, 503),
    (TooLarge, 413),
    (Unavailable, 503),
    (OutcomeUnknown, 504),
)


class FieldProblem(BaseModel):
    """What is wrong with one field."""

    at: str
    message: str


class ProblemDocument(BaseModel):
    """What went wrong (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "about:blank",
                    "title": "Conflict",
                    "status": 409,
                    "detail": "tablet 3 is on node pg-a already",
                }
            ]
        }
    )

    type: str
    title: str
    status: int
    detail: str = Field("", description="one sentence")
    errors: list[FieldProblem] = Field([], description="422: each field that is wrong")


RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    "default": {
        "description": "A problem",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}},
    }
}


def problem(
    status: int, detail: str = "", headers: Mapping[str, str] | None = None, errors: Sequence[Any] = ()
) -> JSONResponse:
    """The response for a problem."""
    document: dict[str, Any] = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status}
    if detail:
        document["detail"] = mask(detail)
    if errors:
        document["errors"] = list(errors)
    return JSONResponse(document, status, dict(headers or {}), MEDIA_TYPE)


def defect() -> JSONResponse:
    """What is said about an unexpected error: nothing that could be a secret."""
    return problem(500, "the request failed because of a defect; the log has the details")


def status_of(error: BalancerError) -> int:
    """The status that tells a client what to do about one of our errors."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def add_handlers(app: FastAPI) -> None:
    """Every way in which a request can fail comes out in the one shape."""

    @app.exception_handler(HTTPException)
    def of_http(_: Request, error: HTTPException) -> JSONResponse:
        detail = "" if error.detail == HTTPStatus(error.status_code).phrase else str(error.detail)
        return problem(error.status_code, detail, error.headers)

    @app.exception_handler(RequestValidationError)
    def of_validation(_: Request, error: RequestValidationError) -> JSONResponse:
        # Without "input": a mistaken value may be a secret in the wrong place.
        errors = [{"at": ".".join(map(str, one["loc"])), "message": one["msg"]} for one in error.errors()]
        return problem(422, "; ".join(f"{one['at']}: {one['message']}" for one in errors), errors=errors)

    @app.exception_handler(BalancerError)
    def of_ours(_: Request, error: BalancerError) -> JSONResponse:
        status = status_of(error)
        return problem(status, str(error), {"Retry-After": "1"} if status == 503 else None)

    @app.exception_handler(Exception)
    def of_defect(_: Request, __: Exception) -> JSONResponse:
        return defect()
