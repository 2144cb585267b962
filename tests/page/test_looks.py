"""What people see who see otherwise: axe, phones, keyboards, less motion; the vendored parts; and the past."""

import tomllib
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from balancer.api.server import ApiServer
from balancer.directory.model import Put
from balancer.planner.recorder import Recorder
from tests.support.browser import visit
from tests.support.bundle_states import report_small
from tests.support.directories import migration, moved, puts
from tests.support.instance import TOKEN, Instance
from tests.support.page_steps import SECONDS, commit, hindrances, wait_for

PAGE = Path(__file__).parents[2] / "balancer" / "api" / "page"


def lived(instance: Instance) -> None:
    """Ten minutes of the past, a move that was done in it and one that runs."""
    instance.recorder = Recorder()
    state = instance.states()["shop"]
    now = instance.clock.now()
    for ago in range(600, 0, -60):
        moment = now - timedelta(seconds=ago)
        instance.recorder.record(replace(state, at=moment, sentence=f"working: {ago} s ago"))
    snapshot = instance.directory().snapshot()
    at = now.timestamp()
    done = replace(migration(snapshot.tablet(3), "pg-a", "done"), finished=True, created=at - 200, updated=at - 100)
    done = replace(done, detail={"size": 1e6, "pause": 0.02})
    running = replace(migration(snapshot.tablet(5), "pg-a", "copying"), created=at, updated=at)
    commit(instance, Put(done), Put(running), *puts([moved(snapshot.tablet(3), "pg-a")]))
    instance.directory().publish("progress", running.id, {"state": "copying", "bytes_done": 3e5, "bytes_total": 1e6})
    report_small(instance)


@pytest.mark.parametrize(("width", "scheme"), [(1440, "dark"), (1440, "light"), (390, "dark"), (390, "light")])
def test_axe_finds_nothing_also_while_things_move_and_with_everything_open(
    browser: Browser, server: ApiServer, instance: Instance, width: int, scheme: str
) -> None:
    lived(instance)
    options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with visit(browser, server.url, **options) as seen:
        page = seen.page
        page.click("#sign-in")
        assert hindrances(page) == []
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("#token-form")).to_be_hidden(timeout=20 * SECONDS)
        wait_for(page, "#arrows", "30 %")
        expect(page.locator("#chart-grid figure")).to_have_count(5, timeout=20 * SECONDS)
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        assert hindrances(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator("[data-node=pg-a]").click()
        wait_for(page, "#panel", "Its loads")
        page.locator("#panel button:has-text('Drain')").click()
        wait_for(page, "#ask-line", "balancer drain pg-a")
        assert hindrances(page) == []
        assert seen.complaints == []


def test_a_phones_first_screen_has_the_state_the_nodes_and_what_runs(
    browser: Browser, server: ApiServer, instance: Instance
) -> None:
    lived(instance)
    with visit(browser, server.url, viewport={"width": 390, "height": 844}) as seen:
        wait_for(seen.page, "#running", "move 5 · orders")
        for selector in ("#chip", "#truth", "[data-node=pg-c]", "#running article b"):
            box = seen.page.locator(selector).first.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] < 844 - 70, selector
        seen.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        display = seen.page.evaluate("getComputedStyle(document.querySelector('#hot tr:last-child')).display")
        assert display == "block", "a row is a card"


def test_nothing_moves_for_those_who_asked_for_that(browser: Browser, server: ApiServer, instance: Instance) -> None:
    lived(instance)
    with visit(browser, server.url, reduced_motion="reduce") as seen:
        wait_for(seen.page, "#arrows", "30 %")
        names = seen.page.evaluate("document.getAnimations().map(one => one.animationName ?? 'a transition')")
        assert names == []
    with visit(browser, server.url, reduced_motion="no-preference") as seen:
        wait_for(seen.page, "#arrows", "30 %")
        assert "fly" in seen.page.evaluate("document.getAnimations().map(one => one.animationName)")


def test_the_whole_page_goes_back_in_time_and_plays_forward(
    browser: Browser, server: ApiServer, instance: Instance
) -> None:
    lived(instance)
    ago = instance.clock.now().timestamp() - 150
    with visit(browser, server.url) as seen:
        page = seen.page
        wait_for(page, "#arrows", "30 %")
        wait_for(page, "#figures p:first-child", "5.72 MB")
        page.locator("#moment").evaluate(
            "(slider, at) => { slider.value = at; slider.dispatchEvent(new Event('input')); }", int(ago)
        )
        wait_for(page, "#truth", "As it was at")
        wait_for(page, "#why", "s ago")
        wait_for(page, "#figures p:first-child", "4.77 MB")
        wait_for(page, "#running", "move 3 · orders")
        expect(page.locator("#running article")).to_have_count(1)
        page.click("#play")
        expect(page.locator("#live")).to_be_disabled(timeout=30 * SECONDS)
        wait_for(page, "#truth", "of ")
        wait_for(page, "#figures p:first-child", "5.72 MB")
        assert seen.complaints == []


def test_charts_say_what_they_show(browser: Browser, server: ApiServer, instance: Instance) -> None:
    lived(instance)
    with visit(browser, server.url) as seen:
        for text in ("writes/s per node", "fair share ± 5 %", "of 100", "Running migrations now 1", "budget 250 ms"):
            wait_for(seen.page, "#chart-grid", text)
        assert seen.page.locator("#chart-grid canvas").count() == 5
        wait_for(seen.page, "#kept", "a day in steps of four minutes")
        seen.page.select_option("#load", label="bytes")
        wait_for(seen.page, "#chart-grid", "bytes per node")
        assert seen.complaints == []


@pytest.mark.quick
def test_what_is_vendored_is_what_its_authors_published() -> None:
    listed = tomllib.loads((PAGE / "vendored.toml").read_text())
    for name, about in listed.items():
        for file, wanted in about["sha256"].items():
            assert sha256((PAGE / file).read_bytes()).hexdigest() == wanted, f"{name}: {file} was changed"
        assert about["version"] in (PAGE / about["main"]).read_text()[:200]
        notice = (Path(__file__).parents[2] / "NOTICE").read_text()
        assert f"{name} {about['version']}: {about['licence']}" in notice
