"""The `balancer` command: the tree, and the one place where an error becomes a sentence and an exit code.

Exit codes: 0 done; 1 the check found something, or the operation failed; 2 the user's input is wrong; 3 a server is
out of reach, try again later; 4 refused: a precondition does not hold; 130 interrupted.

A command's module is imported when the command is called: most need neither numpy nor a web server to start.
"""

import signal
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

from balancer.cli.output import fail
from balancer.errors import BalancerError, Damaged, Refused, Unavailable, UserError

COMMANDS: Final[Mapping[str, str]] = {
    "run": "balancer.cli.run:run",
    "demo": "balancer.cli.demo.command:demo",
    "init": "balancer.cli.init:init",
    "config": "balancer.cli.config:app",
    "schedule": "balancer.cli.schedule:app",
    "table": "balancer.cli.table:app",
    "ddl": "balancer.cli.ddl:app",
    "node": "balancer.cli.node:app",
    "directory": "balancer.cli.directory:app",
    "history": "balancer.cli.directory:history",
    "simulate": "balancer.cli.simulate:simulate_file",
    "record": "balancer.cli.record_polls:record",
    "compare-placements": "balancer.cli.placements:compare_placements",
    "status": "balancer.cli.status:status",
    "tablets": "balancer.cli.tablets:tablets",
    "hot": "balancer.cli.status:hot",
    "plan": "balancer.cli.plan:plan",
    "explain": "balancer.cli.explain:app",
    "why-not": "balancer.cli.explain:why_not",
    "verify": "balancer.cli.verify:verify",
    "moves": "balancer.cli.moves:moves",
    "move": "balancer.cli.migrate:move",
    "split": "balancer.cli.migrate:split",
    "merge": "balancer.cli.migrate:merge",
    "expire": "balancer.cli.expire:expire",
    "tablet": "balancer.cli.lost:app",
    "transactions": "balancer.cli.transactions:app",
    "messages": "balancer.cli.messages:app",
    "doctor": "balancer.cli.doctor:doctor",
    "apply": "balancer.cli.operate:apply",
    "drain": "balancer.cli.operate:drain",
    "undrain": "balancer.cli.operate:undrain",
    "close": "balancer.cli.operate:close",
    "pin": "balancer.cli.operate:pin",
    "unpin": "balancer.cli.operate:unpin",
    "pause": "balancer.cli.operate:pause",
    "resume": "balancer.cli.operate:resume",
    "cancel": "balancer.cli.operate:cancel",
    "release": "balancer.cli.operate:release",
    "run-now": "balancer.cli.run_now:run_now",
    "route": "balancer.cli.route:route",
    "pgbouncer": "balancer.cli.route:app",
    "forward": "balancer.cli.forward:forward",
}
"""Command → where it is: a function, or a tree of its own."""

EXIT_CODES: tuple[tuple[type[BalancerError], int], ...] = (
    (Damaged, 1),
    (UserError, 2),
    (Unavailable, 3),
    (Refused, 4),
)


class Tree(TyperGroup):
    """Finds commands in `COMMANDS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        found = getattr(import_module(module), name)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False)
            single.command(cmd_name)(found)
            found = single
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command


app = typer.Typer(
    name="balancer",
    cls=Tree,
    help="Keeps a sharded PostgreSQL cluster balanced by itself, and loses nothing.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root() -> None:
    """Keeps a sharded PostgreSQL cluster balanced by itself, and loses nothing."""


def exit_code(error: BalancerError) -> int:
    """The documented exit code of an error."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)


def main() -> None:
    """Runs a command; one of our errors is one sentence on standard error, never a traceback."""
    # A script's background job starts with SIGINT ignored, and would then not be stopped by what stops all others.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    except BalancerError as error:
        fail(str(error))
        sys.exit(exit_code(error))
    except OSError as error:  # a file or a disk that nobody thought of: what, and why, without a traceback
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
