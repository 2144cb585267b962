"""Stands for election for as long as the daemon runs, and reports when leadership comes and goes.

The loop's thread calls `elected` with each leadership it wins and `deposed` when it is over, one after the other; what
they start must stop by itself at `leadership.check()`, because a deposed leader may notice late.

Where leadership is spread over instances (`leadership`), the loop asks before it campaigns and while it leads. A leader
that hands over resigns just like one that is told to stop; there is no other way from one leader to the next.

Lets the instances of a directory agree on who should lead it, without touching how a leader is elected.

Only `leadership` calls this, in its one thread: it asks `stands` before it campaigns and `hands_over` while it leads.
What follows from the answers is an ordinary campaign or resignation: only elections raise the epoch, and a wrong answer
here costs time, never safety. The decisions are in `policies.leader_choice`.

Three rules:

- An instance that is not the wanted one holds back for half a session while nobody leads. Otherwise a leader that hands
  over would win its own election again, or a third one would.
- The wanted one must have been the same for `settle`, by the notes of this very moment: an instance that comes and goes
  changes nothing, and one that has just said that it cannot lead is not chosen.
- A leadership counts as failed from its first moment until it has lasted, so that a process killed by leading finds
  that number in its own note when it comes back, and rests.

Which instances are present, by their notes in the directory and by this process's own clock.

A note that changes is a sign of life. One that has not changed since it was first read says nothing: its writer may
have died long ago.

What a change of the leader would interrupt, and whether this instance could lead. For `leadership`; only looks.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit
from uuid import uuid4

import structlog

from balancer.clock import Clock
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import CommandState
from balancer.directory.notes import INSTANCES, InstanceNote, LeaderSpread, instance_note, note_name, read_instances
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.features.ddl.apply import SchemaChange, changes_of
from balancer.features.import_tables.record import imports_in
from balancer.features.reference.keeper import ReferenceKeeper
from balancer.instruments import Instruments
from balancer.planner.bundle_state import BundleState
from balancer.policies.leader_choice import (
    Contender,
    Handover,
    Pace,
    Term,
    hand_over,
    rest_after,
    stands,
    wanted_leader,
)
from balancer.settings.files import DaemonFile

BEATS = 4  # per session
ABSENT = 0.75  # of a session: before the servers let anybody else in, a dead leader is known to be absent
STAY_BACK = 0.5  # of a session
LASTED = 10.0  # times `lead_at_least`: a leadership that has lasted this long did not fail


class Spreader:
    """One instance's part. `daemon` is asked again each time: files may change."""

    def __init__(
        self,
        directory: Directory,
        daemon: Callable[[], DaemonFile],
        *,
        unfit: Callable[[], str],
        under_way: Callable[[], str],
        instruments: Instruments,
        clock: Clock,
    ) -> None:
        started = daemon()
        self._directory = directory
        self._daemon = daemon
        self._unfit = unfit
        self._under_way = under_way
        self._instruments = instruments
        self._clock = clock
        self._me = started.instance
        self._group = group_of(started.directory)
        self._session = started.session_timeout
        self._process = uuid4().hex
        self._attendance = Attendance(self._session * ABSENT)
        self._beats = 0
        self._due = 0.0  # monotonic, as are all times here
        self._reported = False
        self._failures: int | None = None  # None: our own note has not been read yet
        self._before = 0  # failures before the leadership that is held
        self._rests_until = 0.0
        self._leading_since: float | None = None
        self._epoch = 0
        self._handed = ""  # to whom, for as long as that one has not been seen to lead
        self._declined: dict[str, int] = {}
        self._leaderless_since: float | None = None
        self._wanted, self._wanted_since = self._me, 0.0
        self._verdict = Handover(now=False)
        self._spread: LeaderSpread | None = None

    @property
    def spread(self) -> LeaderSpread | None:
        """As of the last look; None: leadership is not spread. For any thread."""
        return self._spread

    @property
    def longest_wait(self) -> float:
        """Seconds for which a campaign may continue before it asks again: signs of life come in between."""
        return min(1.0, self._session / BEATS)

    def stands(self) -> bool:
        """Whether to stand for election now. Asks the directory."""
        if not self._on():
            return True
        now = self._clock.monotonic()
        if now >= self._due:
            self._beat()
        if self._stands(0.0):
            self._leaderless_since = None
            return True
        leader = self._directory.leader()
        if leader is not None:
            self._leaderless_since = None
            if leader == self._handed:
                self._handed, self._declined[leader] = "", 0
            return False
        # Nobody leads. The newest notes decide: the one that resigned may have left for good and removed its note.
        self._look()
        since = self._leaderless_since = now if self._leaderless_since is None else self._leaderless_since
        return self._stands(now - since)

    def won(self, epoch: int) -> None:
        """A leadership begins. Until it has lasted, it counts as failed."""
        now = self._clock.monotonic()
        if self._handed:
            self._declined[self._handed] = self._declined.get(self._handed, 0) + 1
            self._handed = ""
        self._before = self._failures or 0
        self._failures = self._before + 1
        self._leading_since, self._epoch = now, epoch
        self._leaderless_since = None
        self._say()

    def hands_over(self) -> bool:
        """Whether the leader should resign, so that the wanted one leads."""
        if not self._on() or self._leading_since is None:
            return False
        now = self._clock.monotonic()
        if self._failures and now - self._leading_since >= LASTED * self._daemon().leadership.lead_at_least:
            self._failures = self._before = 0
        if now < self._due:
            return False
        return self._say() and self._verdict.now

    def ended(self, *, failed: bool) -> None:
        """The leadership is over. `failed`: not because we wanted it."""
        now = self._clock.monotonic()
        self._leading_since = None
        if failed:
            settle = self._daemon().leadership.settle
            self._rests_until = now + rest_after(self._failures or 0, settle)
        else:
            self._failures = self._before
        self._say()

    def handed_over(self) -> None:
        """What `hands_over` asked for was done."""
        log.info("leadership handed over", to=self._wanted, epoch=self._epoch)
        self._instruments.handovers.inc()
        self._handed = self._wanted

    def leave(self) -> None:
        """This instance no longer stands: nobody needs to wait for it. Idempotent."""
        if self._beats:
            self._beats, self._spread = 0, None
            try:
                self._directory.unpublish(INSTANCES, note_name(self._me))
            except BalancerError as error:
                log.warning("the others will notice later that this instance is gone", error=str(error))

    def _stands(self, leaderless_for: float) -> bool:
        return stands(
            self._me,
            self._wanted,
            leaderless_for,
            self._session * STAY_BACK,
            resting=self._rests(self._clock.monotonic()),
        )

    def _rests(self, now: float) -> bool:
        return self._leading_since is None and now < self._rests_until

    def _on(self) -> bool:
        on = self._daemon().leadership.spread
        if not on:
            self.leave()
        return on

    def _say(self) -> bool:
        """Tells the others how we stand, if the directory can be reached; returns whether it could."""
        if not self._on():
            return False
        try:
            self._beat()
        except BalancerError as error:
            log.warning("other instances are not known now", error=str(error))
            return False
        return True

    def _beat(self) -> None:
        """Says that we are here, and checks who else is."""
        now = self._clock.monotonic()
        self._due = now + self._session / BEATS
        notes = self._read()
        if self._failures is None:
            self._begin(notes, now)
        self._look(notes)
        self._beats += 1
        self._directory.publish(INSTANCES, note_name(self._me), instance_note(self._note()))
        if self._leading_since is not None:
            for name in self._attendance.forgotten(now):
                self._directory.unpublish(INSTANCES, note_name(name))

    def _read(self) -> list[InstanceNote]:
        notes = list(read_instances(self._directory.published(INSTANCES)))
        theirs = [note.process for note in notes if note.name == self._me and note.process != self._process]
        if theirs and self._beats and not self._reported:
            self._reported = True
            log.warning("another process has this instance's name: give each its own", instance=self._me)
        return notes

    def _begin(self, notes: list[InstanceNote], now: float) -> None:
        """What our previous process left: one that died while leading begins with a rest."""
        own = next((note for note in notes if note.name == self._me), None)
        self._failures = 0 if own is None else own.failures
        self._rests_until = now + rest_after(self._failures, self._daemon().leadership.settle)

    def _look(self, notes: list[InstanceNote] | None = None) -> None:
        now = self._clock.monotonic()
        self._attendance.look(self._read() if notes is None else notes, now)
        others = [note for note in self._attendance.present(now) if note.name != self._me]
        mine = self._note()
        contenders = [Contender(note.name, note.weight, not note.unfit) for note in (mine, *others)]
        wanted = wanted_leader(self._group, contenders)
        assert wanted is not None, "we are present"
        if wanted != self._wanted:
            self._wanted, self._wanted_since = wanted, now
        self._judge(now)
        leads = self._directory.leader() if self._leading_since is None else self._me
        heard = next((note.waits_for for note in others if note.name == leads), self._verdict.waits_for)
        self._spread = LeaderSpread(wanted, heard, tuple(sorted((self._note(), *others), key=lambda note: note.name)))
        self._instruments.instances_present.set(len(contenders))
        self._instruments.leader_wanted.set(wanted == self._me)

    def _judge(self, now: float) -> None:
        """Whether we, if we lead, should hand over now."""
        before, self._verdict = self._verdict, Handover(now=False)
        if self._leading_since is None:
            return
        section = self._daemon().leadership
        term = Term(
            me=self._me,
            wanted=self._wanted,
            # Until its last sign of life: time in which it is not known to be alive does not count.
            wanted_for=(self._attendance.last_sign(self._wanted) or 0.0) - self._wanted_since,
            led_for=now - self._leading_since,
            under_way="" if self._wanted == self._me else self._under_way(),
            declined=self._declined.get(self._wanted, 0),
        )
        self._verdict = hand_over(term, Pace(section.settle, section.lead_at_least))
        if self._verdict.waits_for and self._verdict != before:
            log.info("another instance is wanted", wanted=self._wanted, waits_for=self._verdict.waits_for)

    def _note(self) -> InstanceNote:
        return InstanceNote(
            name=self._me,
            process=self._process,
            beat=self._beats,
            at=round(self._clock.now().timestamp(), 3),
            weight=self._daemon().leadership.weight,
            unfit=self._why_unfit(),
            failures=self._failures or 0,
            wanted=self._wanted,
            waits_for=self._verdict.waits_for,
        )

    def _why_unfit(self) -> str:
        if self._rests(self._clock.monotonic()):
            return f"the last {self._failures} leaderships failed: it rests"
        return self._unfit()


def group_of(url: str) -> str:
    """What the choice is made for: the directory's full path, which is the same whichever servers are named."""
    return urlsplit(url).path.strip("/")


log = structlog.get_logger()

LOOK_SECONDS = 0.25
RETRY_SECONDS = 1.0
BACK_SECONDS = 0.5  # between checks by an instance that leaves the leadership to another one
REST_SECONDS = 2.0  # after an unusable leadership: others get their chance


class LeaderLoop:
    """Campaigns in a thread of its own."""

    def __init__(
        self,
        directory: Directory,
        name: str,
        elected: Callable[[Leadership], None],
        deposed: Callable[[], None],
        spreader: Spreader,
    ) -> None:
        self._directory = directory
        self._name = name
        self._elected = elected
        self._deposed = deposed
        self._spreader = spreader
        self._stopping = threading.Event()
        self._leadership: Leadership | None = None
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)

    @property
    def leadership(self) -> Leadership | None:
        """The leadership held at this moment, if any."""
        held = self._leadership
        return held if held is not None and held.held() else None

    def start(self) -> None:
        """Begins to campaign."""
        self._thread.start()

    def stop(self) -> None:
        """Resigns, so that a standby takes over at once, and stops campaigning. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if not self._spreader.stands():
                    self._stopping.wait(BACK_SECONDS)
                    continue
                won = self._directory.campaign(self._name, timeout=self._spreader.longest_wait)
                if won is not None:
                    self._lead(won)
            except BalancerError as error:
                log.warning("cannot stand for election", error=str(error))
                self._stopping.wait(RETRY_SECONDS)
            except Exception:
                # The thread's last boundary: an instance that stopped campaigning would look alive and never lead.
                log.exception("cannot stand for election")
                self._stopping.wait(RETRY_SECONDS)
        self._spreader.leave()

    def _lead(self, won: Leadership) -> None:
        log.info("elected", epoch=won.epoch)
        self._leadership = won
        failed = resting = True
        try:
            self._spreader.won(won.epoch)
            self._elected(won)
            failed = not self._led_to_its_end(won)
            resting = False
        except BalancerError as error:
            log.error("cannot lead", error=str(error), epoch=won.epoch)
        except Exception:
            # Whatever is wrong with leading here, another instance may be able to; and so may this one, later.
            log.exception("cannot lead", epoch=won.epoch)
        finally:
            self._leadership = None
            won.resign()
            try:
                self._tell(failed=failed)
            finally:
                self._deposed()
            log.info("no longer leading", epoch=won.epoch)
        if resting:
            self._stopping.wait(REST_SECONDS)

    def _led_to_its_end(self, won: Leadership) -> bool:
        """Waits; False: the leadership was lost. Otherwise this instance gives it up."""
        while won.held() and not self._stopping.wait(LOOK_SECONDS):
            if self._spreader.hands_over():
                self._spreader.handed_over()
                return True
        return self._stopping.is_set()

    def _tell(self, *, failed: bool) -> None:
        """After the resignation, which nothing may delay, and before anything that may take time."""
        if self._stopping.is_set():
            self._spreader.leave()
        else:
            self._spreader.ended(failed=failed)


FORGOTTEN = 86_400.0
"""Seconds without a change after which a note is removed: pods have another name each time."""


@dataclass(frozen=True, slots=True)
class _Seen:
    note: InstanceNote
    first: float  # monotonic, as are all times here
    changed: float | None = None


class Attendance:
    """What one process has seen of the others; used by one thread."""

    def __init__(self, absent_after: float) -> None:
        self._absent_after = absent_after
        self._seen: dict[str, _Seen] = {}

    def look(self, notes: Sequence[InstanceNote], now: float) -> None:
        """Takes in what was read at this moment."""
        before, self._seen = self._seen, {}
        for note in notes:
            known = before.get(note.name)
            if known is None:
                self._seen[note.name] = _Seen(note, now)
            else:
                moved = (known.note.process, known.note.beat) != (note.process, note.beat)
                self._seen[note.name] = _Seen(note, known.first, now if moved else known.changed)

    def present(self, now: float) -> list[InstanceNote]:
        """Those whose notes have changed lately."""
        return [
            seen.note
            for seen in self._seen.values()
            if seen.changed is not None and now - seen.changed < self._absent_after
        ]

    def last_sign(self, name: str) -> float | None:
        """When the note of this name was last seen to change; None: never."""
        seen = self._seen.get(name)
        return None if seen is None else seen.changed

    def forgotten(self, now: float) -> list[str]:
        """Those whose notes have not changed for a day."""
        last = {name: seen.first if seen.changed is None else seen.changed for name, seen in self._seen.items()}
        return [name for name, at in last.items() if now - at >= FORGOTTEN]


def leaders_work(directory: Directory, references: ReferenceKeeper | None) -> str:
    """What a change of the leader would interrupt at this moment; asks the directory."""
    copies = [] if references is None else references.filling()
    return under_way(directory.snapshot(), changes_of(directory), copies)


def under_way(snapshot: Snapshot, changes: Iterable[SchemaChange], copies: Iterable[str]) -> str:
    """The first of what is under way, as "move 3f2a"; empty: nothing. `copies`: reference tables that are filled."""
    return next(_all(snapshot, changes, copies), "")


def _all(snapshot: Snapshot, changes: Iterable[SchemaChange], copies: Iterable[str]) -> Iterator[str]:
    running = [record for record in snapshot.migrations.values() if not record.finished]
    for record in sorted(running, key=lambda record: (record.created, record.id)):
        yield f"{record.operation} {record.id}"
    for command in snapshot.commands.values():
        if command.state is CommandState.WAITING:
            yield f"the command {command.verb} of {command.author}"
    for change in changes:
        if not change.finished:
            yield change.reason
    try:
        for bundle, table, _ in imports_in(snapshot):
            yield f"the import of table {table} of bundle {bundle}"
    except BalancerError as error:
        yield f"an import ({error})"
    for table in copies:
        yield f"the copy of reference table {table}"


def why_unfit(bundles: Iterable[str], states: Mapping[str, BundleState]) -> str:
    """Why this instance should not lead, by its own looks at the nodes; empty: it could.

    If it sees less than half of the nodes: one that is down is down for everybody, a host that is cut off misses most
    of them.
    """
    for bundle in sorted(bundles):
        if bundle not in states:
            return "it has not looked at its nodes yet"
    for bundle, state in sorted(states.items()):
        if state.error:
            return f"it cannot look at bundle {bundle}"
    nodes = [node for state in states.values() for node in state.nodes]
    reached = sum(node.reachable for node in nodes)
    return f"it reaches {reached} of {len(nodes)} nodes" if 2 * reached < len(nodes) else ""
