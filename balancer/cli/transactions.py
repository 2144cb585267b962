"""`balancer transactions`: what is prepared on the nodes of transactions over several of them, and how each ends."""

from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, Any

import typer

from balancer.directory.configured import open_configured
from balancer.errors import BalancerError, UserError
from balancer.naming import cluster_name, parse_prepared
from balancer.nodes.schema.decisions import LockedRelation, decided, locked_by, prepared_parts
from balancer.nodes.session.addresses import address_in
from balancer.nodes.session.connection import connect, translated
from balancer.settings import Settings, load_settings
from balancer.terminal.operate import ReasonOption, give
from balancer.terminal.options import ConfigOption
from balancer.terminal.output import Output, OutputOption, fail, say, show_json, show_rows

app = typer.Typer(help="Transactions over several nodes that are waiting to be ended.", no_args_is_help=True)

COLUMNS = ("transaction", "home", "node", "role", "since", "decision", "locks", "problem")


@app.command("list")
def list_parts(config: ConfigOption = None, output: OutputOption = Output.TEXT) -> None:
    """Lists prepared transactions: their ids, since when, what they lock, and what their home has decided. Changes
    nothing."""
    settings = load_settings(config)
    rows = [row for bundle in settings.bundles.values() for node in bundle.nodes for row in _parts(settings, node)]
    show_rows(sorted(rows, key=lambda row: row["since"]), COLUMNS, output, "nothing is prepared on any node")


@app.command("decide")
def decide(
    transaction: Annotated[str, typer.Argument(help="its id, as `balancer transactions list` shows it")],
    word: Annotated[str, typer.Argument(help="commit or abort")],
    home: Annotated[str, typer.Option("--home", help="its home, as shown in the list")],
    reason: ReasonOption = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what it would end")] = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Ends a transaction that is in doubt because its home is gone. The leader carries it out and records it in the
    history.

    A home that can be reached has the last word. A home that comes back later and had decided otherwise keeps its own
    part: the transaction is then half done, which is why this needs a person and a reason.
    """
    if word not in ("commit", "abort"):
        raise UserError(f"{word!r} is not a decision; allowed are commit and abort")
    if not reason.strip():
        raise UserError("say why with --reason: it is recorded in the history")
    settings = load_settings(config)
    if dry_run:
        parts = [row for bundle in settings.bundles.values() for node in bundle.nodes for row in _parts(settings, node)]
        mine = [row for row in parts if row["transaction"] == transaction]
        show_rows(mine, COLUMNS, output, f"no node has a part of transaction {transaction}")
        return
    arguments = {"transaction": transaction, "home": home, "commit": word == "commit", "reason": reason}
    with open_configured(settings.daemon) as directory:
        answered = give(directory, "decide", arguments)
    if output is Output.JSON:
        show_json({"command": answered.id, "state": answered.state, "result": answered.result})
    else:
        say(answered.result)


def _parts(settings: Settings, node: str) -> Iterator[dict[str, Any]]:
    try:
        with closing(connect(address_in(settings, node), purpose="transactions")) as connection, translated(node):
            found = [(part, locked_by(connection, part.xid)) for part in prepared_parts(connection)]
    except BalancerError as error:
        fail(f"node {node}: {error}")
        return
    for part, locks in found:
        named = parse_prepared(part.gid)
        if named is None or named.cluster != cluster_name(settings.daemon.directory):
            continue
        decision, problem = _decision(settings, named.home, named.transaction)
        yield {
            "transaction": named.transaction,
            "home": named.home,
            "node": node,
            "role": part.role,
            "since": part.since.isoformat(timespec="seconds"),
            "decision": decision,
            "locks": ", ".join(map(_lock, locks)),
            "problem": problem,
        }


def _lock(lock: LockedRelation) -> str:
    return f"{lock.relation} ({lock.mode})"


def _decision(settings: Settings, home: str, transaction: str) -> tuple[str, str]:
    """What the home says, or why it says nothing. Only reads: it is the leader that writes "abort"."""
    try:
        with closing(connect(address_in(settings, home), purpose="transactions")) as connection, translated(home):
            return {True: "commit", False: "abort", None: "none yet"}[decided(connection, transaction)], ""
    except BalancerError as error:
        return "in doubt", str(error)
