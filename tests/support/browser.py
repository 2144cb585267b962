"""A real browser: the distribution's Chromium, driven by playwright; everything it complains about is recorded."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, Request, Response, sync_playwright

CHROMIUM = "/usr/bin/chromium"
# No sandbox: the tests may run as root in a container. What is tested is the page's own policy.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions"]


@dataclass
class Visit:
    """A page and what happened on it."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    bytes: int = 0

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def hosts(self) -> set[str]:
        return {urlsplit(url).netloc for url in self.requests}

    def api_requests(self) -> list[str]:
        return [urlsplit(url).path for url in self.requests if urlsplit(url).path.startswith("/v1/")]


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser; ends with the block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visit(browser: Browser, url: str, **options: Any) -> Iterator[Visit]:
    """Opens an address in a context of its own."""
    context = browser.new_context(**options)
    try:
        visited = Visit(context.new_page())
        page = visited.page
        page.on("console", lambda message: _note(visited, message.type, message.text))
        page.on("pageerror", lambda error: visited.complaints.append(str(error)))
        page.on("request", lambda request: _requested(visited, request))
        page.on("response", lambda response: _answered(visited, response))
        page.goto(url)
        yield visited
    finally:
        context.close()


def _note(visited: Visit, kind: str, text: str) -> None:
    if kind in ("error", "warning"):
        visited.complaints.append(text)


def _requested(visited: Visit, request: Request) -> None:
    visited.requests.append(request.url)


def _answered(visited: Visit, response: Response) -> None:
    visited.bytes += int(response.headers.get("content-length", "0"))
