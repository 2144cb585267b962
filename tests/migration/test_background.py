"""What fails beside a step is heard: where it is asked for, and a defect in any case."""

import threading

import pytest

from balancer.errors import Unavailable
from balancer.migration.concurrency import Background

pytestmark = pytest.mark.quick


def failing(error: Exception) -> Background[None]:
    def work(_: threading.Event) -> None:
        raise error

    return Background(work, "beside")


def test_what_is_asked_for_is_given_or_raised() -> None:
    with Background(lambda _: 7, "beside") as running:
        assert running.result() == 7
    with failing(Unavailable("away")) as running_badly, pytest.raises(Unavailable, match="away"):
        running_badly.result()


def test_who_does_not_ask_can_do_without_what_cannot_be_had() -> None:
    with failing(Unavailable("away")) as running:
        assert running.wait(10.0)


def test_a_defect_is_raised_where_nobody_asked() -> None:
    with pytest.raises(TypeError, match="a defect"), failing(TypeError("a defect")):
        pass


def test_a_defect_does_not_hide_the_error_of_the_block_and_is_noted_beside_it() -> None:
    with pytest.raises(Unavailable, match="the block's own") as caught, failing(TypeError("a defect")):
        raise Unavailable("the block's own")
    assert caught.value.__notes__ == ["beside, which ran beside it, has failed as well: TypeError('a defect')"]
