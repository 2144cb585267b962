"""The `balancer` command: the tree, and the one place where an error becomes a sentence and an exit code.

Exit codes: 0 done; 1 the check found something, or the operation failed; 2 the user's input is wrong; 3 a server is
out of reach, try again later; 4 refused: a precondition does not hold; 130 interrupted. With `-o json` the sentence is
a document. A pipe that its reader has closed is not an error.

A command's module is imported when the command is called: most need neither numpy nor a web server to start.
"""

import gc
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from balancer import __version__
from balancer.errors import BalancerError, Damaged, Refused, Unavailable, UserError
from balancer.terminal.output import fail, patience, say, show_error
from balancer.untrusted import short_words, shortened

PANELS: Final[Mapping[str, Mapping[str, str]]] = {
    "Look": {
        "status": "balancer.cli.status:status",
        "tablets": "balancer.cli.tablets:tablets",
        "hot": "balancer.cli.status:hot",
        "moves": "balancer.cli.moves:moves",
        "plan": "balancer.cli.plan:plan",
        "explain": "balancer.cli.plan:app",
        "why-not": "balancer.cli.plan:why_not",
        "history": "balancer.cli.directory:history",
        "route": "balancer.cli.tablets:route",
    },
    "Steer": {
        "apply": "balancer.terminal.operate:apply",
        "run-now": "balancer.cli.plan:run_now",
        "pause": "balancer.terminal.operate:pause",
        "resume": "balancer.terminal.operate:resume",
        "move": "balancer.cli.migrate:move",
        "split": "balancer.cli.migrate:split",
        "merge": "balancer.cli.migrate:merge",
        "cancel": "balancer.terminal.operate:cancel",
        "drain": "balancer.cli.migrate:drain",
        "undrain": "balancer.terminal.operate:undrain",
        "close": "balancer.terminal.operate:close",
        "pin": "balancer.terminal.operate:pin",
        "unpin": "balancer.terminal.operate:unpin",
        "release": "balancer.terminal.operate:release",
        "expire": "balancer.cli.expire:expire",
    },
    "Set up": {
        "run": "balancer.cli.run:run",
        "demo": "balancer.cli.demo.command:demo",
        "init": "balancer.features.propose:init",
        "config": "balancer.terminal.options:app",
        "schedule": "balancer.cli.schedule:app",
        "table": "balancer.cli.table:app",
        "ddl": "balancer.features.ddl.command:app",
        "node": "balancer.cli.node:app",
        "directory": "balancer.cli.directory:app",
        "pgbouncer": "balancer.features.pgbouncer.command:app",
        "forward": "balancer.features.forwarding.command:forward",
    },
    "Diagnose": {
        "doctor": "balancer.features.repair.command:doctor",
        "verify": "balancer.features.checker.command:verify",
        "transactions": "balancer.cli.transactions:app",
        "messages": "balancer.features.messages.command:app",
        "tablet": "balancer.features.repair.command:app",
        "simulate": "balancer.features.replay.command:simulate_file",
        "record": "balancer.features.replay.command:record",
        "compare-placements": "balancer.cli.placements:compare_placements",
    },
}
"""Commands as the help shows them → where each is: a function, or a tree of its own."""

COMMANDS: Final[Mapping[str, str]] = {name: place for panel in PANELS.values() for name, place in panel.items()}

SHOW_THEMSELVES: Final = frozenset({"run", "demo"})
"""They run for long, and say what they do in their own way."""

EXIT_CODES: tuple[tuple[type[BalancerError], int], ...] = (
    (Damaged, 1),
    (UserError, 2),
    (Unavailable, 3),
    (Refused, 4),
)


_LONGEST_USAGE: Final = 800
"""Characters of a sentence about the words of a command line; the longest list of choices has a third of it."""


class _ReaderGone(Exception):
    """The reader of our output, such as `head`, has seen enough."""


class Tree(TyperGroup):
    """Finds commands in `COMMANDS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        found = getattr(_imported(module), name)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False)
            single.command(cmd_name)(found)
            found = single
        command: Any = typer.main.get_command(found)
        command.name = cmd_name
        command.rich_help_panel = next(panel for panel, names in PANELS.items() if cmd_name in names)
        return command

    def make_context(self, *arguments: Any, **how: Any) -> Any:
        with _short_usage():
            return super().make_context(*arguments, **how)

    def invoke(self, ctx: Any) -> Any:
        """A closed pipe is raised under another name: the library would end the process with code 1."""
        try:
            with _short_usage():
                return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGone from error

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """With a suggestion: the parent class only knows commands that have been imported."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = ", ".join(f"'{name}'" for name in get_close_matches(args[0], COMMANDS))
            ctx.fail(f"No such command '{args[0]}'.{f' Did you mean {close}?' if close else ''}")
        return super().resolve_command(ctx, args)


@contextmanager
def _short_usage() -> Iterator[None]:
    """What is wrong with a command line in a few lines: the library repeats whatever was typed, to its end."""
    try:
        yield
    except _Usage as error:
        if not error.__class__.__name__.startswith("NoArgs"):  # its message is the help
            error.message = shortened(short_words(error.message, sys.argv[1:]), _LONGEST_USAGE)
        raise


def _imported(module: str) -> Any:
    """What modules are made of stays until the end: looking for garbage in it while they are imported, and once more at
    the end, is a fifth of the cost of a small command."""
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.freeze()
        gc.enable()


app = typer.Typer(
    name="balancer",
    cls=Tree,
    help="Keeps a sharded PostgreSQL cluster balanced on its own, without losing a write.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"tablet-balancer {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Keeps a sharded PostgreSQL cluster balanced on its own, without losing a write."""


def exit_code(error: BalancerError) -> int:
    """The documented exit code of an error."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)


def main() -> None:
    """Runs a command; one of our errors is one sentence on standard error, never a traceback."""
    # A script's background job starts with SIGINT ignored, and what stops all others would then not stop it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not SHOW_THEMSELVES.intersection(sys.argv[1:2]):
        patience.watch()
    try:
        _run()
        sys.stdout.flush()
    except BalancerError as error:
        _end(str(error), exit_code(error))
    except (_ReaderGone, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:  # an unforeseen file or disk error: what, and why, without a traceback
        _end(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        patience.over()


def _run() -> None:
    if not _json_wanted(sys.argv):
        app()
        return
    try:
        ended = app(standalone_mode=False)
    except _Usage as error:  # for people it is printed with the command's usage
        _end(error.format_message(), 2)
    except typer.Abort:
        sys.exit(130)
    sys.exit(ended if isinstance(ended, int) else 0)


_Usage: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""What is wrong with the words of a command line; the class has no public name."""


def _json_wanted(words: Sequence[str]) -> bool:
    pairs = zip(words, (*words[1:], ""), strict=True)
    return any(pair in (("-o", "json"), ("--output", "json")) for pair in pairs) or bool(
        {"-ojson", "--output=json"}.intersection(words)
    )


def _end(sentence: str, code: int) -> None:
    """A sentence for people, a document for programs; both on standard error."""
    if _json_wanted(sys.argv):
        show_error(sentence, code)
    else:
        fail(sentence)
    sys.exit(code)
