"""A migration can be cancelled in each of its states before the commit, whatever it is; writers then go on."""

from collections.abc import Iterator

import pytest

from balancer.directory.model import MigrationKind, MigrationMode
from balancer.features.repair.doctor import examine
from balancer.migration.begin import begin_move
from balancer.migration.machine import State, path, row_of, track_of
from tests.support.cluster import Cluster
from tests.support.resharding import begin_merge, begin_split
from tests.support.sampling import thinned
from tests.support.spy import Spy


def cases() -> Iterator[tuple[MigrationKind, MigrationMode, State]]:
    for kind in (MigrationKind.MOVE, MigrationKind.SPLIT, MigrationKind.MERGE):  # expiry: `test_expiry`
        for mode in MigrationMode:
            track = track_of(kind, mode)
            for state in path(track):
                if row_of(track, state).cancellable and (kind is not MigrationKind.MERGE or state is State.VERIFYING):
                    yield kind, mode, state


@pytest.mark.parametrize(("kind", "mode", "state"), thinned(list(cases()), 2, "cancelled"), ids=str)
def test_it_is_undone_and_the_source_keeps_its_tablets(
    cluster: Cluster, kind: MigrationKind, mode: MigrationMode, state: State
) -> None:
    directory = cluster.directory()
    leadership = cluster.become_leader(directory)
    before, tablets = cluster.rows(), cluster.tablets()
    begun = {
        MigrationKind.MOVE: lambda: begin_move(directory, leadership, 2, "b", mode=mode),
        MigrationKind.SPLIT: lambda: begin_split(directory, leadership, 2, mode=mode),
        MigrationKind.MERGE: lambda: begin_merge(directory, leadership, [2, 4], mode=mode),
    }[kind]()
    runner = cluster.runner(directory, leadership, spy := Spy())
    spy.work[f"entered:{state}"] = lambda: runner.cancel(begun.id, "not today")
    done = runner.run(begun.id)
    assert (done.state, done.error) == ("cancelled", "not today")
    assert spy.states[spy.states.index(state) + 1] is State.CANCELLING, "it was heard in this very state"
    assert cluster.rows() == before
    assert cluster.tablets() == tablets
    assert [finding.text for finding in examine(directory, cluster.address)] == []
    assert len(cluster.query("a", "UPDATE orders SET n = 1 RETURNING 1")) == 1000  # writers go on
