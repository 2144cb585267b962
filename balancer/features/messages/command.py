"""`balancer messages`: makes tables ready for messages between shards, shows those that wait, and deals with them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import typer

from balancer.clock import SystemClock
from balancer.directory.configured import open_configured
from balancer.directory.identity import identity_of
from balancer.directory.locate import locate_key, parse_key
from balancer.directory.model import Table, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, UserError
from balancer.features.messages import delivery as mail
from balancer.features.messages.enable import (
    check_switchable,
    check_unused,
    mail_leaf,
    message_handlers,
    message_roots,
    message_tables,
    switch_off,
    switch_on,
)
from balancer.naming import Name, cluster_name
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.addresses import address_in, connected
from balancer.nodes.session.connection import Connection, Cursor, connect, translated
from balancer.settings import Settings, load_settings
from balancer.terminal.options import ConfigOption, operator
from balancer.terminal.output import Output, OutputOption, fail, say, show_json, show_rows, tell

app = typer.Typer(help="Messages between shards: prepare tables, see what waits or has failed.", no_args_is_help=True)

COLUMNS = (
    "id", "table", "sender", "target", "key", "message", "state", "age", "tries", "due", "role", "node", "reason",
)  # fmt: skip
MOST = 1000
_STATES = ("pending", "failed")

BundleArgument = Annotated[str, typer.Argument(help="the bundle")]
TableArgument = Annotated[str, typer.Argument(help="the table")]
IdArgument = Annotated[str, typer.Argument(help="its id, as `balancer messages list` shows it")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="only say what it would do")]


@app.command("enable")
def enable(
    bundle: BundleArgument,
    table: TableArgument,
    dry_run: DryRunOption = False,
    patience: Annotated[float, typer.Option(help="seconds to wait for the table's migrations to end")] = 60.0,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Gives a table an outbox and an inbox, which move with its tablets. It does not touch the table's rows.

    Needed once for each table that sends or receives. Run it again to bring the nodes in line with the files at once;
    otherwise the leader does so within minutes.
    """
    settings = load_settings(config)
    found = settings.bundle(bundle)
    clock = SystemClock()
    with open_configured(settings.daemon) as directory:
        snapshot = directory.snapshot()
        known = check_switchable(snapshot, table)
        if known.bundle != bundle:
            raise UserError(f"table {table} is in bundle {known.bundle}, not in {bundle}")
        if table in found.tables and found.options.table(table).expire_after is not None:
            raise UserError(f"table {table} has expire_after: messages of expired keys would be lost")
        if dry_run:
            _show_plan(known, snapshot, output)
            return
        with connected(found, "messages", identity=identity_of(snapshot)) as nodes:
            done = switch_on(
                table,
                directory,
                nodes,
                message_handlers(settings),
                cluster=cluster_name(settings.daemon.directory),
                author=operator(),
                clock=clock,
                patience=patience,
                tell=tell,
            )
    if output is Output.JSON:
        show_json({"table": table, "tablets": done.tablets, "roots": list(done.table.roots)})
    else:
        what = f"its {done.tablets} tablets have an outbox and an inbox" if done.tablets else "it already was"
        say(f"table {table} is ready for messages: {what}")


@app.command("disable")
def disable(
    bundle: BundleArgument,
    table: TableArgument,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Removes a table's outbox and inbox. Refused while a message is waiting, failed or remembered."""
    settings = load_settings(config)
    found = settings.bundle(bundle)
    with open_configured(settings.daemon) as directory, ExitStack() as stack:
        snapshot = directory.snapshot()
        known = snapshot.table(table)
        if known.bundle != bundle:
            raise UserError(f"table {table} is in bundle {known.bundle}, not in {bundle}")
        nodes = stack.enter_context(connected(found, "messages", identity=identity_of(snapshot)))
        far = {one.bundle for one in message_tables(snapshot)} - {bundle}
        others: dict[str, Connection] = {}
        for name in sorted(far):
            there = connected(settings.bundle(name), "messages", identity=identity_of(snapshot))
            others |= stack.enter_context(there)
        done = known.message_roots is not None
        if dry_run and done:
            check_unused(snapshot, known, {**nodes, **others})
        elif not dry_run:
            handlers = message_handlers(settings)
            done = switch_off(table, directory, nodes, others, handlers, author=operator(), tell=tell)
    if output is Output.JSON:
        show_json({"table": table, "had_messages": done, "done": not dry_run})
    elif dry_run:
        say(f"the outbox and the inbox of table {table} would be dropped" if done else f"table {table} has no messages")
    else:
        say(f"table {table} has no messages{'' if done else ' (it already had none)'}")


@app.command("list")
def list_messages(
    failed: Annotated[bool, typer.Option("--failed", help="only those given up")] = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Lists messages that wait or were given up, oldest first, and says why. Changes nothing."""
    settings = load_settings(config)
    with open_configured(settings.daemon) as directory:
        found = list(_found(settings, directory.snapshot(), ("failed",) if failed else _STATES))
    rows = [_shown(table, tablet, row) for table, tablet, row in found]
    rows.sort(key=lambda row: -row["age"])
    show_rows(rows, COLUMNS, output, "no message waits, and none has failed")
    if len(rows) >= MOST:
        tell(f"there may be more: at most {MOST} of each table and node are shown")


@app.command("retry")
def retry(
    message: IdArgument,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Retries a waiting message at once, without waiting for its time."""
    _act(
        message,
        "pending",
        partial(mail.try_now, give_up=False),
        "is tried again at once",
        config,
        output,
        dry_run=dry_run,
    )


@app.command("give-up")
def give_up(
    message: IdArgument,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Gives up a waiting message: unless its target has applied it, its reversal is applied to the sender."""
    _act(
        message,
        "pending",
        partial(mail.try_now, give_up=True),
        "is given up by the leader",
        config,
        output,
        dry_run=dry_run,
    )


@app.command("dismiss")
def dismiss(
    message: IdArgument,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Removes a message that was given up and reversed from the lists. Only the application can send it again."""
    _act(message, "failed", mail.dismiss, "is dismissed", config, output, dry_run=dry_run, before=_note_dismissed)


def _note_dismissed(settings: Settings, snapshot: Snapshot, row: mail.MailRow) -> None:
    """The inbox first: "failed" there without a row at the sender would be taken for a lost reversal."""
    target = next((table for table in message_tables(snapshot) if table.name == row.target), None)
    if target is None:
        return  # nobody is left to remember it
    tablet = snapshot.tablet(locate_key(snapshot, target.name, parse_key(target, row.key)).tablet)
    with _at(settings, snapshot, tablet) as cursor:
        mail.note_dismissed(cursor, mail_leaf(target, tablet, 1), row.id)


def _act(
    message: str,
    state: str,
    work: Callable[[Cursor, Name, UUID], bool],
    what: str,
    config: Any,
    output: Output,
    *,
    dry_run: bool,
    before: Callable[[Settings, Snapshot, mail.MailRow], None] = lambda *_: None,
) -> None:
    try:
        wanted = UUID(message)
    except ValueError:
        raise UserError(f"{message!r} is not the id of a message; `balancer messages list` shows them") from None
    settings = load_settings(config)
    with open_configured(settings.daemon) as directory:
        snapshot = directory.snapshot()
        found = [one for one in _found(settings, snapshot, _STATES, wanted) if one[2].state == state]
        if not found:
            raise UserError(f"no message {message} is {state}; `balancer messages list` shows those that are there")
        table, tablet, row = found[0]
        if not dry_run:
            before(settings, snapshot, row)
            with _at(settings, snapshot, tablet) as cursor:
                if not work(cursor, mail_leaf(table, tablet, 0), wanted):
                    raise UserError(f"message {message} is not {state} any more")
    if output is Output.JSON:
        show_json({"message": message, "node": tablet.node, "done": not dry_run})
    else:
        say(f"message {message} of node {tablet.node} {f'{what}: nothing was done yet' if dry_run else what}")


@contextmanager
def _at(settings: Settings, snapshot: Snapshot, tablet: Tablet) -> Iterator[Cursor]:
    """A transaction on a tablet's owner, which has proven its ownership."""
    hold, node = mail.hold_statement((tablet.id, tablet.epoch)), tablet.node
    with (
        closing(connect(address_in(settings, node, identity_of(snapshot)), purpose="messages")) as connection,
        node_transaction(connection, snapshot.epoch, node, durable=True, together=[hold]) as cursor,
    ):
        yield cursor


def _found(
    settings: Settings, snapshot: Snapshot, states: tuple[str, ...], only: UUID | None = None
) -> Iterator[tuple[Table, Tablet, mail.MailRow]]:
    """Each with its table and tablet; a node that does not answer is named."""
    for table in message_tables(snapshot):
        outbox = message_roots(table).outbox
        keys = [column.name for column in table.key_columns]
        for node in sorted(one.id for one in snapshot.nodes.values() if one.bundle == table.bundle):
            owned = {mail_leaf(table, one, 0).name: one for one in snapshot.tablets(table.id) if one.node == node}
            try:
                with closing(connect(address_in(settings, node), purpose="messages")) as connection, translated(node):
                    rows = mail.listed(connection, outbox, keys, states, limit=MOST, only=only)
            except BalancerError as error:
                fail(f"node {node}: {error}")
                continue
            yield from ((table, owned[row.partition], row) for row in rows if row.partition in owned)


def _shown(table: Table, tablet: Tablet, row: mail.MailRow) -> dict[str, Any]:
    return {
        "id": str(row.id),
        "table": table.name,
        "sender": ", ".join(row.sender_key),
        "target": row.target,
        "key": ", ".join(row.key),
        "message": row.name,
        "state": row.state,
        "age": round(row.age, 1),
        "tries": row.tries if row.tries < mail.GIVE_UP else "given up",
        "due": row.due.isoformat(timespec="seconds") if row.state == "pending" else "",
        "role": row.role,
        "node": tablet.node,
        "reason": row.reason or "",
    }


def _show_plan(table: Table, snapshot: Snapshot, output: Output) -> None:
    roots = message_roots(table)
    ready = table.message_roots is not None
    count = 0 if ready else len(list(snapshot.tablets(table.id)))
    if output is Output.JSON:
        show_json(
            {"table": table.name, "ready": ready, "tablets": count, "roots": [str(roots.outbox), str(roots.inbox)]}
        )
    elif ready:
        say(f"table {table.name} has {roots.outbox} and {roots.inbox}: grants and handlers would be brought in line")
    else:
        say(f"would make {roots.outbox} and {roots.inbox} with partitions for {count} tablets; no row is touched")
