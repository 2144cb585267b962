"""What operators have said about single migrations (cancel, pause, resume), read from the answered commands.

A leader obeys at once, in memory; its successor finds the newest instruction here. Housekeeping keeps these commands
for as long as their migration is unfinished.
"""

from collections.abc import Mapping

from balancer.directory.model import Command, CommandState
from balancer.directory.snapshot import Snapshot

VERBS = frozenset({"cancel", "pause", "resume"})


def steered(command: Command, snapshot: Snapshot) -> str | None:
    """The unfinished migration that a command was carried out on; None: it concerns none."""
    if command.verb not in VERBS or command.state is not CommandState.DONE:
        return None
    migration = str(command.arguments.get("migration") or "")
    record = snapshot.migrations.get(migration)
    return migration if record is not None and not record.finished else None


def standing(snapshot: Snapshot) -> Mapping[str, str]:
    """Migration → the instruction that stands: `cancel` for good, otherwise the newest of `pause` and `resume`."""
    found: dict[str, str] = {}
    for command in sorted(snapshot.commands.values(), key=lambda command: (command.created, command.id)):
        migration = steered(command, snapshot)
        if migration is not None and found.get(migration) != "cancel":
            found[migration] = command.verb
    return found
