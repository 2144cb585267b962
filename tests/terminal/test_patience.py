"""A command that says nothing for two seconds shows that it is at work; what it then says takes the line away."""

import io
import time

import pytest
from rich.console import Console

from balancer.terminal.output import Patience
from tests.support.bundle_states import NOON
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.quick


def wait_for(file: io.StringIO, text: str) -> None:
    while text not in file.getvalue():  # the suite's own limit ends this where it never comes
        time.sleep(0.02)


def test_silence_is_filled_on_a_terminal_and_only_there() -> None:
    for terminal in (True, False):
        file, clock = io.StringIO(), ManualClock(NOON)
        patience = Patience(Console(file=file, force_terminal=terminal, width=80), clock)
        patience.watch()
        clock.advance(1.0)
        time.sleep(0.4)
        assert "at work" not in file.getvalue()
        clock.advance(2.0)
        if terminal:
            wait_for(file, "at work for 3 s")
        patience.spoken()
        shown = file.getvalue()
        time.sleep(0.4)
        assert file.getvalue() == shown, "nothing moves once something was said"
        patience.over()
        clock.advance(60.0)
        time.sleep(0.4)
        assert file.getvalue() == shown
