"""Which schedule applies to what in a bundle: the planner, the daemon and the command line ask here, so they agree.

The order (group or heat, then bundle, then cluster) and the meaning of an unset formula are those of
`schedules.levels`; here the options are only put into it.
"""

from zoneinfo import ZoneInfo

from balancer.errors import UserError
from balancer.policies.options import DEFAULT_GROUP, GroupOptions
from balancer.schedules import Applicable, Level, Schedule, applicable
from balancer.settings.load import BundleSettings, Settings


def bundle_schedule(settings: Settings, bundle: BundleSettings) -> Applicable:
    """For whatever belongs to no group with a formula of its own."""
    return applicable(*_levels(settings, bundle))


def group_schedule(settings: Settings, bundle: BundleSettings, group: str) -> Applicable:
    """For the tables of a group; the group `default` exists also where the file does not name it."""
    groups = {DEFAULT_GROUP: GroupOptions(), **bundle.options.balancer.groups}
    if group not in groups:
        raise UserError(f"bundle {bundle.name!r} has no group {group!r}; there are: {', '.join(sorted(groups))}")
    options = groups[group]
    enable = options.enable_move or options.enable_reshard
    return applicable(Level(f"group {group}", options.schedule, enable), *_levels(settings, bundle))


def heat_schedule(settings: Settings, bundle: BundleSettings) -> Applicable:
    """For splitting and merging by heat."""
    heat = bundle.options.heat
    return applicable(Level("heat", heat.schedule, heat.enable), *_levels(settings, bundle))


def check_schedule(settings: Settings, bundle: BundleSettings) -> Applicable:
    """For the consistency checker."""
    checks = bundle.checks
    return applicable(Level("checks", checks.schedule, checks.enable), *_levels(settings, bundle))


def in_zone(bundle: BundleSettings, found: Applicable) -> Schedule:
    """The formula on the bundle's wall clock."""
    return found.schedule(ZoneInfo(bundle.timezone))


def _levels(settings: Settings, bundle: BundleSettings) -> tuple[Level, Level]:
    options = bundle.options.balancer
    return (
        Level(f"bundle {bundle.name}", options.tablet_balancer_schedule),
        Level("the cluster", settings.daemon.schedule),
    )
