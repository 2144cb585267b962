"""Where things are in ZooKeeper, below one cluster's path. Nobody else builds a path."""

from dataclasses import dataclass

from balancer.directory.model import RecordKind
from balancer.directory.notes import SAMPLES, SLOTS
from balancer.directory.store.codec import RECORD_KINDS

_SLOTS = frozenset(SLOTS)


@dataclass(frozen=True, slots=True)
class Paths:
    """The layout; `base` begins with a slash and has none at the end."""

    base: str

    @property
    def epoch(self) -> str:
        """Its znode version is the leader's epoch."""
        return f"{self.base}/epoch"

    @property
    def leader(self) -> str:
        """Ephemeral; information only."""
        return f"{self.base}/leader"

    @property
    def root(self) -> str:
        """Its znode version is the directory's version."""
        return f"{self.base}/root"

    @property
    def pages(self) -> str:
        return f"{self.base}/pages"

    @property
    def log(self) -> str:
        return f"{self.base}/log"

    @property
    def notes(self) -> str:
        return f"{self.base}/notes"

    @property
    def ids(self) -> str:
        """Below it a znode per table, whose version is the number of id blocks that clients have taken."""
        return f"{self.base}/ids"

    def page(self, number: int) -> str:
        return f"{self.base}/pages/{number}"

    def entry(self, version: int) -> str:
        return f"{self.base}/log/{version:010d}"

    def records(self, kind: RecordKind) -> str:
        return f"{self.base}/{kind}s"

    def record(self, kind: RecordKind, key: str) -> str:
        return f"{self.base}/{kind}s/{key}"

    def topic(self, topic: str) -> str:
        return f"{self.base}/notes/{topic}"

    def note(self, topic: str, name: str) -> str:
        return f"{self.base}/notes/{topic}/{name}"

    def block(self, name: str) -> str:
        return f"{self.base}/ids/{name}"

    def slots(self) -> list[str]:
        """Where clients leave their key samples."""
        return [self.note(SAMPLES, name) for name in SLOTS]

    def is_slot(self, path: str) -> bool:
        """Whether applications may write there with only a reader's credentials."""
        folder, _, name = path.rpartition("/")
        return folder == self.ids or (folder == self.topic(SAMPLES) and name in _SLOTS)

    def folders(self) -> list[str]:
        """What must exist before the root does."""
        return [self.pages, self.log, self.notes, self.epoch, self.ids, *map(self.records, RECORD_KINDS)]
