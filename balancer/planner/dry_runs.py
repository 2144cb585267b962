"""A command before it is given: what the leader would do, in words, and how to write it on the command line.

`balancer … --dry-run` and the page ask here, and this calls the same code as the leader: `commands.outcome_of`.
"""

import shlex
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from balancer.directory.snapshot import Snapshot
from balancer.planner.commands import outcome_of, request
from balancer.policies.bundle_view import Action, ActionKind
from balancer.policies.options import BundleOptions
from balancer.settings import Mode


def would_do(
    snapshot: Snapshot,
    verb: str,
    arguments: Mapping[str, Any],
    *,
    author: str,
    now: datetime,
    modes: Mapping[str, Mode] | None = None,
    options: Mapping[str, BundleOptions] | None = None,
) -> str:
    """What would be done, in words. Raises if the leader would refuse."""
    outcome = outcome_of(request(verb, arguments, author, now), snapshot, now, modes, options)
    return "; ".join(map(_in_words, outcome.actions)) or outcome.result


def _in_words(action: Action) -> str:
    tablets = ", ".join(map(str, action.tablets))
    if action.kind is ActionKind.MOVE:
        return f"move of tablet {tablets} of {action.table} from {action.source} to {action.target}"
    noun = "tablet" if len(action.tablets) == 1 else "tablets"
    if action.kind is ActionKind.EXPIRE:
        return f"expiry of {noun} {tablets} of {action.table} on {action.source}"
    return f"{action.kind} of {noun} {tablets} of {action.table} into {action.count} on {action.source}"


def command_line(verb: str, arguments: Mapping[str, Any]) -> str:
    """The same command for a shell; empty: it cannot be written there, or not with these arguments."""
    writer = _WRITERS.get(verb)
    try:
        words = [] if writer is None else writer(arguments)
    except (KeyError, TypeError, ValueError, OverflowError):
        return ""
    return shlex.join(["balancer", verb, *words]) if words else ""


def _named(*names: str, options: tuple[str, ...] = ()) -> Callable[[Mapping[str, Any]], list[str]]:
    """Positional arguments, then options."""

    def write(arguments: Mapping[str, Any]) -> list[str]:
        return _safe([str(arguments[name]) for name in names], *(_option(arguments, name) for name in options))

    return write


def _safe(places: list[str], *options: list[str]) -> list[str]:
    """A name that begins like an option goes after `--`."""
    said = [word for option in options for word in option]
    return [*said, "--", *places] if any(place.startswith("-") for place in places) else [*places, *said]


def _option(arguments: Mapping[str, Any], name: str) -> list[str]:
    value = arguments.get(name)
    return [f"--{name}={value}"] if value not in (None, "") else []


def _target(arguments: Mapping[str, Any]) -> list[str]:
    """Pause and resume: of a bundle, or of a migration."""
    length = _length(arguments, "for")
    if arguments.get("migration"):
        return _safe([str(arguments["migration"])], ["--migration"], length)
    return _safe([str(arguments["bundle"])], length, _option(arguments, "reason"))


def _length(arguments: Mapping[str, Any], option: str) -> list[str]:
    seconds = arguments.get("seconds")
    return [] if seconds is None else [f"--{option}={float(seconds):g}s"]


def _pin(arguments: Mapping[str, Any]) -> list[str]:
    return _safe([str(arguments["tablet"])], _length(arguments, "until"), _option(arguments, "reason"))


def _split(arguments: Mapping[str, Any]) -> list[str]:
    if arguments.get("keys"):
        raise ValueError("keys are written as people write them there, not as the directory keeps them")
    return _safe([str(arguments["tablet"])], *(_option(arguments, name) for name in ("parts", "reason", "mode")))


def _merge(arguments: Mapping[str, Any]) -> list[str]:
    return _safe(
        [str(tablet) for tablet in arguments["tablets"]], *(_option(arguments, name) for name in ("reason", "mode"))
    )


def _apply(arguments: Mapping[str, Any]) -> list[str]:
    numbers = arguments.get("actions") or ()
    return _safe([str(arguments["plan"])], [f"--action={int(number)}" for number in numbers])


def _plan(arguments: Mapping[str, Any]) -> list[str]:
    return _safe([str(arguments["bundle"])], ["--replan"])


_WRITERS: Final[Mapping[str, Callable[[Mapping[str, Any]], list[str]]]] = {
    "apply": _apply,
    "cancel": _named("migration"),
    "close": _named("node"),
    "drain": _named("node", options=("reason",)),
    "merge": _merge,
    "move": _named("tablet", "node", options=("reason", "mode")),
    "pause": _target,
    "pin": _pin,
    "plan": _plan,
    "release": _named("tablet"),
    "resume": _target,
    "run-now": _named("bundle"),
    "split": _split,
    "undrain": _named("node"),
    "unpin": _named("tablet"),
}
