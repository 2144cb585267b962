"""What each node last said about its place in time: kept across polls, restarts and leaders, by notes in the directory.

Belongs to one poller. The leader publishes it after its polls; everybody reads what was published when they begin. No
commit is made for it: a lost or late note only makes the memory older, which can hide that a node went back, but never
claims it. The node's `generation` in the directory says what an operator has accepted since.
"""

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from balancer.directory.contract import Directory
from balancer.directory.model import Json, Node
from balancer.nodes.footing import Footing, read_footing, went_back
from balancer.nodes.poll import NodePoll

TOPIC: Final = "footings"
"""The topic of the notes; their names are those of the bundles."""


class FootingBook:
    """Safe to read from the threads that ask the nodes."""

    def __init__(self, known: Mapping[str, tuple[int, Footing]] | None = None) -> None:
        self._known = dict(known or {})  # node → generation and footing
        self._lock = threading.Lock()
        self._published: Json = None

    @classmethod
    def load(cls, directory: Directory, bundle: str) -> "FootingBook":
        """As it was last published."""
        noted = directory.published(TOPIC).get(bundle) or {}
        return cls({node: (int(said["generation"]), read_footing(said)) for node, said in noted.items()})

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
        return ""

    def publish(self, directory: Directory, bundle: str) -> None:
        """Leaves the note if something has changed since the last one."""
        with self._lock:
            note = {
                node: {"generation": generation, **footing.document()}
                for node, (generation, footing) in self._known.items()
            }
        if note != self._published:
            directory.publish(TOPIC, bundle, note)
            self._published = note
