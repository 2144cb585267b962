"""Documents as responses."""

from fastapi import Response
from pydantic import BaseModel


def answer(document: BaseModel, status: int = 200, **headers: str) -> Response:
    """A document as it is: views make valid ones, so nothing is validated a second time."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(document.model_dump_json(), status, named, "application/json")
