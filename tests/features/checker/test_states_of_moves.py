"""What nodes say of themselves while a migration is at each of its states, and while one comes and goes between two
readings of the map: none of it is a finding. What is wrong beside it is one all the same."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from balancer.directory.model import Migration, MigrationKind, MigrationMode, Put, Record, Tablet, Transaction
from balancer.directory.open import open_directory
from balancer.directory.snapshot import Snapshot
from balancer.features.checker import map as map_checks
from balancer.features.checker.evidence import MapBeforeAfter
from balancer.features.checker.loop import Checker
from balancer.features.checker.map import attached_leaves
from balancer.migration.machine import State
from balancer.migration.progress import Observer
from balancer.nodes.schema.install import OwnedTablet, OwnState
from balancer.nodes.session.connection import Address
from balancer.policies.check_options import CheckKind, CheckOptions
from balancer.policies.checking import CheckUnit
from balancer.polling.poller import ClusterPoll, Poller
from tests.support.checking import anomalies, checked, checker_of, run_round
from tests.support.shards import Leader, Shards, leaves, record

NODES = CheckOptions(kinds=(CheckKind.MAP, CheckKind.STRAYS))
OTHER = {"pg-a": "pg-b", "pg-b": "pg-c", "pg-c": "pg-a"}


@dataclass
class Looking(Observer):
    """Checks the cluster at every point of a migration, once each."""

    checker: Checker
    seen: dict[str, list[str]] = field(default_factory=dict)

    def entered(self, migration: Migration, state: State) -> None:
        self._look(f"{migration.operation} entered {state}")

    def left(self, migration: Migration, state: State) -> None:
        self._look(f"{migration.operation} left {state}")

    def _look(self, point: str) -> None:
        if point not in self.seen:
            self.seen[point] = [one.text for one in anomalies(run_round(self.checker))]


@pytest.fixture(scope="module")
def seen(shards: Shards) -> Mapping[str, list[str]]:
    """Point of a migration → what was found there: a move, a split and a merge."""
    with checker_of(shards, NODES) as checker:
        watching = Looking(checker)
        _migrate(shards, watching)
    return watching.seen


def _migrate(shards: Shards, watching: Observer) -> None:
    with shards.leading(watching) as leader:
        tablet = shards.tablet(2)
        assert leader(tablet.id, OTHER[tablet.node]).state == State.DONE
        split = leader.split(tablet.id)
        assert split.state == State.DONE
        assert leader.merge([target.id for target in split.targets]).state == State.DONE


def test_no_state_of_a_move_a_split_or_a_merge_is_a_finding(seen: Mapping[str, list[str]]) -> None:
    assert {point: found for point, found in seen.items() if found} == {}
    for word in ("move entered opening", "move left retiring", "split entered committing", "merge left swapping"):
        assert word in seen, f"nobody looked at {word}"


class MovingPoller(Poller):
    """Lets something happen between the reading of the map and the nodes' answers."""

    act: Callable[[], object] = staticmethod(lambda: None)

    def poll(self, snapshot: Snapshot, addresses: Mapping[str, Address]) -> ClusterPoll:
        self.act()
        return super().poll(snapshot, addresses)


def _two_moves(leader: Leader, shards: Shards) -> None:
    for number in (1, 4):
        tablet = shards.tablet(number)
        assert leader(number, OTHER[tablet.node]).state == State.DONE


def test_a_move_between_the_reading_of_the_map_and_the_nodes_answers(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shards.leading() as leader:
        act = once(lambda: _two_moves(leader, shards))
        monkeypatch.setattr("balancer.features.checker.loop.Poller", MovingPoller)
        monkeypatch.setattr(MovingPoller, "act", staticmethod(act))
        with checker_of(shards, replace(NODES, kinds=(CheckKind.MAP,))) as checker:
            assert _first_look(checker) == []


def test_a_move_between_the_reading_of_the_map_and_the_list_of_partitions(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = attached_leaves
    with shards.leading() as leader:
        act = once(lambda: _two_moves(leader, shards))

        def later(*arguments: Any) -> Any:
            act()
            return real(*arguments)

        monkeypatch.setattr(map_checks, "attached_leaves", later)
        with checker_of(shards, replace(NODES, kinds=(CheckKind.STRAYS,))) as checker:
            assert _first_look(checker) == []


def _first_look(checker: Any) -> list[str]:
    """What would be said without a second look."""
    checker.begin()
    unit = CheckUnit(checker.kinds[0], 0)
    return [one.text for one in checker._look(unit).anomalies]


def once(work: Callable[[], object]) -> Callable[[], None]:
    waiting = [work]

    def act() -> None:
        if waiting:
            waiting.pop()()

    return act


def test_a_false_claim_beside_a_running_move_is_found_all_the_same(shards: Shards) -> None:
    found: list[list[str]] = []

    class Planting(Observer):
        def entered(self, migration: Migration, state: State) -> None:
            if state is State.OPENING:
                with checker_of(shards, NODES) as checker:
                    found.append([one.text for one in anomalies(run_round(checker))])

    stranger = OTHER[shards.tablet(6).node]
    record(shards.node(stranger), OwnedTablet(6, 1, OwnState.OWNED, leaves(6)))
    try:
        with shards.leading(Planting()) as leader:
            leader(7, OTHER[shards.tablet(7).node])
    finally:
        shards.node(stranger).execute("DELETE FROM balancer.tablet WHERE id = 6")
    ((text,),) = found
    assert f"node {stranger}: tablet 6 is claimed here" in text
    assert checked(shards, NODES) == []


@pytest.fixture
def snapshots(shards: Shards, tmp_path: Any) -> Iterator[Callable[..., Snapshot]]:
    """Maps with tablet 5 and a migration of it in some state."""
    with open_directory(f"sqlite://{tmp_path}/other.sqlite") as directory:
        before = shards.directory.snapshot()
        records: list[Record] = [
            *before.bundles.values(),
            *before.nodes.values(),
            *before.tables.values(),
            *shards.tablets(),
        ]
        directory.commit(Transaction(tuple(map(Put, records)), directory.snapshot().version, "fill", "test"))

        def make(*changes: Migration | Tablet) -> Snapshot:
            if changes:
                base = directory.snapshot().version
                directory.commit(Transaction(tuple(map(Put, changes)), base, "change", "test"))
            return directory.snapshot()

        yield make


def test_a_migration_that_came_and_went_between_two_readings_is_known_by_its_record(
    shards: Shards, snapshots: Callable[..., Snapshot]
) -> None:
    tablet = shards.tablet(5)
    move = Migration(
        id="m1",
        bundle="shop",
        table=1,
        operation=MigrationKind.MOVE,
        mode=MigrationMode.REPLICATE,
        sources=(5,),
        targets=(replace(tablet, node=OTHER[tablet.node], epoch=tablet.epoch + 1),),
        source_node=tablet.node,
        target_node=OTHER[tablet.node],
        state="planned",
    )
    first = snapshots()
    assert MapBeforeAfter(first, snapshots()).still(5)
    begun = snapshots(move)
    assert not MapBeforeAfter(first, begun).still(5)
    cancelled = snapshots(replace(move, state="cancelled", finished=True))
    assert not MapBeforeAfter(first, cancelled).still(5), "it was at work between the two, and the tablet is as before"
    assert not MapBeforeAfter(begun, cancelled).still(5)
    assert MapBeforeAfter(first, cancelled).still(3)
    assert set(leaves(5)) <= MapBeforeAfter(first, cancelled).in_motion()
    assert MapBeforeAfter(cancelled, snapshots()).still(5), "it is over"
