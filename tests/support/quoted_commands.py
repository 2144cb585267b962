"""Every `balancer …` command that an alert, a document or a message of the product quotes, and how it is parsed."""

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

from balancer.cli.main import app

TREE = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "SECURITY.md", "docs/**/*.md", "clients/*.md", "examples/*.md", "deploy/**/*.yml")
SOURCES = ("balancer/**/*.py", "policies/*.py", "schedules/*.py")
READING = {
    *("status", "tablets", "hot", "moves", "plan", "explain", "why-not", "history", "route", "doctor", "verify"),
    *("node list", "node check", "config check", "directory check", "schedule show"),
    *("transactions list", "messages list"),
}
NOT_FOR_TESTS = {"--watch", "--replan", "--fix", "--id", "--deep"}
"""What waits, acts, names something in somebody else's cluster, or reads for long."""
HOLE = "{}"
"""Where a message has a value of its own."""
_QUOTED = re.compile(r"`(balancer [^`]+)`")
_MAY_QUOTE = re.compile(r"`balancer|`[\"']")  # also if a literal ends after the mark, and the next one continues
_LINE = re.compile(r"^\s*(?:\$ |sudo |exec )?(balancer [^#\n]+)", re.MULTILINE)
_BLOCK = re.compile(r"^```\w*\n(.*?)^```|((?:^ {4}\S.*\n)+)", re.MULTILINE | re.DOTALL)
_HINTS = re.compile(r"\[[^]]*\]|…|\.\.\.|\s(?:\||\d?>|&).*")


@dataclass(frozen=True, slots=True)
class QuotedCommand:
    """A command as somebody reads it."""

    place: str
    text: str

    def lines(self) -> list[list[str]]:
        """What would be typed, without `balancer`: values in place of placeholders, `a|b` as two lines."""
        text = re.sub(r"(?<=\w)[.,;:]+$", "", _HINTS.sub("", self.text).strip())
        choices = [_value(word).split("|") for word in shlex.split(text)[1:]]
        return [list(line) for line in product(*choices)]


def quoted_commands() -> list[QuotedCommand]:
    """All of them, each once for each text."""
    found = {one.text: one for one in (*_in_documents(), *_in_sources())}
    found = {text: one for text, one in found.items() if text.split()[1:2] != ["…"]}
    return sorted(found.values(), key=lambda one: (one.place, one.text))


def readable(real: dict[str, str]) -> list[tuple[str, ...]]:
    """Those that only read, with a real cluster's names in place of placeholders."""
    found = {tuple(line) for one in quoted_commands() if (line := _readable(one, real))}
    return sorted(found)


def _readable(one: QuotedCommand, real: dict[str, str]) -> list[str]:
    """Empty: it does more than read, or names something else."""
    words = one.text.split()[1:]
    name = next((name for name in READING if words[: len(name.split())] == name.split()), None)
    if name is None or NOT_FOR_TESTS & set(words) or "|" in words:
        return []
    line = [real.get(word, word) for word in words]
    left = [word for word in line[len(name.split()) :] if not word.startswith("-") and word not in real.values()]
    return [] if left or parsed(line, whole=True) else line


def parsed(words: list[str], *, whole: bool = False) -> str:
    """What is wrong with a command line; empty: the real parser accepts it. Unless it must be whole, it may just name a
    command, or an option, without what that needs."""
    command: Any = _tree()
    context = None
    try:
        while hasattr(command, "resolve_command"):
            context = command.make_context(command.name or "balancer", list(words), parent=context)
            rest = [*context._protected_args, *context.args]
            if not rest:
                return ""
            _, command, words = command.resolve_command(context, rest)
        command.make_context(command.name, list(words), parent=context)
    except Exception as error:
        text = getattr(error, "format_message", lambda: "")()
        kind = type(error).__name__
        named = kind in ("MissingParameter", "NoArgsIsHelpError", "Exit") or text.endswith("requires an argument.")
        return "" if named and not whole else text or kind
    return ""


@cache
def _tree() -> Any:
    """The whole tree, in which each command is made once: hundreds of lines are parsed."""
    tree: Any = get_command(app)
    made = cache(lambda name: type(tree).get_command(tree, None, name))
    tree.get_command = lambda context, name: made(name)
    return tree


def _in_documents() -> Iterator[QuotedCommand]:
    for pattern in DOCUMENTS:
        for file in sorted(TREE.glob(pattern)):
            text, place = file.read_text(), str(file.relative_to(TREE))
            yield from (QuotedCommand(place, " ".join(one.split())) for one in _QUOTED.findall(text))
            for blocks in _BLOCK.findall(text):
                for line in _LINE.findall("".join(blocks).replace("\\\n", " ")):
                    yield QuotedCommand(place, line.strip())


def _in_sources() -> Iterator[QuotedCommand]:
    for pattern in SOURCES:
        for file in sorted(TREE.glob(pattern)):
            place, source = str(file.relative_to(TREE)), file.read_text()
            if not _MAY_QUOTE.search(source):
                continue
            for text in _literals(ast.parse(source)):
                yield from (QuotedCommand(place, " ".join(one.split())) for one in _QUOTED.findall(text))


def _literals(tree: ast.Module) -> Iterator[str]:
    """Strings, with holes where values go; docstrings are not messages, but people read them too."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (str(one.value) if isinstance(one, ast.Constant) else HOLE for one in node.values)
            yield "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


def _value(word: str) -> str:
    """A number is valid wherever a number, a name or an id is wanted."""
    option, sign, value = word.partition("=")
    if sign and option.startswith("--"):
        return f"{option}={_value(value)}"
    return "1" if HOLE in word or re.fullmatch(r"[A-Z][A-Z_|]*", word) else word


def alert_names() -> list[str]:
    """Of the rules for Prometheus."""
    rules = yaml.safe_load((TREE / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    return [rule["alert"] for rule in rules]
