"""The endpoints of `/v1`: parameters in, documents out. Nothing is decided here; `views` makes the documents.

Endpoints are plain functions, which run in the server's threads; only those that wait for a change are coroutines.
"""

from hashlib import blake2b
from json import dumps
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response

from balancer.api import shapes
from balancer.api.access import Access
from balancer.api.answering import answer
from balancer.api.command_routes import Commands
from balancer.api.long_poll import MAX_WAIT, VersionWatch
from balancer.api.note_cache import Notes
from balancer.api.page_routes import add_pictures, add_questions, add_trials
from balancer.api.problems import RESPONSES
from balancer.api.sample_notes import publish
from balancer.api.source import Source
from balancer.api.views import bundles, heat, history, migrations, overview, plans, route, tablets
from balancer.api.views.check_results import check_results
from balancer.api.views.schedule import schedule
from balancer.directory.model import TabletState
from balancer.planner.recorder import LAYERS

Bundle = Annotated[str | None, Query(description="only this bundle", max_length=200)]
Limit = Annotated[int, Query(ge=1, le=1000, description="most entries in one answer")]
FewLimit = Annotated[int, Query(ge=1, le=200)]
IfNoneMatch = Annotated[str | None, Header(description="the ETag of the answer that you have")]
Wait = Annotated[float, Query(ge=0, le=MAX_WAIT, description="seconds to wait for a change, with If-None-Match")]


def add_reading(router: APIRouter, source: Source, notes: Notes) -> None:
    """What tells of the cluster and changes nothing."""

    @router.get("/status", response_model=shapes.Status)
    def get_status() -> Response:
        """The instance, its leader, and each bundle in one sentence."""
        return answer(bundles.status(source, notes))

    @router.get("/overview", response_model=shapes.Overview)
    def get_overview(if_none_match: IfNoneMatch = None) -> Response:
        """Everything the page shows, in one answer."""
        tag = _overview_tag(source, notes)
        if if_none_match == tag:
            return Response(status_code=304, headers={"ETag": tag})
        return answer(overview.overview(source, notes), ETag=tag, Cache_Control="no-cache")

    @router.get("/nodes", response_model=list[shapes.NodeShape])
    def get_nodes(bundle: Bundle = None) -> Any:
        """Every node with its loads and capacities."""
        return bundles.nodes(source, bundles.chosen(source, bundle))

    @router.get("/tables", response_model=list[shapes.TableShape])
    def get_tables(bundle: Bundle = None) -> Any:
        """Every table."""
        return tablets.tables(source.follower().snapshot, bundle)

    @router.get("/tablets", response_model=shapes.TabletPage)
    def get_tablets(
        *,
        bundle: Bundle = None,
        table: str | None = None,
        node: str | None = None,
        state: TabletState | None = None,
        limit: Limit = 100,
        after: Annotated[str, Query(description="`next` of the page before")] = "",
    ) -> Response:
        """Tablets in key order, page by page."""
        return answer(tablets.page(source, tablets.Filter(bundle, table, node, state), limit, after))

    @router.get("/tablets/{tablet}", response_model=shapes.TabletShape)
    def get_tablet(tablet: Annotated[int, Path(ge=1, le=2**63 - 1)]) -> Response:
        """One tablet."""
        shaper = tablets.Shaper(source)
        return answer(shaper.shape(shaper.snapshot.tablet(tablet)))

    @router.get("/hot", response_model=list[shapes.TabletShape])
    def get_hot(bundle: Bundle = None, limit: FewLimit = 20) -> Any:
        """The tablets with the greatest shares of their bundle's writes and reads."""
        return tablets.hottest(source, bundles.chosen(source, bundle), limit)

    @router.get("/plan", response_model=list[shapes.PlanShape])
    def get_plan(bundle: Bundle = None, limit: Limit = 100) -> Any:
        """The present plan of each bundle: actions with why, rejected candidates with why not."""
        return plans.plans(bundles.chosen(source, bundle), limit)

    @router.get("/schedule", response_model=list[shapes.ScheduleShape])
    def get_schedule(bundle: Bundle = None, windows: FewLimit = 10) -> Any:
        """Today's strip and the next windows of each bundle."""
        return [schedule(source, state, windows) for state in bundles.chosen(source, bundle)]

    @router.get("/heatmap", response_model=shapes.HeatShape)
    def get_heatmap(
        bundle: str,
        table: str,
        dimension: Annotated[str, Query(pattern=f"^({'|'.join(LAYERS)})$")] = LAYERS[0],
        rows: Annotated[int, Query(ge=1, le=360, description="most moments; neighbours are joined")] = 120,
        day: Annotated[bool, Query(description="the last day instead of the last hour")] = False,
    ) -> Response:
        """The key space of a table over the last hour or day, aggregated to at most 512 columns."""
        return answer(heat.heat(source, bundle, table, dimension, rows, day=day))


def add_records(router: APIRouter, source: Source, notes: Notes) -> None:
    """What is kept in the directory's journal."""

    @router.get("/migrations", response_model=shapes.MigrationPage)
    def get_migrations(
        which: migrations.Which = migrations.Which.ALL,
        bundle: Bundle = None,
        tablet: int | None = None,
        limit: Limit = 100,
    ) -> Response:
        """Running migrations with their progress, then finished ones, newest first."""
        snapshot = source.follower().snapshot
        progress = notes.progress(snapshot)
        return answer(migrations.page(snapshot, progress, which=which, bundle=bundle, tablet=tablet, limit=limit))

    @router.get("/checks", response_model=list[shapes.ChecksShape])
    def get_checks() -> Any:
        """What the consistency checker has found, and its rounds over time."""
        return check_results(notes.checks())

    @router.get("/history", response_model=shapes.HistoryPage)
    def get_history(
        bundle: Bundle = None,
        node: str | None = None,
        tablet: int | None = None,
        before: Annotated[int | None, Query(ge=0, description="`next` of the page before")] = None,
        limit: FewLimit = 50,
    ) -> Response:
        """Who changed what, when and why, newest first."""
        wanted = history.HistoryQuery(bundle, node, tablet)
        return answer(history.page(source.directory(), source.follower().snapshot, wanted, before, limit))


def add_waiting(router: APIRouter, source: Source, watch: VersionWatch, commands: Commands) -> None:
    """What may wait: for a change of the directory, or for the leader's answer."""

    @router.get("/route/{table}", response_model=shapes.RouteShape)
    async def get_route(
        request: Request,
        table: str,
        key: Annotated[
            list[str] | None, Query(description="the key's columns, in order; none of a whole table", max_length=32)
        ] = None,
        if_none_match: IfNoneMatch = None,
        wait: Wait = 0.0,
    ) -> Response:
        """The node that owns a key. The ETag is the directory's version; with `wait` it answers when that changes."""
        known = route.version_of(if_none_match)
        snapshot = source.follower().snapshot
        if known is not None and wait > 0:
            snapshot = await watch.newer_in_turn(known, wait)
        tag = f'"{snapshot.version}"'
        if known == snapshot.version:
            return Response(status_code=304, headers={"ETag": tag})
        return answer(
            route.route(snapshot, table, key or (), request.scope["knows_token"]), ETag=tag, Cache_Control="no-cache"
        )

    @router.post("/commands", response_model=shapes.CommandShape, status_code=202)
    async def post_command(request: Request, command: shapes.CommandRequest) -> Response:
        """Gives an operator's command to the leader. 202: it waits; 200: it is done; 409: the leader refused it."""
        given = await commands.give(command, request.client.host if request.client else "unknown")
        return answer(given.shape, given.status, Location=f"/v1/commands/{given.shape.id}")

    @router.get("/commands/{command}", response_model=shapes.CommandShape)
    async def get_command(command: str, wait: Wait = 0.0) -> Response:
        """What became of a command."""
        return answer(await commands.find(command, wait))

    @router.post("/samples", response_model=shapes.SampleAnswer, status_code=202)
    def post_samples(samples: shapes.SampleRequest) -> Response:
        """Keys in use, reported by an application: they feed the splitting of hot ranges."""
        at = source.clock.now().timestamp()
        taken = publish(source.directory(), source.follower().snapshot, samples, at)
        return answer(shapes.SampleAnswer(taken=taken), 202)


def v1(source: Source, watch: VersionWatch, access: Access) -> APIRouter:
    """All of it."""
    router = APIRouter(prefix="/v1", responses=RESPONSES)
    notes = Notes(source)
    add_reading(router, source, notes)
    add_records(router, source, notes)
    add_pictures(router, source)
    add_questions(router, source)
    commands = Commands(source, watch)
    add_trials(router, commands, access)
    add_waiting(router, source, watch, commands)
    return router


def _overview_tag(source: Source, notes: Notes) -> str:
    """Changes whenever the overview does; ages count in steps of ten seconds, for they always change."""
    follower, leader = source.follower(), source.leader()
    parts = [
        follower.snapshot.version,
        leader.name,
        leader.epoch,
        leader.is_self,
        int(follower.age() / 10),
        int(source.tick_age() / 10),
        *((name, state.at.timestamp(), state.sentence) for name, state in sorted(source.states().items())),
        dumps(notes.progress(follower.snapshot), sort_keys=True, default=str),
        dumps(notes.checks(), sort_keys=True, default=str),
    ]
    return f'"{blake2b(repr(parts).encode(), digest_size=12).hexdigest()}"'
