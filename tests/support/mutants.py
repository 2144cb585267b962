"""The argument with a step left out: each mutant is a small patch, by name, and must be caught by an end-to-end test.

`make mutants` runs `mutants_main`. A mutant is chosen by the environment (`BALANCER_MUTANT=no-drain,no-verification`);
`tests/conftest.py` and the crash matrix's daemons apply it when they start. A patched name must exist, and a replaced
text must be there: otherwise `MutantBroken` is raised, which does not count as a catch.

To adapt the table to changed code: `replaced` names the function that a mutant replaces, `rewritten` the function in
our schema on the nodes and the words that are replaced in it.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg import sql

VARIABLE = "BALANCER_MUTANT"
Patch = Callable[[], None]


class MutantBroken(Exception):
    """What the mutant changes is not there: the table must be adapted to the code."""


@dataclass(frozen=True)
class Mutant:
    """A step of the argument, what leaving it out means, and the tests that should notice first."""

    name: str
    step: str
    patch: Patch
    likely: tuple[str, ...]
    of_verification: bool = False
    """Whether it leaves out a part of verification: without any of it there is nothing left to leave out."""


def replaced(path: str, make: Callable[[Any], Any]) -> Patch:
    """Replaces a function by `make(original)` wherever it was imported to, and in tables of functions."""

    def patch() -> None:
        module_name, _, name = path.rpartition(".")
        module = importlib.import_module(module_name)
        if not hasattr(module, name):
            raise MutantBroken(f"there is no {path}")
        original = getattr(module, name)
        mutant = make(original)
        for other in [one for key, one in sys.modules.items() if key.startswith(("balancer", "tests"))]:
            for attribute, value in list(vars(other).items()):
                if value is original:
                    setattr(other, attribute, mutant)
                elif isinstance(value, dict) and attribute.isupper():
                    value.update({key: mutant for key, entry in value.items() if entry is original})

    return patch


def method(path: str, name: str, make: Callable[[Any], Any]) -> Patch:
    """The same for a method of a class."""

    def patch() -> None:
        module_name, _, kind = path.rpartition(".")
        owner = getattr(importlib.import_module(module_name), kind, None)
        if owner is None or not hasattr(owner, name):
            raise MutantBroken(f"there is no {path}.{name}")
        setattr(owner, name, make(getattr(owner, name)))

    return patch


def rewritten(function: str, changes: Mapping[str, str]) -> Patch:
    """Replaces words in a function of our schema, after it was installed, as it then is."""

    def make(original: Any) -> Any:
        def install_schema(connection: Any, *rest: Any, **named: Any) -> Any:
            version = original(connection, *rest, **named)
            row = connection.execute("SELECT pg_get_functiondef(%s::regproc)", (function,)).fetchone()
            text = str(row[0])
            for words, others in changes.items():
                if words not in text and others not in text:
                    raise MutantBroken(f"{function} does not contain: {words}")
                text = text.replace(words, others)
            connection.execute(sql.SQL(text.replace("{", "{{").replace("}", "}}")).format())
            return version

        return install_schema

    return replaced("balancer.nodes.schema.install.install_schema", make)


def reworded(path: str, changes: Mapping[str, str]) -> Patch:
    """Replaces words in a text of a module."""

    def patch() -> None:
        module_name, _, name = path.rpartition(".")
        module = importlib.import_module(module_name)
        text = getattr(module, name, None)
        for words, others in changes.items():
            if text is None or words not in text:
                raise MutantBroken(f"{path} does not contain: {words}")
            text = text.replace(words, others)
        setattr(module, name, text)

    return patch


def replaced_text(path: str, text: str) -> Patch:
    """Replaces a text of a module."""
    module_name, _, name = path.rpartition(".")
    return lambda: setattr(importlib.import_module(module_name), name, text)


def together(*patches: Patch) -> Patch:
    """Several patches that make one mutant."""

    def patch() -> None:
        for one in patches:
            one()

    return patch


def instead(result: object = None) -> Callable[[Any], Any]:
    """A function that does nothing and returns this."""
    return lambda _: lambda *given, **named: result


def _no_drain(original: Any) -> Any:
    """The last drain only: while catching up, with a watch, it waits for the stream as usual."""

    def _await_marker(ctx: Any, number: int, patience: float, watch: Any = None) -> None:
        if watch is not None:
            original(ctx, number, patience, watch)

    return _await_marker


def _looked_away(_: Any) -> Any:
    """Reads what was seen, and is content with it."""
    return lambda rows, standing: str(rows[0][-1])


def _attached_lazily(original: Any) -> Any:
    """The transaction that attaches does not wait for the disk."""

    def _closing_statements(ctx: Any, names: Any) -> Any:
        return [sql.SQL("SET LOCAL synchronous_commit TO off"), *original(ctx, names)]

    return _closing_statements


def _unlocked(original: Any) -> Any:
    """Nothing is held from the fence until the source says where the tablet went."""

    def close_source(ctx: Any, made: Any = None, then: Any = ()) -> Any:
        from balancer.nodes.session.connection import run_together  # noqa: PLC0415

        closed = original(ctx, made)
        closed.cursor.execute("COMMIT; BEGIN")
        run_together(closed.cursor, [sql.SQL("SELECT 1"), *then])
        return closed

    return close_source


@contextmanager
def _own_snapshot(ctx: Any) -> Iterator[Any]:
    """The last changes are replayed as they were before the slot was made."""
    from balancer.migration import copy, replay  # noqa: PLC0415

    with replay.view_of_source(ctx) as view:
        with ctx.links.replication(ctx.record.source_node) as maker:
            copy._make_slot(ctx, maker)
        yield view


def _slot_alone(ctx: Any, _: Any) -> None:
    """What has changed since the copy is left to a stream that begins later."""
    from balancer.migration import copy  # noqa: PLC0415

    with copy._view_of_slot(ctx):
        pass


def _noted_apart(original: Any) -> Any:
    """A chunk's note is committed before its rows."""

    def claim(cursor: Any, migration: str, chunk: Any) -> Any:
        mine = original(cursor, migration, chunk)
        cursor.execute("COMMIT; BEGIN")
        return mine

    return claim


def _replayed_between(original: Any) -> Any:
    """Changed keys are replayed after each chunk, not only after the last."""
    from balancer.migration import copy, replay  # noqa: PLC0415

    def _copy_chunk(ctx: Any, *rest: Any) -> None:
        original(ctx, *rest)
        if str(ctx.record.mode) == "replicate":
            with replay.view_of_source(ctx) as view:
                replay.replay_and_forget(ctx, copy.read_shapes(ctx), view)

    return _copy_chunk


def _forgotten_by_age(_: Any) -> Any:
    """What the log has by now is forgotten, whatever the replay has seen of it."""
    return lambda ctx, snapshot: ctx.source()


def _marker_first(original: Any) -> Any:
    """The marker is sent in a transaction of its own, before the fence waits for writers."""
    from balancer.migration import stream  # noqa: PLC0415

    def _raise_fence(ctx: Any, *rest: Any) -> None:
        if str(ctx.track) != "move, replicate":
            original(ctx, *rest)
            return
        with ctx.source() as cursor:
            number = stream.next_marker(ctx, cursor)
        original(ctx, *rest)
        ctx.note(marker=number)

    return _raise_fence


def _open_early(original: Any) -> Any:
    """The new owner opens before the directory has heard of it."""

    def sealing(ctx: Any) -> Any:
        event = original(ctx)
        opened, ctx.opened = ctx.opened, None
        opened.commit()
        return event

    return sealing


def _roots_only(original: Any) -> Any:
    """Everybody is kept out of the roots, and nobody out of the leaves."""

    def lock_everybody_out(cursor: Any, roots: Any, partitions: Any, others: Any, left: Any) -> None:
        from balancer.nodes.schema.proof import _lock_within, keep_all_out  # noqa: PLC0415

        keep_all_out(cursor, partitions)
        _lock_within(cursor, roots, "ACCESS EXCLUSIVE", left)

    return lock_everybody_out


def _begun_apart(original: Any) -> Any:
    """The last replay is committed before the mirror begins."""

    def this_transaction(cursor: Any) -> str:
        cursor.execute("COMMIT; BEGIN")
        return str(original(cursor))

    return this_transaction


def _meddled_unseen(original: Any) -> Any:
    """The mirror is taken for whole whatever has become of its triggers."""
    return lambda rows: original([(number, silent, begun, True) for number, silent, begun, _ in rows])


def _replayed_unseen(original: Any) -> Any:
    def replay(cursor: Any, family: Any, **named: Any) -> Any:
        return original(cursor, family, **named)[0], {}

    return replay


@contextmanager
def _not_kept_out(*_: Any) -> Iterator[None]:
    yield


def _answer_believed(_: Any) -> Any:
    """What is not acknowledged has not been applied."""

    def _find_out(self: Any, ctx: Any, journal: Any, error: Any) -> None:
        journal.load(ctx.id)
        self._step_back(ctx, journal, error)

    return _find_out


def _never_newer(original: Any) -> Any:
    """The node says that it has seen this very leader, whoever asks."""

    def _begin(cursor: Any, leader_epoch: int, node: str, start: Any, given: Any) -> None:
        from balancer.nodes.session.connection import run_together  # noqa: PLC0415

        run_together(cursor, [*start, sql.SQL("SELECT 1"), *given])
        for _ in start:
            cursor.nextset()

    return _begin


def _without_epoch(original: Any) -> Any:
    """The directory is told nothing about the leader's epoch."""
    from dataclasses import replace  # noqa: PLC0415

    def _commit(self: Any, transaction: Any) -> int:
        fresh = self._directory.snapshot().version
        return int(original(self, replace(transaction, leader_epoch=None, base=fresh)))

    return _commit


def _told_unlocked(original: Any) -> Any:
    """Whether the trigger of an expired tablet was switched off is asked before writers are waited for."""
    from balancer.nodes.tablets import fence  # noqa: PLC0415

    def _tell(ctx: Any, tablet: Any) -> None:
        locked = fence.lock_partitions
        fence.lock_partitions = instead()(None)
        try:
            original(ctx, tablet)
        finally:
            fence.lock_partitions = locked

    return _tell


def _lifted_anyway(original: Any) -> Any:
    """Lifting a fence also lifts that of a node that went back in time."""

    def lift_fence(*given: Any, **named: Any) -> Any:
        return original(*given, **{**named, "closed": True})

    return lift_fence


def _asked_alone(_: Any) -> Any:
    """The new owner is asked, whatever the directory knows about it."""
    from balancer.errors import Refused, Unavailable  # noqa: PLC0415
    from balancer.features.repair.revive import owner_has  # noqa: PLC0415

    def _is_elsewhere(links: Any, snapshot: Any, row: Any) -> bool:
        tablet = snapshot.find_tablet(row.id)
        try:
            return tablet is None or owner_has(links, snapshot, tablet)
        except (Unavailable, Refused):
            return False

    return _is_elsewhere


def _marked_over_all(original: Any) -> Any:
    """A mark is written over whatever is there."""
    from balancer.nodes.tablets.closed import MARK  # noqa: PLC0415

    def write_mark(cursor: Any, now: float, seen: int) -> None:
        row = cursor.execute("SELECT number FROM balancer.marker WHERE migration = %s", (MARK,)).fetchone()
        original(cursor, now, row[0] if row else 0)

    return write_mark


_FAILOVERS = "tests/migration/test_failovers.py::"
_DIRECTED = "tests/migration/test_directed_moves.py::"
_RESHARDS = "tests/migration/test_directed_reshards.py::"
_MIRROR = "tests/migration/test_mirror.py::"
_MIRROR_RIGHTS = "tests/migration/test_mirror_rights.py"
_HOLES = "tests/migration/test_directed_holes.py::"
_ARGUMENT = "tests/migration/test_argument.py::"
_HOLD = "tests/client/test_hold.py"
_CHUNKS = "tests/migration/test_chunks.py::"
_LOCK = "AND pg_try_advisory_xact_lock_shared("
_ORDERS = "tests/migration/test_orders_of_events.py::"
_FORWARDING = "tests/features/forwarding/test_forwarding.py::"
_FENCE_UNTIL = "extract(epoch FROM clock_timestamp()) < TG_ARGV[2]::float8"
_CLOSED = "tests/migration/test_closed_tablets.py::"
_FORMER = "tests/migration/test_former_owner.py::"
_UNCOUNTED = {"PERFORM nextval('balancer.breaches');": "PERFORM 1;"}
_MOVED = "IF TG_ARGV[2] = 'moved' THEN"

NO_VERIFICATION = Mutant(
    "no-verification",
    "machine 4: the copy is verified",
    together(
        replaced("balancer.migration.comparison.compare_rest", instead()),
        replaced("balancer.migration.comparison.compare_bulk", instead(0)),
        replaced("balancer.migration.replay._compare", instead()),
        replaced("balancer.migration.reshard.compare_all", instead()),
        replaced("balancer.nodes.tablets.reshard.replay", _replayed_unseen),
    ),
    (
        f"{_DIRECTED}test_a_row_that_is_changed_on_its_way_ends_the_move",
        f"{_RESHARDS}test_a_copy_that_was_tampered_with_is_not_swapped_in",
        f"{_ARGUMENT}test_step_4_a_row_that_differs_ends_the_migration_and_is_named",
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "any-switch-opened",
        "10: a target is opened whichever switch has made it ready",
        replaced("balancer.migration.finish.check_ready", instead()),
        (
            f"{_FAILOVERS}test_a_target_that_falls_back_to_an_earlier_switch_of_the_same_move_is_not_opened",
            f"{_FAILOVERS}test_a_home_is_not_opened_on_a_copy_that_fell_back",
        ),
    ),
    Mutant(
        "arrival-unchecked",
        "3: what attaches relies on the session that has seen the marker",
        replaced("balancer.migration.switch.check_arrived", instead()),
        (f"{_FAILOVERS}test_what_the_target_loses_before_attach_is_seen_on_whatever_session_attaches",),
    ),
    Mutant(
        "sent-unlooked",
        "9: the commit is sent without asking the nodes",
        replaced("balancer.migration.runner._look_at_both", instead()),
        (
            f"{_FAILOVERS}test_a_target_that_fails_over_between_attach_and_commit_leaves_a_tablet_that_can_be_written_to",
            f"{_FAILOVERS}test_a_commit_is_not_sent_again_once_the_source_may_have_been_written_to",
        ),
    ),
    Mutant(
        "answer-believed",
        "9: a commit that was refused has not been applied",
        method("balancer.migration.runner.Runner", "_find_out", _answer_believed),
        (f"{_FAILOVERS}test_a_commit_that_was_applied_is_believed_whatever_its_second_sending_is_told",),
    ),
    Mutant(
        "unsealed-source-dropped",
        "12: a source that is found without its seal was closed all the same",
        replaced("balancer.nodes.tablets.leftovers.was_open", instead(False)),
        (f"{_FAILOVERS}test_what_a_source_without_its_seal_has_taken_after_the_commit_is_kept",),
    ),
    Mutant(
        "opened-unseen",
        "10: the opening is durable if any transaction after it is",
        replaced("balancer.migration.finish._check_opened_there", instead()),
        (f"{_FAILOVERS}test_an_opening_that_a_crash_takes_away_is_made_again",),
    ),
    Mutant(
        "no-guard",
        "machine 1: a write by the partition's own name meets the target's trigger",
        replaced("balancer.nodes.tablets.fence.guard_incoming", instead()),
        (f"{_DIRECTED}test_at_every_point_a_write_is_refused_or_kept",),
    ),
    Mutant(
        "no-fence",
        "machine 2: later writers meet the trigger",
        rewritten("balancer.refuse_write", {_FENCE_UNTIL: "false", **_UNCOUNTED}),
        (f"{_DIRECTED}test_behind_the_fence_a_write_is_refused_or_kept",),
    ),
    Mutant(
        "marker-before-the-fence",
        "machine 2: the marker follows every acknowledged write in the stream",
        replaced("balancer.migration.switch._raise_fence", _marker_first),
        (f"{_DIRECTED}test_a_writer_that_the_fence_waited_for_is_in_the_copy",),
    ),
    Mutant(
        "no-drain",
        "machine 3: the marker is visible on the target before anything follows",
        replaced("balancer.migration.stream.await_marker", _no_drain),
        (f"{_DIRECTED}test_the_switch_waits_for_what_is_still_in_the_stream",),
    ),
    Mutant(
        "no-flush",
        "machine 3: a synchronous commit on the target makes what was applied durable",
        replaced("balancer.migration.switch._closing_statements", _attached_lazily),
        (f"{_DIRECTED}test_what_was_committed_survives_the_crash_of_both_nodes",),
    ),
    NO_VERIFICATION,
    Mutant(
        "no-seal",
        "machine 5, 6: a sealed fence does not end by itself",
        together(
            replaced("balancer.nodes.tablets.fence.seal_statements", instead([])),
            replaced("balancer.nodes.tablets.fence.sealed_by", lambda _: lambda standing, transaction: standing),
        ),
        (f"{_DIRECTED}test_a_sealed_fence_outlives_its_daemon", f"{_DIRECTED}test_a_sealed_fence_does_not_expire"),
    ),
    Mutant(
        "seal-without-effect",
        "machine 6: a sealed fence refuses every write",
        rewritten("balancer.refuse_write", {"IF TG_ARGV[2] = 'sealed' OR": "IF TG_ARGV[2] <> 'sealed' AND"}),
        (f"{_DIRECTED}test_a_sealed_fence_outlives_its_daemon",),
    ),
    Mutant(
        "seal-unchecked",
        "machine 5: sealing demands this very fence, unexpired and without a breach",
        replaced("balancer.nodes.tablets.fence.check_looked", _looked_away),
        (f"{_DIRECTED}test_a_clock_that_jumps_and_jumps_back_hides_no_write_of_a_read_only_move",),
    ),
    Mutant(
        "no-breaches",
        "machine 5: writes that were let through are counted",
        rewritten("balancer.refuse_write", _UNCOUNTED),
        (f"{_DIRECTED}test_a_clock_that_jumps_and_jumps_back_hides_no_write_of_a_read_only_move",),
    ),
    Mutant(
        "commit-without-epoch",
        "machine 9: the commit is conditional on the leader's epoch and the migration's version",
        method("balancer.migration.journal.Journal", "_commit", _without_epoch),
        (f"{_DIRECTED}test_a_leader_that_slept_cannot_commit",),
    ),
    Mutant(
        "open-before-commit",
        "machine 10: the target opens after the commit",
        replaced("balancer.migration.switch.sealing", _open_early),
        (f"{_ARGUMENT}test_steps_8_to_10_the_new_owner_opens_only_after_the_old_one_is_closed_for_good",),
    ),
    Mutant(
        "moved-without-effect",
        "machine 10: a former owner refuses writes",
        rewritten("balancer.refuse_write", {_MOVED: f"{_MOVED} RETURN coalesce(NEW, OLD); END IF; IF false THEN"}),
        (f"{_DIRECTED}test_at_every_point_a_write_is_refused_or_kept",),
    ),
    Mutant(
        "no-epoch-check",
        "machine 11: a node that has seen a newer leader refuses",
        together(
            replaced("balancer.nodes.schema.leader_transaction._begin", _never_newer),
            replaced("balancer.nodes.schema.leader_transaction._look_again", instead()),
        ),
        (f"{_DIRECTED}test_a_leader_that_slept_does_no_harm_on_a_node",),
    ),
    Mutant(
        "drop-attached",
        "machine 12: what is attached is never dropped",
        replaced("balancer.nodes.tablets.partition.detach_pending", instead()),
        (f"{_ARGUMENT}test_step_12_a_partition_that_is_attached_is_never_dropped",),
    ),
    Mutant(
        "own-snapshot",
        "machine, end: the slot's consistent point is the snapshot of the copy",
        replaced("balancer.migration.copy._view_of_slot", lambda _: _own_snapshot),
        (f"{_DIRECTED}test_rows_are_copied_at_the_snapshot_of_the_slot",),
    ),
    Mutant(
        "chunk-noted-apart",
        "machine, copy 6: a chunk is there exactly if its note is",
        replaced("balancer.nodes.tablets.copy.claim", _noted_apart),
        (f"{_CHUNKS}test_a_chunk_is_there_with_its_note_or_not_at_all",),
    ),
    Mutant(
        "replay-between-chunks",
        "machine, copy 5: no chunk follows a replay",
        together(
            replaced("balancer.nodes.tablets.copy.begin_replay", instead()),
            replaced("balancer.migration.copy._copy_chunk", _replayed_between),
        ),
        (f"{_CHUNKS}test_a_row_that_changes_its_page_between_two_chunks_arrives_once",),
    ),
    Mutant(
        "forgotten-by-age",
        "machine, copy 4: entries are forgotten by the snapshot that was replayed",
        method("balancer.migration.context.Context", "source_at", _forgotten_by_age),
        (f"{_CHUNKS}test_what_changes_while_a_replay_runs_is_not_forgotten",),
    ),
    Mutant(
        "no-replay-at-the-slot",
        "machine, copy 8: the last replay is at the slot's snapshot",
        replaced("balancer.migration.copy._replay_at_slot", lambda _: _slot_alone),
        (f"{_DIRECTED}test_rows_are_copied_at_the_snapshot_of_the_slot",),
    ),
    Mutant(
        "lost-replay-unseen",
        "machine, copy 9: a replay that the target has lost is noticed",
        together(
            replaced("balancer.migration.replay._check_numbers", instead(1000)),
            replaced("balancer.nodes.tablets.replication.missing_markers", instead(0)),
        ),
        (f"{_CHUNKS}test_a_target_that_has_lost_a_replay_ends_the_move",),
    ),
    Mutant(
        "no-capture",
        "migration/reshard: a trigger logs the keys of changed rows",
        replaced("balancer.nodes.tablets.reshard.changed_sources", instead(())),
        (f"{_RESHARDS}test_at_every_point_a_write_is_refused_or_kept",),
    ),
    Mutant(
        "no-replay-before-the-mirror",
        "machine, reshard 2: the rest of the log is replayed while writers are kept out",
        replaced("balancer.migration.reshard.replay_once", instead(0)),
        (f"{_RESHARDS}test_at_every_point_a_write_is_refused_or_kept",),
    ),
    Mutant(
        "mirror-begun-apart",
        "machine, reshard 2: the last replay and the mirror are one transaction",
        replaced("balancer.nodes.tablets.leftovers.this_transaction", _begun_apart),
        (f"{_ORDERS}test_while_the_mirror_begins_or_the_swap_is_made_no_write_by_a_partition_s_name_gets_in",),
    ),
    Mutant(
        "mirror-without-writers",
        "machine, reshard 3: the mirror makes every change in the new partitions",
        reworded("balancer.nodes.tablets.mirror._BODY", {"    {work}\n    RETURN NULL;": "    RETURN NULL;"}),
        (f"{_RESHARDS}test_at_every_point_a_write_is_refused_or_kept",),
    ),
    Mutant(
        "mirror-of-old-rows",
        "machine, reshard 3: a row that has changed since is read again",
        reworded("balancer.nodes.tablets.mirror._BODY", {"\"is fresh\" := NEW.xmax = '0'::xid;": "NULL;"}),
        (f"{_MIRROR}test_both_sides_are_equal_after_every_statement",),
    ),
    Mutant(
        "mirror-of-old-keys",
        "machine, reshard 3: a key that is given up may be taken again already",
        reworded(
            "balancer.nodes.tablets.mirror._WORK",
            {"IF TG_OP = 'DELETE' OR TG_OP = 'UPDATE' AND NOT": "IF false AND NOT"},
        ),
        (f"{_MIRROR}test_both_sides_are_equal_after_every_statement",),
    ),
    Mutant(
        "mirror-by-old-snapshots",
        "machine, reshard 3: who does not see the mirror's beginning is refused",
        reworded(
            "balancer.nodes.tablets.mirror._BODY",
            {"NOT pg_visible_in_snapshot(TG_ARGV[1]::xid8, pg_current_snapshot())": "false"},
        ),
        (f"{_MIRROR}test_who_writes_by_an_older_snapshot_is_refused_and_may_try_again",),
    ),
    Mutant(
        "mirror-of-anything",
        "nodes.mirror: no value of another type, and nothing of another table, is passed on",
        reworded("balancer.nodes.tablets.mirror._BODY", {'IF NOT "the same" THEN': "IF false THEN"}),
        (f"{_MIRROR}test_no_statement_fails_after_ddl", _MIRROR_RIGHTS),
    ),
    Mutant(
        "mirror-plans-anything",
        "nodes.mirror: the old partition is not read once it has code of its owner",
        reworded("balancer.nodes.tablets.mirror._BODY", {"NOT (\n        EXISTS": "NOT (true OR\n        EXISTS"}),
        (_MIRROR_RIGHTS,),
    ),
    Mutant(
        "mirror-careless",
        "nodes.mirror: a value that is unique is noted in the log, and the statement goes on",
        reworded("balancer.nodes.tablets.mirror._CAREFUL", {"unique_violation": "assert_failure"}),
        (f"{_MIRROR}test_a_value_that_two_rows_have_in_turn_fails_no_statement",),
    ),
    Mutant(
        "mirror-checks-at-once",
        "nodes.mirror: what may be checked late is checked at the end of the transaction",
        replaced("balancer.nodes.tablets.mirror._defer", instead(sql.SQL(""))),
        (f"{_MIRROR}test_both_sides_are_equal_where_the_key_is_checked_late",),
    ),
    Mutant(
        "mirror-writes-all",
        "nodes.mirror: an unchanged long value is not written again",
        replaced_text("balancer.nodes.tablets.mirror._LONG", "{0} = {1}"),
        (f"{_MIRROR}test_an_unchanged_long_value_is_not_written_again",),
    ),
    Mutant(
        "mirror-meddled-with",
        "machine, reshard 5: the triggers are those that the mirror's beginning wrote",
        replaced("balancer.nodes.tablets.mirror.found", _meddled_unseen),
        (f"{_MIRROR}test_a_mirror_that_was_switched_off_and_on_ends_the_split",),
    ),
    Mutant(
        "mirror-lost",
        "machine, reshard 5: under the swap's lock the mirror is the one that was waited for, and its log is empty",
        replaced("balancer.migration.swap._check_mirror", instead()),
        (f"{_MIRROR}test_a_node_that_has_lost_the_mirror_loses_no_write",),
    ),
    Mutant(
        "mirror-outlives-the-swap",
        "machine, reshard 6: after the swap nothing follows the old partitions",
        replaced("balancer.nodes.tablets.mirror.disable_statements", instead([])),
        (f"{_MIRROR}test_what_is_forced_into_an_old_partition_does_not_reach_the_new_ones",),
    ),
    Mutant(
        "swap-without-leaves",
        "machine, reshard 5: the swap locks the old leaves too, before it checks anything",
        replaced("balancer.nodes.schema.proof.lock_everybody_out", _roots_only),
        (f"{_ORDERS}test_while_the_mirror_begins_or_the_swap_is_made_no_write_by_a_partition_s_name_gets_in",),
    ),
    Mutant(
        "no-fingerprints",
        "machine 7: a definition that was changed ends the migration",
        replaced("balancer.migration.guards.compare_definitions", instead()),
        (
            f"{_HOLES}test_values_that_ddl_rewrites_during_a_move_are_the_new_ones",
            f"{_HOLES}test_values_that_ddl_rewrites_during_a_split_are_the_new_ones",
        ),
    ),
    Mutant(
        "sealed-fence-left-alone",
        "machine 6: a transaction holds the partitions' lock from the seal to the word where the tablet went",
        together(
            replaced("balancer.migration.switch.close_source", _unlocked),
            method("balancer.migration.context.OpenTransaction", "check", instead()),
        ),
        (f"{_ORDERS}test_an_update_with_all_triggers_switched_off_and_on_is_not_lost_in_a_move",),
    ),
    Mutant(
        "snapshots-overtaken",
        "machine, reshard 4: sessions by an older snapshot are waited for",
        method("balancer.nodes.tablets.leftovers.OlderSnapshots", "left", instead([])),
        (
            f"{_ORDERS}test_a_split_waits_for_a_reader_by_an_older_snapshot_and_names_it",
            f"{_ORDERS}test_a_former_owner_keeps_what_an_older_snapshot_reads_and_refuses_writes_to_the_end_of_the_grace",
        ),
    ),
    Mutant(
        "old-writers-admitted",
        "machine, reshard 7: SERIALIZABLE writers from before the swap are refused where reads are remembered",
        replaced("balancer.nodes.tablets.reshard.refuse_old_snapshots", instead()),
        (f"{_MIRROR}test_writes_that_depend_on_each_others_reads_do_not_both_pass_the_swap",),
    ),
    Mutant(
        "standbys-overtaken",
        "machine 12: the target's standbys have replayed the switch",
        replaced("balancer.nodes.tablets.leftovers.not_replayed", instead([])),
        (f"{_ORDERS}test_the_former_owner_keeps_its_rows_until_the_new_one_s_standbys_have_replayed_the_switch",),
    ),
    Mutant(
        "standbys-forgotten",
        "machine 12: a standby that the target had and that is gone is none that has replayed the switch",
        replaced("balancer.nodes.tablets.leftovers.follows", instead(True)),
        (f"{_FAILOVERS}test_rows_stay_while_the_target_has_lost_a_standby_that_it_was_known_to_have",),
    ),
    Mutant(
        "leader-unasked",
        "machine 12: the target's address was asked again which server leads",
        replaced("balancer.migration.finish._leads_alone", instead(True)),
        (f"{_FAILOVERS}test_rows_stay_while_two_servers_of_the_target_take_writes",),
    ),
    Mutant(
        "written-rows-dropped",
        "machine 12: rows behind a fence that was switched off are set aside",
        replaced("balancer.nodes.tablets.leftovers._switched", instead(False)),
        ("tests/migration/test_set_aside.py",),
    ),
    Mutant(
        "difference-behind-no-fence",
        "machine 4: a difference counts only if the fence still stands",
        replaced("balancer.migration.guards.standing", instead()),
        (f"{_ORDERS}test_what_stalls_past_the_fence_s_deadline_is_no_difference",),
        of_verification=True,
    ),
    Mutant(
        "forwarded-unproven",
        "nodes/schema/proof: every forwarded statement proves that the tablet is here",
        rewritten(
            "balancer.here",
            {"        IF NOT pg_try": "        RETURN true;\n        IF NOT pg_try"},
        ),
        (f"{_FORWARDING}test_who_has_not_heard_of_a_move_is_told_to_try_again_and_reads_nothing_old",),
    ),
    Mutant(
        "hold-without-lock",
        "nodes/schema/hold.sql: hold takes the tablet's lock before it looks",
        rewritten("balancer.hold", {_LOCK: "AND 0 < ("}),
        (f"{_RESHARDS}test_a_fence_does_not_pass_a_writer_that_holds_the_tablet", _HOLD),
    ),
    Mutant(
        "hold-any-epoch",
        "nodes/schema/hold.sql: the row has the caller's epoch",
        rewritten("balancer.hold", {"t.epoch = known_epoch": "true"}),
        (_HOLD,),
    ),
    Mutant(
        "hold-through-fences",
        "nodes/schema/hold.sql: the row has no fence in it",
        rewritten("balancer.hold", {"t.until IS NULL": "true", "t.state = 'owned'": "t.state IN ('owned', 'fenced')"}),
        (_HOLD,),
    ),
    Mutant(
        "hold-on-an-old-row",
        "nodes/schema/hold.sql: xmax tells that the row was superseded",
        rewritten("balancer.hold", {"t.xmax = 0": "true"}),
        (_HOLD,),
    ),
    Mutant(
        "hold-slowly-blind",
        "nodes/schema/hold.sql: the catalog is asked in ways that do not go by snapshots",
        rewritten("balancer.hold_slowly", {"IF one_snapshot THEN": "IF false THEN"}),
        (_HOLD,),
    ),
    Mutant(
        "fence-without-the-writers-lock",
        "nodes/schema/hold.sql: a fence is raised under the writers' lock",
        together(
            replaced("balancer.nodes.tablets.fence.writers_statement", lambda _: lambda *_: sql.SQL("SELECT 1")),
            replaced("balancer.nodes.schema.proof.keep_statement", lambda _: lambda *_: sql.SQL("SELECT 1")),
        ),
        (f"{_RESHARDS}test_a_fence_does_not_pass_a_writer_that_holds_the_tablet", _HOLD),
    ),
    Mutant(
        "swap-past-holders",
        "nodes/schema/hold.sql: partitions are swapped under both locks",
        replaced("balancer.nodes.schema.proof.keep_all_out", instead()),
        (f"{_RESHARDS}test_a_swap_does_not_pass_a_transaction_that_holds_the_tablet", _HOLD),
    ),
    Mutant(
        "detach-past-readers",
        "nodes/schema/hold.sql: a partition is detached under the readers' lock",
        replaced("balancer.nodes.schema.proof.readers_kept_out", lambda _: _not_kept_out),
        (f"{_RESHARDS}test_a_reader_that_holds_the_tablet_finds_its_rows_though_it_has_moved", _HOLD),
    ),
    Mutant(
        "expiry-looks-before-the-lock",
        "migration/expire: whether an empty tablet was written to is asked under its lock",
        replaced("balancer.migration.expire._tell", _told_unlocked),
        ("tests/migration/test_expiry.py::test_a_row_forced_into_the_empty_tablet_by_an_open_transaction_is_kept",),
    ),
    Mutant(
        "closed-ones-opened",
        "nodes.fence: what was closed because its node went back in time is not opened by its migration",
        replaced("balancer.nodes.tablets.fence.lift_fence", _lifted_anyway),
        (f"{_CLOSED}test_a_cancelled_move_does_not_open_it",),
    ),
    Mutant(
        "closed-ones-switched",
        "guards: nor fenced by a move, nor replaced by a split",
        replaced("balancer.migration.guards.refuse_closed", instead()),
        (
            f"{_CLOSED}test_a_move_does_not_fence_it",
            f"{_CLOSED}test_a_split_does_not_put_open_ones_in_its_place",
        ),
    ),
    Mutant(
        "last-copy-dropped-by-doctor",
        "doctor: rows stay where the new owner is lost, or has gone back in time",
        replaced("balancer.features.repair.doctor._is_elsewhere", _asked_alone),
        ("tests/features/repair/test_doctor.py::test_rows_of_a_former_owner_stay_where_the_new_one_may_not_have_them",),
    ),
    Mutant(
        "retired-unasked",
        "machine 12: the new owner is asked right before each step that takes rows away",
        replaced("balancer.migration.finish._check_opened", instead()),
        (f"{_FORMER}test_rows_stay_if_the_new_owner_forgets_the_tablet_while_they_are_still_waited_for",),
    ),
    Mutant(
        "late-mark",
        "nodes.closed: a mark is written only over the one that was seen",
        replaced("balancer.nodes.tablets.closed.write_mark", _marked_over_all),
        ("tests/daemon/test_marks.py::test_a_mark_that_comes_late_does_not_hide_that_its_node_has_gone_back",),
    ),
    Mutant(
        "node-of-another-directory",
        "nodes.connection: each new connection asks whose node it leads to",
        replaced("balancer.nodes.session.connection._check_cluster", instead()),
        ("tests/daemon/test_two_directories.py::test_nothing_is_moved_to_a_node_of_another_directory",),
    ),
    Mutant(
        "owners-code-looked-at-once",
        "guards: what an owner has brought since the preflight is looked for before each chunk",
        replaced("balancer.migration.guards.look_at_source", instead()),
        ("tests/migration/test_owners_late_code.py", "tests/migration/test_chunks_owners.py"),
    ),
)

EQUIVALENT: Mapping[str, str] = {
    "rows dropped without looking for `moved`": "only a leader under its own epoch comes there, and `retiring` has"
    " written `moved` in an earlier transaction of the same step; without the epoch's check the step is reached by"
    " others, and that mutant is caught",
    "subscription left enabled at the opening": "the source is sealed, so nothing follows the marker in the stream, and"
    " the marker was waited for",
    "a fence's renewal left out": "the fence expires and cannot be sealed: nothing is lost, nothing is committed",
}
"""Steps whose absence changes nothing that anybody can see, and why."""


def named(text: str) -> list[Mutant]:
    """Mutants by their names, separated by commas."""
    known = {mutant.name: mutant for mutant in MUTANTS}
    names = [name for name in text.split(",") if name]
    if strange := [name for name in names if name not in known]:
        raise MutantBroken(f"there is no mutant {', '.join(strange)}; there are {', '.join(known)}")
    return [known[name] for name in names]


def mutate_from_environment() -> None:
    """Called where tests and their daemons begin. Does nothing unless the variable is set."""
    for mutant in named(os.environ.get(VARIABLE, "")):
        mutant.patch()
