"""Which schedule applies to what in a bundle: the planner, the daemon and the command line ask here, so they agree.

The order (group or heat, then bundle, then cluster) and the meaning of an unset formula are those of
`schedules.schedule`; here the options are only put into it.
"""

from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from balancer.errors import UserError
from balancer.policies.finish_by import ANY, time_of_day
from balancer.policies.options import DEFAULT_GROUP, GroupOptions
from balancer.policies.reasons import bytes_text
from balancer.schedules import Applicable, Formula, Level, Schedule, applicable
from balancer.settings.load import BundleSettings, Settings

NEAR: Final = timedelta(days=7)
"""How far ahead windows are looked at; the formula knows only hours and minutes, but clocks change."""


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


def deadline(finish_by: str, zone: tzinfo, after: datetime) -> datetime | None:
    """The next moment after this one at which the wall clock shows the time of day; None: it is a word, not a time."""
    minute = time_of_day(finish_by)
    if minute is None:
        return None
    formula = Formula(f"hours == {minute // 60} && minutes == {minute % 60}")
    windows = Schedule(formula, zone).windows(after)
    return next(window.start for window in windows if window.start > after)


def too_short(settings: Settings, bundle: BundleSettings, at: datetime, rate: float | None = None) -> str:
    """That no tablet of the desired size can be moved in any window of the next seven days, and the largest that can.

    `rate` is what was measured; None: what is expected. Empty: some fit, or nothing has to be finished by a time.
    """
    if bundle.migration.finish_by == ANY:
        return ""
    groups = [name for name, group in bundle.options.balancer.groups.items() if group.schedule.strip()]
    found = [bundle_schedule(settings, bundle), *(group_schedule(settings, bundle, name) for name in groups)]
    texts = [window_too_short(bundle, in_zone(bundle, one), at, rate) for one in found if one.enabled]
    return next(filter(None, texts), "")


def window_too_short(bundle: BundleSettings, schedule: Schedule, at: datetime, rate: float | None = None) -> str:
    """The same of one schedule."""
    longest = longest_run(schedule, bundle.migration.finish_by, at)
    desired = float(bundle.options.balancer.desired_tablet_size)
    if rate is not None:
        return short_sentence(longest, desired, rate, "seen")
    return short_sentence(longest, desired, bundle.options.budgets.expected_bytes_per_second, "expected")


def short_sentence(longest: float | None, desired: float, rate: float, which: str) -> str:
    """What `window_too_short` says of the longest window."""
    if longest is None or longest * rate >= desired:
        return ""
    return (
        f"no tablet of the desired size fits into any window of the next seven days: {bytes_text(desired)} take"
        f" {desired / rate:.0f} s at the {bytes_text(rate)}/s {which}, the longest window leaves {longest:.0f} s; the"
        f' largest that fits has {bytes_text(longest * rate)}. With finish_by = "{ANY}" what has started may run on'
    )


def longest_run(schedule: Schedule, finish_by: str, at: datetime) -> float | None:
    """The longest time in seconds that a migration has in a window of the next seven days.

    None: as long as it likes, or no window opens at all.
    """
    return None if finish_by == ANY else _longest_run(schedule, finish_by, at.astimezone(UTC).date())


@lru_cache(maxsize=256)
def _longest_run(schedule: Schedule, finish_by: str, day: date) -> float | None:
    """The same from midnight UTC on: every tick asks."""
    at = datetime(day.year, day.month, day.day, tzinfo=UTC)
    longest: float | None = None
    for window in schedule.windows(at):
        if window.start - at > NEAR + timedelta(days=1):
            break
        end = deadline(finish_by, schedule.zone, window.start) or window.end
        if end is None:
            return None
        longest = max(longest or 0.0, (end - window.start).total_seconds())
    return longest


def _levels(settings: Settings, bundle: BundleSettings) -> tuple[Level, Level]:
    options = bundle.options.balancer
    return (
        Level(f"bundle {bundle.name}", options.tablet_balancer_schedule),
        Level("the cluster", settings.daemon.schedule),
    )
