"""The page in a real browser, on a real server."""

import re
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from balancer.api.app import create_app
from balancer.api.server import ApiServer
from balancer.directory.model import Bundle, Node, Put, Remove, Tablet
from balancer.features.checker.book import write_book
from balancer.planner.bundle_state import StateWord
from balancer.planner.recorder import Recorder
from balancer.policies.check_options import CheckKind
from balancer.policies.checking import Anomaly, CheckRound, CheckRounds, PastRound, Standing
from balancer.policies.day.book import DayReport
from balancer.policies.keyspace.keys import KeyType, encode_key
from tests.support.browser import visit
from tests.support.bundle_states import Rate, report_small, view_of_snapshot
from tests.support.directories import migration, moved, puts
from tests.support.instance import TOKEN, Instance, http_settings
from tests.support.page_steps import SECONDS, commit, wait_for


def test_everything_is_shown_without_a_complaint_and_from_one_host(browser: Browser, server: ApiServer) -> None:
    with visit(browser, server.url) as seen:
        wait_for(seen.page, "#chip", "working")
        wait_for(seen.page, "#truth", "0 of 1 action · 0 B of 977 KB")
        wait_for(seen.page, "#why", "working: 1 move")
        wait_for(seen.page, "#facts", "leader host-a (this instance), epoch 7")
        assert seen.page.title() == "working – directory – tablet-balancer"
        wait_for(seen.page, "#labels", "pg-a")
        assert seen.page.locator("[data-node]").count() == 3
        wait_for(seen.page, "#plans", "pg-c carries 30 % more")
        wait_for(seen.page, "#schedules", "always open")
        wait_for(seen.page, "#history-list", "table orders (hash)")
        wait_for(seen.page, "#check-list", "No bundle is checked")
        wait_for(seen.page, "#hot", "1004")
        wait_for(seen.page, "#legend", "rows/s")
        assert seen.page.locator("#alarm").is_hidden()
        assert seen.complaints == []
        assert seen.hosts() == {server.url.removeprefix("http://")}
        assert seen.api_requests().count("/v1/overview") >= 1


def test_the_first_paint_needs_one_round_trip_to_the_api(browser: Browser, server: ApiServer) -> None:
    with visit(browser, server.url) as seen:
        wait_for(seen.page, "#plans", "pg-c carries 30 % more")
        assert seen.api_requests()[0] == "/v1/overview"
        allowed = {"/v1/heatmap", "/v1/overview", "/v1/cluster", "/v1/series", "/v1/access"}
        assert set(seen.api_requests()[1:]) <= allowed


def split_hot(instance: Instance) -> None:
    """Tablet 1004 (keys from 30 on) becomes 1101 and 1102, cut at 60."""
    whole = instance.directory().snapshot().tablet(1004)
    cut = encode_key((KeyType.BIGINT,), (60,))
    lower = replace(whole.bounds, upper=cut)  # type: ignore[type-var]
    upper = replace(whole.bounds, lower=cut)  # type: ignore[type-var]
    children = [replace(whole, id=1101, bounds=lower), replace(whole, id=1102, bounds=upper)]
    commit(instance, Remove(whole.kind, whole.key), *map(Put, children))


def hot_at(*ids: int) -> Rate:
    def rate(tablet: Tablet) -> float:
        return 900.0 if tablet.id in ids else 1.0

    return rate


def test_a_hot_tablet_its_split_and_its_move_are_seen_without_a_reload(
    browser: Browser, server: ApiServer, instance: Instance
) -> None:
    report_small(instance, writes=hot_at(1004))
    with visit(browser, server.url) as seen:
        page = seen.page
        page.select_option("#table", label="events")
        page.evaluate("window.never_reloaded = true")
        wait_for(page, "#hot tbody tr:first-child", "1004")
        wait_for(page, "#hot tbody tr:first-child", "[30 … highest)")
        split_hot(instance)
        report_small(instance, writes=hot_at(1102))
        wait_for(page, "#hot tbody tr:first-child", "[60 … highest)")
        wait_for(page, "#legend", "5 stretches")
        tablet = instance.directory().snapshot().tablet(1102)
        running = migration(tablet, "pg-b", "copying")
        commit(instance, Put(running))
        note = {"state": "copying", "bytes_done": 3_000_000, "bytes_total": 6_000_000, "rate": 1e6, "eta": 3.0}
        instance.directory().publish("progress", running.id, note)
        wait_for(page, f'[data-migration="{running.id}"]', "2.86 MB of 5.72 MB")
        wait_for(page, f'[data-migration="{running.id}"]', "3 s left")
        done = replace(running, state="done", finished=True, updated=20.0, detail={"size": 6_000_000, "pause": 0.021})
        commit(instance, Put(done), *puts([moved(tablet, "pg-b")]))
        report_small(instance, writes=hot_at(1102))
        wait_for(page, "#finished", "21 ms")
        wait_for(page, "#hot tbody tr:first-child", "pg-b")
        assert page.evaluate("window.never_reloaded") is True
        assert seen.complaints == []


def test_the_heat_map_tells_what_is_pointed_at_by_mouse_and_by_keyboard(
    browser: Browser, server: ApiServer, instance: Instance
) -> None:
    instance.recorder = Recorder()
    report_small(instance, writes=hot_at(1003))
    with visit(browser, server.url) as seen:
        page = seen.page
        page.select_option("#table", label="events")
        wait_for(page, "#legend", "900 rows/s")
        box = page.locator("#heat").bounding_box()
        assert box is not None
        page.locator("#heat").hover(position={"x": box["width"] / 2, "y": box["height"] * 0.4})
        wait_for(page, "#heat-detail", "tablet 1003")
        wait_for(page, "#heat-detail", "keys 20 … 30")
        page.locator("#heat").focus()
        page.keyboard.press("ArrowUp")
        wait_for(page, "#heat-detail", "tablet 1004")
        page.keyboard.press("Home")
        wait_for(page, "#heat-detail", "tablet 1001")
        page.select_option("#dimension", "owner")
        wait_for(page, "#legend", "pg-a")
        assert seen.complaints == []


def test_the_colours_show_the_hot_tablet(browser: Browser, server: ApiServer, instance: Instance) -> None:
    instance.recorder = Recorder()
    report_small(instance, writes=hot_at(1003))
    with visit(browser, server.url, color_scheme="light") as seen:
        seen.page.select_option("#table", label="events")
        wait_for(seen.page, "#legend", "4 stretches")
        script = """[3, 2, 1, 0].map(row => {
            const canvas = document.getElementById('heat');
            return canvas.getContext('2d').getImageData(9, (row + 0.5) * canvas.height / 4, 1, 1).data[1];
        })"""
        greens = seen.page.evaluate(script)
        assert greens[2] < min(greens[0], greens[1], greens[3])


def test_a_lost_daemon_is_shown_and_so_is_its_return(browser: Browser, instance: Instance) -> None:
    http = http_settings()
    server = ApiServer(create_app(instance, http), http)
    server.start()
    port = int(server.url.rpartition(":")[2])
    with visit(browser, server.url) as seen:
        wait_for(seen.page, "#chip", "working")
        server.stop()
        wait_for(seen.page, "#alarm", "No answer from the daemon since")
        assert "stale" in (seen.page.locator("body").get_attribute("class") or "")
        again = http_settings(listen=f"127.0.0.1:{port}")
        with ApiServer(create_app(instance, again), again):
            expect(seen.page.locator("#alarm")).to_be_hidden(timeout=20 * SECONDS)


def test_old_figures_and_a_missing_leader_are_shown(browser: Browser, server: ApiServer, instance: Instance) -> None:
    report_small(instance)
    instance.report(replace(instance.states()["shop"], at=instance.clock.now() - timedelta(minutes=5)))
    with visit(browser, server.url) as seen:
        wait_for(seen.page, "#alarm", "The cluster was last looked at 5 min ago")
        report_small(instance)
        instance.leading = replace(instance.leading, name=None, is_self=False)
        report_small(instance, sentence="working: still")
        wait_for(seen.page, "#alarm", "No instance leads")
        wait_for(seen.page, "#facts", "no leader")


@pytest.mark.parametrize("word", list(StateWord))
def test_each_of_the_four_words_is_told_apart(
    browser: Browser, server: ApiServer, instance: Instance, word: StateWord
) -> None:
    report_small(instance, word=word, sentence=f"{word}: and why")
    with visit(browser, server.url) as seen:
        wait_for(seen.page, "#sentences", f"{word}: and why")
        assert seen.text("#chip") == word.split()[0]
        assert seen.page.locator("#chip").get_attribute("class") == f"chip {word.split()[0]}"
        assert seen.page.title().startswith(word)


MARKUP = '<img src=x onerror="document.title=1">&amp;'


def test_markup_in_names_is_shown_as_text(browser: Browser, server: ApiServer, instance: Instance) -> None:
    node = Node(f"{MARKUP}node", MARKUP, "postgresql://x")
    timely = Node("2026-01-01T00:00:00Z", MARKUP, "postgresql://x")
    commit(instance, Put(Bundle(MARKUP)), Put(node), Put(timely))
    view = view_of_snapshot(instance.follower().snapshot, MARKUP)
    state = instance.states()["shop"]
    odd = replace(
        state,
        bundle=MARKUP,
        view=view,
        sentence=f"working: {MARKUP}",
        error=MARKUP,
        nodes=(
            replace(state.nodes[0], id=node.id, reason=MARKUP, error=MARKUP, reachable=False),
            replace(state.nodes[0], id=timely.id),
        ),
    )
    instance.report(odd)
    with visit(browser, server.url) as seen:
        wait_for(seen.page, "#sentences", MARKUP)
        seen.page.select_option("#bundle", MARKUP)
        wait_for(seen.page, "#labels", f"{MARKUP}node")
        wait_for(seen.page, "#labels", timely.id)
        wait_for(seen.page, "#schedules", MARKUP)
        wait_for(seen.page, "#truth", f"{MARKUP}node is down: 0 tablets")
        seen.page.locator("#labels button", has_text="node").click()
        wait_for(seen.page, "#panel", f"down: {MARKUP}")
        assert seen.page.locator("img").count() == 0
        assert "tablet-balancer" in seen.page.title()
        assert seen.complaints == []


def test_the_day_of_a_node_is_drawn_and_told(browser: Browser, server: ApiServer, instance: Instance) -> None:
    relative = np.full((48, 3), np.nan)
    relative[:, 0], relative[18::24, 0] = 0.9, 1.41
    report_small(instance, day=DayReport(relative, ()))
    with visit(browser, server.url) as seen:
        seen.page.click("[data-node=pg-a]")
        strip = seen.page.locator("#panel .day")
        expect(strip).to_have_attribute("aria-label", re.compile(r"at most 1\.41 × its share, from 18 to 19 h"))
        assert strip.locator("rect").count() == 24
        assert strip.locator("rect.above").count() == 1
        seen.page.click("#panel-close")
        seen.page.click("[data-node=pg-b]")
        wait_for(seen.page, "#panel", "Its loads")
        assert seen.page.locator("#panel .day").count() == 0
        assert seen.complaints == []


def test_the_history_is_filtered_by_tablet_and_node(browser: Browser, server: ApiServer, instance: Instance) -> None:
    commit(instance, *puts([moved(instance.directory().snapshot().tablet(3), "pg-a")]))
    with visit(browser, server.url) as seen:
        wait_for(seen.page, "#history-list", "tablet 3 on pg-a, epoch 2")
        seen.page.click("#history summary")
        seen.page.fill("#history-tablet", "3")
        seen.page.press("#history-tablet", "Enter")  # wherever the focus is by now
        expect(seen.page.locator("#history-list tbody tr")).to_have_count(2, timeout=20 * SECONDS)
        seen.page.fill("#history-node", "nobody")
        seen.page.press("#history-node", "Enter")  # wherever the focus is by now
        wait_for(seen.page, "#history-list", "Nothing found")
        seen.page.click("#history-form button[type=reset]")
        wait_for(seen.page, "#history-list", "table orders")
        assert seen.complaints == []


def test_a_closed_instance_asks_for_the_token_and_keeps_it_to_itself(browser: Browser, instance: Instance) -> None:
    http = http_settings(read_requires_token=True)
    with ApiServer(create_app(instance, http), http) as server, visit(browser, server.url) as seen:
        expect(seen.page.locator("#token-form")).to_be_visible(timeout=20 * SECONDS)
        seen.page.fill("#token", TOKEN)
        seen.page.keyboard.press("Enter")
        wait_for(seen.page, "#chip", "working")
        expect(seen.page.locator("#token-form")).to_be_hidden()
        assert TOKEN not in seen.page.content()
        assert not [url for url in seen.requests if TOKEN in url]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_a_phone_and_both_colour_schemes(browser: Browser, server: ApiServer, scheme: str, width: int) -> None:
    options = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    with visit(browser, server.url, **options) as seen:
        wait_for(seen.page, "#legend", "rows/s")
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        back, text = seen.page.evaluate(
            "(() => { const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]; })()"
        )
        brightness = [sum(map(int, colour[4:-1].split(",")[:3])) for colour in (back, text)]
        assert (brightness[0] < brightness[1]) == (scheme == "dark")
        assert abs(brightness[0] - brightness[1]) > 400


def test_all_of_it_can_be_reached_by_keyboard(browser: Browser, server: ApiServer) -> None:
    with visit(browser, server.url) as seen:
        wait_for(seen.page, "#legend", "rows/s")
        reached = set()
        for _ in range(45):
            seen.page.keyboard.press("Tab")
            reached.add(seen.page.evaluate("document.activeElement.id || document.activeElement.className || ''"))
        wanted = {"skip", "paint", "blocks", "table", "dimension", "heat", "heat-in", "load", "moment", "play"}
        assert wanted <= reached


def test_what_the_checks_have_found_is_shown_with_the_next_step(
    browser: Browser, server: ApiServer, instance: Instance
) -> None:
    found = Anomaly(CheckKind.BOUNDS, "<b>3 rows</b> outside of tablet 3", "orders", 3, "pg-a", advice="move them")
    past = PastRound(6, 100.0, 160.0, 40, 12_000, 3.0, 1, 0)
    round_ = CheckRound(7, 200.0, CheckKind.ORPHANS, rows=500, why=("node pg-c: does not answer",))
    book = CheckRounds(round_, {found.key: Standing(found, 150.0, 160.0, 6)}, past=(past,))
    write_book(instance.directory(), "shop", book)
    with visit(browser, server.url) as seen:
        seen.page.click("#checks summary")
        for text in ("1 found", "<b>3 rows</b> outside of tablet 3", "move them", "round 7 is at orphans"):
            wait_for(seen.page, "#check-list", text)
        wait_for(seen.page, "#check-list", "Not checked: node pg-c: does not answer")
        wait_for(seen.page, "#check-list", "12000")
        assert seen.complaints == []
