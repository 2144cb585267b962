"""Names of what a migration makes on a node, and nothing else: each contains the migration's id.

Such a name says whose it is (`owner_of`), so that leftovers are found and removed by name alone.
"""

import re

from psycopg import sql

from balancer.naming import SCHEMA

FENCE_TRIGGER = "!balancer_fence"  # sorts before every name a person would choose: it must fire first
FENCE_TRUNCATE_TRIGGER = "!balancer_fence_truncate"
CAPTURE_TRIGGER = "~balancer_capture"
CAPTURE_TRUNCATE_TRIGGER = "~balancer_capture_truncate"
MIRROR_TRIGGER = "!balancer_mirror"  # before the owner's triggers, so that few changes reach the new partitions late
MIRROR_TRUNCATE_TRIGGER = "!balancer_mirror_truncate"
TRIGGERS = (
    FENCE_TRIGGER,
    FENCE_TRUNCATE_TRIGGER,
    CAPTURE_TRIGGER,
    CAPTURE_TRUNCATE_TRIGGER,
    MIRROR_TRIGGER,
    MIRROR_TRUNCATE_TRIGGER,
)

SNAPSHOT_TRIGGER = "!balancer_snapshot"
KEPT_SCHEMA = "balancer_kept_"
"""Followed by the migration's id: holds a former owner's rows that somebody may have written to."""
CLOSED = "rewound"
"""In place of a migration's id: what stands on a node that has gone back in time."""

PREFIX = "tb_"
_OWNER = re.compile(r"(?:tb|changes|capture|mirror|chunks)_(m[0-9a-z]+)(?:_\d+|_switch)?")


def stream_name(migration: str) -> str:
    """Of its publication, its slot and its subscription."""
    return f"{PREFIX}{migration}"


def switch_name(migration: str) -> str:
    """In place of its id, in the row that says which switch has made the target ready: no publication has it."""
    return f"{migration}_switch"


def log_name(migration: str, index: int) -> sql.Identifier:
    """The table that remembers the changed keys of its partition number `index`."""
    return sql.Identifier(SCHEMA, f"changes_{migration}_{index}")


def notes_name(migration: str) -> sql.Identifier:
    """The target's table of the chunks that have arrived."""
    return sql.Identifier(SCHEMA, f"chunks_{migration}")


def capture_name(migration: str, index: int) -> sql.Identifier:
    """The trigger function that writes there."""
    return sql.Identifier(SCHEMA, f"capture_{migration}_{index}")


def mirror_name(migration: str, index: int) -> sql.Identifier:
    """The trigger function that makes a reshard's new partitions follow its old one number `index`."""
    return sql.Identifier(SCHEMA, f"mirror_{migration}_{index}")


def snapshot_trigger(migration: str) -> str:
    """What refuses writers with a snapshot from before its swap; a root may have several."""
    return f"{SNAPSHOT_TRIGGER}_{migration}"


def bound_constraint(migration: str) -> str:
    """The CHECK that tells ATTACH that no row has to be scanned."""
    return f"{PREFIX}{migration}_bound"


def owner_of(name: str) -> str | None:
    """The migration that an object of this name belongs to; None if it is not ours."""
    match = _OWNER.fullmatch(name)
    return match[1] if match else None
