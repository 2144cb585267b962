"""`balancer tablets`: who owns which keys, from the directory alone. Nothing here asks a node.

`balancer route`: where a key is.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import typer

from balancer.directory.locate import locate_key, parse_key, tablet_bounds
from balancer.directory.model import Pin, Table, Tablet
from balancer.directory.snapshot import NotFound, Snapshot
from balancer.errors import Damaged
from balancer.settings.units import Dsn
from balancer.terminal.options import ConfigOption, DirectoryOption, directory_of
from balancer.terminal.output import Output, OutputOption, bounds_text, fail, say, show_json, show_rows

COLUMNS = ("tablet", "table", "part", "node", "epoch", "state", "migration", "pin")


def tablets(
    table: Annotated[str | None, typer.Option("--table", "-t", help="only of this table")] = None,
    node: Annotated[str | None, typer.Option("--node", "-n", help="only on this node")] = None,
    bundle: Annotated[str | None, typer.Option("--bundle", "-b", help="only of this bundle")] = None,
    limit: Annotated[int, typer.Option(min=1, help="at most this many")] = 1000,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Lists tablets in key order: their keys, owner, epoch, and what is happening to them."""
    with directory_of(directory, config) as opened:
        snapshot = opened.snapshot()
    _check(snapshot, table, node, bundle)
    found = list(islice(chosen(snapshot, table, node, bundle), limit + 1))
    make = _document if output is Output.JSON else _row
    rows = [make(snapshot, *one) for one in found[:limit]]
    if output is Output.JSON:
        show_json(rows)
    else:
        show_rows(rows, COLUMNS, output, empty="there are no such tablets")
    if len(found) > limit:
        fail(f"there are more than these {limit}; --limit shows more of them")


def chosen(
    snapshot: Snapshot, table: str | None = None, node: str | None = None, bundle: str | None = None
) -> Iterator[tuple[Table, Tablet]]:
    """Tablets by table and key; made one by one, so that a million of them cost nothing until they are looked at."""
    for one in sorted(snapshot.tables.values(), key=lambda one: (one.bundle, one.name)):
        if table not in (None, one.name) or bundle not in (None, one.bundle):
            continue
        every = snapshot.tablets(one.id)
        for row in range(len(every)) if node is None else _rows_on(snapshot, one, node):
            yield one, every[row]


def _rows_on(snapshot: Snapshot, table: Table, node: str) -> Iterator[int]:
    columns = snapshot.columns(table.id)
    if node in columns.nodes:
        wanted = columns.nodes.index(node)
        yield from (row for row, number in enumerate(columns.node) if number == wanted)


def _check(snapshot: Snapshot, table: str | None, node: str | None, bundle: str | None) -> None:
    if table is not None:
        snapshot.table(table)
    for kind, name, known in (("node", node, snapshot.nodes), ("bundle", bundle, snapshot.bundles)):
        if name is not None and name not in known:
            raise NotFound(f"there is no {kind} {name!r} in the directory; there are: {', '.join(sorted(known))}")


def _row(snapshot: Snapshot, table: Table, tablet: Tablet) -> dict[str, Any]:
    running, pin = snapshot.migration_of(tablet.id), snapshot.pins.get(tablet.id)
    return {
        "tablet": tablet.id,
        "table": table.name,
        "part": bounds_text(table, tablet),
        "node": tablet.node,
        "epoch": tablet.epoch,
        "state": tablet.state,
        "migration": f"{running.operation} {running.id} ({running.state})" if running else None,
        "pin": _pin_text(pin) if pin else None,
    }


def _document(snapshot: Snapshot, table: Table, tablet: Tablet) -> dict[str, Any]:
    running, pin = snapshot.migration_of(tablet.id), snapshot.pins.get(tablet.id)
    return {
        **_row(snapshot, table, tablet),
        "bundle": table.bundle,
        **tablet_bounds(table, tablet),
        "migration": running.id if running else None,
        "pin": {"until": pin.until, "author": pin.author, "reason": pin.reason} if pin else None,
    }


def _pin_text(pin: Pin) -> str:
    until = f"until {datetime.fromtimestamp(pin.until, UTC):%Y-%m-%d %H:%M} UTC" if pin.until else "for good"
    return f"{until} by {pin.author}" + (f": {pin.reason}" if pin.reason else "")


def route(
    table: str,
    key: Annotated[
        list[str] | None, typer.Argument(help="one value for each column of the table's key; none for a whole table")
    ] = None,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Shows which node and tablet a key is on. A negative number follows two dashes: -- -5."""
    with directory_of(directory, config) as opened:
        snapshot = opened.snapshot()
    found = locate_key(snapshot, table, parse_key(snapshot.table(table), key or ()))
    if output is Output.JSON:
        show_json({**found._asdict(), "dsn": _shown_dsn(snapshot, found.node), "version": snapshot.version})
    else:
        say(f"node {found.node}, tablet {found.tablet}, epoch {found.epoch}: {_shown_dsn(snapshot, found.node)}")


def _shown_dsn(snapshot: Snapshot, node: str) -> str:
    """A stored DSN, if nothing in it may be a secret: an older version, or an import, may have stored anything."""
    record = snapshot.nodes.get(node)
    if record is None:
        raise Damaged(f"the directory contains damaged data: there is no node {node!r}")
    try:
        return Dsn.parse(record.dsn).text
    except ValueError as error:
        return f"(its DSN is not shown: {error})"
