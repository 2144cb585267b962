"""Whether an operator's move or merge violates a rule of its bundle. Pure: needs only the directory's map."""

from collections.abc import Sequence

from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused
from balancer.policies.bundle_view import BundleView
from balancer.policies.options import BundleOptions
from balancer.policies.rule_splits import names_of, rule_against
from balancer.polling.poller import ClusterPoll
from balancer.polling.rates import first_rates
from balancer.polling.view import Remembered, build_view


def refuse_against_rules(snapshot: Snapshot, bundle: str, options: BundleOptions, tablet: int, node: str) -> None:
    """Raises `Refused` if a rule, or its table's zones, keep the tablet off the node: it would not stay there."""
    table, zone = snapshot.tables[snapshot.tablet(tablet).table].name, snapshot.nodes[node].zone
    zones = options.table(table).zones
    if zones and zone not in zones:
        lives = f"table {table} lives in {', '.join(zones)}"
        raise Refused(f"tablet {tablet} may not go to {node}: it is in zone {zone or '(none)'}, and {lives}")
    if options.rules:
        against = rule_against(_map(snapshot, bundle, options), options, tablet, node)
        if against:
            raise Refused(f"tablet {tablet} may not go to {node}: {against}")


def refuse_over_bounds(snapshot: Snapshot, bundle: str, options: BundleOptions, tablets: Sequence[int]) -> None:
    """Raises `Refused` if a rule ends between tablets that are to be merged."""
    if options.rules:
        names = names_of(_map(snapshot, bundle, options), options)
        found = {names.get(tablet, frozenset()) for tablet in tablets}
        if len(found) > 1:
            which = ", ".join(sorted(frozenset.union(*found) - frozenset.intersection(*found)))
            raise Refused(f"rule {which} ends between these tablets: they must stay apart")


def _map(snapshot: Snapshot, bundle: str, options: BundleOptions) -> BundleView:
    nothing = ClusterPoll(0.0, snapshot.version, {}, first_rates())
    return build_view(snapshot, bundle, nothing, options=options, capacities={}, remembered=Remembered())
