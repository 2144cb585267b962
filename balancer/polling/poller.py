"""One poll of the whole cluster: every node measured, its claims compared with the directory, rates updated.

The daemon owns one `Poller` and calls `poll` once per tick, always from the same thread. A node that does not answer,
is a standby or contradicts the directory is a value in the result; what was last known about its tablets stays.

What each node last said about its place in time: kept across polls, restarts and leaders, by notes in the directory.

With it, the standbys that each node was seen to have: a node that had one and has none may have been replaced by it.

Belongs to one poller. The leader publishes it after its polls; everybody reads what was published when they begin. No
commit is made for it: a lost or late note only makes the memory older, which can hide that a node went back, but never
claims it. The node's `generation` in the directory says what an operator has accepted since.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import structlog

from balancer.clock import Clock
from balancer.directory.contract import Directory
from balancer.directory.identity import identity_of
from balancer.directory.model import Json, MigrationKind, Node
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError
from balancer.naming import Name
from balancer.nodes.session.ask_all import FanOut, Unreachable
from balancer.nodes.session.connection import Address, Timeouts, connect, deadline, node_itself, translated
from balancer.nodes.session.holder import ConnectionHolder
from balancer.polling.node_poll import Claim, NodePoll, poll_node, read_forks
from balancer.polling.ownership import (
    DirectoryView,
    Disagreement,
    Expected,
    claims_words,
    disagreements,
    narrowed,
    stale_claims,
)
from balancer.polling.rates import CounterSampler, Heir, Rates, advance, first_rates, own_work
from balancer.polling.rewind import Footing, Forks, read_footing, went_back
from balancer.polling.tablet_index import ColumnCache, TabletIndex, build_index, nothing_on
from balancer.untrusted import one_line

TOPIC: Final = "footings"
"""The topic of the notes; their names are those of the bundles."""


class FootingNotes:
    """Safe to read from the threads that ask the nodes."""

    def __init__(
        self,
        known: Mapping[str, tuple[int, Footing]] | None = None,
        standbys: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self._known = dict(known or {})  # node → generation and footing
        self._standbys = dict(standbys or {})
        self._lock = threading.Lock()
        self._published: Json = None

    @classmethod
    def load(cls, directory: Directory, bundle: str) -> "FootingNotes":
        """As it was last published."""
        noted = directory.published(TOPIC).get(bundle) or {}
        footings = {node: (int(said["generation"]), read_footing(said)) for node, said in noted.items()}
        return cls(footings, {node: _standbys_in(said) for node, said in noted.items()})

    def of(self, node: Node) -> Footing | None:
        """What the node said last, if that still counts."""
        with self._lock:
            generation, footing = self._known.get(node.id, (-1, None))
        return footing if generation >= node.generation else None

    def look(self, node: Node, poll: NodePoll) -> str:
        """Why the node has gone back, by its answer; empty: it has not, and the answer is remembered."""
        now, before = poll.footing, self.of(node)
        if before is not None:
            why = went_back(before, now, poll.forks)
            if why:
                return why
            if now.timeline > before.timeline and poll.forks is None:
                # The history could not be read, perhaps only now: where the log was on its old timeline still counts.
                now = replace(now, timeline=before.timeline, position=before.position)
        with self._lock:
            self._known[node.id] = node.generation, now
            seen = {one_line(name, _LONGEST_NAME) for name in poll.facts.standbys}
            if not seen <= set(self._standbys.get(node.id, ())):
                self._standbys[node.id] = tuple(sorted({*seen, *self._standbys.get(node.id, ())})[:_MOST_STANDBYS])
        return ""

    def publish(self, directory: Directory, bundle: str) -> None:
        """Leaves the note if something has changed since the last one."""
        with self._lock:
            note = {
                node: {
                    "generation": generation,
                    **footing.document(),
                    **({"standbys": list(self._standbys[node])} if self._standbys.get(node) else {}),
                }
                for node, (generation, footing) in self._known.items()
            }
        if note != self._published:
            directory.publish(TOPIC, bundle, note)
            self._published = note


_MOST_STANDBYS: Final = 8
_LONGEST_NAME: Final = 64


def known_standbys(directory: Directory, bundle: str, node: str) -> tuple[str, ...]:
    """The standbys that any leader has ever seen a node have, by their names: one of them may have been promoted."""
    return _standbys_in((directory.published(TOPIC).get(bundle) or {}).get(node) or {})


def _standbys_in(said: Mapping[str, Json]) -> tuple[str, ...]:
    return tuple(one_line(str(name), _LONGEST_NAME) for name in (said.get("standbys") or ())[:_MOST_STANDBYS])


log = structlog.get_logger()

WHOLE_EVERY = 60.0
"""Seconds between measurements of whole databases; what our partitions have in them is measured in every poll."""


class Health(StrEnum):
    """What a poll says about a node."""

    GOOD = "good"
    UNREACHABLE = "unreachable"
    STANDBY = "standby"  # the server is in recovery: it cannot take writes
    QUARANTINED = "quarantined"  # it contradicts the directory and is not trusted


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """One node after a poll."""

    node: str
    health: Health
    poll: NodePoll | None = None
    unreachable: Unreachable | None = None
    disagreements: tuple[Disagreement, ...] = ()
    rewound: str = ""
    """Why it has gone back in time; empty: it has not."""
    stale: tuple[tuple[Claim, Expected], ...] = ()
    """Its claims that the directory has outdated."""

    @property
    def reason(self) -> str:
        """Why it is not good, as a sentence; empty: it is."""
        if self.unreachable is not None:
            return self.unreachable.reason
        if self.health is Health.STANDBY:
            return "the server is a standby: name the primary in the DSN, or all hosts"
        return "; ".join(found.text for found in self.disagreements[:3])


@dataclass(frozen=True, slots=True)
class ClusterPoll:
    """All nodes, and what is known about every tablet."""

    at: float  # seconds since 1970
    version: int  # of the directory's snapshot
    nodes: Mapping[str, NodeAnswer]
    rates: Rates


class Poller:
    """Keeps connections, rates and the open questions between polls."""

    def __init__(
        self,
        cluster: str,
        clock: Clock,
        patience: float = 5.0,
        *,
        newest_epoch: Callable[[], int] = lambda: 0,
        book: FootingNotes | None = None,
    ) -> None:
        """`newest_epoch` reads the newest leader's epoch from the directory: called when a node knows a newer one than
        the snapshot, which may be from before an election that changed nothing else."""
        self._cluster = cluster
        self._clock = clock
        self._newest_epoch = newest_epoch
        self._book = book or FootingNotes()
        self._patience = patience
        timeouts = Timeouts(connect=patience, statement=patience, lock=min(1.0, patience), network=patience)
        self._holder = ConnectionHolder("poll", timeouts)
        self._fan_out: FanOut[NodePoll] = FanOut(clock)
        self.columns = ColumnCache()
        self._index = build_index(Snapshot(version=-1), ())
        self._sampler = CounterSampler()
        self._rates = first_rates()
        self._said: dict[str, tuple[tuple[Name, ...], NodePoll]] = {}
        """Node → the roots that it was asked for last, and its answer: what is the same is not sent again."""
        self._polls = 0
        self._others: dict[str, tuple[float, tuple[Name, ...], int]] = {}
        """Node → when its database was measured as a whole, for which roots, and the bytes in it that none of their
        partitions has."""

    def poll(self, snapshot: Snapshot, addresses: Mapping[str, Address]) -> ClusterPoll:
        """Asks every node of the snapshot that has an address; returns within the patience."""
        bundles = frozenset(snapshot.nodes[node].bundle for node in addresses if node in snapshot.nodes)
        if (self._index.version, self._index.bundles) != (snapshot.version, bundles):
            self._index = build_index(snapshot, bundles, self.columns, self._index)
        index = self._index
        questions = {
            node.id: self._question(node, addresses[node.id], index.roots.get(node.bundle, ()))
            for node in snapshot.nodes.values()
            if node.id in addresses
        }
        self._polls += 1
        at = self._clock.monotonic()
        answers = self._fan_out.ask(questions, self._patience)
        reports = {node: self._report(node, answer, snapshot, index) for node, answer in answers.items()}
        measured = {
            report.node: report.poll
            for report in reports.values()
            if report.poll is not None and report.health is Health.GOOD
        }
        sample = self._sampler.sample(measured, index, at, own_work(snapshot, self._polls))
        self._rates = advance(self._rates, sample, index.ids, heirs(snapshot))
        return ClusterPoll(self._clock.now().timestamp(), snapshot.version, reports, self._rates)

    def close(self) -> None:
        """Ends open questions by their timeouts and closes the connections. Idempotent."""
        self._fan_out.close()
        self._holder.close()

    def _question(self, node: Node, address: Address, roots: tuple[Name, ...]) -> Callable[[], NodePoll]:
        target = node_itself(address)

        def ask() -> NodePoll:
            with self._holder.borrow(address, target) as connection, deadline(connection, self._patience):
                began = self._clock.monotonic()
                measured, of, others = self._others.get(address.node, (0.0, (), 0))
                asked, said = self._said.get(address.node, (roots, None))
                before = said if asked == roots else None
                if of == roots and began - measured < WHOLE_EVERY:
                    found = poll_node(connection, roots, others, before)
                else:
                    found = poll_node(connection, roots, None, before)
                    others = found.facts.database_bytes - found.partitions.bytes()
                    self._others[address.node] = began, roots, others
                self._said[address.node] = roots, found
                seconds = self._clock.monotonic() - began
            return replace(found, seconds=seconds, forks=self._forks(node, address, found))

        return ask

    def _forks(self, node: Node, address: Address, found: NodePoll) -> Forks | None:
        """The history of a new timeline: read over a replication connection, as any role that moves tablets may. If it
        may not, positions and the mark must suffice."""
        before, facts = self._book.of(node), found.facts
        if before is None or facts.timeline <= before.timeline:
            return None
        timeouts = Timeouts(connect=self._patience, statement=self._patience, network=self._patience)
        try:
            with (
                translated(node.id),
                closing(connect(address, purpose="poll", timeouts=timeouts, replication=True)) as link,
                deadline(link, self._patience),
            ):
                return read_forks(link, facts.timeline)
        except BalancerError as error:
            log.warning("the history of a new timeline cannot be read", node=node.id, error=str(error))
            return None

    def _report(
        self,
        node: str,
        answer: NodePoll | Unreachable,
        snapshot: Snapshot,
        index: TabletIndex,
    ) -> NodeAnswer:
        if isinstance(answer, Unreachable):
            return NodeAnswer(node, Health.UNREACHABLE, unreachable=answer)
        if answer.facts.in_recovery:
            self._holder.forget(node)  # after a failover another host of the DSN may be the primary
            return NodeAnswer(node, Health.STANDBY, answer)
        record = snapshot.nodes[node]
        mine = index.by_node.get(node) or nothing_on(node)
        known, identity = answer.identity, identity_of(snapshot)
        ours = known is not None and known.node == node and known.identity in ("", identity or known.identity)
        why = record.rewound or (self._book.look(record, answer) if ours else "")
        world = DirectoryView(
            cluster=self._cluster,
            node=node,
            leader_epoch=self._leader_epoch(snapshot, answer),
            mine=mine,
            tablets=index.tablets,
            busy=snapshot.busy.keys(),
            rewound=why,
            identity=identity,
        )
        said, world = narrowed(answer, world, mine.ids, mine.epochs, mine.detached(answer.partitions.named))
        stale = stale_claims(said, world) if ours else []
        if stale and not why:
            why = claims_words(stale)
            world = replace(world, rewound=why)
        found = disagreements(said, world)
        health = Health.QUARANTINED if found else Health.GOOD
        return NodeAnswer(node, health, answer, None, tuple(found), why, tuple(stale))

    def _leader_epoch(self, snapshot: Snapshot, answer: NodePoll) -> int:
        known = answer.identity
        newer = known is not None and known.leader_epoch > snapshot.epoch
        return max(snapshot.epoch, self._newest_epoch()) if newer else snapshot.epoch


def heirs(snapshot: Snapshot) -> dict[int, Heir]:
    """Tablets that splits and merges have made."""
    return {
        target.id: Heir(record.sources, len(record.targets))
        for record in snapshot.migrations.values()
        if record.operation in (MigrationKind.SPLIT, MigrationKind.MERGE)
        for target in record.targets
    }
