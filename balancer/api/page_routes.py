"""Endpoints of `/v1` that pictures and questions are made from, and what a command would do. Nothing changes."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Request, Response
from pydantic import AwareDatetime

from balancer.api import page_shapes as shapes
from balancer.api.access import Access
from balancer.api.answering import answer
from balancer.api.command_routes import Commands
from balancer.api.command_shapes import EXAMPLES, CommandRequest
from balancer.api.log_cache import LogCache
from balancer.api.source import Source
from balancer.api.views import answers, bundles
from balancer.api.views.past import past_cluster
from balancer.api.views.picture import cluster
from balancer.api.views.series import series

PICTURES, QUESTIONS, COMMANDS = "pictures", "questions", "commands"
CommandBodyOf = Annotated[
    CommandRequest, Body(openapi_examples={name: {"value": dict(one)} for name, one in EXAMPLES.items()})
]
TabletId = Annotated[int, Path(ge=1, le=2**63 - 1)]


def add_pictures(router: APIRouter, source: Source) -> None:
    """What is drawn."""
    log = LogCache(source)

    @router.get("/cluster", response_model=shapes.ClusterShape, tags=[PICTURES])
    def get_cluster(
        bundle: str,
        at: Annotated[AwareDatetime | None, Query(description="a moment of the last day")] = None,
    ) -> Response:
        """A bundle as a picture: nodes as rows, tablets as blocks. With `at` as it was, as far as that is kept."""
        state = bundles.chosen(source, bundle)[0]
        return answer(cluster(state) if at is None else past_cluster(source, log, state.bundle, at.timestamp()))

    @router.get("/series", response_model=shapes.SeriesShape, tags=[PICTURES])
    def get_series(
        bundle: str, day: Annotated[bool, Query(description="the last day instead of the last hour")] = False
    ) -> Response:
        """A bundle over time: words, scores, loads of its nodes, migrations."""
        return answer(series(source, log, bundles.chosen(source, bundle)[0].bundle, day=day))


def add_questions(router: APIRouter, source: Source) -> None:
    """What is asked."""

    @router.get("/explain/tablets/{tablet}", response_model=shapes.ExplanationShape, tags=[QUESTIONS])
    def explain_tablet(tablet: TabletId) -> Response:
        """Why a tablet is where it is, since when, and what the plan does with it."""
        return answer(answers.about_tablet(source, tablet))

    @router.get("/explain/nodes/{node:path}", response_model=shapes.ExplanationShape, tags=[QUESTIONS])
    def explain_node(node: str) -> Response:
        """How full a node is, and what the plan takes from it and gives to it."""
        return answer(answers.about_node(source, node))

    @router.get("/why-not/{tablet}", response_model=shapes.WhyNotShape, tags=[QUESTIONS])
    def get_why_not(tablet: TabletId, node: str) -> Response:
        """Why a tablet does not go to a node, and the smallest change that would make it so."""
        return answer(answers.why_not(source, tablet, node))


def add_trials(router: APIRouter, commands: Commands, access: Access) -> None:
    """What would be done, and by whom."""

    @router.get("/access", response_model=shapes.AccessShape, tags=[COMMANDS])
    def get_access(request: Request) -> Any:
        """What the bearer of this request may do."""
        denial = access.change_denial(request.scope["scheme"], request.headers.get("authorization", ""))
        return shapes.AccessShape(
            may_change=denial is None,
            why_not=denial.reason if denial else "",
            sign_in=denial is not None and denial.status == 401,
        )

    @router.post("/commands/dry-run", response_model=shapes.DryRunShape, tags=[COMMANDS])
    def post_dry_run(request: Request, command: CommandBodyOf) -> Response:
        """What a command would do, by the code that the leader asks. 409: it would be refused, and why."""
        return answer(commands.try_out(command, request.client.host if request.client else "unknown"))
