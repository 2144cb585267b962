"""Serves the page's own files, which ship in the package. They reveal nothing about the cluster: `/v1` does."""

from hashlib import blake2b
from importlib.resources import files
from typing import Annotated, Final

from fastapi import APIRouter, Header, Response

_TYPES: Final = {
    "index.html": "text/html",
    "actions.js": "text/javascript",
    "app.js": "text/javascript",
    "arrows.js": "text/javascript",
    "charts.js": "text/javascript",
    "cluster.js": "text/javascript",
    "dom.js": "text/javascript",
    "header.js": "text/javascript",
    "keys.js": "text/javascript",
    "lists.js": "text/javascript",
    "panel.js": "text/javascript",
    "scales.js": "text/javascript",
    "timeline.js": "text/javascript",
    "uplot.js": "text/javascript",
    "style.css": "text/css",
    "uplot.css": "text/css",
    "icon.svg": "image/svg+xml",
}
_PATHS: Final = {f"/{name}": name for name in _TYPES if name != "index.html"} | {"/": "index.html"}
PAGE_PATHS: Final = frozenset(_PATHS)


def page() -> APIRouter:
    """One route for each file; the files are read once."""
    router = APIRouter(include_in_schema=False)
    for path, name in _PATHS.items():
        _serve(router, path, name)
    return router


def _serve(router: APIRouter, path: str, name: str) -> None:
    content = (files("balancer.api") / "page" / name).read_bytes()
    headers = {"ETag": f'"{blake2b(content, digest_size=12).hexdigest()}"', "Cache-Control": "no-cache"}

    @router.get(path)
    def get_file(if_none_match: Annotated[str | None, Header()] = None) -> Response:
        if if_none_match == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=_TYPES[name])
