"""What tells that a node has gone back, each sign alone, and what does not."""

from dataclasses import replace

import pytest

from balancer.polling.rewind import Footing, parse_history, read_footing, went_back

pytestmark = pytest.mark.quick

BEFORE = Footing("7001", 2, 5000, 9, 1_767_225_600)
LATER = Footing("7001", 2, 6000, 10, 1_767_225_660)


@pytest.mark.parametrize(
    ("now", "forks", "why"),
    [
        (BEFORE, None, ""),
        (LATER, None, ""),
        (replace(LATER, system="7002"), None, "it is another server (system identifier 7002, before 7001)"),
        (replace(LATER, leader_epoch=8), None, "it had seen leader 9 and now knows only 8"),
        (replace(LATER, timeline=1), None, "it is on timeline 1 and was on 2"),
        (replace(LATER, position=4000), None, "its log ends 1000 bytes before where it was"),
        (
            replace(LATER, mark=BEFORE.mark - 3600),
            None,
            "it is as it was 3600 seconds before 2026-01-01 00:00:00 UTC: what it acknowledged in between is missing",
        ),
        # Promotions: the fork counts, not how far the new timeline has come since.
        (replace(LATER, timeline=3), {1: 100, 2: 5000}, ""),
        (replace(LATER, timeline=3, position=5000), {1: 100, 2: 5000}, ""),
        (
            replace(LATER, timeline=3, position=9000),
            {1: 100, 2: 4990},
            "it was promoted from a standby that lacked 10 bytes of the log it had acknowledged",
        ),
        (
            replace(LATER, timeline=3),
            {1: 100},
            "its timeline 3 does not come from timeline 2, on which it was",
        ),
        # Two promotions, of which nobody saw the first.
        (replace(LATER, timeline=4), {1: 100, 2: 5500, 3: 5600}, ""),
        # The history cannot be read.
        (replace(LATER, timeline=3), None, ""),
        (replace(LATER, timeline=3, position=4000), None, "its log ends 1000 bytes before where it was"),
    ],
)
def test_each_sign_alone(now: Footing, forks: dict[int, int] | None, why: str) -> None:
    assert went_back(BEFORE, now, forks) == why


def test_a_history_file_is_read_as_the_server_writes_it() -> None:
    content = "1\t0/3000148\tno recovery target specified\n\n2\tA/B0000028\tbefore 2026-01-01 00:00:00+00\n"
    assert parse_history(content) == {1: 0x3000148, 2: 0xA_B000_0028}


def test_it_survives_the_directory() -> None:
    assert read_footing({"generation": 3, **BEFORE.document()}) == BEFORE
