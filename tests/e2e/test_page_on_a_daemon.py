"""The page on a running daemon with real PostgreSQL nodes: what happens to the cluster is seen without a reload."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from balancer.embedded.process import free_port
from tests.support.browser import chromium, visit

SECONDS = 1000
START = 120.0
PATIENCE = 200 * SECONDS


@contextmanager
def demonstration(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`balancer demo` as a newcomer starts it, and the address of its page."""
    # Not the demonstration's own choice of a port: another one may run on this machine.
    listen = f"127.0.0.1:{free_port()}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BALANCER_")}
    path = os.pathsep.join(filter(None, sys.path))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "balancer", "demo", "--fresh", "--folder", str(folder)],
            env={**clean, "PYTHONPATH": path, "BALANCER_HTTP__LISTEN": listen},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    try:
        url = f"http://{listen}"
        wait_until_ready(process, url, folder / "log")
        yield process, url
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)


def wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Until the page answers."""
    deadline = time.monotonic() + START
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/readyz", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    pytest.fail(f"the demonstration does not answer:\n{log.read_text()}")


def wait_for(page: Page, selector: str, text: str, timeout: float = PATIENCE) -> None:
    expect(page.locator(selector)).to_contain_text(text, timeout=timeout)


LOOKS: dict[str, dict[str, Any]] = {
    "": {"width": 1440, "height": 1240, "scheme": "light"},
    "-dark": {"width": 1440, "height": 1240, "scheme": "dark"},
    "-phone": {"width": 390, "height": 844, "scheme": "light"},
}


def take_pictures(page: Page, what: str, looks: tuple[str, ...] = ("",)) -> None:
    """The pictures in docs/, where BALANCER_SCREENSHOTS names a folder for them."""
    folder = os.environ.get("BALANCER_SCREENSHOTS")
    for suffix in looks if folder else ():
        look = LOOKS[suffix]
        page.set_viewport_size({"width": look["width"], "height": look["height"]})
        page.emulate_media(color_scheme=look["scheme"])
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        page.screenshot(path=Path(folder or "") / f"page-{what}{suffix}.png")


def kill_node(folder: Path, node: str) -> None:
    """As a machine does that loses its power."""
    (file,) = (found for found in folder.rglob("postmaster.pid") if node in found.parts)
    os.kill(int(file.read_text().splitlines()[0]), signal.SIGKILL)


def until_flying(page: Page) -> None:
    """Moves of the demonstration are short: between two looks one may have gone through."""
    wanted = "#arrows .flight" if os.environ.get("BALANCER_SCREENSHOTS") else "#arrows .flight, #arrows .landed"
    expect(page.locator(wanted).first).to_be_attached(timeout=PATIENCE)


def until_balanced(page: Page) -> None:
    """A quiet cluster, where pictures are wanted; else nobody waits for it."""
    if os.environ.get("BALANCER_SCREENSHOTS"):
        wait_for(page, "#chip", "balanced")


@pytest.mark.timeout(600)
def test_a_hot_tablet_its_split_and_its_moves_are_seen_as_they_happen(server_folder: Path) -> None:
    folder = server_folder / "page"
    folder.mkdir()
    folder.chmod(0o755)
    with demonstration(folder) as (process, url), chromium() as browser, visit(browser, url) as seen:
        page = seen.page
        page.evaluate("window.never_reloaded = true")
        wait_for(page, "#facts", "leader demo (this instance)")
        wait_for(page, "#hot", "events")
        page.select_option("#table", label="events")
        expect(page.locator("#labels button")).not_to_have_count(0, timeout=PATIENCE)
        take_pictures(page, "imbalance")
        expect(page.locator("#arrows .flight").first).to_be_attached(timeout=PATIENCE)
        wait_for(page, "#finished", "split of tablet")
        wait_for(page, "#finished", "move of tablet")
        until_flying(page)
        take_pictures(page, "moving", ("", "-dark", "-phone"))
        wait_for(page, "#hot", "pg-b")
        expect(page.locator("#legend")).to_contain_text("stretches", timeout=PATIENCE)
        assert page.evaluate("window.never_reloaded") is True
        assert seen.complaints == []
        until_balanced(page)
        take_pictures(page, "balanced", ("", "-dark"))
        kill_node(folder, "pg-c")
        wait_for(page, "#truth", "pg-c is down")
        wait_for(page, "[data-node=pg-c]", "down for")
        take_pictures(page, "node-lost")
        process.send_signal(signal.SIGTERM)
        wait_for(page, "#alarm", "No answer from the daemon")
        take_pictures(page, "lost")
        assert process.wait(60) in (0, -signal.SIGTERM)
