"""A node whose word contradicts the directory is found out, point by point."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from balancer.naming import Name
from balancer.nodes.schema.install import NodeIdentity, OwnState
from balancer.polling.node_poll import Claim, Claims, NodeFacts, NodePoll, Partitions, PartitionStats
from balancer.polling.ownership import DirectoryView, DisagreementKind, Expected, disagreements, stale_claims

pytestmark = pytest.mark.quick
NOW = datetime(2026, 1, 1, tzinfo=UTC)
FACTS = NodeFacts(180004, False, NOW, NOW, None, 0, 1, 100)
P1 = Name("public", "p1")
HELD = PartitionStats(0, *P1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def world(epoch: int = 5, busy: frozenset[int] = frozenset(), rewound: str = "") -> DirectoryView:
    mine = {1: Expected("a", epoch, (P1,))}
    return DirectoryView("shop", "a", 9, mine, mine | {2: Expected("b", 7)}, busy, rewound)


def poll(*claims: Claim, leader: int = 8, attached: bool = True, node: str = "a") -> NodePoll:
    return NodePoll(
        FACTS, Partitions.of((HELD,) if attached else ()), NodeIdentity("shop", node, leader, 1), Claims.of(claims)
    )


OWNED = Claim(1, 5, OwnState.OWNED, None)


def kinds(found: NodePoll, expected: DirectoryView) -> list[DisagreementKind]:
    return [one.kind for one in disagreements(found, expected)]


def test_a_node_that_agrees_is_trusted() -> None:
    assert kinds(poll(OWNED, Claim(2, 6, OwnState.MOVED, "b")), world()) == []


@pytest.mark.parametrize(
    ("found", "expected", "kind"),
    [
        (poll(), world(), DisagreementKind.MISSING),
        (poll(OWNED), world(epoch=6), DisagreementKind.OLD_EPOCH),
        (poll(OWNED), world(epoch=4), DisagreementKind.DIRECTORY_BEHIND),
        (poll(Claim(1, 5, OwnState.MOVED, "b")), world(), DisagreementKind.NOT_OWNED),
        (poll(OWNED, attached=False), world(), DisagreementKind.DETACHED),
        (poll(OWNED, Claim(2, 6, OwnState.OWNED, None)), world(), DisagreementKind.FORMER_OWNER),
        (poll(OWNED, Claim(99, 1, OwnState.FENCED, None)), world(), DisagreementKind.FORMER_OWNER),
        (poll(OWNED), world(rewound="an old backup"), DisagreementKind.REWOUND),
        (poll(OWNED, leader=10), world(), DisagreementKind.DIRECTORY_BEHIND),
        (poll(OWNED, node="z"), world(), DisagreementKind.WRONG_DATABASE),
        (NodePoll(FACTS, Partitions.of(()), None, Claims.of(())), world(), DisagreementKind.NOT_INSTALLED),
    ],
)
def test_each_contradiction_has_its_name(found: NodePoll, expected: DirectoryView, kind: DisagreementKind) -> None:
    assert kinds(found, expected) == [kind]


def test_tablets_in_a_migration_may_differ_for_a_while() -> None:
    assert kinds(poll(Claim(2, 6, OwnState.FENCED, None)), world(busy=frozenset({1, 2}))) == []


def test_a_new_node_without_tablets_needs_no_schema() -> None:
    silent = NodePoll(FACTS, Partitions.of(()), None, Claims.of(()))
    assert kinds(silent, DirectoryView("shop", "c", 9, {}, {1: Expected("a", 5)})) == []


def test_a_default_partition_is_a_reason_not_to_trust_a_node() -> None:
    found = replace(poll(OWNED), defaults=((Name("public", "orders"), Name("public", "rest")),))
    assert kinds(found, world()) == [DisagreementKind.DEFAULT_PARTITION]
    assert disagreements(found, world())[0].text == (
        "public.orders has the DEFAULT partition public.rest, which takes rows of other nodes' tablets: detach it"
    )


@pytest.mark.parametrize(
    ("claim", "busy", "stale"),
    [
        (Claim(2, 6, OwnState.OWNED, None), frozenset(), True),
        (Claim(2, 6, OwnState.OWNED, None), frozenset({2}), True),  # a source is fenced before the directory changes
        (Claim(2, 6, OwnState.FENCED, None), frozenset(), True),
        (Claim(2, 6, OwnState.FENCED, None), frozenset({2}), False),  # a source that is being retired
        (Claim(2, 6, OwnState.MOVED, "b"), frozenset(), False),
        (Claim(2, 7, OwnState.OWNED, None), frozenset(), False),  # the directory may be the old one
        (Claim(2, 8, OwnState.INCOMING, None), frozenset({2}), False),
        (Claim(99, 1, OwnState.OWNED, None), frozenset(), False),  # made since the snapshot, perhaps
    ],
)
def test_a_claim_is_stale_only_where_that_is_certain(claim: Claim, busy: frozenset[int], stale: bool) -> None:
    assert [found for found, _ in stale_claims(poll(OWNED, claim), world(busy=busy))] == [claim] * stale


def test_an_owner_with_an_old_epoch_is_stale_on_its_own_node() -> None:
    assert stale_claims(poll(OWNED), world(epoch=6)) == [(OWNED, Expected("a", 6, (P1,)))]
