"""The result of a demonstration: before, after, what was moved, and what the application noticed."""

from typing import Any

from balancer.cli.demo.screen import Picture, Step
from balancer.cli.output import Output, say, show_json
from balancer.settings.units import format_duration, format_size


def summarise(picture: Picture, output: Output) -> None:
    """Tells it, as sentences or as one document."""
    facts = facts_of(picture)
    if output is Output.JSON:
        show_json(facts)
        return
    before, after = (_score(facts[name]) for name in ("score_before", "score_after"))
    say(f"\n{'balanced' if facts['balanced'] else 'ended'} after {picture.seconds:.0f} s")
    say(f"  balance          {before} before, {after} after, of 100")
    say(f"  migrations       moves {facts['moves']}, splits {facts['splits']}, merges {facts['merges']},"
        f" failed {facts['failed_migrations']}")  # fmt: skip
    say(f"  bytes moved      {format_size(facts['bytes'])}")
    if facts["longest_write_pause"] is not None:
        median, longest = format_duration(facts["median_write_pause"]), format_duration(facts["longest_write_pause"])
        say(f"  writers waited   {median} median, {longest} longest")
    say(f"  operations       {picture.count.operations}, failed {picture.count.failed},"
        f" slowest {format_duration(picture.count.slowest)}")  # fmt: skip
    if picture.count.failed:
        say(f"  last error       {picture.count.last_error}")


def facts_of(picture: Picture) -> dict[str, Any]:
    """The same as values; pauses in seconds."""
    done = [migration for migration in picture.finished if migration.state == "done"]
    pauses = sorted(pause for migration in done if (pause := migration.detail.get("pause")) is not None)
    plan = picture.state.plan
    return {
        "balanced": picture.step is Step.STEADY,
        "seconds": round(picture.seconds, 1),
        "score_before": picture.first_score,
        "score_after": None if plan is None else plan.score_before,
        "moves": sum(1 for migration in done if migration.operation == "move"),
        "splits": sum(1 for migration in done if migration.operation == "split"),
        "merges": sum(1 for migration in done if migration.operation == "merge"),
        "failed_migrations": sum(1 for migration in picture.finished if migration.state == "failed"),
        "bytes": sum(migration.detail.get("size", 0) for migration in done),
        "median_write_pause": pauses[len(pauses) // 2] if pauses else None,
        "longest_write_pause": pauses[-1] if pauses else None,
        "operations": picture.count.operations,
        "failed_operations": picture.count.failed,
        "slowest_operation": picture.count.slowest,
    }


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
