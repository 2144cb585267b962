"""Whether a node's own word on what it owns agrees with the directory. Pure: both sides are given as values.

A node restored from a backup believes in an older world: lower epochs, tablets that moved away long ago. It is not
trusted until an operator has looked: nothing is planned with it, and its claims are shown next to the truth.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import numpy as np

from balancer.naming import Name
from balancer.nodes.schema.install import OwnState
from balancer.nodes.tablets.object_names import CLOSED
from balancer.policies.view import Ints
from balancer.polling.node_poll import Claim, Claims, NodePoll

_HOLDING = (OwnState.OWNED, OwnState.FENCED)


class DisagreementKind(StrEnum):
    """What is wrong, as a stable word."""

    NOT_INSTALLED = "not-installed"
    WRONG_DATABASE = "wrong-database"
    REWOUND = "rewound"
    DIRECTORY_BEHIND = "directory-behind"
    MISSING = "missing"
    OLD_EPOCH = "old-epoch"
    NOT_OWNED = "not-owned"
    FORMER_OWNER = "former-owner"
    DETACHED = "detached"
    DEFAULT_PARTITION = "default-partition"


@dataclass(frozen=True, slots=True)
class Expected:
    """A tablet as the directory has it: its owner, epoch and partitions."""

    node: str
    epoch: int
    partitions: tuple[Name, ...] = ()


class Lookup(Protocol):
    """Tablets by id; a dictionary is one."""

    def get(self, number: int, /) -> Expected | None: ...


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One point in which node and directory differ, as a sentence."""

    kind: DisagreementKind
    text: str
    tablet: int | None = None


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """What the directory says, as far as one node is concerned."""

    cluster: str
    node: str
    leader_epoch: int
    """The newest leader's epoch."""
    mine: Mapping[int, Expected]
    """The node's own tablets."""
    tablets: "Lookup"
    """Those of every node: a claim on another node's tablet is looked up here."""
    busy: Set[int] = frozenset()
    """Tablets in unfinished migrations: the two sides may differ for a while."""
    rewound: str = ""
    """Why the node is known to have gone back in time; empty: it is not."""
    identity: str = ""
    """Of the directory; empty: it has none yet."""


def disagreements(poll: NodePoll, world: DirectoryView) -> list[Disagreement]:
    """Everything in which they differ; empty: the node can be trusted."""
    mine = world.mine
    if poll.identity is None:
        return (
            [Disagreement(DisagreementKind.NOT_INSTALLED, "our schema is missing, but tablets are recorded here")]
            if mine
            else []
        )
    wrong = list(_identity(poll, world))
    if any(found.kind is DisagreementKind.WRONG_DATABASE for found in wrong):
        return wrong
    for root, name in poll.defaults:
        text = f"{root} has the DEFAULT partition {name}, which takes rows of other nodes' tablets: detach it"
        wrong.append(Disagreement(DisagreementKind.DEFAULT_PARTITION, text))
    claims = {claim.tablet: claim for claim in poll.claims}
    attached: set[tuple[str, str]] = set(poll.partitions.names()) if mine else set()
    for number, expected in mine.items():
        claim = claims.get(number)
        if not _agrees(expected, claim, attached) and number not in world.busy:
            wrong.extend(_owned(number, expected, claim, attached))
    for number, claim in claims.items():
        if number not in mine and number not in world.busy and claim.state in _HOLDING:
            wrong.append(_foreign(claim, world.tablets.get(number)))
    return wrong


def narrowed(
    poll: NodePoll, world: DirectoryView, ids: Ints, epochs: Ints, detached: Sequence[int]
) -> tuple[NodePoll, DirectoryView]:
    """Both sides without the tablets on which they agree, which is nearly all of them: `disagreements` and
    `stale_claims` find the same. `ids` and `epochs` are those of `world.mine`, by increasing id; `detached` are those
    of them that lack a partition.
    """
    claims = poll.claims
    if not detached and not claims.others and _equal(claims, ids, epochs):
        return replace(poll, claims=_NOTHING), replace(world, mine={})
    agreed = _held(claims.ids, claims.epochs, ids, epochs) & ~np.isin(ids, np.array(detached, np.int64))
    doubtful = ids[~agreed].tolist()
    unsettled = np.isin(claims.ids, ids[agreed], invert=True)
    return (
        replace(poll, claims=Claims(claims.ids[unsettled], claims.epochs[unsettled], claims.others)),
        replace(world, mine={number: world.mine[number] for number in doubtful}),
    )


_NOTHING = Claims.of(())


def _equal(claims: Claims, ids: Ints, epochs: Ints) -> bool:
    return np.array_equal(claims.ids, ids) and np.array_equal(claims.epochs, epochs)


def _held(claimed: Ints, claimed_epochs: Ints, ids: Ints, epochs: Ints) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Which of these tablets are claimed with exactly this epoch."""
    if not len(claimed):
        return np.zeros(len(ids), np.bool_)
    places = np.minimum(np.searchsorted(claimed, ids), len(claimed) - 1)
    return np.asarray((claimed[places] == ids) & (claimed_epochs[places] == epochs))


def _identity(poll: NodePoll, world: DirectoryView) -> Iterator[Disagreement]:
    assert poll.identity is not None
    cluster, node, epoch = poll.identity.cluster, poll.identity.node, poll.identity.leader_epoch
    if (cluster, node) != (world.cluster, world.node):
        yield Disagreement(DisagreementKind.WRONG_DATABASE, f"this database is node {node} of cluster {cluster}")
        return
    if poll.identity.identity and world.identity not in ("", poll.identity.identity):
        text = f"this database is node {node} of another directory, named {cluster} as well"
        yield Disagreement(DisagreementKind.WRONG_DATABASE, text)
        return
    if world.rewound:
        yield Disagreement(DisagreementKind.REWOUND, rewound_words(world.node, world.rewound))
    if epoch > world.leader_epoch:
        text = f"it has seen leader {epoch}, the directory only {world.leader_epoch}: the directory is an old copy"
        yield Disagreement(DisagreementKind.DIRECTORY_BEHIND, text)


def rewound_words(node: str, why: str) -> str:
    """What an operator reads, with what to do next."""
    return (
        f"it has gone back in time: {why}; its tablets are closed to writes: bring the newer server back, or see what"
        f" `balancer node rejoin {node} --dry-run` would give up"
    )


def stale_claims(poll: NodePoll, world: DirectoryView) -> list[tuple[Claim, Expected]]:
    """Claims that the directory has outdated, with what it says instead: the node has gone back in time.

    An owner is fenced before the directory changes, and stays fenced. So a node says `owned` with an epoch below the
    directory's only if it has gone back. That is also true for tablets in migrations, and however old the snapshot is:
    epochs only grow. For fences it is true outside migrations. A tablet that the snapshot does not have proves nothing:
    it may have been made since.
    """
    stale: list[tuple[Claim, Expected]] = []
    for claim in poll.claims:
        known = world.tablets.get(claim.tablet)
        # What the guard has already closed is not news.
        if known is not None and claim.epoch < known.epoch and claim.migration != CLOSED:
            fenced = claim.state is OwnState.FENCED and claim.tablet not in world.busy
            if claim.state is OwnState.OWNED or fenced:
                stale.append((claim, known))
    return stale


def claims_words(stale: Sequence[tuple[Claim, Expected]]) -> str:
    """What stale claims say about their node."""
    claim, known = stale[0]
    more = f" and {len(stale) - 1} more" if len(stale) > 1 else ""
    return (
        f"it claims tablet {claim.tablet}{more} with epoch {claim.epoch}, and the directory gave epoch {known.epoch} to"
        f" node {known.node}"
    )


def _agrees(expected: Expected, claim: Claim | None, attached: set[tuple[str, str]]) -> bool:
    """Whether there is nothing to say about a tablet; `_owned` says it. Called for every tablet in every poll."""
    return (
        claim is not None
        and claim.epoch == expected.epoch
        and claim.state in _HOLDING
        and attached.issuperset(expected.partitions)
    )


def _owned(
    number: int, expected: Expected, claim: Claim | None, attached: Set[tuple[str, str]]
) -> Iterator[Disagreement]:
    if claim is None:
        yield Disagreement(
            DisagreementKind.MISSING, f"tablet {number} should be here, and the node knows nothing of it", number
        )
    elif claim.epoch < expected.epoch:
        text = f"tablet {number} has epoch {claim.epoch} here and {expected.epoch} in the directory: an old copy"
        yield Disagreement(DisagreementKind.OLD_EPOCH, text, number)
    elif claim.epoch > expected.epoch:
        text = f"tablet {number} has epoch {claim.epoch} here and only {expected.epoch} in the directory"
        yield Disagreement(DisagreementKind.DIRECTORY_BEHIND, text, number)
    elif claim.state not in _HOLDING:
        text = f"tablet {number} should be owned here, and the node calls it {claim.state}"
        yield Disagreement(DisagreementKind.NOT_OWNED, text, number)
    else:
        for name in expected.partitions:
            if name not in attached:
                yield Disagreement(
                    DisagreementKind.DETACHED, f"partition {name} of tablet {number} is not attached", number
                )


def _foreign(claim: Claim, expected: Expected | None) -> Disagreement:
    owner = f"it belongs to node {expected.node} with epoch {expected.epoch}" if expected else "it no longer exists"
    text = f"tablet {claim.tablet} is claimed here with epoch {claim.epoch}, but {owner}"
    return Disagreement(DisagreementKind.FORMER_OWNER, text, claim.tablet)
