"""`balancer simulate`: a scenario, or recorded polls, with the real policies and simulated time; nothing is touched."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from balancer.cli.output import Output, OutputOption, show_json
from balancer.cli.replayed import show_replay
from balancer.errors import UserError
from balancer.outside import read_text_file, visible
from balancer.policies.simulator import Story, simulate
from balancer.policies.simulator_report import StoryVerdict, check, draw
from balancer.policies.simulator_scenario import Scenario, ScenarioError, parse_scenario
from balancer.schedules.formula import Formula
from balancer.schedules.formula_errors import FormulaEvaluationError, FormulaSyntaxError

FileArgument = Annotated[Path | None, typer.Argument(help="the scenario, a text file")]
FromOption = Annotated[Path | None, typer.Option("--from", help="a file from `balancer record` instead of a scenario")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="with --from: PATH=VALUE, as in placement.start_threshold=0.2")
]
SettingsOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="with --from: try the settings of this balancer.toml")
]


def simulate_file(
    file: FileArgument = None,
    record: FromOption = None,
    sets: SetOption = None,
    config: SettingsOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Plays a scenario with the real policies: the load of each node over time, what was done and why.

    With --from, it replays recorded polls with their own settings and with changed ones, and prints the difference.
    Exit code 1 means that an expectation of the scenario did not hold.
    """
    if (file is None) == (record is None):
        raise UserError("name a scenario, or a record with --from, and not both")
    if record is not None:
        show_replay(record, sets or [], config, output)
        return
    if sets or config is not None:
        raise UserError("--set and --config are for a record (--from); a scenario has lines `set PATH VALUE`")
    assert file is not None
    story, verdicts = tell(read(file))
    if output is Output.JSON:
        show_json(_document(story, verdicts))
    else:
        typer.echo(visible(draw(story)), nl=False)
    if not all(verdict.held for verdict in verdicts):
        raise typer.Exit(1)


def read(file: Path) -> Scenario:
    """The scenario in a file; what is wrong with it is said with its line."""
    try:
        return parse_scenario(read_text_file(file))
    except FileNotFoundError:
        raise UserError(f"the scenario {file} cannot be read: No such file or directory") from None
    except ScenarioError as error:  # a ValueError too, with its line
        raise UserError(f"the scenario {file} has a mistake in {error}") from error
    except ValueError as error:
        raise UserError(f"the scenario {file} {error}") from error


def tell(scenario: Scenario) -> tuple[Story, list[StoryVerdict]]:
    """Runs a scenario and checks it; its schedule is a formula over hours and minutes, as everywhere."""
    try:
        story = simulate(scenario, _opening(scenario.schedule))
        return story, check(story)
    except ScenarioError as error:
        raise UserError(f"the scenario has a mistake in {error}") from error
    except (FormulaSyntaxError, FormulaEvaluationError) as error:
        raise UserError(f"the scenario's schedule {scenario.schedule!r}: {error}") from error


def _opening(schedule: str) -> Callable[[int], bool] | None:
    if not schedule:
        return None
    formula = Formula(schedule)
    return lambda minute: bool(formula.evaluate(hours=minute // 60, minutes=minute % 60))


def _document(story: Story, verdicts: list[StoryVerdict]) -> dict[str, object]:
    return {
        "title": story.scenario.title,
        "samples": [asdict(sample) for sample in story.samples],
        "lines": [{"at": at, "text": text} for at, text in story.lines],
        "moved_bytes": story.moved_bytes,
        "expectations": [asdict(verdict) for verdict in verdicts],
    }
