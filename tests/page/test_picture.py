"""The picture of the cluster, the panel beside it, and what may be done from there, in a real browser."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Browser, FloatRect, Page, expect
from pydantic import SecretStr

from balancer.api.app import create_app
from balancer.api.server import ApiServer
from balancer.directory.model import Command, CommandState, Plan, Put, TabletState
from balancer.settings import Mode
from tests.support.browser import visit
from tests.support.bundle_states import report_small
from tests.support.directories import migration, moved, puts
from tests.support.instance import TOKEN, Instance, http_settings
from tests.support.page_steps import SECONDS, commit, wait_for

READ_TOKEN = "only-look-at-it-please"


def sign_in(page: Page, token: str = TOKEN) -> None:
    page.click("#sign-in")
    page.fill("#token", token)
    page.keyboard.press("Enter")
    expect(page.locator("#token-form")).to_be_hidden(timeout=20 * SECONDS)


def blocks_drawn(page: Page) -> int:
    """Different colours on the canvas: nothing drawn has one at most."""
    script = """(() => {
        const canvas = document.getElementById('blocks');
        const image = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(image.data.buffer)).size;
    })()"""
    return int(page.evaluate(script))


def test_a_tablet_is_asked_why_by_keyboard_and_by_mouse(browser: Browser, server: ApiServer) -> None:
    with visit(browser, server.url) as seen:
        page = seen.page
        expect(page.locator("#labels button")).to_have_count(3, timeout=20 * SECONDS)
        assert blocks_drawn(page) > 4
        page.locator("#blocks").focus()
        page.keyboard.press("ArrowRight")
        wait_for(page, "#block-detail", "tablet 1 of orders on pg-a")
        page.keyboard.press("ArrowDown")
        wait_for(page, "#block-detail", "on pg-b")
        page.keyboard.press("Enter")
        wait_for(page, "#panel", "Why it is here")
        wait_for(page, "#panel", "Owner")
        wait_for(page, "#panel", "since")
        wait_for(page, ".elsewhere", "To change that: set enable_cell_balancer = true")
        page.keyboard.press("Escape")
        expect(page.locator("#panel")).to_be_hidden()
        assert page.evaluate("document.activeElement.id") == "blocks"
        page.locator("#blocks").click(position={"x": 5, "y": 5})
        wait_for(page, "#panel-title", "Tablet 1")
        page.select_option("#paint", "table")
        wait_for(page, "#paint-legend", "orders")
        assert seen.complaints == []


def box(page: Page, selector: str) -> FloatRect:
    found = page.locator(selector).bounding_box()
    assert found is not None
    return found


def test_a_move_flies_and_lands_in_the_other_row(browser: Browser, server: ApiServer, instance: Instance) -> None:
    tablet = instance.directory().snapshot().tablet(3)
    running = migration(tablet, "pg-a", "copying")
    commit(instance, Put(running))
    instance.directory().publish("progress", running.id, {"state": "copying", "bytes_done": 6e5, "bytes_total": 1e6})
    with visit(browser, server.url) as seen:
        wait_for(seen.page, "#arrows", "3 · 60 %")
        expect(seen.page.locator("#arrows .flight")).to_have_count(1)
        expect(seen.page.locator("#arrows .ghost")).to_have_count(1)
        expect(seen.page.locator("#running .way .gone")).to_have_count(2)
        expect(seen.page.locator("#running .way .here")).to_have_attribute("title", "copying")
        instance.directory().publish(
            "progress", running.id, {"state": "retiring", "bytes_done": 1e6, "bytes_total": 1e6}
        )
        commit(instance, Put(replace(running, state="retiring")), *puts([moved(tablet, "pg-a")]))
        report_small(instance)
        wait_for(seen.page, "#arrows", "3 has arrived")
        expect(seen.page.locator("#arrows .flight")).to_have_count(0)
        assert box(seen.page, "#arrows .landed")["y"] == pytest.approx(box(seen.page, "#blocks")["y"] + 1, abs=2)
        commit(instance, Put(replace(running, state="done", finished=True)))
        expect(seen.page.locator("#arrows .landed")).to_have_count(0, timeout=20 * SECONDS)
        wait_for(seen.page, "#figures p:first-child", "5.72 MB")
        assert seen.complaints == []


def test_a_node_that_is_down_comes_first_and_is_no_part_of_the_mean(
    browser: Browser, server: ApiServer, instance: Instance
) -> None:
    state = report_small(instance)
    silent = replace(state.nodes[1], reachable=False, unreachable_since=state.at, error="connection refused")
    draining = replace(state.nodes[2], state="draining", reason="drained by ann")
    instance.report(replace(state, nodes=(state.nodes[0], silent, draining), sentence="working: again"))
    with visit(browser, server.url) as seen:
        wait_for(seen.page, "#truth", "pg-b is down since")
        wait_for(seen.page, "#truth", ": 4 tablets")
        wait_for(seen.page, '[data-node="pg-b"]', "down for")
        wait_for(seen.page, '[data-node="pg-c"]', "draining")
        expect(seen.page.locator("#arrows .fair")).to_have_count(1)
        seen.page.click('[data-node="pg-b"]')
        wait_for(seen.page, "#panel", "connection refused")


def waiting(instance: Instance) -> list[Command]:
    return [one for one in instance.directory().snapshot().commands.values() if one.state is CommandState.WAITING]


def answer(page: Page, instance: Instance, result: str) -> str:
    """What the leader would do: answers the command as soon as it is there; returns its verb."""
    while not waiting(instance):  # the suite's own limit ends this where none comes
        page.wait_for_timeout(20)
    (command,) = waiting(instance)
    commit(instance, Put(replace(command, state=CommandState.DONE, result=result)))
    return command.verb


@pytest.fixture
def acting(browser: Browser, server: ApiServer, instance: Instance) -> Iterator[Page]:
    """An operator who has signed in, and things to do with."""
    snapshot = instance.directory().snapshot()
    commit(instance, Put(migration(snapshot.tablet(5), "pg-a", "copying")))
    commit(instance, Put(replace(snapshot.tablet(8), state=TabletState.QUARANTINED)))
    state = report_small(instance, mode=Mode.APPROVE)
    assert state.view is not None
    instance.report(replace(state, view=replace(state.view, quarantined=frozenset({8}))))
    with visit(browser, server.url) as seen:
        sign_in(seen.page)
        yield seen.page
        assert seen.complaints == [] or all("409" in text for text in seen.complaints)


ACTIONS = [
    ("#steer button:has-text('Pause')", "pause", "balancer pause shop"),
    ("#steer button:has-text('Run now')", "run-now", "balancer run-now shop"),
    ("#running button:has-text('Cancel')", "cancel", "balancer cancel "),
    ("#quarantined button:has-text('Release')", "release", "balancer release 8"),
    ("#plans button:has-text('Approve what is ticked')", "apply", "balancer apply p1 --action=1"),
]


def test_each_action_shows_what_it_does_then_does_it_and_says_what_became_of_it(
    acting: Page, instance: Instance
) -> None:
    commit(instance, Put(Plan("p1", "shop", 0.0, "proposed", {"actions": [{"kind": "move"}, {"kind": "split"}]})))
    acting.check(".next input[type=checkbox]")
    for selector, verb, line in ACTIONS:
        acting.click(selector)
        wait_for(acting, "#ask-says", "Would be done: ")
        wait_for(acting, "#ask-line", line)
        assert not waiting(instance)
        acting.click("#ask .go")
        wait_for(acting, "#ask-says", "waiting for the leader")
        assert answer(acting, instance, f"{verb} it is") == verb
        wait_for(acting, "#ask-says", f"Done: {verb} it is")
        acting.click("#ask button:has-text('Close')")


def test_what_is_refused_cannot_be_sent_and_panels_offer_moves_splits_and_drains(
    acting: Page, instance: Instance
) -> None:
    acting.click("[data-node=pg-b]")
    acting.click("#panel button:has-text('Drain')")
    wait_for(acting, "#ask-line", "balancer drain pg-b")
    wait_for(acting, "#ask-says", "tablets will leave it")
    acting.click("#ask button:has-text('Close')")
    acting.click("#panel-close")
    acting.locator("#blocks").focus()
    acting.keyboard.press("ArrowRight")
    acting.keyboard.press("Enter")
    acting.click("#panel button:has-text('Move')")
    wait_for(acting, "#ask-line", "balancer move 1 pg-b")
    acting.select_option("#ask select", "pg-c")
    wait_for(acting, "#ask-line", "balancer move 1 pg-c")
    acting.click("#ask button:has-text('Close')")
    acting.click("#panel button:has-text('Split')")
    wait_for(acting, "#ask-line", "balancer split 1 --parts=2")
    acting.click("#ask button:has-text('Close')")
    acting.click("#panel-close")
    acting.click("#plans button:has-text('Approve the plan')")
    wait_for(acting, "#ask-says", "Would be refused: there is no plan 'p1'")
    expect(acting.locator("#ask .go")).to_be_disabled()
    assert not instance.directory().snapshot().commands


def test_a_read_token_shows_everything_and_offers_nothing(browser: Browser, instance: Instance) -> None:
    http = http_settings(read_requires_token=True, read_token=SecretStr(READ_TOKEN))
    with ApiServer(create_app(instance, http), http) as server, visit(browser, server.url) as seen:
        page = seen.page
        expect(page.locator("#token-form")).to_be_visible(timeout=20 * SECONDS)
        page.fill("#token", READ_TOKEN)
        page.keyboard.press("Enter")
        wait_for(page, "#plans", "move 3")
        page.click("[data-node=pg-a]")
        wait_for(page, "#panel", "Its loads")
        assert page.locator("#steer button, .next button, #panel .buttons button").count() == 0
        assert page.locator("#sign-in").is_hidden()
        page.reload()
        wait_for(page, "#plans", "move 3")
        assert page.evaluate("localStorage.length") == 0


def test_a_wrong_token_is_said_to_be_wrong_and_not_kept(browser: Browser, server: ApiServer) -> None:
    with visit(browser, server.url) as seen:
        seen.page.click("#sign-in")
        seen.page.fill("#token", "guessed-and-guessed")
        seen.page.keyboard.press("Enter")
        wait_for(seen.page, "#token-says", "not a token of this instance")
        assert seen.page.evaluate("sessionStorage.length") == 0
        assert seen.page.locator("#steer button").count() == 0
