"""Asks the node that owns a tablet about its keys: which are in use, and where to cut."""

from collections.abc import Sequence

from balancer.directory.model import Tablet
from balancer.directory.snapshot import Snapshot
from balancer.errors import Refused
from policies.model import KeySamples


class NodeSampler:
    """Answers from the nodes themselves, for tablets whose clients tell too little."""

    def ask(self, tablet: int) -> KeySamples | None:
        """Keys in use of a tablet; None: the node cannot tell."""
        return None

    def split_keys(self, snapshot: Snapshot, tablets: Sequence[Tablet], parts: int) -> list[bytes]:
        """The keys at which to cut neighbouring tablets into parts of about the same size."""
        raise Refused("no keys")
