"""Which windows of a bundle are open at this moment, and what that allows. The tick asks; nothing is decided elsewhere.

A group of tables and heat may have formulas of their own, which replace the bundle's. What an operator asked for by
name, or ordered to be done at once, has no window: it starts at once and is never parked.

What a schedule says at this moment of a tick. `schedules` decides, `settings.schedules` says which formula applies.

Rounds outside the schedule, on an operator's word (`balancer run-now`): the next plan starts as if all windows were
open, once.

The command itself waits in the directory until a tick of the leader has acted on it, so that a new leader finds it and
carries it out, and the operator is told what was started. What a round has started belongs to no window: it is not
parked.

When a leader last looked at the schedules of a bundle, so that a window which opens meanwhile is not lost.

A window may be one minute long. A daemon that restarts in it, or a leader that takes over, looks back to the last tick
of whoever led before; it reads that from the status note in the directory, which every tick of a leader renews.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from balancer.directory.contract import Directory
from balancer.directory.model import Command, CommandState, Json, Migration
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused
from balancer.planner import orders, plans
from balancer.planner.bundle_state import STATUS_TOPIC, BundleState, ScheduleReport
from balancer.planner.memory import CODE as FOLLOW_UP
from balancer.planner.memory import HEAT
from balancer.planner.verbs import CommandContext, Outcome
from balancer.policies.finish_by import ANY, PARK
from balancer.policies.options import BundleOptions
from balancer.policies.plan.plan import restricted
from balancer.policies.view import Action
from balancer.schedules import Applicable, Schedule
from balancer.settings import BundleSettings, Mode, Settings
from balancer.settings.schedules import bundle_schedule, deadline, group_schedule, heat_schedule

BY_OPERATORS = ("", "operator")
"""The codes of migrations that were asked for by name."""


@dataclass(frozen=True, slots=True)
class Openings:
    """The schedules of a bundle as they stand now."""

    bundle: ScheduleReport
    heat: ScheduleReport
    groups: Mapping[str, ScheduleReport]  # those with a formula of their own
    options: BundleOptions
    endless: bool = False
    """Whether an operator has asked for a round outside the schedule: no deadline counts."""

    @property
    def any(self) -> bool:
        """Whether anything at all may start."""
        return self.bundle.open or self.heat.open or any(group.open for group in self.groups.values())

    @property
    def all(self) -> bool:
        """Whether everything may start."""
        return self.bundle.open and self.heat.open and all(group.open for group in self.groups.values())

    def window(self, table: str, code: str) -> ScheduleReport:
        """The schedule that an action of this code on this table belongs to."""
        if code.startswith(HEAT) or code == FOLLOW_UP:
            return self.heat
        return self.groups.get(self.options.group_name(table), self.bundle)

    def allows(self, action: Action) -> bool:
        """Whether its window is open."""
        return self.window(action.table, action.code).open

    def narrowed(self) -> BundleOptions:
        """The options without what has to wait for its window."""
        names = {"default", *self.options.balancer.groups}
        names |= {self.options.group_name(table) for table in self.options.tables}
        shut = frozenset(name for name in names if not self.groups.get(name, self.bundle).open)
        return restricted(self.options, balance=True, heat=self.heat.open, closed_groups=shut)

    def opened(self) -> "Openings":
        """As if every window were open, and none had an end."""
        reports = {name: replace(report, open=True, closes_at=None) for name, report in self.groups.items()}
        bundle, heat = (replace(report, open=True, closes_at=None) for report in (self.bundle, self.heat))
        return Openings(bundle, heat, reports, self.options, endless=True)

    def seconds_left(self, now: datetime, finish_by: str) -> float | None:
        """How long what starts now may take, or what starts when the next window opens; None: nothing limits it.

        Before a window opens its whole length counts, so that a plan already says what will not fit.
        """
        if self.endless or finish_by == ANY:
            return None
        reports = [self.bundle, self.heat, *self.groups.values()]
        reports = reports[:1] if self.bundle.open else reports
        opened = [report for report in reports if report.open]
        coming = [report for report in reports if report.next_open is not None]
        if not opened and coming:
            first = min(coming, key=_opening)
            return _seconds(_opening(first), _end(first, _opening(first), first.next_close, finish_by))
        ends = [_seconds(now, _end(report, now, report.closes_at, finish_by)) for report in opened]
        return min((left for left in ends if left is not None), default=None)

    def overrunning(self, snapshot: Snapshot, bundle: BundleSettings) -> frozenset[str]:
        """Unfinished migrations that must be held until their window opens again: with `finish_by = "park"` only."""
        if bundle.migration.finish_by != PARK:
            return frozenset()
        return frozenset(
            record.id
            for record in snapshot.migrations.values()
            if record.bundle == bundle.name and not record.finished and self._is_over(snapshot, record)
        )

    def _is_over(self, snapshot: Snapshot, record: Migration) -> bool:
        code = str(record.detail.get("code", ""))
        if code in BY_OPERATORS or orders.unscheduled(snapshot, record) or unscheduled(snapshot, record.id):
            return False
        return not self.window(snapshot.tables[record.table].name, code).open


def _opening(report: ScheduleReport) -> datetime:
    assert report.next_open is not None
    return report.next_open


def _end(report: ScheduleReport, start: datetime, close: datetime | None, finish_by: str) -> datetime | None:
    """By when what starts at `start` must be done, in a window that closes then; None: never."""
    return deadline(finish_by, ZoneInfo(report.timezone), start) or close


def _seconds(start: datetime, end: datetime | None) -> float | None:
    return None if end is None else max(0.0, (end - start).total_seconds())


def look(settings: Settings, bundle: BundleSettings, now: datetime, since: datetime | None) -> Openings:
    """The schedules at a tick; `since` is the tick before it."""
    own = [name for name, group in bundle.options.balancer.groups.items() if group.schedule.strip()]
    found = {name: group_schedule(settings, bundle, name) for name in own}
    patience = settings.daemon.look_back
    return Openings(
        report(bundle_schedule(settings, bundle), bundle.timezone, now, since, patience),
        report(heat_schedule(settings, bundle), bundle.timezone, now, since, patience),
        {name: report(one, bundle.timezone, now, since, patience) for name, one in found.items()},
        bundle.options,
    )


MOST_MISSED = timedelta(days=1)
"""Older windows are not looked for: nobody doubts that a daemon which was away for a day has missed some."""


def report(found: Applicable, timezone: str, at: datetime, since: datetime | None, look_back: float) -> ScheduleReport:
    """Open now, or in any minute since the last tick: a late tick loses no window, and gets as much time as it had."""
    schedule = found.schedule(ZoneInfo(timezone))
    hits = schedule.hits(since, at, timedelta(seconds=look_back)) if found.enabled else ()
    closes_at = schedule.closes_at(at)
    if hits and closes_at == at:
        length = schedule.closes_at(hits[0])
        closes_at = None if length is None else at + (length - hits[0])
    next_open = schedule.next_open(at)
    return ScheduleReport(
        formula=str(found.formula) if found.level else "",
        level=found.level,
        timezone=timezone,
        open=bool(hits),
        closes_at=closes_at if hits else None,
        next_open=next_open,
        next_close=None if hits or next_open is None else schedule.closes_at(next_open),
        missed=None if hits or since is None or not found.enabled else _missed(schedule, since, at),
    )


def _missed(schedule: Schedule, since: datetime, at: datetime) -> datetime | None:
    """The newest open minute since the last tick; whoever asks has found that it is too long ago."""
    return next(reversed(schedule.hits(since, at, MOST_MISSED)), None)


VERB = "run-now"
_STARTED = "migrations"  # what a round has started, among the arguments of its command


def run_now(context: CommandContext) -> Outcome:
    """A round of a bundle; refused if the next tick could start nothing anyway."""
    name = context.free_bundle()
    pause = context.snapshot.pauses.get(name)
    if pause is not None and (pause.until is None or pause.until > context.now.timestamp()):
        raise Refused(f"bundle {name} is paused: `balancer resume {name}` ends that")
    if context.modes and name not in context.modes:
        raise Refused(f"bundle {name} is not in the leader's configuration")
    mode = context.modes.get(name)
    if mode is Mode.OBSERVE:
        raise Refused(f"the mode of bundle {name} is observe, in which nothing is started: change it in its file first")
    if mode is Mode.APPROVE and plans.in_state(context.snapshot, name, plans.APPROVED) is None:
        raise Refused(f"bundle {name} starts only what was approved, and no approved plan waits: see `balancer plan`")
    return Outcome(f"a round of bundle {name} is about to start", round=name)


def waiting(snapshot: Snapshot, bundle: str) -> tuple[Command, ...]:
    """The rounds of a bundle that were asked for and have not been carried out."""
    return tuple(
        command
        for command in snapshot.commands.values()
        if command.verb == VERB and command.state is CommandState.WAITING and command.arguments.get("bundle") == bundle
    )


def answered(command: Command, started: Sequence[Migration], refused: Sequence[str]) -> Command:
    """The command as it is kept once a tick has acted on it."""
    ids = [record.id for record in started]
    done = f"{len(ids)} migration{'s' if len(ids) > 1 else ''} started: {', '.join(ids)}" if ids else "nothing to start"
    failed = f"; {len(refused)} could not be: {refused[0]}" if refused else ""
    result = f"a round of bundle {command.arguments['bundle']}: {done}{failed}"
    arguments = {**command.arguments, _STARTED: ids}
    return replace(command, state=CommandState.DONE, result=result, arguments=arguments)


def unscheduled(snapshot: Snapshot, migration: str) -> bool:
    """Whether a round has started this migration."""
    # Until it is answered, a command's arguments are whatever somebody has written.
    done = (one for one in snapshot.commands.values() if one.verb == VERB and one.state is CommandState.DONE)
    return any(migration in command.arguments[_STARTED] for command in done)


class LookBook:
    """What one bundle's ticks know about it."""

    def __init__(self, bundle: str) -> None:
        self._bundle = bundle
        self.looked: datetime | None = None
        self._leading: object | None = None

    def read(self, directory: Directory, leading: object | None) -> datetime | None:
        """The last look of a leader. `leading` is this process's leadership: while it lasts, nobody else looks."""
        if leading is not self._leading:
            note = None if leading is None else directory.published(STATUS_TOPIC).get(self._bundle)
            self.looked, self._leading = read_look(note), leading
        return self.looked

    def noted(self, state: BundleState) -> BundleState:
        """Remembers what the tick that has just ended says, and returns it."""
        self.looked = state.looked
        return state


def read_look(note: Json) -> datetime | None:
    """From a status note. Anybody may leave one: what is no time with a zone means that nobody has looked."""
    try:
        looked = datetime.fromisoformat(note["looked"])
    except (KeyError, TypeError, ValueError):
        return None
    return looked if looked.tzinfo is not None and looked.year in range(2000, 9000) else None
