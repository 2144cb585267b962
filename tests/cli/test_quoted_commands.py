"""What an alert, a document or a message tells people to type is there. `test_with_a_daemon` runs what only reads."""

import pytest

from tests.support.quoted_commands import TREE, QuotedCommand, alert_names, parsed, quoted_commands

pytestmark = pytest.mark.quick


def test_every_command_that_is_quoted_is_there() -> None:
    found = quoted_commands()
    assert len(found) > 100, "the search finds next to nothing"
    wrong = {f"{one.place}: {one.text}": fault for one in found for line in one.lines() if (fault := parsed(line))}
    assert wrong == {}


def test_a_command_that_is_not_there_would_be_found() -> None:
    for text in ("balancer moves --gone", "balancer frobnicate", "balancer table frob", "balancer drain a b c"):
        (line,) = QuotedCommand("here", text).lines()
        assert parsed(line), text
    assert not parsed(["cancel"]), "a name without its arguments is fine"
    assert len(QuotedCommand("here", "balancer table double|halve TABLE").lines()) == 2


def test_every_alert_has_a_page_with_its_three_answers() -> None:
    folder = TREE / "docs" / "runbook"
    names = alert_names()
    assert {page.stem for page in folder.glob("Balancer*.md")} == set(names)
    assert all(f"({name}.md)" in (folder / "index.md").read_text() for name in names)
    for name in names:
        text = (folder / f"{name}.md").read_text()
        for heading in ("## What happened", "## Is data at risk?", "## What to type"):
            assert heading in text, (name, heading)
        assert "    balancer " in text or "`balancer " in text, name
