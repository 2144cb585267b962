"""`balancer run-now`: one round of a bundle outside of its schedule."""

from typing import Annotated

import typer

from balancer.cli.migrate import check_dry
from balancer.cli.operate import give
from balancer.cli.output import Output, OutputOption, say, show_json
from balancer.cli.places import ConfigOption, DirectoryOption, directory_of
from balancer.cli.plan import chosen_plan, document_of, only_bundle, planned_again, show_plan
from balancer.planner.rounds import VERB

BundleArgument = Annotated[str | None, typer.Argument(help="a bundle; needed if there are several")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="only plan, and show what would start")]


def run_now(
    bundle: BundleArgument = None,
    dry_run: DryRunOption = False,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Starts at once what the next plan of a bundle wants, whatever its schedule says; budgets and pins still apply."""
    with directory_of(directory, config) as opened:
        arguments = {"bundle": only_bundle(opened.snapshot(), bundle)}
        if dry_run:
            check_dry(opened, VERB, arguments)
            planned_again(opened, arguments["bundle"])
            found = chosen_plan(opened.snapshot(), arguments["bundle"], None)
        else:
            answered = give(opened, VERB, arguments)
    if dry_run:
        show_json(document_of(found)) if output is Output.JSON else show_plan(found, 50)
    elif output is Output.JSON:
        show_json({"command": answered.id, "state": answered.state, "result": answered.result})
    else:
        say(answered.result)
