"""A model of the switch of a move: what `balancer.migration` does on two servers and in the directory, event by event.

Every method of `MoveModel` that yields events is one transaction on a node, one commit of the directory, or one thing
that the world may do. The steps of a leader carry the numbers of the argument in `balancer.migration.machine`, and
`STEPS` names the function of the product that each stands for; `test_models.py` sees that those are there, and that the
states and edges are those of machine's tables.

The world: writers who go to either server, with or without a proof; a leader that dies, is late, or is replaced;
servers that crash and forget what no commit waited for; a target that is replaced by a standby that lags by any suffix;
a source that is replaced by one without the seal; a clock that is set back; an owner who switches the fence off; a
directory whose answers are lost, or are no answers. `Budget` says how often each may happen.

What asynchronous replication allows: a write acknowledged by T after it opened may be lost with T. One that S has
acknowledged may not, as long as S is not lost itself.
"""

from collections.abc import Iterator
from typing import NamedTuple

Event = tuple[str, "World"]

STEPS = {
    "fencing: session": "balancer.migration.switch.fencing",
    "fencing: fence": "balancer.migration.switch._raise_fence",
    "fencing: hold": "balancer.migration.switch.close_source",
    "draining": "balancer.migration.switch.draining",
    "copying": "balancer.migration.copy.copying",
    "verifying": "balancer.migration.switch.verifying",
    "sealing": "balancer.migration.switch.seal",
    "attach": "balancer.migration.switch._attach",
    "committing: look": "balancer.migration.runner._look_at_both",
    "committing: sent": "balancer.migration.journal.Journal.save",
    "committing: find out": "balancer.migration.runner.Runner._find_out",
    "opening: tell": "balancer.migration.finish.tell_source",
    "opening: open": "balancer.migration.finish.opening",
    "opening: durable": "balancer.migration.finish._make_durable",
    "opening: after looking": "balancer.migration.finish._open_after_looking",
    "retiring: mark moved": "balancer.migration.finish.mark_moved",
    "retiring: ask": "balancer.migration.finish._check_opened",
    "retiring: drop": "balancer.migration.finish._drop_rows",
    "lifting": "balancer.migration.switch.let_writers_on",
    "taking back": "balancer.migration.switch.take_back",
    "dropping the copy": "balancer.migration.steps._take_away",
}
"""What a leader does next → the function that does it."""


class Fence(NamedTuple):
    """On S: `armed` with a deadline, `sealed`, or `moved`."""

    kind: str
    leader: int
    switch: int


class Source(NamedTuple):
    """S, as its transactions see it. Every commit of it is durable."""

    rows: int
    """The writes that it has, a bit for each."""
    stream: tuple[int, ...] = ()
    """What its slot sends, in the order of the commits: writes, and markers as negative numbers."""
    fence: Fence | None = None
    expired: bool = False
    """The deadline has passed, by its own clock."""
    breaches: int = 0
    """How many writes an expired fence has let through: the sequence."""
    switched_off: bool = False
    doubt: bool = False
    """It was found without what the switch had sealed, or switched off: its rows are not dropped."""
    lock: int = 0
    """The leader whose open transaction keeps everybody from the fence."""
    leader: int = 1
    """The newest that it has seen."""
    dropped: bool = False


class Target(NamedTuple):
    """T's partition, as T's transactions see it, or as it is on a disk."""

    attached: bool
    guard: str
    """Who is let through: the `stream`, none (`all`), or everybody (`off`; `none`: there is no guard)."""
    row: str
    """What `balancer.tablet` says: nothing, `incoming` or `owned`."""
    rows: int
    markers: int = 0
    applied: int = 0
    """How far the stream was applied."""
    subscribed: bool = False
    copied: bool = False
    switch: int = 0
    """Which switch has made it ready."""


class Leader(NamedTuple):
    """What one leader knows, and does next."""

    does: str
    source: int = 0
    """Its session on S that has the lock: 1; lost: -1."""
    target: int = 0
    """Its session on T: opened before the fence 1, has attached 2, has opened 3; lost: -1."""
    switch: int = 0
    breaches: int = 0
    marker: int = 0
    sealed: bool = False
    attached: bool = False
    read: int = 0
    """The directory's version that its next commit is based on."""


class Request(NamedTuple):
    """A commit of the directory that is on its way, and may arrive late."""

    leader: int
    based: int
    switch: int


class Directory(NamedTuple):
    """The truth."""

    leader: int = 1
    owner: str = "S"
    state: str = "catching_up"
    version: int = 1
    switch: int = 0
    """Of the commit."""
    coming: Request | None = None


class Budget(NamedTuple):
    """How often each may still happen."""

    switches: int = 2
    source_crashes: int = 1
    target_crashes: int = 1
    clock_set_back: int = 1
    deaths: int = 0
    target_fails_over: int = 0
    source_fails_over: int = 0
    fence_switched_off: int = 0
    answers_denied: int = 0
    reruns: int = 0
    cancels: int = 1
    sessions_end: int = 1
    """That of a leader on S, while its commit is on its way."""


class World(NamedTuple):
    """All of it."""

    source: Source
    target: Target
    disk: Target
    standby: Target | None
    follows: bool
    """Whether the standby still follows T; if not, it may have been promoted while T still takes what it is given."""
    confirmed: int
    """What T has told S that it has on disk: streamed again from there."""
    target_leader: int
    """The newest leader that T has seen."""
    directory: Directory
    leaders: tuple[Leader, Leader]
    writers: tuple[str, ...]
    """For each: '' before, `S` or `T` in a transaction there, `done` once it is acknowledged."""
    late: int
    """Writes that S has acknowledged though T was the owner, or while its owner had switched the fence off and nobody
    held the lock any more because the session that did was lost after it was looked at: they are set aside."""
    left: Budget


class MoveModel:
    """The tracks `move, replicate` and `move, read-only`, with steps left out (`mutants`)."""

    def __init__(
        self, *, writers: int = 1, replicated: bool = True, mutants: tuple[str, ...] = (), budget: Budget | None = None
    ) -> None:
        self._writers = writers
        self._replicated = replicated
        self._mutants = frozenset(mutants)
        self._budget = budget or Budget()
        self._old = 1 << writers  # a row from before

    def first(self) -> World:
        streamed = self._replicated
        guard = "none" if "no-guard" in self._mutants else "stream" if streamed else "none"
        target = Target(False, guard, "incoming", self._old if streamed else 0, subscribed=streamed, copied=streamed)
        standby = target if self._budget.target_fails_over else None
        leaders = Leader("journal fencing", read=1), Leader("nothing")
        source = Source(self._old)
        directory = Directory(state="catching_up" if streamed else "preparing")
        return World(
            source, target, target, standby, True, 0, 1, directory, leaders, ("",) * self._writers, 0, self._budget
        )

    # --- what must hold

    def wrong(self, world: World) -> str:
        source, target = world.source, world.target
        opened = target.attached and target.guard == "off"
        if opened and _lets_through(source) and not source.switched_off and not self._went_back(world, "source"):
            return "two owners take writes"
        if world.directory.owner == "T":
            return self._lost_with_t(world, opened)
        if source.dropped:
            return "the owner's rows were dropped"
        return "an acknowledged write is not on its owner S" if self._acknowledged(world) & ~source.rows else ""

    def _lost_with_t(self, world: World, opened: bool) -> str:
        there = world.disk.rows if world.disk.row else 0
        by_source = self._by_source(world)
        if not self._went_back(world, "target"):
            if self._acknowledged(world) & ~world.late & ~there:
                return "an acknowledged write is not on its owner T"
        elif opened and by_source & ~world.late & ~there:
            return "T was opened without a write that S had acknowledged"
        if world.source.dropped and not world.source.doubt and (by_source | world.late) & ~there:
            return "S has dropped an acknowledged write that T does not have"
        return ""

    def _went_back(self, world: World, who: str) -> bool:
        """Whether a server was replaced by a standby that lagged."""
        name = f"{who}_fails_over"
        return bool(getattr(world.left, name) < getattr(self._budget, name))

    def settled(self, world: World) -> bool:
        """Also where T has lost what was committed: a person is told, and S still has its rows."""
        if world.directory.owner == "S":
            return bool(_lets_through(world.source)) and not world.source.lock
        if world.target.attached and world.target.guard == "off" and world.target.row == "owned":
            return True
        return self._went_back(world, "target") and not world.source.dropped

    def _acknowledged(self, world: World) -> int:
        return self._old | sum(1 << number for number, writer in enumerate(world.writers) if writer == "done")

    def _by_source(self, world: World) -> int:
        return self._old | sum(1 << entry for entry in world.source.stream if entry >= 0)

    # --- the events

    def events(self, world: World) -> Iterator[Event]:
        yield from self._world(world)
        yield from self._target_events(world)
        for number in range(self._writers):
            yield from self._writer(world, number)
        for me in (1, 2):
            yield from self._leader(world, me)

    def _world(self, world: World) -> Iterator[Event]:
        left, source, directory = world.left, world.source, world.directory
        if directory.leader == 1:
            yield "another leader is elected", _doing(_directed(world, leader=2), 2, "take over")
        if left.deaths and world.leaders[0].does not in ("dead", "is out"):
            yield "leader 1 dies", _doing(_without_sessions(_spent(world, "deaths"), 1), 1, "dead")
        for me in (1, 2):
            if left.sessions_end and _leader(world, me).source > 0 and _leader(world, me).does.startswith("committing"):
                yield f"S ends leader {me}'s session", _session_ended(_spent(world, "sessions_end"), me)
        armed = source.fence is not None and source.fence.kind == "armed"
        if armed and not source.expired:
            yield "the fence's deadline passes", _sourced(world, expired=True)
        if armed and source.expired and left.clock_set_back:
            yield "S's clock is set back", _sourced(_spent(world, "clock_set_back"), expired=False)
        if left.source_crashes:
            yield "S crashes", _source_lost(_spent(world, "source_crashes"))
        if left.source_fails_over and directory.owner == "T" and not source.dropped:
            back = _sourced(_spent(world, "source_fails_over"), fence=None, switched_off=False)
            yield "S is replaced by a standby without the seal", _source_lost(back)
        if left.fence_switched_off and source.fence and not (source.dropped or source.lock or source.switched_off):
            yield "the owner switches S's fence off", _sourced(_spent(world, "fence_switched_off"), switched_off=True)
        yield from self._commit_arrives(world)

    def _commit_arrives(self, world: World) -> Iterator[Event]:
        """9: conditional on the leader's epoch and on the migration's own version."""
        request, directory = world.directory.coming, world.directory
        if request is None:
            return
        mine = directory.leader == request.leader or "commit-without-epoch" in self._mutants
        newest = directory.version == request.based or not self._mutants.isdisjoint(
            ("commit-without-version", "commit-without-epoch")
        )
        if mine and newest:
            committed = {"owner": "T", "state": "opening", "switch": request.switch, "version": directory.version + 1}
            yield "the directory commits", _directed(world, coming=None, **committed)
        else:
            yield "the directory refuses the commit", _directed(world, coming=None)

    def _target_events(self, world: World) -> Iterator[Event]:
        target, left, source = world.target, world.left, world.source
        if target != world.disk:
            yield "T's disk has it all", world._replace(disk=target, confirmed=max(world.confirmed, target.applied))
        if left.target_crashes:
            yield "T crashes", _target_lost(_spent(world, "target_crashes"), world.disk)
        if world.standby is not None and world.follows and left.target_fails_over:
            yield "T's standby does not follow T any more", world._replace(follows=False)
        if world.standby is not None and world.follows and world.standby != world.disk:
            yield "T's standby catches up", world._replace(standby=world.disk)
        if left.target_fails_over and world.standby is not None:
            spent = _spent(world, "target_fails_over")._replace(disk=world.standby, standby=None)
            yield "T is replaced by its standby", _target_lost(spent, world.standby)
        at = max(target.applied, world.confirmed)
        if target.subscribed and target.row == "incoming" and target.guard != "all" and at < len(source.stream):
            entry = source.stream[at]
            grown = (
                target._replace(rows=target.rows | 1 << entry)
                if entry >= 0
                else target._replace(markers=target.markers | 1 << -entry)
            )
            yield "the stream is applied", world._replace(target=grown._replace(applied=at + 1))

    def _writer(self, world: World, number: int) -> Iterator[Event]:
        who, writer = f"writer {number + 1}", world.writers[number]
        if writer == "":
            through = self._passes(world.source)
            if through and not world.source.lock:
                begun = _wrote(world, number, "S")
                if through == 2 and "no-breaches" not in self._mutants:
                    begun = _sourced(begun, breaches=min(3, world.source.breaches + 1))
                yield f"{who} begins on S", begun
            if self._is_open(world.target):
                yield f"{who} begins on T", _wrote(world, number, "T")
        elif writer == "S":
            rows, stream = world.source.rows | 1 << number, (*world.source.stream, number)
            done = _sourced(_wrote(world, number, "done"), rows=rows, stream=stream)
            lost = world.left.sessions_end < self._budget.sessions_end
            apart = world.directory.owner == "T" or (world.source.switched_off and lost)
            late = world.late | (1 << number if apart else 0)
            yield f"{who} commits on S", done._replace(late=late)
            yield f"{who} rolls back on S", _wrote(world, number, "")
        elif writer == "T":
            target = world.target._replace(rows=world.target.rows | 1 << number)
            yield f"{who} commits on T", _wrote(world, number, "done")._replace(target=target, disk=target)

    def _passes(self, source: Source) -> int:
        """2: a fence that has ended lets it through, and counts it."""
        fence = source.fence
        if fence is not None and not source.switched_off and not source.dropped:
            if fence.kind == "armed" and "no-fence" in self._mutants:
                return 1
            if fence.kind == "sealed" and "seal-without-effect" in self._mutants:
                return 1
            if fence.kind == "moved" and "moved-without-effect" in self._mutants:
                return 1
        return _lets_through(source)

    def _is_open(self, target: Target) -> bool:
        attached = target.attached and target.guard == "off"
        return target.row != "" and (attached or (not target.attached and target.guard == "none" and target.copied))

    # --- a leader

    def _leader(self, world: World, me: int) -> Iterator[Event]:
        does = _leader(world, me).does
        if does in ("nothing", "dead", "is out", "end"):
            return
        work = getattr(self, "_" + does.replace(":", "").replace(" ", "_"))
        for label, after in work(world, me):
            yield f"leader {me} {label}", after
        if does in _MAY_RETREAT:
            yield f"leader {me} retreats", _doing(world, me, self._way_back)
            if world.left.cancels:
                yield f"leader {me} is told to cancel", _doing(_spent(world, "cancels"), me, "journal cancelling")

    @property
    def _way_back(self) -> str:
        return "journal catching_up" if self._replicated else "journal restarting"

    def _entered(self, world: World, me: int, node: str) -> World | None:
        """11: every transaction on a node checks the leader's epoch there, and raises it; None: it is refused.

        Raising it waits for the former leader's transactions: their sessions have been ended first.
        """
        if "no-epoch-check" in self._mutants:
            return world
        seen = world.source.leader if node == "S" else world.target_leader
        if seen > me:
            return None
        if seen < me:
            other = 3 - me
            former = _leader(world, other)
            if node == "S":
                world = _led(world, other, former._replace(source=-1)) if former.source else world
                return _sourced(world, leader=me, lock=world.source.lock if world.source.lock == me else 0)
            world = _led(world, other, former._replace(target=-1)) if former.target else world
            return world._replace(target_leader=me)
        return world

    def _journal(self, world: World, me: int, state: str, then: str) -> Iterator[Event]:
        """A record, saved under the leader's epoch on the version that was read."""
        directory, checked = world.directory, "commit-without-epoch" not in self._mutants
        if checked and directory.leader != me:
            yield "is refused by the directory", self._out(world, me)
        elif checked and directory.version != _leader(world, me).read:
            yield "finds the journal changed", _doing(_without_sessions(world, me), me, "take over")
        else:
            saved = _directed(world, state=state, version=directory.version + 1)
            done = _leader(saved, me)._replace(does=then, read=directory.version + 1)
            yield f"journals {state}", _led(saved, me, done)

    def _out(self, world: World, me: int) -> World:
        return _doing(_without_sessions(world, me), me, "is out")

    def _take_over(self, world: World, me: int) -> Iterator[Event]:
        """`migration/runner.take_over`: by the journal's state, and what machine's table says of it."""
        state = world.directory.state
        back = "journal catching_up" if self._replicated else "journal cancelling"
        following = {
            "catching_up": back,
            "preparing": back,
            "fencing": back,
            "copying": back,
            "opening": "opening: after looking",
            "retiring": "retiring: mark moved",
            "cancelling": "journal cancelling",
            "restarting": "journal restarting",
        }.get(state, "end")
        fresh = Leader(following, read=world.directory.version)
        yield f"takes over in {state}", _led(_without_sessions(world, me), me, fresh)

    def _journal_catching_up(self, world: World, me: int) -> Iterator[Event]:
        yield from self._journal(_without_sessions(world, me), me, "catching_up", "lifting")

    def _journal_restarting(self, world: World, me: int) -> Iterator[Event]:
        yield from self._journal(_without_sessions(world, me), me, "restarting", "lifting to restart")

    def _journal_cancelling(self, world: World, me: int) -> Iterator[Event]:
        yield from self._journal(_without_sessions(world, me), me, "cancelling", "lifting to cancel")

    def _lifting(self, world: World, me: int, then: str = "taking back") -> Iterator[Event]:
        """11: only after the journal says that the switch cannot commit any more."""
        entered = self._entered(world, me, "S")
        if entered is None:
            yield "is refused by S", self._out(world, me)
        else:
            lifted = _sourced(entered, fence=None, switched_off=False, expired=False)
            yield "lifts the fence", _doing(lifted, me, then)

    def _lifting_to_restart(self, world: World, me: int) -> Iterator[Event]:
        yield from self._lifting(world, me, "dropping the copy to restart")

    def _lifting_to_cancel(self, world: World, me: int) -> Iterator[Event]:
        yield from self._lifting(world, me, "dropping the copy")

    def _taking_back(self, world: World, me: int) -> Iterator[Event]:
        """8: what was attached is detached before anything is streamed again."""
        entered = self._entered(world, me, "T")
        if entered is None:
            yield "is refused by T", self._out(world, me)
            return
        target = entered.target
        if target.row == "incoming" and "no-take-back" not in self._mutants:
            guard = "none" if "no-guard" in self._mutants else "stream"
            target = target._replace(attached=False, guard=guard, subscribed=True)
        confirmed = max(entered.confirmed, target.applied)
        done = entered._replace(target=target, disk=target, confirmed=confirmed)
        yield "takes back what was attached", _doing(done, me, "journal fencing")

    def _dropping_the_copy(self, world: World, me: int, then: str = "journal cancelled") -> Iterator[Event]:
        """12: T's rows go only while they are `incoming`."""
        entered = self._entered(world, me, "T")
        if entered is None:
            yield "is refused by T", self._out(world, me)
            return
        target = entered.target
        if target.row == "incoming":
            target = Target(False, "none", "", 0, applied=target.applied)
        if then == "journal fencing":
            target = Target(False, "none", "incoming", 0, applied=target.applied)
        yield "drops the copy", _doing(entered._replace(target=target, disk=target), me, then)

    def _dropping_the_copy_to_restart(self, world: World, me: int) -> Iterator[Event]:
        yield from self._dropping_the_copy(world, me, "journal fencing")

    def _journal_cancelled(self, world: World, me: int) -> Iterator[Event]:
        yield from self._journal(world, me, "cancelled", "end")

    def _journal_fencing(self, world: World, me: int) -> Iterator[Event]:
        if not world.left.switches:
            yield "gives up", _doing(world, me, "journal cancelling")
            return
        number = self._budget.switches - world.left.switches + 1
        numbered = _led(world, me, _leader(world, me)._replace(switch=number))
        following = "fencing: session" if self._replicated else "fencing: fence"
        yield from self._journal(_spent(numbered, "switches"), me, "fencing", following)

    def _fencing_session(self, world: World, me: int) -> Iterator[Event]:
        """The target's session is opened before anybody waits."""
        entered = self._entered(world, me, "T")
        if entered is None:
            yield "is refused by T", self._out(world, me)
        else:
            opened = _leader(entered, me)._replace(does="fencing: fence", target=1)
            yield "opens a session on T", _led(entered, me, opened)

    def _fencing_fence(self, world: World, me: int) -> Iterator[Event]:
        """2: made under a lock that writers' transactions keep away; the marker follows all of them."""
        entered, leader = self._entered(world, me, "S"), _leader(world, me)
        if entered is None:
            yield "is refused by S", self._out(world, me)
            return
        next_marker = 1 + sum(entry < 0 for entry in entered.source.stream)
        if "marker-first" in self._mutants and self._replicated and not leader.marker:
            sent = _sourced(entered, stream=(*entered.source.stream, -next_marker))
            yield "sends the marker", _led(sent, me, _leader(sent, me)._replace(marker=next_marker))
            return
        if "S" in entered.writers and "fence-past-writers" not in self._mutants:
            return
        fenced = _sourced(entered, fence=Fence("armed", me, leader.switch), expired=False, switched_off=False)
        if self._replicated and "marker-first" not in self._mutants:
            fenced = _sourced(fenced, stream=(*fenced.source.stream, -next_marker))
            leader = leader._replace(marker=next_marker)
        then = "fencing: hold" if self._replicated else "copying"
        done = leader._replace(does=then, breaches=fenced.source.breaches, source=0, sealed=False, attached=False)
        yield "fences S", _led(fenced, me, done._replace(target=_leader(fenced, me).target))

    def _fencing_hold(self, world: World, me: int) -> Iterator[Event]:
        """6: the lock is taken again in the same message, and the fence looked at under it."""
        entered = self._entered(world, me, "S")
        if entered is None:
            yield "is refused by S", self._out(world, me)
        elif "S" not in entered.writers:
            if self._stands(entered, me):
                held = _led(_sourced(entered, lock=me), me, _leader(entered, me)._replace(does="draining", source=1))
                yield "holds S's lock", held
            else:
                yield "finds the fence ended", _doing(world, me, self._way_back)

    def _copying(self, world: World, me: int) -> Iterator[Event]:
        """Read-only: rows are copied behind the fence, and compared there."""
        entered = self._entered(world, me, "T")
        if entered is None:
            yield "is refused by T", self._out(world, me)
            return
        if entered.target.row != "incoming":
            yield "finds no copy on T", _doing(world, me, self._way_back)
            return
        guard = "none" if "no-guard" in self._mutants else "stream"
        switch = _leader(entered, me).switch
        target = entered.target._replace(rows=entered.source.rows, copied=True, guard=guard, switch=switch)
        yield (
            "copies the rows, and writes the number",
            _doing(entered._replace(target=target, disk=target), me, "verifying"),
        )

    def _verifying(self, world: World, me: int) -> Iterator[Event]:
        """4: what has changed since it was compared, on both sides; a difference counts only if the fence stands."""
        same = world.target.rows == world.source.rows and world.target.row != ""
        if same or "no-verification" in self._mutants:
            yield "finds both sides equal", _doing(world, me, "sealing")
        elif self._stands(world, me):
            yield "finds a difference", _doing(world, me, "journal cancelling")
        else:
            yield "finds the fence ended", _doing(world, me, self._way_back)

    def _draining(self, world: World, me: int) -> Iterator[Event]:
        """3: the marker is on T."""
        wanted = _leader(world, me).marker
        there = world.target.markers
        if "no-drain" in self._mutants or _all_markers(there, wanted):
            yield "sees the marker on T", _doing(world, me, "verifying")
        elif there >> wanted & 1:
            yield "misses markers on T", _doing(world, me, "journal cancelling")

    def _sealing(self, world: World, me: int) -> Iterator[Event]:
        """Seal and ATTACH, in either order."""
        leader = _leader(world, me)
        ways: list[Event] = []
        if not leader.attached:
            ways += self._attach(world, me)
        if not leader.sealed:
            ways += self._seal(world, me)
        for label, after in ways:
            now = _leader(after, me)
            if now.does == "sealing" and now.attached and now.sealed:
                early = "open early" if "open-before-commit" in self._mutants else "committing: look"
                yield label, _doing(after, me, early)
            else:
                yield label, after

    def _attach(self, world: World, me: int) -> Iterator[Event]:
        """3 and 8: closed, durable, with the switch's number, and the marker seen in the same transaction."""
        leader = _leader(world, me)
        if self._replicated and leader.target != 1 and "attach-on-any-session" not in self._mutants:
            yield "has lost T's session", _doing(world, me, self._way_back)
            return
        entered = self._entered(world, me, "T")
        if entered is None:
            yield "is refused by T", self._out(world, me)
            return
        target = entered.target
        if target.row != "incoming":
            yield "finds no copy on T", _doing(world, me, self._way_back)
            return
        arrived = _all_markers(target.markers, leader.marker) if self._replicated else target.switch == leader.switch
        if not arrived and self._mutants.isdisjoint(("arrival-unchecked", "no-drain")):
            yield "does not find the marker on T any more", _doing(world, me, self._way_back)
            return
        target = target._replace(attached=True, guard="all", subscribed=False, switch=leader.switch)
        after = entered._replace(target=target)
        if "no-flush" not in self._mutants:
            after = after._replace(disk=target, confirmed=max(after.confirmed, target.applied))
        yield "attaches T, closed", _led(after, me, _leader(after, me)._replace(attached=True, target=2))

    def _seal(self, world: World, me: int) -> Iterator[Event]:
        """5: only a fence that stands, and has let nothing through."""
        leader, entered = _leader(world, me), world
        if self._replicated and leader.source == -1:
            yield "has lost S's session", _doing(world, me, self._way_back)
            return
        if leader.source != 1 or "sealed-fence-left-alone" in self._mutants:
            found = self._entered(world, me, "S")
            if found is None:
                yield "is refused by S", self._out(world, me)
                return
            entered = found
        if "S" in entered.writers:
            return
        if not self._stands(entered, me):
            yield "must not seal", _doing(world, me, self._way_back)
            return
        if "no-seal" not in self._mutants:
            fence = entered.source.fence or Fence("armed", me, leader.switch)
            entered = _sourced(entered, fence=fence._replace(kind="sealed"))
        held = 0 if "sealed-fence-left-alone" in self._mutants else me
        sealed = _sourced(entered, lock=held)
        yield "seals S", _led(sealed, me, _leader(sealed, me)._replace(sealed=True, source=1))

    def _stands(self, world: World, me: int) -> bool:
        leader, source, fence = _leader(world, me), world.source, world.source.fence
        if "seal-unchecked" in self._mutants:
            return True
        if fence is None or source.switched_off or (fence.leader, fence.switch) != (me, leader.switch):
            return False
        in_time = not source.expired or "deadline-unchecked" in self._mutants
        return fence.kind != "armed" or (in_time and source.breaches == leader.breaches)

    def _open_early(self, world: World, me: int) -> Iterator[Event]:
        target = world.target._replace(guard="off", row="owned")
        yield "opens T early", _doing(world._replace(target=target, disk=target), me, "committing: look")

    def _committing_look(self, world: World, me: int) -> Iterator[Event]:
        """6 and 9: both sessions are still there."""
        leader = _leader(world, me)
        if "sent-unlooked" in self._mutants or (leader.source == 1 and leader.target == 2):
            yield "finds both nodes as they were", _doing(world, me, "committing: send")
        else:
            yield "has lost a session", _doing(world, me, "committing: find out")

    def _committing_send(self, world: World, me: int) -> Iterator[Event]:
        leader = _leader(world, me)
        request = Request(me, leader.read, leader.switch)
        yield "sends the commit", _doing(_directed(world, coming=request), me, "committing: sent")

    def _committing_sent(self, world: World, me: int) -> Iterator[Event]:
        """The answer, no answer, or one that is none."""
        directory, leader = world.directory, _leader(world, me)
        if directory.leader != me and "commit-without-epoch" not in self._mutants:
            yield "is refused by the directory", self._out(world, me)
        elif self._committed(world, me):
            done = _led(world, me, leader._replace(does="opening: tell", read=directory.version))
            yield "is told that it has committed", done
        if directory.leader == me and world.left.answers_denied:
            spent = _spent(world, "answers_denied")
            yield "is denied an answer", _doing(spent, me, "committing: find out")
        if directory.leader == me and world.left.reruns:
            yield "is interrupted, and run again", _doing(_spent(world, "reruns"), me, "take over")
        if directory.leader == me and not self._committed(world, me):
            yield "hears nothing, and asks the nodes again", _doing(world, me, "committing: look")
            if "lifted-without-journal" in self._mutants:
                yield "waits no longer", _doing(world, me, "lifting before the journal")

    def _committed(self, world: World, me: int) -> bool:
        directory = world.directory
        return directory.state == "opening" and directory.switch == _leader(world, me).switch

    def _committing_find_out(self, world: World, me: int) -> Iterator[Event]:
        """9: the journal is believed, and nothing else; the way back is based on the version that was read."""
        read = _leader(world, me)._replace(read=world.directory.version)
        if self._committed(world, me) and "answer-believed" not in self._mutants:
            yield "reads that it has committed", _led(world, me, read._replace(does="opening: tell"))
        else:
            back = self._way_back if "answer-believed" not in self._mutants else "journal cancelling"
            yield "reads that it has not committed", _led(world, me, read._replace(does=back))

    def _lifting_before_the_journal(self, world: World, me: int) -> Iterator[Event]:
        entered = self._entered(world, me, "S")
        if entered is not None:
            lifted = _sourced(entered, fence=None, switched_off=False, expired=False)
            yield "lifts the fence before the journal", _doing(lifted, me, self._way_back)

    def _opening_tell(self, world: World, me: int) -> Iterator[Event]:
        """10: what is ready on S. Not durable: after a crash S has its seal."""
        leader = _leader(world, me)
        ended = _leader(world, me)._replace(does="opening: open", source=0)
        if leader.source == 1 and world.source.fence is not None:
            told = _sourced(world, fence=world.source.fence._replace(kind="moved"), lock=0)
            yield "tells S where the tablet went", _led(told, me, ended)
        unlocked = _sourced(world, lock=0) if world.source.lock == me else world
        yield "cannot tell S", _led(unlocked, me, ended)

    def _opening_open(self, world: World, me: int) -> Iterator[Event]:
        """10: what is ready on T, on the session that has attached."""
        if _leader(world, me).target == 2:
            target = world.target._replace(guard="off", row="owned")
            opened = _leader(world, me)._replace(does="opening: durable", target=3)
            yield "opens T", _led(world._replace(target=target), me, opened)
        else:
            yield "has lost T's session", _doing(world, me, "opening: after looking")

    def _opening_durable(self, world: World, me: int) -> Iterator[Event]:
        """10: a transaction that sees T open makes it durable, on whatever session."""
        entered = self._entered(world, me, "T")
        if entered is None:
            yield "is refused by T", self._out(world, me)
        elif entered.target.row == "owned" or "opened-unseen" in self._mutants:
            yield "makes the opening durable", _doing(entered._replace(disk=entered.target), me, "journal retiring")
        else:
            yield "sees that T has lost its opening", _doing(entered, me, "opening: after looking")

    def _opening_after_looking(self, world: World, me: int) -> Iterator[Event]:
        """10: only what is attached, and made ready by the switch that was committed."""
        entered = self._entered(world, me, "T")
        if entered is None:
            yield "is refused by T", self._out(world, me)
            return
        target = entered.target
        ready = target.attached and target.row != ""
        same = target.switch == world.directory.switch or "any-switch-opened" in self._mutants
        if (ready and same) or "open-unlooked" in self._mutants:
            target = target._replace(guard="off", row="owned", attached=True)
            yield "opens T", _doing(entered._replace(target=target, disk=target), me, "journal retiring")

    def _journal_retiring(self, world: World, me: int) -> Iterator[Event]:
        yield from self._journal(world, me, "retiring", "retiring: mark moved")

    def _retiring_mark_moved(self, world: World, me: int) -> Iterator[Event]:
        """12: an S without its seal was open until now."""
        entered = self._entered(world, me, "S")
        if entered is None:
            yield "is refused by S", self._out(world, me)
        elif "S" not in entered.writers:
            source = entered.source
            open_ = source.fence is None or source.fence.kind == "armed"
            doubt = source.doubt or source.switched_off or (open_ and "unsealed-source-dropped" not in self._mutants)
            fence = Fence("moved", me, 0)
            marked = _sourced(entered, fence=fence, switched_off=False, doubt=doubt)
            yield "marks S moved", _doing(marked, me, "retiring: ask")

    def _retiring_ask(self, world: World, me: int) -> Iterator[Event]:
        """12: T still has the tablet, and its standby too: one that is gone has not said so."""
        entered = self._entered(world, me, "T")
        if entered is None:
            yield "is refused by T", self._out(world, me)
            return
        replayed = world.standby is None or (world.follows and world.standby.row == "owned")
        replayed = replayed or "standbys-overtaken" in self._mutants
        replayed = replayed or ("standbys-forgotten" in self._mutants and not world.follows)
        if replayed and (entered.target.row == "owned" or "retired-unasked" in self._mutants):
            yield "asks T, which has the tablet", _doing(entered, me, "retiring: drop")

    def _retiring_drop(self, world: World, me: int) -> Iterator[Event]:
        """12: only what is `moved`; what may have been acknowledged is set aside."""
        entered = self._entered(world, me, "S")
        if entered is None:
            yield "is refused by S", self._out(world, me)
            return
        source = entered.source
        if source.fence is not None and source.fence.kind == "moved":
            doubt = source.doubt or source.switched_off
            kept = doubt and "written-rows-dropped" not in self._mutants
            gone = _sourced(entered, dropped=True, doubt=kept)
            yield "sets S's rows aside" if kept else "drops S's rows", _doing(gone, me, "journal done")
        else:
            yield "finds S not moved", _doing(entered, me, "retiring: mark moved")

    def _journal_done(self, world: World, me: int) -> Iterator[Event]:
        yield from self._journal(world, me, "done", "end")


_MAY_RETREAT = frozenset({"fencing: fence", "fencing: hold", "draining", "copying", "verifying", "sealing"})


def _lets_through(source: Source) -> int:
    """Whether S takes writes; 2: a fence that has ended lets them through."""
    if source.dropped:
        return 0
    if source.fence is None or source.switched_off:
        return 1
    return 2 if source.fence.kind == "armed" and source.expired else 0


def _all_markers(there: int, wanted: int) -> bool:
    return all(there >> number & 1 for number in range(1, wanted + 1))


def _leader(world: World, me: int) -> Leader:
    return world.leaders[me - 1]


def _led(world: World, me: int, leader: Leader) -> World:
    first, second = world.leaders
    return world._replace(leaders=(leader, second) if me == 1 else (first, leader))


def _doing(world: World, me: int, does: str) -> World:
    return _led(world, me, _leader(world, me)._replace(does=does))


def _sourced(world: World, **changes: object) -> World:
    return world._replace(source=world.source._replace(**changes))  # type: ignore[arg-type]


def _directed(world: World, **changes: object) -> World:
    return world._replace(directory=world.directory._replace(**changes))  # type: ignore[arg-type]


def _spent(world: World, what: str) -> World:
    return world._replace(left=world.left._replace(**{what: getattr(world.left, what) - 1}))


def _wrote(world: World, number: int, how: str) -> World:
    writers = (*world.writers[:number], how, *world.writers[number + 1 :])
    return world._replace(writers=writers)


def _session_ended(world: World, me: int) -> World:
    ended = _led(world, me, _leader(world, me)._replace(source=-1))
    return _sourced(ended, lock=0) if world.source.lock == me else ended


def _without_sessions(world: World, me: int) -> World:
    closed = _led(world, me, _leader(world, me)._replace(source=0, target=0))
    return _sourced(closed, lock=0) if world.source.lock == me else closed


def _source_lost(world: World) -> World:
    """All sessions on S end, and transactions in them."""
    leaders = [leader._replace(source=-1) if leader.source else leader for leader in world.leaders]
    writers = tuple("" if writer == "S" else writer for writer in world.writers)
    fence = world.source.fence
    if fence is not None and fence.kind == "moved":
        fence = fence._replace(kind="sealed")  # its word may not have been on disk
    lost = world._replace(leaders=(leaders[0], leaders[1]), writers=writers)
    return _sourced(lost, lock=0, fence=fence)


def _target_lost(world: World, target: Target) -> World:
    """All sessions on T end; it is as its disk has it."""
    leaders = [leader._replace(target=-1) if leader.target else leader for leader in world.leaders]
    writers = tuple("" if writer == "T" else writer for writer in world.writers)
    return world._replace(leaders=(leaders[0], leaders[1]), writers=writers, target=target)
