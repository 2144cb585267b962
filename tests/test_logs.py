"""Logs: one form per stream, no secret in any of them."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from balancer.logs import bind_migration, mask, set_up_logs
from tests.support.logs import kept_logs

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    with kept_logs():
        yield


@pytest.fixture
def stream() -> io.StringIO:
    stream = io.StringIO()
    set_up_logs("info", "auto", stream)
    return stream


def test_lines_are_json_when_nobody_watches(stream: io.StringIO) -> None:
    structlog.get_logger().info("poll finished", node="pg-a", seconds=0.2)
    line = json.loads(stream.getvalue())
    assert (line["event"], line["node"], line["level"]) == ("poll finished", "pg-a", "info")


def test_every_line_of_a_migration_says_which(stream: io.StringIO) -> None:
    with bind_migration("m17", (4, 5), "pg-a", "pg-b"):
        structlog.get_logger().info("copied")
    structlog.get_logger().info("afterwards")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["migration"], first["tablet"], first["source"], first["target"]) == ("m17", "4,5", "pg-a", "pg-b")
    assert "migration" not in second


def test_secrets_are_masked_wherever_they_come_from(stream: io.StringIO) -> None:
    structlog.get_logger().warning(
        "cannot connect to postgresql://u:hush@h/d", token="hush", dsn="host=h password=hush"
    )
    logging.getLogger("some.library").warning("conninfo password='hu\\'sh' host=h")
    try:
        raise ValueError("postgresql://u:hush@h/d")
    except ValueError:
        structlog.get_logger().exception("failed")
    assert "hush" not in stream.getvalue()
    assert "hu\\\\'sh" not in stream.getvalue()
    assert stream.getvalue().count("***") >= 5


def test_a_terminal_gets_key_value_text() -> None:
    stream = io.StringIO()
    set_up_logs("info", "text", stream)
    structlog.get_logger().info("poll finished", node="pg-a")
    assert "poll finished" in stream.getvalue()
    assert "node=pg-a" in stream.getvalue()


def test_what_is_below_the_level_is_not_written(stream: io.StringIO) -> None:
    structlog.get_logger().debug("noise")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://u:p%40ss@h:5432/d?x=1", "postgresql://u:***@h:5432/d?x=1"),
        ("host=h password=p dbname=d", "host=h password=*** dbname=d"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_only_the_password_is_masked(text: str, masked: str) -> None:
    assert mask(text) == masked


SECRETS = [
    "postgresql://u:hush@h/d",
    "postgresql://u:hu/hush@h/d",
    "postgresql://u:a?b#hush@h/d",
    "postgresql://u:first@hush@h/d",
    "postgresql://u@h/d?password=hush&sslmode=require",
    "postgresql://u@h/d?sslpassword=hush",
    "host=h sslpassword=hush",
    "host=h sslpassword = 'a b hush' dbname=d",
    "host=h password=a\\ hush",
    "host=h password=a&hush",
    "host=h password='never closed hush",
    "oauth_client_secret=hush",
    "scram_client_key=hush",
    "Authorization: Bearer hush-hush",
    "authorization: Basic aHVzaDpodXNo hush",
    "sent 'Bearer hush-hush'",
    "/v1/status?token=hush",
    '{"password": "hush", "user": "u"}',
    '{"password":"a \\" hush"}',
    "{'token': 'a hush'}",
    '"{\\"secret\\": \\"a hush\\"}"',
    '{"access_token":"hush"}',
]


@pytest.mark.parametrize("text", SECRETS)
def test_no_form_of_a_secret_passes(text: str) -> None:
    masked = mask(f"before {text} after")
    assert "hush" not in masked
    assert "aHVz" not in masked
    assert masked.startswith("before ")


def test_secrets_inside_other_values_are_masked(stream: io.StringIO) -> None:
    structlog.get_logger().info(
        "x", error=ValueError("password=hush"), given={"a": ["postgresql://u:hush@h"], "token": "hush"}
    )
    assert "hush" not in stream.getvalue()
    assert stream.getvalue().count("***") == 3


def test_a_line_says_nothing_to_the_terminal() -> None:
    stream = io.StringIO()
    set_up_logs("info", "text", stream)
    structlog.get_logger().info("server says \x1b]0;title\x07", error="\x9b31m red \u202e", odd="\ud800")
    text = stream.getvalue()
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\ud800"} & set(text)


def test_what_is_cut_says_so() -> None:
    assert mask("x" * 10_000).endswith("… (5904 more characters)")
