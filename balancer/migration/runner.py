"""Drives a migration from state to state: performs each step and saves what follows.

The daemon (or a command) calls `Runner.run` in a thread per migration; `cancel`, `pause` and `resume` from any other.
`machine` says what follows what, the steps what a state does, `retries` what an error means. The directory's commit of
a move is here, because it is the journal's next entry.

What a leader does with a migration that it finds half-way: a rule for each state (`machine.Recovery`).

The daemon calls `recover` once after it has become leader and before it begins anything, then runs what is returned.
`Runner.run` applies the same rule to whatever it is given (`take_over`), so that an interrupted run of the same leader
also resumes where that is safe. The decision is journaled under the leader's epoch before anything is undone: from then
on a predecessor cannot commit.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import Change, Migration, MigrationKind, Put, Remove, TabletState
from balancer.errors import BalancerError, Conflict, Fenced, Refused, Unavailable
from balancer.migration import expire, finish, guards, steps
from balancer.migration.concurrency import Turnstile
from balancer.migration.context import Context
from balancer.migration.journal import Journal, read_detail
from balancer.migration.machine import Event, Recovery, State, Track, after, is_final, row_of, track_of
from balancer.migration.progress import Observer, ProgressMeter
from balancer.migration.retries import (
    WORK,
    Answer,
    CancelRequested,
    Control,
    Difference,
    Failures,
    Overrun,
    answer,
    is_passing,
)
from balancer.nodes.schema.install import upgrade_schema
from balancer.nodes.session.holder import Addresses, NodeSessions
from balancer.polling.poller import known_standbys
from balancer.settings import MigrationSettings

_KEPT = 4
"""Sessions on a node kept for reuse within a state: as many as a small copy uses at once."""


class Runner:
    """Runs migrations of one leader. Shared between threads: one `run` per migration."""

    def __init__(
        self,
        directory: Directory,
        leadership: Leadership,
        addresses: Addresses,
        settings: MigrationSettings,
        *,
        clock: Clock | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._directory = directory
        self._leadership = leadership
        self._addresses = addresses
        self._settings = settings
        self._clock = clock or SystemClock()
        self._observer = observer or Observer()
        self._controls: dict[str, Control] = {}
        self._turnstile = Turnstile()
        self._lock = threading.Lock()

    def run(self, migration: str) -> Migration:
        """Drives a migration to its end and returns its last record.

        Raises `Fenced` when another leader has taken over (and will continue), `Unavailable` when the directory is
        gone.
        """
        control = self._control(migration)
        journal = Journal(self._directory, self._leadership, self._clock)
        links = NodeSessions(self._addresses, migration, kept=_KEPT)
        try:
            ctx = self._context(migration, journal, links, control)
            try:
                self._take_nodes(ctx)
                while not is_final(ctx.state):
                    self._advance(ctx, journal)
            finally:
                self._turnstile.leave(ctx)
            ctx.progress.forget()
            self._observer.finished(ctx.record)
        finally:
            links.close()  # what an operator has said holds for the next attempt too
        with self._lock:
            self._controls.pop(migration, None)
        return ctx.record

    def cancel(self, migration: str, reason: str = "cancelled by an operator") -> None:
        """Asks a running migration to undo itself. Raises `Refused` if it is too late, or if it does not run here."""
        record = self._directory.snapshot().migrations.get(migration)
        if record is None or record.finished:
            raise Refused(f"there is no unfinished migration {migration}")
        if not row_of(track_of(record.operation, record.mode), State(record.state)).cancellable:
            raise Refused(f"migration {migration} is {record.state}: it is too late to cancel it")
        self._control(migration).cancel(reason)

    def end(self, migration: str) -> None:
        """Prevents every further step of a migration; what it has left is not cleaned up."""
        self._control(migration).end()

    def pause(self, migration: str, waiting_for: str = "an operator to resume it") -> None:
        """Holds a migration at its next checkpoint at which writers are not held back."""
        self._control(migration).pause(waiting_for)

    def resume(self, migration: str) -> None:
        """Resumes a paused migration."""
        self._control(migration).resume()

    def _control(self, migration: str) -> Control:
        with self._lock:
            return self._controls.setdefault(migration, Control())

    def _context(self, migration: str, journal: Journal, links: NodeSessions, control: Control) -> Context:
        record = take_over(journal, journal.load(migration), self._leadership)
        snapshot = self._directory.snapshot()
        # After the commit of a reshard its sources are gone from the directory; the record keeps what they were.
        sources = steps.source_tablets(record, snapshot)
        progress = ProgressMeter(self._directory, self._observer, self._clock, lambda: control.paused)
        ctx = Context(
            record,
            snapshot.tables[record.table],
            sources,
            leadership=self._leadership,
            links=links,
            settings=self._settings,
            clock=self._clock,
            control=control,
            progress=progress,
        )
        progress.enter(record, ctx.state)
        ctx.others = self._turnstile
        ctx.known_standbys = partial(self._known_standbys, record)
        return ctx

    def _known_standbys(self, record: Migration) -> tuple[str, ...]:
        return known_standbys(self._directory, record.bundle, record.target_node)

    def _take_nodes(self, ctx: Context) -> None:
        """A predecessor that hangs in the middle of a copy still holds locks on the nodes; an older version left an
        older schema there."""
        for node in sorted({ctx.record.source_node, ctx.record.target_node}):
            try:
                ctx.links.evict(node, self._leadership.epoch)
                with ctx.node(node) as cursor:
                    upgrade_schema(cursor)
            except (Unavailable, Refused):
                continue  # a node that is out of reach has no sessions worth ending; the steps say so

    def _advance(self, ctx: Context, journal: Journal) -> None:
        state = ctx.state
        self._observer.entered(ctx.record, state)
        if state is State.COMMITTING:
            self._commit(ctx, journal)
            return
        event = self._perform(ctx, state)
        self._observer.left(ctx.record, state)
        self._enter(ctx, journal, event)

    def _perform(self, ctx: Context, state: State) -> Event:
        """Runs a state's step and handles its errors. Raises only `Fenced`, and what the directory raises."""
        failures = Failures(self._clock, self._settings.retry_patience)
        # Writers wait for the opening of the new owner: it is retried at once.
        pause, longest = (0.01, 0.1) if state is State.OPENING else (0.1, 2.0)
        while True:
            try:
                # A fence left by a switch must be lifted first: that is how catching up begins.
                if not row_of(ctx.track, state).again and (state is not State.CATCHING_UP or ctx.fenced_at is None):
                    ctx.checkpoint()
                self._turnstile.pass_in(ctx, state)
                return steps.step_of(ctx.track, state, everywhere=ctx.table.everywhere)(ctx)
            except Fenced:
                raise
            except CancelRequested as wish:
                return self._give_up(ctx, str(wish), failed=False)
            except BalancerError as error:
                self._turnstile.leave(ctx)
                found = _behind_a_fence(ctx, error)
                if not isinstance(found, Overrun):
                    ctx.links.close()
                decided = self._after_error(ctx, state, found, failures)
            if decided is not None:
                return decided
            self._leadership.check()
            self._clock.sleep(pause)
            pause = min(longest, pause * 2)
            failures.begin_again()

    def _after_error(self, ctx: Context, state: State, error: BalancerError, failures: Failures) -> Event | None:
        """The event that follows, by the rule of `retries`; None: retry the step."""
        decided = answer(
            ctx.track,
            state,
            error,
            failing_for=failures.add(),
            restarts=ctx.detail.restarts,
            settings=self._settings,
        )
        if decided is Answer.GIVE_UP:
            return self._give_up(ctx, _last_words(ctx, error, failures), failed=True, error=error)
        ctx.note(retreat=str(error), retries=ctx.detail.retries + 1)
        if decided is Answer.RETREAT:
            return Event.RETREAT
        if decided is Answer.RESTART:
            ctx.note(restarts=ctx.detail.restarts + 1)
            return Event.RESTART
        times = "" if failures.count == 1 else f" (tried {failures.count} times)"
        what = f"{WORK[state]}: " if state in WORK else ""
        ctx.progress.waiting(f"{what}{error}{times}", at_once=isinstance(error, Overrun))
        return None

    def _give_up(self, ctx: Context, reason: str, *, failed: bool, error: BalancerError | None = None) -> Event:
        ctx.record = replace(ctx.record, error=reason)
        ctx.note(failed=failed)
        ctx.different = isinstance(error, Difference)
        return Event.CANCEL

    def _enter(
        self,
        ctx: Context,
        journal: Journal,
        event: Event,
        changes: tuple[Change, ...] = (),
        look: Callable[[], None] | None = None,
    ) -> None:
        """Saves the state that follows, if a successor needs to know it, and goes there."""
        state = after(ctx.track, ctx.state, event)
        if row_of(ctx.track, state).journaled:
            ctx.note(leader_epoch=self._leadership.epoch)
            record = replace(ctx.record, state=str(state), finished=is_final(state), detail=ctx.detail.document())
            changes = (*changes, *self._quarantine(ctx, state))
            ctx.record = journal.save(record, _told(ctx, state), changes, look)
        self._go_to(ctx, state)

    def _go_to(self, ctx: Context, state: State) -> None:
        ctx.state = state
        self._turnstile.leave(ctx, state)
        if ctx.fenced_at is None:
            ctx.links.rest()
            ctx.progress.enter(ctx.record, state)
            ctx.progress.tell(force=True)

    def _quarantine(self, ctx: Context, state: State) -> tuple[Change, ...]:
        """A copy that differs from its source is a matter for a person: the tablet is left alone."""
        if state is not State.FAILED or not ctx.different:
            return ()
        return tuple(Put(replace(tablet, state=TabletState.QUARANTINED)) for tablet in ctx.sources)

    def _commit(self, ctx: Context, journal: Journal) -> None:
        """The one moment of change. A move's writers are behind a sealed fence; a reshard has happened on its node."""
        changes: tuple[Change, ...]
        if ctx.record.operation is MigrationKind.MOVE:
            changes = (Put(ctx.moved),)
        else:
            changes = (*(Remove(tablet.kind, tablet.key) for tablet in ctx.sources), *map(Put, ctx.record.targets))
        ctx.note(switched=self._clock.now().timestamp())
        try:
            self._enter(ctx, journal, Event.STEP, changes, lambda: _look_at_both(ctx))
        except (Conflict, Refused, Unavailable) as error:
            if ctx.record.operation is not MigrationKind.MOVE:
                raise  # the node has already swapped: recovery retries with a fresh view of the directory
            self._find_out(ctx, journal, error)
        self._observer.left(ctx.record, State.COMMITTING)

    def _find_out(self, ctx: Context, journal: Journal, error: BalancerError) -> None:
        """The commit is not sent again; whether a sending of it was applied, only the journal knows.

        If it was, the migration has committed, whatever the answer said. If not, the way back is journaled on top of
        what was read: either that is applied, and the commit never will be, or it conflicts, and the journal is read
        again. Until one of them has happened, the fence stays.
        """
        pause = 0.05
        switched = ctx.detail.switch
        while True:
            try:
                found = journal.load(ctx.id)
                if found.state == State.OPENING and read_detail(found).switch == switched:
                    ctx.record, ctx.detail = found, read_detail(found)
                    self._go_to(ctx, State.OPENING)
                else:
                    self._step_back(ctx, journal, error)
            except (Conflict, Refused, Unavailable) as other:
                ctx.progress.waiting(f"the directory to say whether the move has committed: {other}")
            else:
                return
            self._leadership.check()
            self._clock.sleep(pause)
            pause = min(2.0, pause * 2)

    def _step_back(self, ctx: Context, journal: Journal, error: BalancerError) -> None:
        """Leaves a switch that was not committed."""
        if not isinstance(error, Unavailable):  # somebody has changed the tablet's record
            self._enter(ctx, journal, self._give_up(ctx, str(error), failed=True))
            return
        again = row_of(ctx.track, ctx.state).retreat is not None
        ctx.note(retreat=str(error), retries=ctx.detail.retries + 1, restarts=ctx.detail.restarts + (not again))
        self._enter(ctx, journal, Event.RETREAT if again else Event.RESTART)


def _look_at_both(ctx: Context) -> None:
    """Raises `Unavailable` if what a move's commit relies on may be gone: a session that waited for the source's lock
    may have switched its fence off; a target that was replaced may have lost what was attached."""
    if ctx.closed is not None:
        ctx.closed.check()
    if ctx.opened is not None:
        ctx.opened.check()
    elif ctx.record.operation is MigrationKind.MOVE:
        finish.check_still_ready(ctx)


def _told(ctx: Context, state: State) -> str:
    """What the history says about a journal entry."""
    last = f"; {count}" if state is State.RETIRING and (count := expire.last_count(ctx)) else ""
    return f"migration {ctx.id}: {state}{last}"


def _behind_a_fence(ctx: Context, error: BalancerError) -> BalancerError:
    """A difference means something only if the fence still stands: otherwise the source has simply moved on."""
    if isinstance(error, Difference):
        try:
            guards.standing(ctx)
        except BalancerError as other:
            return other
    return error


def _last_words(ctx: Context, error: BalancerError, failures: Failures) -> str:
    """Why a migration is given up: for a passing failure that lasted, how often it occurred."""
    if not is_passing(error):
        return str(error)
    tries = ctx.detail.restarts + failures.count
    return str(error) if tries == 1 else f"{error} (given up after {tries} tries)"


def recover(directory: Directory, leadership: Leadership, clock: Clock | None = None) -> list[Migration]:
    """Decides about every unfinished migration; returns them, oldest first, for `Runner.run`.

    One that cannot be decided about (a newer version wrote it) is left as it is, and does not hold up the others.
    """
    journal = Journal(directory, leadership, clock or SystemClock())
    unfinished = [record for record in directory.snapshot().migrations.values() if not record.finished]
    found = []
    for record in sorted(unfinished, key=lambda record: record.created):
        try:
            found.append(take_over(journal, journal.load(record.id), leadership))
        except Refused:
            continue
    return found


def take_over(journal: Journal, record: Migration, leadership: Leadership) -> Migration:
    """Journals where a migration resumes, if that is not where its record stands."""
    state = State(record.state)
    following = decision(track_of(record.operation, record.mode), state)
    detail = read_detail(record)
    if following is None or (following is state and detail.leader_epoch == leadership.epoch):
        return record
    changed = replace(
        record,
        state=str(following),
        attempt=record.attempt + 1,
        detail=replace(detail, leader_epoch=leadership.epoch, retreat="it was interrupted").document(),
        error=(record.error or f"interrupted in {state}") if following is State.CANCELLING else record.error,
    )
    return journal.save(changed, f"migration {record.id}: {following} after an interruption in {state}")


def decision(track: Track, state: State) -> State | None:
    """The state a leader resumes from; None: the one it found."""
    rule = row_of(track, state).successor
    if rule is Recovery.ROLL_BACK:
        return State.CANCELLING
    return State.CATCHING_UP if rule is Recovery.RESUME else None
