"""The SQL of our schema: the files beside this module, and what they share with Python, written once, here.

In a file `{WORD}` stands for the constant of that name. `functions` is what every version replaces, `steps` what brings
a node's tables from version n to n + 1. Called by `install`; nothing else installs anything.
"""

import re
import textwrap
from importlib.resources import files

LEADER_LOCK = 0x7461626C
"""The class of our advisory locks ("tabl"). Objects: 0 leaders, 1 the schema's installation, 2 a schema change."""
WRITERS = 8385983981140574208
READERS = WRITERS + (1 << 47)
"""Added to a tablet's id. The first two bytes ("ta") keep clear of an application's own advisory locks."""

TICKET = "10 minutes"
KEPT = "2 hours"
"""How long a ticket is valid, and how long the inbox remembers after the outbox row was seen to be gone."""
OURS = "2 seconds"
"""For this long after it was sent, a message is left to its sender."""

NOT_KNOWN = "TB009"
"""SQLSTATE: this node does not know the table or the message (yet)."""
NO_ROW = "TB008"
"""SQLSTATE: the handler found no row to change."""

_ORDER = (
    "enter",
    "refuse_write",
    "tablets_of",
    "hold",
    "require_proof",
    "here",
    "refuse_closed",
    "decide",
    "refuse_expired",
    "reference_copies",
    "messages",
    "refuse_rekey",
    "raise_sequence",
)
_STEP = re.compile(r"(?m)^-- Step \d+.*\n")
_WORD = re.compile(r"\{([A-Z_]+)\}")


def functions() -> str:
    """One text for all; a change to it appends a step, even if it is an empty one."""
    return "".join(sent(_read(name)) for name in _ORDER)


def steps() -> tuple[str, ...]:
    """In order. One without a statement says that functions have changed."""
    return tuple(sent(step) if _says(step) else "SELECT" for step in _STEP.split(_read("steps"))[1:])


def _read(name: str) -> str:
    text = (files(__package__) / f"{name}.sql").read_text(encoding="utf-8")
    return _WORD.sub(lambda word: str(globals()[word[1]]), text)


def _says(step: str) -> bool:
    return any(line.strip() and not line.strip().startswith("--") for line in step.splitlines())


def sent(text: str) -> str:
    """As nodes have it: they keep the body of a function as it was sent, and it has always been indented."""
    return textwrap.indent(text, "    ")
