"""What a bundle's file says of messages: read, made parameters of, and refused in one sentence."""

from pathlib import Path

import pytest

from balancer.settings import ConfigurationError, load_settings
from balancer.settings.messages import MessageSettings, compiled, values_of

pytestmark = pytest.mark.quick

TABLE = """
[tables.accounts]
roots = ["accounts"]
layout = "{layout}"
{key}
{more}
[tables.accounts.messages.{name}]
"""


def load(folder: Path, text: str, *, layout: str = "hash", name: str = "credit", more: str = "") -> MessageSettings:
    (folder / "bundles").mkdir()
    (folder / "balancer.toml").write_text('directory = "sqlite:///d.db"\n')
    key = 'key = ["id"]' if layout in ("hash", "range") else ""
    (folder / "bundles" / "shop.toml").write_text(TABLE.format(layout=layout, key=key, name=name, more=more) + text)
    return load_settings(folder / "balancer.toml").bundle("shop").tables["accounts"].messages[name]


def test_a_message_is_read(tmp_path: Path) -> None:
    assert load(tmp_path, 'apply = "SELECT f(%(id)s)"\nattempts = 3') == MessageSettings("SELECT f(%(id)s)", "", 3)


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ('reverse = "x"', {}, "messages.credit.apply"),
        ('apply = "  "', {}, "must be an SQL statement"),
        ('apply = "SELECT %s"', {}, "write values as %(name)s"),
        ('apply = "SELECT %(a b)s"', {}, "write values as %(name)s"),
        ('apply = "SELECT 1"\nreverse = "SELECT 5 % 2"', {}, "messages.credit.reverse"),
        ('apply = "SELECT 1"\nattempts = 0', {}, "attempts"),
        ('apply = "SELECT 1"\napplly = "x"', {}, "applly"),
        ('apply = "SELECT 1"', {"name": '"a b"'}, "letters, digits and underscores"),
        ('apply = "SELECT 1"', {"layout": "whole"}, "has no key"),
        ('apply = "SELECT 1"', {"layout": "range", "more": 'expire_after = "30d"'}, "do not work with expire_after"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, text: str, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        load(tmp_path, text, **options)
    assert sentence in str(error.value)


def test_values_become_parameters() -> None:
    text = "UPDATE t SET a = %(a)s, b = b %% 2 WHERE (k, id) = (%(k)s, %(id)s)"
    assert compiled(text, [("id", "bigint"), ("k", "text")]) == (
        "UPDATE t SET a = ($1 ->> 'a'), b = b % 2 WHERE (k, id) = ((($2)[2]::text), (($2)[1]::bigint))"
    )
    assert values_of(text) == {"a", "k", "id"}
