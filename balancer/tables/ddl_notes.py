"""Schema changes as the directory's notes have them: their text, and how far each is. Written by `ddl_apply`."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from balancer.directory.contract import Directory
from balancer.directory.record_rules import HELD_BY_CHANGE

TOPIC = "ddl"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A change as the directory's note has it."""

    id: str
    bundle: str
    text: str
    author: str
    began: float
    state: str = "running"  # running, done, undone; an interrupted one says running
    allow_rewrite: bool = False
    role: str = ""
    error: str = ""
    done: Mapping[str, int] | None = None
    steps: int = 0

    @property
    def finished(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self.state != "running"

    @property
    def reason(self) -> str:
        """Why the bundle is held: the hold is found again by this."""
        return f"{HELD_BY_CHANGE}{self.id}"


def changes_of(directory: Directory, bundle: str = "") -> list[SchemaChange]:
    """The changes that the directory has notes of, oldest first. Skips a note that cannot be read."""
    found = []
    for name, document in directory.published(TOPIC).items():
        with suppress(TypeError, ValueError, KeyError):
            found.append(_read(name, document))
    return sorted((one for one in found if bundle in ("", one.bundle)), key=lambda one: one.began)


def _read(name: str, document: Any) -> SchemaChange:
    known = {key: document[key] for key in SchemaChange.__dataclass_fields__ if key in document}
    change = SchemaChange(**known)
    texts = (change.id, change.bundle, change.text, change.author, change.state, change.role, change.error)
    if change.id != name or not all(isinstance(text, str) for text in texts):
        raise ValueError("no note of a schema change")
    return replace(change, began=float(change.began), steps=int(change.steps))
