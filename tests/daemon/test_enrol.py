"""The configuration becomes records of the directory: added, followed, and taken away when nothing depends on them."""

from dataclasses import replace
from pathlib import Path

import pytest

from balancer.daemon.housekeeping import enrol
from balancer.directory.contract import Directory, Leadership
from balancer.directory.model import NodeState, Put, RecordKind, Remove
from balancer.settings import Settings, load_settings
from tests.support.directories import migration, moved, transaction

pytestmark = pytest.mark.quick


def configured(folder: Path, **nodes: str) -> Settings:
    (folder / "bundles").mkdir(exist_ok=True)
    lines = [f'[nodes.{name}]\ndsn = "postgresql://balancer@{name}/shop"\n{more}' for name, more in nodes.items()]
    (folder / "bundles" / "shop.toml").write_text("\n".join(lines))
    (folder / "balancer.toml").write_text(f'directory = "sqlite://{folder}/directory.db"\n')
    return load_settings(folder / "balancer.toml")


ALL = {"pg-a": "", "pg-b": "", "pg-c": ""}


def test_what_is_recorded_already_changes_nothing(tmp_path: Path, directory: Directory, leadership: Leadership) -> None:
    assert enrol(directory, leadership, configured(tmp_path, **ALL)) == 0


def test_new_nodes_and_changed_ones_follow_the_file(
    tmp_path: Path, directory: Directory, leadership: Leadership
) -> None:
    settings = configured(tmp_path, **{**ALL, "pg-a": 'zone = "east"\nweight = 2.0\n', "pg-d": ""})
    assert enrol(directory, leadership, settings) == 2
    nodes = directory.snapshot().nodes
    assert (nodes["pg-a"].zone, nodes["pg-a"].weight, nodes["pg-d"].bundle) == ("east", 2.0, "shop")


def test_a_nodes_state_is_the_operators(tmp_path: Path, directory: Directory, leadership: Leadership) -> None:
    snapshot = directory.snapshot()
    drained = replace(snapshot.nodes["pg-a"], state=NodeState.DRAINING, reason="new disk")
    directory.commit(transaction([Put(drained)], snapshot.version))
    enrol(directory, leadership, configured(tmp_path, **{**ALL, "pg-a": 'zone = "west"\n'}))
    node = directory.snapshot().nodes["pg-a"]
    assert (node.state, node.reason, node.zone) == (NodeState.DRAINING, "new disk", "west")


def test_a_node_that_left_the_file_goes_when_it_is_empty_and_free(
    tmp_path: Path, directory: Directory, leadership: Leadership
) -> None:
    settings = configured(tmp_path, **{"pg-a": "", "pg-b": ""})
    assert enrol(directory, leadership, settings) == 0  # it still has tablets
    snapshot = directory.snapshot()
    tablets = [tablet for table in snapshot.tables for tablet in snapshot.tablets(table) if tablet.node == "pg-c"]
    directory.commit(transaction([Put(moved(tablet, "pg-a")) for tablet in tablets], snapshot.version))
    snapshot = directory.snapshot()
    coming = migration(snapshot.tablet(1), "pg-c", "copying")
    directory.commit(transaction([Put(coming)], snapshot.version))
    assert enrol(directory, leadership, settings) == 0  # a migration brings it one
    snapshot = directory.snapshot()
    directory.commit(transaction([Remove(RecordKind.MIGRATION, coming.id)], snapshot.version))
    assert enrol(directory, leadership, settings) == 1
    assert sorted(directory.snapshot().nodes) == ["pg-a", "pg-b"]
