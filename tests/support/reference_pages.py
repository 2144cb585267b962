"""The reference pages, made from the code itself: `make docs` writes docs/reference/, a test compares it.

Settings come from the option classes with the text below each field, metrics from their declarations, commands from
the command line's own tree, states from the machine's tables. Run as
`python -m tests.support.reference_pages` to write them.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer
from pydantic import BaseModel

from balancer.cli.main import app
from balancer.instruments import Declaration, declared
from balancer.migration.machine import Track, table_text
from balancer.policies import check_options, options
from balancer.settings import files, migration

TREE = Path(__file__).parents[2]
FOLDER = TREE / "docs" / "reference"
HEAD = "<!-- made by `make docs` from the code; change it there -->\n"

_KB = 1024


@dataclass(frozen=True)
class Setting:
    """One key of a file."""

    name: str
    default: str
    text: str


@dataclass(frozen=True)
class SectionPage:
    """A section of a file as the page shows it."""

    title: str
    about: str
    settings: tuple[Setting, ...]


# Where each class belongs in the files; several classes make one section.
DAEMON: Mapping[str, tuple[type, ...]] = {
    "At the top": (files.DaemonFile,),
    "`[http]`": (files.HttpSettings,),
    "`[directory_security]`": (files.DirectorySecurity,),
    "`[leadership]`": (files.LeadershipSettings,),
    "`[log]`": (files.LogSettings,),
    "`[pgbouncer]`": (files.PgBouncerSettings,),
}
BUNDLE: Mapping[str, tuple[type, ...]] = {
    "At the top": (files.BundleFile,),
    "`[tablet_balancer_config]`": (options.BalancerOptions,),
    "`[tablet_balancer_config.groups.NAME]`": (options.GroupOptions,),
    "`parameterized` of a group": (options.ParameterizedOptions,),
    "`[heat]`": (options.HeatOptions,),
    "`[placement]`": (options.PlacementOptions,),
    "`[migration]`": (migration.MigrationSettings, options.BudgetOptions),
    "`[checks]`": (check_options.CheckOptions,),
    "`[nodes.ID]`": (files.NodeSection,),
    "`capacity` of a node": (files.CapacitySection,),
    "`[tables.NAME]`": (files._TableShape, options.TableOptions),
    "`[tables.NAME.messages.MESSAGE]`": (files.MessageSection,),
    "`[[rules]]`": (options.PlacementRule,),
}


def sections(shape: Mapping[str, tuple[type, ...]]) -> list[SectionPage]:
    """The sections of one file."""
    return [
        SectionPage(title, _about(classes[0]), tuple(setting for one in classes for setting in _settings(one)))
        for title, classes in shape.items()
    ]


def _about(one: type) -> str:
    return " ".join((one.__doc__ or "").split())


def _settings(one: type) -> Iterator[Setting]:
    texts = _texts(one)
    hints = get_type_hints(one, include_extras=True)
    members: Iterator[tuple[str, Any, bool]]
    if is_dataclass(one):
        members = (
            (f.name, f.default_factory() if f.default_factory is not MISSING else f.default, False) for f in fields(one)
        )
    else:
        assert issubclass(one, BaseModel)
        members = (
            (name, f.default, f.is_required() or f.default_factory is not None) for name, f in one.model_fields.items()
        )
    for name, default, required in members:
        if not _is_section(hints[name], default):
            shown = "" if required or default is MISSING else _shown(hints[name], default)
            yield Setting(name, shown, texts.get(name, ""))


def _is_section(hint: Any, default: Any) -> bool:
    """A part of the file with a table of its own on the page."""
    parts = [part for part in (hint, *get_args(hint)) if isinstance(part, type)]
    nested = any(is_dataclass(part) or issubclass(part, BaseModel) for part in parts)
    return nested or isinstance(default, BaseModel) or is_dataclass(default)


def _shown(hint: Any, default: Any) -> str:
    units = [str(part) for one in (hint, *get_args(hint)) for part in getattr(one, "__metadata__", ())]
    shown = str(default)
    if default is None or default in ("", (), [], {}):
        shown = ""
    elif isinstance(default, bool):
        shown = shown.lower()
    elif any(unit == "bytes" or "parse_size" in unit for unit in units):
        shown = _size(int(default))
    elif any(unit == "seconds" or "parse_duration" in unit for unit in units):
        shown = _duration(float(default))
    elif isinstance(default, Mapping):
        shown = ", ".join(f"{key} = {value:g}" for key, value in default.items())
    elif isinstance(default, tuple | list):
        shown = ", ".join(map(str, default))
    elif isinstance(default, float):
        shown = f"{default:g}"
    return shown


def _size(count: int) -> str:
    units = iter(("", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while count and count % _KB == 0:
        count, unit = count // _KB, next(units)
    return f"{count}{unit}"


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds * 1000:g}ms" if seconds < 1 else f"{seconds:g}s"


def _texts(one: type) -> dict[str, str]:
    """The text below each field of a class."""
    module = ast.parse(Path(_source(one)).read_text())
    [found] = [part for part in module.body if isinstance(part, ast.ClassDef) and part.name == one.__name__]
    texts = {}
    for field, after in zip(found.body, found.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
            assert isinstance(after.value, ast.Constant)
            texts[field.target.id] = " ".join(str(after.value.value).split())
    return texts


def _source(one: type) -> str:
    return str(__import__(one.__module__, fromlist=["x"]).__file__)


def undocumented() -> list[str]:
    """Settings that have no text."""
    pages = [("balancer.toml", DAEMON), ("bundles/NAME.toml", BUNDLE)]
    return [
        f"{file} {section.title} {setting.name}"
        for file, shape in pages
        for section in sections(shape)
        for setting in section.settings
        if not setting.text
    ]


def configuration() -> str:
    """docs/reference/configuration.md."""
    lines = [
        HEAD,
        "# Configuration reference",
        "",
        "`balancer config check` reads every file and lists everything that is wrong; `balancer config show BUNDLE`",
        "shows which value applies and why. Sizes are powers of 1024 (`10GB`), durations have a unit (`250ms`,",
        "`10m`, `7d`). The environment overrides the files: `BALANCER_TICK=5s`,",
        "`BALANCER_BUNDLE_SHOP__MIGRATION__MODE=read-only`. An empty default means unset.",
    ]
    for title, shape in (("balancer.toml", DAEMON), ("bundles/NAME.toml", BUNDLE)):
        lines += ["", f"## {title}"]
        for section in sections(shape):
            lines += ["", f"### {title}: {section.title}" if section.title == "At the top" else f"### {section.title}"]
            lines += ["", section.about, "", "| key | default | meaning |", "|---|---|---|"]
            lines += [f"| `{one.name}` | {_code(one.default)} | {_cell(one.text)} |" for one in section.settings]
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """docs/reference/metrics.md."""
    lines = [
        HEAD,
        "# Metrics",
        "",
        "At `/metrics` of every instance. No label names a tablet, a key or a user, so there are as many series at a",
        "million tablets as at ten. The alerts on them are in `deploy/prometheus/alerts.yml`, each with a page in",
        "the [runbook](../runbook/index.md).",
        "",
        "| metric | kind | labels | meaning | series |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_metric, declared())]) + "\n"


def _metric(one: Declaration) -> str:
    labels = ", ".join(f"`{label}`" for label in one.labels)
    return f"| `{one.name}` | {one.kind} | {labels} | {_cell(one.meaning)} | {one.bound} |"


def commands() -> str:
    """docs/reference/commands.md."""
    lines = [
        HEAD,
        "# Commands",
        "",
        "Every command that prints data takes `--output json`, and every one that reads the configuration `--config`.",
        "Exit codes are in [codes](codes.md).",
    ]
    tree = typer.main.get_command(app)
    for path, command in _walk(tree, ()):
        summary = " ".join((command.help or "").split("\f")[0].split())
        lines += ["", f"## balancer {' '.join(path)}", "", summary, "", "```text", _usage(path, command), "```"]
        if rows := [row for one in command.params if (row := _parameter(one))]:
            lines += ["", "| option | meaning |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Typer brings its own copy of click, whose types are private."""
    if hasattr(command, "list_commands"):
        context = command.context_class(command)
        for name in sorted(command.list_commands(context)):
            yield from _walk(command.get_command(context, name), (*path, name))
    elif not command.hidden:
        yield path, command


def _usage(path: tuple[str, ...], command: Any) -> str:
    """A word in brackets may be left out; dots stand for repetition."""
    words = [
        f"{one.metavar or (one.name or '').upper()}{'…' if one.nargs == -1 else ''}"
        for one in command.params
        if one.param_type_name == "argument"
    ]
    needed = [one.required for one in command.params if one.param_type_name == "argument"]
    shown = [word if must else f"[{word}]" for word, must in zip(words, needed, strict=True)]
    return " ".join(["balancer", *path, *shown])


def _parameter(one: Any) -> str:
    if one.param_type_name != "option" or one.hidden or one.name in ("help", "output", "config"):
        return ""
    return f"| `{', '.join(one.opts)}` | {_cell(one.help or '')} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    """In a file there is no None: what is not written is unset."""
    return re.sub(r"\bNone\b", "unset", re.sub(r"(?<=\. )None\b", "Unset", text)).replace("|", "\\|")


def states() -> str:
    tracks = "\n\n".join(f"## {track.capitalize()}\n\n```text\n{table_text(track)}\n```" for track in Track)
    return f"{HEAD}\n# States of a migration\n\nFrom the tables in `balancer/migration/machine.py`.\n\n{tracks}\n"


PAGES = {"configuration.md": configuration, "metrics.md": metrics, "commands.md": commands, "states.md": states}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make())
        print(f"wrote docs/reference/{name}")


if __name__ == "__main__":
    main()
