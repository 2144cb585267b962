"""Where things are in ZooKeeper, below one cluster's path. Nobody else builds a path."""

from dataclasses import dataclass

from balancer.directory.model import RecordKind

RECORD_KINDS = tuple(kind for kind in RecordKind if kind is not RecordKind.TABLET)
"""Kinds with a znode for each record; tablets are in pages."""


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

    def folders(self) -> list[str]:
        """What must be there before the root is."""
        return [self.pages, self.log, self.notes, self.epoch, *map(self.records, RECORD_KINDS)]
