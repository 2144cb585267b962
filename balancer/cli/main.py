"""The `balancer` command: the tree, and the one place where an error becomes a sentence and an exit code.

Exit codes: 0 done; 1 the check found something, or the operation failed; 2 the user's input is wrong; 3 a server is
out of reach, try again later; 4 refused: a precondition does not hold; 130 interrupted.
"""

import sys

import typer

from balancer.cli import config, node, operate, placements, schedule, simulate, table
from balancer.cli.output import fail
from balancer.errors import BalancerError, Refused, Unavailable, UserError

app = typer.Typer(
    name="balancer",
    help="Keeps a sharded PostgreSQL cluster balanced by itself, and loses nothing.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(config.app, name="config")
app.add_typer(schedule.app, name="schedule")
app.add_typer(node.app, name="node")
app.add_typer(table.app, name="table")
operate.register(app)
simulate.register(app)
placements.register(app)

EXIT_CODES: tuple[tuple[type[BalancerError], int], ...] = ((UserError, 2), (Unavailable, 3), (Refused, 4))


@app.callback()
def root() -> None:
    """Keeps a sharded PostgreSQL cluster balanced by itself, and loses nothing."""


def exit_code(error: BalancerError) -> int:
    """The documented exit code of an error."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)


def main() -> None:
    """Runs a command; an error of ours is one sentence on standard error, never a traceback."""
    try:
        app()
    except BalancerError as error:
        fail(str(error))
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)
