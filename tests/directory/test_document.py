"""The exported document: what is in it, and what is refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from balancer.directory.history import export_document, import_document, records_of
from balancer.directory.model import Pin, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.delta import apply
from balancer.errors import UserError
from balancer.policies.keyspace.hash_leaves import Leaf
from tests.support.directories import leaves, migration, puts, small_cluster

pytestmark = pytest.mark.quick


def document() -> Any:
    view = apply(Snapshot(), puts(small_cluster()), 1, None).snapshot
    return json.loads(json.dumps(export_document(view)))


def test_what_was_exported_is_imported() -> None:
    view = apply(Snapshot(), puts(small_cluster()), 1, None).snapshot
    assert import_document(document()) == records_of(view)


def test_a_split_under_way_can_be_exported_and_imported() -> None:
    """Its source is gone and so is what a pin was about: that is lawful for records that stand."""
    tablets = [*(Tablet(100 + i, 1, leaf, "pg-a") for i, leaf in enumerate(Leaf(8, 0).children())), *leaves(8)[1:]]
    others = [record for record in small_cluster() if not isinstance(record, Tablet) or record.table != 1]
    job = migration(leaves(8)[0], "pg-a", "retiring")
    view = apply(Snapshot(), puts([*others, *tablets, job, Pin(1, None)]), 1, None).snapshot
    assert import_document(json.loads(json.dumps(export_document(view)))) == records_of(view)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda one: one["tablets"].pop(), "leave a gap"),
        (lambda one: one["tablets"].pop(9), "leave a gap"),
        (lambda one: one["tablets"].append(one["tablets"][0]), "has tablet '1' twice"),
        (lambda one: one.update(format=99), "has format 99"),
        (lambda one: one.pop("format"), "no field 'format'"),
        (lambda one: one["nodes"][1].pop("bundle"), r"nodes\[1\]: a node has no field 'bundle'"),
        (lambda one: one["nodes"][1].update(state="odd"), r"nodes\[1\]: field 'state' of a node is wrong"),
        (lambda one: one["tablets"][0].update(epoch="1"), r"tablets\[0\]: field 'epoch' of a tablet is wrong"),
        (lambda one: one["tablets"][0].update(bounds=[8]), r"tablets\[0\]: field 'bounds' of a tablet is wrong"),
        (lambda one: one.update(extra=[]), "unknown parts: extra"),
        (lambda one: one["bundles"].pop(), "names bundle 'shop', which does not exist"),
    ],
)
def test_a_document_that_is_wrong_is_refused_with_a_sentence(spoil: Callable[[Any], object], sentence: str) -> None:
    bad = document()
    spoil(bad)
    with pytest.raises(UserError, match=sentence):
        import_document(bad)
