"""The page at 100,000 tablets: what the first paint costs, and how fast the heat map is.

Beside it, in the same run: what a page would cost that fetched every tablet and aggregated by itself.
"""

import gzip
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from statistics import median

import httpx
import numpy as np
import pytest
from playwright.sync_api import expect

from balancer.api.app import PAGE_PATHS, create_app
from balancer.api.server import ApiServer
from tests.support.browser import chromium, visit
from tests.support.bundle_states import state_of, view_of_snapshot
from tests.support.directories import HASHED, RANGED, fill, frame, leaves, ranges
from tests.support.instance import Instance, http_settings, instance_in
from tests.support.tables import show_table

pytestmark = pytest.mark.bench

VBUCKETS = 1 << 14
HASH_TABLES = 5
RANGES = 100_000 - HASH_TABLES * VBUCKETS
NODES = [f"pg-{number:03}" for number in range(100)]
SLOTS = 360
SEED = 11


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """100,000 tablets on 100 nodes, with a full hour of ticks behind them."""
    print(f"seed {SEED}")
    with instance_in(Path(tmp_path_factory.mktemp("large"))) as made:
        fill(made.directory(), frame(NODES))
        for number in range(HASH_TABLES):  # one commit each: together they are more than one may hold
            table = replace(HASHED, id=10 + number, name=f"orders{number}", roots=(f"public.orders{number}",))
            tablets = leaves(VBUCKETS, 1 + number * VBUCKETS, NODES)
            fill(made.directory(), [table, *(replace(tablet, table=table.id) for tablet in tablets)])
        fill(made.directory(), [RANGED, *ranges(range(1, RANGES), 1 + HASH_TABLES * VBUCKETS, NODES)])
        made.follower().wait(HASH_TABLES + 1, 60)
        assert made.follower().snapshot.tablet_count() == 100_000
        live_an_hour(made)
        yield made


def live_an_hour(instance: Instance) -> None:
    chance = np.random.default_rng(SEED)
    view = view_of_snapshot(instance.follower().snapshot)
    start = instance.clock.now() - timedelta(seconds=10 * (SLOTS - 1))
    for slot in range(SLOTS):
        rates = chance.lognormal(1.0, 1.0, len(view.tablets))
        moment = replace(view, tablets=replace(view.tablets, write_rate=rates, read_rate=rates / 2))
        instance.recorder.record(replace(state_of(moment), at=start + timedelta(seconds=10 * slot)))
    instance.report(replace(state_of(moment), at=instance.clock.now()))


@pytest.fixture(scope="module")
def server(large: Instance) -> Iterator[ApiServer]:
    http = http_settings()
    with ApiServer(create_app(large, http), http) as running:
        yield running


def timed(client: httpx.Client, path: str, rounds: int) -> tuple[float, int]:
    """Median milliseconds, and bytes as they go over the wire."""
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        with client.stream("GET", path) as answer:
            assert answer.status_code == 200
            size = sum(len(part) for part in answer.iter_raw())
        took.append(time.perf_counter() - began)
    return 1000 * median(took), size


def test_the_first_paint_and_the_heat_map(server: ApiServer) -> None:
    rows: list[tuple[object, ...]] = []
    with httpx.Client(base_url=server.url, timeout=60, headers={"Accept-Encoding": "gzip"}) as client:
        files = sorted(PAGE_PATHS)
        sizes = [timed(client, path, 1)[1] for path in files]
        overview, overview_size = timed(client, "/v1/overview", 9)
        heat, heat_size = timed(client, "/v1/heatmap?bundle=shop&table=orders0&dimension=writes", 15)
        ranged, ranged_size = timed(client, "/v1/heatmap?bundle=shop&table=events&dimension=writes", 15)
        rows.append(("the page's files", "-", sum(sizes) / 1024, len(files)))
        rows.append(("overview: the first paint", overview, overview_size / 1024, 1))
        rows.append(
            ("first paint in all (goal: 300 KB)", overview, (sum(sizes) + overview_size) / 1024, len(files) + 1)
        )
        rows.append(("heat map, hash (goal: 50 ms)", heat, heat_size / 1024, 1))
        rows.append(("heat map, range (goal: 50 ms)", ranged, ranged_size / 1024, 1))
        rows.append(every_tablet(client))
    show_table("the page at 100,000 tablets", ("what", "ms", "KB over the wire", "requests"), rows)


def every_tablet(client: httpx.Client) -> tuple[object, ...]:
    """What it would take to fetch every tablet, a thousand at a time, and aggregate in the browser: ten pages × 10."""
    began, size, cursor = time.perf_counter(), 0, ""
    for _ in range(10):
        answer = client.get("/v1/tablets", params={"limit": 1000, "cursor": cursor})
        size += len(gzip.compress(answer.content, 5))
        cursor = answer.json()["next"]
    return "beside it: all tablets, page by page", 10_000 * (time.perf_counter() - began), 10 * size / 1024, 100


def test_the_first_paint_in_a_browser(server: ApiServer) -> None:
    with chromium() as browser, visit(browser, server.url) as seen:
        expect(seen.page.locator("#labels")).to_contain_text("pg-000", timeout=60_000)
        painted = seen.page.evaluate("performance.getEntriesByType('paint').map(entry => entry.startTime).pop()")
        before = seen.api_requests()
        script = """
            performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))
              .filter(entry => !entry.name.includes('/v1/heatmap'))
              .reduce((sum, entry) => sum + entry.transferSize, 0)
        """
        transferred = seen.page.evaluate(script)
        expect(seen.page.locator("#legend")).to_contain_text("stretches", timeout=60_000)
        assert seen.complaints == []
    rows = [
        ("first contentful paint, ms", painted),
        ("API requests before the nodes were drawn", before.count("/v1/overview")),
        ("KB transferred for it, headers included (goal: 300)", transferred / 1024),
    ]
    show_table("the first paint in Chromium, 100,000 tablets", ("what", "value"), rows)


FRAMES = """(async () => {
    const times = [];
    const kind = CanvasRenderingContext2D.prototype;
    const plain = kind.fillRect;
    let drawn = 0;
    kind.fillRect = function (...where) { drawn += 1; return plain.apply(this, where); };
    let last = performance.now();
    const end = last + 1500;
    while (last < end) {
        const now = await new Promise(done => requestAnimationFrame(done));
        times.push(now - last);
        last = now;
    }
    kind.fillRect = plain;
    return [times, drawn];
})()"""


def test_frames_while_ten_thousand_tablets_glide(tmp_path: Path) -> None:
    """Half of the tablets change their places at once; beside it frames of the same browser with nothing to draw."""
    names = [f"pg-{number:02}" for number in range(50)]
    with instance_in(tmp_path) as made:
        fill(made.directory(), frame(names))
        fill(made.directory(), [RANGED, *ranges(range(1, 10_000), 1, names)])
        made.follower().wait(1, 60)
        view = view_of_snapshot(made.follower().snapshot)
        made.report(replace(state_of(view), at=made.clock.now()))
        http = http_settings()
        with ApiServer(create_app(made, http), http) as server, chromium() as browser:
            options = {"viewport": {"width": 1440, "height": 1240}, "reduced_motion": "no-preference"}
            with visit(browser, server.url, **options) as seen:
                expect(seen.page.locator("#labels button")).to_have_count(50, timeout=60_000)
                idle, _ = seen.page.evaluate(FRAMES)
                shifted = view.tablets.node.copy()
                shifted[::2] = (shifted[::2] + 7) % 50
                moved = replace(view, tablets=replace(view.tablets, node=shifted))
                made.report(replace(state_of(moved), at=made.clock.now()))
                with seen.page.expect_response(lambda answer: "/v1/cluster" in answer.url, timeout=60_000):
                    pass
                gliding, drawn = seen.page.evaluate(FRAMES)
                assert drawn > 10 * 10_000, f"only {drawn} blocks were drawn: nothing glided"
                assert seen.complaints == []
    rows = [
        (name, len(found), median(found), float(np.percentile(found, 95)), max(found))
        for name, found in (("10,000 blocks, gliding for 0.7 s", gliding), ("beside it: nothing to draw", idle))
    ]
    headings = ("what", "frames", "median ms", "p95 ms", "longest ms")
    show_table("frames in 1.5 s, 50 nodes × 10,000 tablets (16.7 ms: 60 a second)", headings, rows)
