"""The picture in the README: BALANCER_SCREENSHOT=docs/page.png names the file to be written."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from balancer.api.app import create_app
from balancer.api.server import ApiServer
from tests.support.browser import visit
from tests.support.instance import Instance, http_settings, instance_in
from tests.support.story import SEED, tell


@pytest.fixture
def lived(tmp_path: Path) -> Iterator[Instance]:
    print(f"seed {SEED}")
    with instance_in(tmp_path) as made:
        tell(made)
        yield made


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_hour_of_balancing_is_seen_in_one_picture(
    browser: Browser, lived: Instance, tmp_path: Path, scheme: str
) -> None:
    http = http_settings()
    with (
        ApiServer(create_app(lived, http), http) as server,
        visit(browser, server.url, viewport={"width": 1200, "height": 1300}, color_scheme=scheme) as seen,
    ):
        seen.page.select_option("#table", label="events")
        expect(seen.page.locator("#legend")).to_contain_text("46 columns", timeout=20_000)
        expect(seen.page.locator("#running")).to_contain_text("7 s left", timeout=20_000)
        picture = tmp_path / "page.png"
        seen.page.screenshot(path=picture)
        assert seen.complaints == []
    assert picture.stat().st_size > 20_000
    wanted = os.environ.get("BALANCER_SCREENSHOT")
    if wanted and scheme == "light":
        Path(wanted).write_bytes(picture.read_bytes())
    if wanted and scheme == "dark":
        Path(wanted).with_stem(f"{Path(wanted).stem}-dark").write_bytes(picture.read_bytes())
