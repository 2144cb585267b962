"""`balancer table double|halve`: an order that the leader works off, vbucket by vbucket, as the budgets allow."""

from typing import Annotated, Any

import typer

from balancer.cli.migrate import DryRunOption, Failed, Manner, TimeoutOption, WaitOption, check_dry
from balancer.cli.moves import REFRESH
from balancer.cli.operate import give, seconds
from balancer.cli.output import Output, OutputOption, console, say, show_json
from balancer.cli.places import ConfigOption, DirectoryOption, directory_of
from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import Plan
from balancer.directory.snapshot import Snapshot
from balancer.errors import Unavailable
from balancer.planner import orders
from balancer.policies.hash_leaves import Leaf
from balancer.settings.units import format_duration

BundleArgument = Annotated[str, typer.Argument(help="the bundle")]
TableArgument = Annotated[str, typer.Argument(help="the table")]
NowOption = Annotated[bool, typer.Option("--now", help="do not wait for the schedule")]
LINE_SECONDS = 5.0  # between two lines without a terminal


def double(
    bundle: BundleArgument,
    table: TableArgument,
    now: NowOption = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    dry_run: DryRunOption = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Splits every vbucket of a hash table into two halves, as the budgets allow.

    However small they get, the balancer does not merge them back; `table halve` does.
    """
    _order(
        orders.DOUBLE,
        {"bundle": bundle, "table": table, "at_once": now},
        Manner(wait, seconds(timeout), dry_run, directory, config, output),
    )


def halve(
    bundle: BundleArgument,
    table: TableArgument,
    now: NowOption = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    dry_run: DryRunOption = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Merges every pair of sibling vbuckets of a hash table; pairs on different nodes are first moved together."""
    _order(
        orders.HALVE,
        {"bundle": bundle, "table": table, "at_once": now},
        Manner(wait, seconds(timeout), dry_run, directory, config, output),
    )


def _order(what: str, arguments: dict[str, Any], manner: Manner) -> None:
    table = arguments["table"]
    with directory_of(manner.directory, manner.config) as opened:
        if manner.dry_run:
            check_dry(opened, what, arguments)
            _show(_preview(opened.snapshot(), what, table), manner.output)
            return
        known = set(opened.snapshot().plans)
        answered = give(opened, what, arguments)
        order = _given(opened, known, what, table)
        if not manner.wait:
            result = {"order": order.id, "command": answered.id, "result": answered.result}
            _show({**result, "sentence": answered.result}, manner.output)
            return
        last = _followed(opened, order.id, manner)
    _show(last, manner.output)
    if last["state"] != orders.DONE or last["not_started"]:
        why = "; ".join(last["not_started"][:3]) or f"it is {last['state']}"
        raise Failed(f"order {order.id} was not carried out in full: {why}")


def _preview(snapshot: Snapshot, what: str, name: str) -> dict[str, Any]:
    table = snapshot.table(name)
    tablets = [snapshot.tablet(number) for number in orders.concerned(snapshot, table, what)]
    before = len(snapshot.tablets(table.id))
    after = before + (len(tablets) if what == orders.DOUBLE else -len(tablets) // 2)
    busy = sum(1 for tablet in tablets if snapshot.migration_of(tablet.id) is not None)
    apart = _apart(snapshot, [tablet.id for tablet in tablets]) if what == orders.HALVE else 0
    words = f"would be done: {name} has {before} vbuckets and gets {after}, by {abs(after - before)} migrations"
    words += f"; {apart} pairs on different nodes are moved together first" if apart else ""
    words += f"; {busy} of them in migrations that run now follow later" if busy else ""
    numbers = {"before": before, "after": after, "apart": apart, "busy": busy}
    return {"dry_run": True, "order": what, "table": name, **numbers, "sentence": words}


def _apart(snapshot: Snapshot, tablets: list[int]) -> int:
    """How many pairs of siblings are not on one node."""
    nodes: dict[object, str] = {found.bounds: found.node for found in map(snapshot.tablet, tablets)}
    pairs = [(node, nodes.get(leaf.sibling())) for leaf, node in nodes.items() if isinstance(leaf, Leaf)]
    return sum(1 for mine, other in pairs if mine != other) // 2


def _given(directory: Directory, known: set[str], what: str, table: str) -> Plan:
    for plan in directory.snapshot().plans.values():
        wish = plan.document.get("order"), plan.document.get("table")
        if plan.id not in known and wish == (what, table):
            return plan
    raise Unavailable("the order is not in the directory any more; see `balancer history`")


def _followed(directory: Directory, order: str, manner: Manner) -> dict[str, Any]:
    """Waits for the end of an order; shows how far it is."""
    clock = SystemClock()
    began = told = clock.monotonic()
    quiet = manner.output is Output.JSON
    with console.status(f"order {order}") as status:
        if quiet or not console.is_terminal:
            status.stop()
        while True:
            snapshot = directory.snapshot()
            found = orders.progress(snapshot.plans[order], snapshot)
            if found["state"] != orders.ORDERED:
                return found
            status.update(f"{found['sentence']}, {found['running']} in migrations")
            if not quiet and not console.is_terminal and clock.monotonic() - told >= LINE_SECONDS:
                told = clock.monotonic()
                say(f"{found['sentence']}, {found['running']} in migrations")
            if manner.timeout is not None and clock.monotonic() - began > manner.timeout:
                raise Unavailable(
                    f"order {order} has not been carried out within {format_duration(manner.timeout)} and continues:"
                    f" `balancer status` shows it, `balancer cancel {order}` ends it"
                )
            clock.sleep(REFRESH)


def _show(document: dict[str, Any], output: Output) -> None:
    if output is Output.JSON:
        show_json(document)
    else:
        say(document["sentence"])
