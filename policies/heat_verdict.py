"""The verdicts on a hot tablet and what they rest on: values that `heat_judge` makes and people read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import sqrt

from balancer.policies.bundle_view import KeySamples
from balancer.policies.figures import share_text
from balancer.policies.hash_leaves import Leaf
from balancer.policies.heat_samples import Requests
from balancer.policies.key_text import show_value
from balancer.policies.keys import HIGHEST, KeyType, decode_key


class HeatWord(StrEnum):
    """The verdicts."""

    SPLIT = "split at key"
    HOT_KEY = "hot key"
    FRONT = "moving front"
    SCAN = "scan bound"
    TOO_FEW = "too few samples"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a judgement needs to know about a tablet."""

    tablet: int
    key_types: tuple[KeyType, ...]
    lower: bytes = b""
    upper: bytes = HIGHEST
    leaf: Leaf | None = None  # a hash table's; then bounds and types do not matter
    wanted: float = 0.5
    """What one part should carry at most, as a share of the tablet's load."""
    was_front: bool = False
    """Whether heat has cut it off at the end of its table: what is written at its own end now is the same front."""

    def name(self, key: bytes) -> str:
        """A key of this tablet as people write it; of a hashed key only the position is known."""
        if self.leaf is not None:
            return f"position 0x{key.hex()}"
        values = [show_value(value) for value in decode_key(self.key_types, key)]
        return values[0] if len(values) == 1 else "(" + ", ".join(values) + ")"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Figures by name (shares are of the sampled load), where they come from, and how reliable they are."""

    source: str
    samples: int
    confidence: float
    figures: Mapping[str, float] = field(default_factory=dict)

    def text(self) -> str:
        """For people."""
        return f"{self.samples} {self.source}, confidence {share_text(self.confidence)}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A word, what to do about it, and why."""

    word: HeatWord
    reason: str
    evidence: Evidence
    cuts: tuple[bytes, ...] = ()
    """A range tablet is cut at these keys; none: it is left as it is."""
    parts: tuple[Leaf, ...] = ()
    """A vbucket becomes these leaves; none: it is left as it is."""
    shares: tuple[float, ...] = ()
    """What each part would carry, as shares of the sampled load; requests across a cut count on both sides."""
    key: bytes | None = None
    """The hot key: encoded, or a position."""
    front: int | None = None
    """Which part is the growing end: the first (0) or the last (-1)."""


def evidence(samples: KeySamples, requests: Requests, **figures: float) -> Evidence:
    """Few samples say less than many: the error of a share falls with the square root of their number."""
    believed = samples.confidence * (1 - 1 / sqrt(len(requests))) if len(requests) else 0.0
    return Evidence(samples.source.value, len(requests), believed, figures)
