"""`balancer expire`: which tablets of time-range tables have expired; retires them now, or holds them."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import MigrationKind
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, UserError
from balancer.policies.options import BundleOptions
from balancer.policies.resize.time_ranges import ExpiredTablet, expired_tablets, next_expiry
from balancer.policies.view import BundleView
from balancer.polling.poller import ClusterPoll
from balancer.polling.rates import first_rates
from balancer.polling.view import Remembered, build_view
from balancer.settings import load_settings
from balancer.terminal.operate import ReasonOption, give
from balancer.terminal.options import ConfigOption, open_configured
from balancer.terminal.output import Output, OutputOption, say, show_json, show_rows

HoldOption = Annotated[bool, typer.Option("--hold", help="let nothing expire until --release")]
ReleaseOption = Annotated[bool, typer.Option("--release", help="end the hold")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="only show what has expired")]


def expire(
    bundle: Annotated[str, typer.Argument(help="the bundle")],
    hold: HoldOption = False,
    release: ReleaseOption = False,
    dry_run: DryRunOption = False,
    reason: ReasonOption = "",
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Retires the oldest expired tablets of each table now, whatever the schedule says; or shows, holds or releases
    them."""
    if hold + release + dry_run > 1:
        raise UserError("give one of --hold, --release and --dry-run, or none of them")
    settings = load_settings(config)
    options = settings.bundle(bundle).options
    with open_configured(settings.daemon) as directory:
        if hold or release:
            _steer(directory, bundle, hold, reason, output)
            return
        view = _view(directory.snapshot(), bundle, options)
        if dry_run:
            _show(view, options, output)
        else:
            _retire(directory, view, options, reason, output)


def _view(snapshot: Snapshot, bundle: str, options: BundleOptions) -> BundleView:
    """The tablets as the directory has them: nobody needs to be asked whether they have expired."""
    now = SystemClock().now().timestamp()
    poll = ClusterPoll(now, snapshot.version, {}, first_rates())
    return build_view(snapshot, bundle, poll, options=options, capacities={}, remembered=Remembered())


def _show(view: BundleView, options: BundleOptions, output: Output) -> None:
    found = [one for table in view.tables for one in expired_tablets(view, table, options.table(table.name))]
    show_rows([_row(one) for one in found], ("table", "tablet", "node", "keys_before"), output)
    if output is Output.TEXT:
        held = "; they are held (--release ends the hold)" if view.expiry_held else ""
        say(f"{len(found)} tablets of bundle {view.bundle} have expired{held}; nothing was changed")


def _row(one: ExpiredTablet) -> dict[str, Any]:
    before = datetime.fromtimestamp(one.end, UTC).isoformat(timespec="seconds") if one.end > 0 else "the beginning"
    return {"table": one.table, "tablet": one.tablet, "node": one.node, "keys_before": before}


def _retire(directory: Directory, view: BundleView, options: BundleOptions, reason: str, output: Output) -> None:
    """One command per table: the leader judges each for itself."""
    told = []
    proposed = (next_expiry(view, table, options.table(table.name)) for table in view.tables)
    for action in filter(None, proposed):
        answered = give(directory, "expire", {"tablets": list(action.tablets), "reason": reason or action.reason})
        told.append({"table": action.table, "migration": answered.migration, "result": answered.result})
    if output is Output.JSON:
        show_json(told)
        return
    for one in told:
        say(f"{one['table']}: {one['result']} (migration {one['migration']})")
    if not told:
        say(f"nothing in bundle {view.bundle} has expired")


def _steer(directory: Directory, bundle: str, hold: bool, reason: str, output: Output) -> None:
    answered = give(directory, "hold-expiry" if hold else "release-expiry", {"bundle": bundle, "reason": reason})
    given_up = _give_up(directory, bundle) if hold else []
    if output is Output.JSON:
        show_json({"command": answered.id, "result": answered.result, "given_up": given_up})
        return
    say(answered.result)
    for one in given_up:
        say(one)


def _give_up(directory: Directory, bundle: str) -> list[str]:
    """What is being retired at this moment is cancelled, if it is not too late for that."""
    told = []
    for one in directory.snapshot().migrations.values():
        if one.bundle == bundle and one.operation is MigrationKind.EXPIRE and not one.finished:
            try:
                told.append(give(directory, "cancel", {"migration": one.id}).result)
            except BalancerError as error:
                told.append(f"migration {one.id} continues: {error}")
    return told
