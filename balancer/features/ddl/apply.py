"""A schema change over all nodes of a bundle: held moves, step by step on every node, compared at the end.

Order: nothing begins before everything was tried (each statement on each node, and rolled back); then the bundle is
held, running moves are waited for, and each step is done on every node before the next one. What a node has done is
noted there in the same transaction (`nodes.schema.ddl_journal`), so that after a crash `resume` continues where each
node stands, and `take_back` undoes what was done. A note in the directory has the text and how far it is. The bundle
stays held until the change has ended one way or the other.

The sessions of a schema change: one on each node, and one that keeps other processes from changes meanwhile.

An owner's code runs in the first kind, and may leave something behind there (`nodes.catalog.other_roles`): such a
session is not reused. Called by `apply`.

Schema changes as the directory's notes have them: their text, and how far each is. Written by `apply`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg

from balancer.clock import Clock
from balancer.directory.contract import Directory, commit_on_newest
from balancer.directory.invariants import HELD_BY_CHANGE
from balancer.directory.model import Pause, Put, RecordKind, Remove, Table, Transaction
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Conflict, Fenced, OutcomeUnknown, Refused, Unavailable, UserError
from balancer.features.ddl import statements as ddl_statements
from balancer.features.ddl.steps import DdlStep, RootKey, read_change, shown, undo_of
from balancer.naming import Name, parse_name
from balancer.nodes.catalog.other_roles import owner_of
from balancer.nodes.catalog.roots import differences, facts_on
from balancer.nodes.schema import ddl_journal
from balancer.nodes.schema.install import install_schema
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.connection import Address, Connection, Cursor, connect, run_together, translated
from balancer.nodes.session.connection import lock_timeout as lock_timeout_of
from balancer.nodes.session.connection import statement_timeout as statement_timeout_of


class ChangeSessions:
    """Belongs to one thread."""

    def __init__(self, addresses: Mapping[str, Address]) -> None:
        self._addresses = addresses
        self._open: dict[str, Connection] = {}
        self._spoilt: set[str] = set()  # nodes on whose session an owner's code has run
        self._turn: Connection | None = None

    def on(self, node: str) -> Connection:
        """The session on a node; a new one after an owner's code."""
        known = self._open.get(node)
        if known is not None and node in self._spoilt:
            known.close()
        if known is None or known.closed:
            self._open[node] = known = connect(self._addresses[node], purpose="ddl")
            known.prepare_threshold = None
            self._spoilt.discard(node)
        return known

    def known(self, node: str) -> Connection | None:
        """The session on a node, if there is one, in whatever state it is."""
        return self._open.get(node)

    def spoil(self, node: str) -> None:
        """From here on an owner's code runs in this session: it is closed after its transaction."""
        self._spoilt.add(node)

    def take_turn(self) -> bool:
        """Takes the turn on the first node, in a session used for nothing else, and holds it until `close`. Idempotent;
        True: this process did not have it until now."""
        first = min(self._addresses)
        with translated(first):
            if self._turn is None or self._turn.closed:
                self._turn = connect(self._addresses[first], purpose="ddl turn")
            return ddl_journal.take_turn(self._turn, first)

    def give_turn(self) -> None:
        """To other processes."""
        if self._turn is not None:
            self._turn.close()

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self.give_turn()
        self._open.clear()


TOPIC = "ddl"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A change as the directory's note has it."""

    id: str
    bundle: str
    text: str
    author: str
    began: float
    state: str = "running"  # running, done, undone; an interrupted one says running
    allow_rewrite: bool = False
    role: str = ""
    error: str = ""
    done: Mapping[str, int] | None = None
    steps: int = 0

    @property
    def finished(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self.state != "running"

    @property
    def reason(self) -> str:
        """Why the bundle is held: the hold is found again by this."""
        return f"{HELD_BY_CHANGE}{self.id}"


def changes_of(directory: Directory, bundle: str = "") -> list[SchemaChange]:
    """The changes that the directory has notes of, oldest first. Skips a note that cannot be read."""
    found = []
    for name, document in directory.published(TOPIC).items():
        with suppress(TypeError, ValueError, KeyError):
            found.append(_read(name, document))
    return sorted((one for one in found if bundle in ("", one.bundle)), key=lambda one: one.began)


def _read(name: str, document: Any) -> SchemaChange:
    known = {key: document[key] for key in SchemaChange.__dataclass_fields__ if key in document}
    change = SchemaChange(**known)
    texts = (change.id, change.bundle, change.text, change.author, change.state, change.role, change.error)
    if change.id != name or not all(isinstance(text, str) for text in texts):
        raise ValueError("no note of a schema change")
    return replace(change, began=float(change.began), steps=int(change.steps))


LOCK_TIMEOUT = 1.0
"""Seconds that a statement, and everybody else behind it, waits for its lock; then others go first."""
PAUSE_BETWEEN = 0.5
KEPT = 20  # finished changes of a bundle that are shown


class ChangeRunner:
    """Carries one change out, from a process of its own; the daemon only sees that the bundle is held."""

    def __init__(
        self,
        directory: Directory,
        bundle: str,
        addresses: Mapping[str, Address],
        cluster: str,
        clock: Clock,
        *,
        patience: float,
        tell: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._bundle = bundle
        self._addresses = addresses
        self._cluster = cluster
        self._clock = clock
        self._patience = patience
        self._tell = tell
        self._sessions = ChangeSessions(addresses)
        self._begun = ""  # the change that this process works on, from its first note on

    def close(self) -> None:
        self._sessions.close()

    def steps(self, text: str, *, allow_rewrite: bool) -> tuple[DdlStep, ...]:
        """What the file asks for. Raises `UserError` for what cannot be done."""
        return read_change(text, self._roots(), allow_rewrite=allow_rewrite)

    def rehearse(self, steps: Sequence[DdlStep], role: str) -> None:
        """Tries everything on every node and rolls back; what reads or builds whole tables is left out."""
        for node in self._addresses:
            self._patiently(node, f"trying it on node {node}", partial(self._try, node, steps, role))

    def apply(self, text: str, author: str, *, allow_rewrite: bool = False, role: str = "") -> SchemaChange:
        """Begins a change and completes it."""
        self._await_turn()
        unfinished = self._unfinished()
        if unfinished is not None:
            raise Refused(
                f"change {unfinished.id} of bundle {self._bundle} has not ended: use --continue or --undo first"
            )
        steps = self.steps(text, allow_rewrite=allow_rewrite)
        for node in self._addresses:
            with translated(node):
                install_schema(self._sessions.on(node), self._cluster, node)
        self.rehearse(steps, role)
        change = SchemaChange(
            uuid4().hex[:12], self._bundle, text, author, self._clock.now().timestamp(),
            allow_rewrite=allow_rewrite, role=role, steps=len(steps),
        )  # fmt: skip
        try:
            self._hold(change)
        except (Refused, UserError, Conflict):
            self._directory.unpublish(TOPIC, change.id)  # nothing had begun
            raise
        return self._go(change, steps)

    def resume(self) -> SchemaChange:
        """Resumes the interrupted change."""
        self._await_turn()
        change = self._needed()
        self._hold(change)
        return self._go(change, self.steps(change.text, allow_rewrite=change.allow_rewrite))

    def take_back(self) -> SchemaChange:
        """Undoes what was done of an interrupted change. If it cannot, refuses before touching anything."""
        self._await_turn()
        change = self._needed()
        steps = self.steps(change.text, allow_rewrite=change.allow_rewrite)
        done = {node: self._done(node, change) for node in self._addresses}
        begun = max((max(numbers, default=0) for numbers in done.values()), default=0)
        # An index may have been begun but not noted: what it left is removed as well.
        reach = begun + 1 if begun < len(steps) and steps[begun].index is not None else begun
        plan = undo_of(steps[:reach])
        self._hold(change)
        for number, statements in plan:
            for node in self._addresses:
                self._tell(f"step {number} is undone on node {node}")
                self._patiently(
                    node,
                    f"undoing step {number} on node {node}",
                    partial(self._undo, node, change, steps[number - 1], number, statements),
                )
        return self._end(replace(change, state="undone", error="", done=dict.fromkeys(self._addresses, 0)))

    def drift(self) -> list[str]:
        """Where the roots of the nodes differ, in words."""
        roots = list(self._roots())
        found = []
        facts = {}
        for node in self._addresses:
            with translated(node):
                facts[node] = facts_on(self._sessions.on(node), roots)
        first, *others = facts
        for other in others:
            for root in roots:
                texts = differences(facts[first][root], facts[other][root], first, other)
                found += [f"{root} differs: {text}" for text in texts]
        return found

    def _go(self, change: SchemaChange, steps: Sequence[DdlStep]) -> SchemaChange:
        self._await_moves()
        try:
            for number, step in enumerate(steps, 1):
                for node in self._addresses:
                    self._step(node, change, number, step)
                    change = replace(change, done={**(change.done or {}), node: number}, error="")
                    self._patiently(node, f"noting step {number}", partial(self._note, change))
        except BalancerError as error:
            with suppress(BalancerError):  # it may be another process's turn by now
                self._note(replace(change, error=str(error)))
            raise
        wrong = self.drift()
        if wrong:
            self._note(replace(change, error=wrong[0]))
            raise Refused(f"every step is done, but {wrong[0]}; fix it and run again with --continue")
        return self._end(replace(change, state="done", error=""))

    def _step(self, node: str, change: SchemaChange, number: int, step: DdlStep) -> None:
        self._tell(f"step {number} on node {node}: {shown(step.text)}")
        work = self._index if step.index is not None else self._statement
        self._patiently(node, f"step {number} on node {node}", lambda: work(node, change, number, step))

    def _statement(self, node: str, change: SchemaChange, number: int, step: DdlStep) -> None:
        with self._transaction(node) as cursor:
            undo: Sequence[str] | None = step.undo
            if step.not_null and step.table is not None:
                undo = ddl_statements.undo_not_null(cursor, step.table, step.not_null)
            if ddl_journal.note_step(cursor, change.id, number, step.digest, undo):
                self._run_kept(node, cursor, self._role(cursor, step, change.role), step.text)

    def _index(self, node: str, change: SchemaChange, number: int, step: DdlStep) -> None:
        assert step.index is not None
        plan = step.index
        index = Name(plan.root.schema, plan.name)
        if number in self._done(node, change):
            return
        with self._transaction(node) as cursor:
            if not ddl_statements.index_is_there(cursor, index, plan.root):
                ddl_journal.note_begun(cursor, change.id, number, step.digest)
                self._run(node, cursor, self._role(cursor, step, change.role), _on_root_only(step))
            elif ddl_statements.is_complete(cursor, index) and not ddl_journal.is_begun(cursor, change.id, number):
                ddl_journal.note_step(cursor, change.id, number, step.digest, ())  # it was there before, and stays
                return
        connection = self._sessions.on(node)
        with translated(node):
            connection.execute("SELECT set_config('lock_timeout', %s, false)", (f"{round(LOCK_TIMEOUT * 1000)}ms",))
            connection.execute("SELECT set_config('statement_timeout', '0', false)")
        ddl_statements.build_leaves(connection, node, index, plan.root, unique=plan.unique, tail=plan.tail)
        with self._transaction(node) as cursor:
            ddl_statements.check_index(cursor, index)
            ddl_journal.note_step(cursor, change.id, number, step.digest)

    def _undo(self, node: str, change: SchemaChange, step: DdlStep, number: int, statements: Sequence[str]) -> None:
        noted = number in self._done(node, change)
        if not noted and step.index is None:
            return
        with self._transaction(node) as cursor:
            begun = step.index is not None and ddl_journal.is_begun(cursor, change.id, number)
            if not noted and not begun:
                return
            here = ddl_journal.undo_here(cursor, change.id, number)
            role = self._role(cursor, step, change.role)
            for statement in statements if here is None else here:
                self._run(node, cursor, role, statement)
            if step.index is not None and begun:
                index = Name(step.index.root.schema, step.index.name)
                ddl_statements.drop_leaf_indexes(cursor, index, step.index.root)
            ddl_journal.forget_step(cursor, change.id, number)

    def _try(self, node: str, steps: Sequence[DdlStep], role: str) -> None:
        connection = self._sessions.on(node)
        with translated(node), connection.transaction(force_rollback=True), connection.cursor() as cursor:
            for step in steps:
                if step.table is not None and ddl_statements.is_leaf(cursor, step.table):
                    raise UserError(f"{shown(step.text)}: {step.table} is a tablet; give the change to its root")
                if step.rewrites or step.scans:
                    continue
                text = step.text if step.index is None else _on_root_only(step)
                try:
                    self._run_kept(node, cursor, self._role(cursor, step, role), text)
                except psycopg.errors.LockNotAvailable:
                    raise
                except psycopg.Error as error:
                    raise Refused(
                        f"{shown(step.text)}: node {node} refuses it: {error.diag.message_primary}"
                    ) from error

    def _run_kept(self, node: str, cursor: Cursor, role: str, statement: str) -> None:
        """The bundle's tables and tablets are the same ones afterwards, or nothing is done."""
        names = self._names()
        before = ddl_statements.standing(cursor, names)
        self._run(node, cursor, role, statement)
        ddl_statements.check_standing(before, ddl_statements.standing(cursor, names), shown(statement))

    def _run(self, node: str, cursor: Cursor, role: str, statement: str) -> None:
        # The wait for a lock is short; how long the statement itself takes is up to PostgreSQL.
        run_together(cursor, [lock_timeout_of(LOCK_TIMEOUT), statement_timeout_of(0)])
        self._sessions.spoil(node)
        ddl_statements.run_as_owner(cursor, role, statement, trusted=self._addresses[node].trusts_owners)

    def _role(self, cursor: Cursor, step: DdlStep, role: str) -> str:
        if role:
            return role
        first = next(iter(self._roots()))
        return owner_of(cursor, step.table or first)

    def _done(self, node: str, change: SchemaChange) -> dict[int, str]:
        with translated(node):
            return ddl_journal.steps_done(self._sessions.on(node), change.id)

    @contextmanager
    def _transaction(self, node: str) -> Iterator[Cursor]:
        self._keep_turn()
        epoch = self._directory.snapshot().epoch
        with node_transaction(self._sessions.on(node), epoch, node, durable=True) as cursor:
            yield cursor

    def _await_turn(self) -> None:
        first = min(self._addresses)
        self._patiently(first, "the schema change", self._keep_turn)

    def _keep_turn(self) -> None:
        """Its session may have been lost; then another process may have ended the change, one way or the other."""
        if not self._sessions.take_turn() or not self._begun:
            return
        known = next((one for one in changes_of(self._directory, self._bundle) if one.id == self._begun), None)
        if known is None or known.finished:
            self._sessions.give_turn()
            state = "forgotten" if known is None else known.state
            raise Refused(f"another process has ended change {self._begun} of bundle {self._bundle}: it is {state}")

    def _patiently(self, node: str, what: str, work: Callable[[], None]) -> None:
        """Retries while a lock is not granted, or a node is away; the node knows what was done."""
        deadline = self._clock.monotonic() + self._patience
        while True:
            try:
                return work()
            except (Unavailable, OutcomeUnknown, Fenced) as error:
                if self._clock.monotonic() > deadline:
                    raise Unavailable(f"{what} was given up after {self._patience:.0f} s: {error}") from error
                self._tell(f"{what} is tried again: {error}")
            gone = self._sessions.known(node)
            if gone is not None and gone.broken:
                gone.close()
            self._clock.sleep(PAUSE_BETWEEN)

    def _tables(self) -> list[Table]:
        return [table for table in self._directory.snapshot().tables.values() if table.bundle == self._bundle]

    def _names(self) -> list[Name]:
        return [parse_name(root) for table in self._tables() for root in table.roots]

    def _roots(self) -> dict[Name, RootKey]:
        tables = self._tables()
        if not tables:
            raise UserError(f"bundle {self._bundle} has no table in the directory: adopt or create one first")
        return {
            parse_name(root): RootKey(tuple(column.name for column in table.columns_of(number)))
            for table in tables
            if not table.everywhere  # plain tables, of which every node has all rows
            for number, root in enumerate(table.roots)
        }

    def _unfinished(self) -> SchemaChange | None:
        return next((one for one in changes_of(self._directory, self._bundle) if not one.finished), None)

    def _needed(self) -> SchemaChange:
        found = self._unfinished()
        if found is None:
            raise Refused(f"bundle {self._bundle} has no schema change that has not ended{self._let_go()}")
        return found

    def _let_go(self) -> str:
        """Removes a hold whose change nobody knows any more, as after `directory recover`: nobody else would."""
        held = self._directory.snapshot().pauses.get(self._bundle)
        if held is None or not held.reason.startswith(HELD_BY_CHANGE):
            return ""
        self._release(held.reason, "not known any more", held.author)
        return f"; it was held by {held.reason}, which is no longer known: it continues now"

    def _hold(self, change: SchemaChange) -> None:
        """Nothing new starts from here on. The note comes first: it says whose hold it is."""
        self._note(change)

        def propose(snapshot: Snapshot) -> tuple[Transaction, None]:
            known = snapshot.pauses.get(self._bundle)
            pause = Pause(self._bundle, None, change.author, change.reason)
            if known is not None and (known.until is None or known.reason == change.reason):
                if known.reason.startswith(HELD_BY_CHANGE) and known.reason != change.reason:
                    raise Refused(f"bundle {self._bundle} is held by {known.reason}")
                pause = known  # an operator's stays; writing it again lets a hand-over refuse it
            return Transaction((Put(pause),), snapshot.version, change.reason, change.author), None

        commit_on_newest(self._directory, propose, f"bundle {self._bundle} could not be held")

    def _release(self, reason: str, state: str, author: str) -> None:
        def propose(snapshot: Snapshot) -> tuple[Transaction | None, None]:
            known = snapshot.pauses.get(self._bundle)
            if known is None or known.reason != reason:
                return None, None
            changes = (Remove(RecordKind.PAUSE, self._bundle),)
            return Transaction(changes, snapshot.version, f"{reason}: {state}", author), None

        commit_on_newest(self._directory, propose, f"bundle {self._bundle} could not be resumed")

    def _await_moves(self) -> None:
        deadline = self._clock.monotonic() + self._patience
        while running := [
            one.id
            for one in self._directory.snapshot().migrations.values()
            if one.bundle == self._bundle and not one.finished
        ]:
            if self._clock.monotonic() > deadline:
                raise Unavailable(
                    f"migration {running[0]} of bundle {self._bundle} has not ended within {self._patience:.0f} s; the"
                    " bundle stays held: use --continue later, or --undo"
                )
            self._tell(f"waiting for migration {running[0]} to end")
            self._clock.sleep(PAUSE_BETWEEN)

    def _note(self, change: SchemaChange) -> None:
        self._keep_turn()
        self._directory.publish(TOPIC, change.id, asdict(change))
        self._begun = change.id

    def _end(self, change: SchemaChange) -> SchemaChange:
        self._keep_turn()
        self._release(change.reason, change.state, change.author)
        self._note(change)
        finished = [one for one in changes_of(self._directory, self._bundle) if one.finished]
        for old in finished[:-KEPT]:
            self._directory.unpublish(TOPIC, old.id)
        return change


def _on_root_only(step: DdlStep) -> str:
    """The root's own index, which its leaves' become part of."""
    assert step.index is not None
    plan = step.index
    word = "UNIQUE INDEX" if plan.unique else "INDEX"
    name = plan.name.replace('"', '""')
    return f'CREATE {word} "{name}" ON ONLY {plan.root} {plan.tail}'
