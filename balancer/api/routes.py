"""The endpoints of `/v1`: parameters in, documents out. Nothing is decided here; `views` makes the documents.

Endpoints are plain functions, which run in the server's threads; only those that wait for a change are coroutines.
Their names are the operations' ids in the OpenAPI document: a client that was made from it calls them by these.

Endpoints of `/v1` that pictures and questions are made from, and what a command would do. Nothing changes.

Documents as responses.

Key samples from coordinators in other languages, left as notes for the tick that splits hot ranges.

The note is that of the client library (`directory.notes`). Its name is `<reporter>.<table id>`: a newer report of
the same reporter replaces its last one, so notes stay bounded.
"""

from hashlib import blake2b
from json import dumps
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Path, Query, Request, Response
from pydantic import AwareDatetime, BaseModel

from balancer.api import record_shapes, shapes
from balancer.api.access import Access
from balancer.api.command_routes import EXAMPLES, CommandRequest, Commands
from balancer.api.directory_feed import MAX_WAIT, VersionWatch, add_feed
from balancer.api.problems import RESPONSES
from balancer.api.shapes import SampleRequest
from balancer.api.source import LogCache, Notes, Source
from balancer.api.views import bundles, migrations, pictures, plans, tablets
from balancer.api.views.past import past_cluster
from balancer.api.views.pictures import cluster, series
from balancer.api.views.plans import check_list, schedule_list
from balancer.directory.contract import Directory
from balancer.directory.locate import position_of
from balancer.directory.model import TabletState
from balancer.directory.notes import SAMPLES, entry, sample_note
from balancer.directory.snapshot import Snapshot

CLUSTER, RECORDS, ROUTING = "cluster", "records", "routing"

Bundle = Annotated[str | None, Query(description="only this bundle", max_length=200)]
Limit = Annotated[int, Query(ge=1, le=1000, description="maximum number of entries in one answer")]
FewLimit = Annotated[int, Query(ge=1, le=200, description="maximum number of entries in one answer")]
Cursor = Annotated[str, Query(description="`next` of the previous answer; empty: from the beginning")]
IfNoneMatch = Annotated[str | None, Header(description="the ETag of the answer you have")]
Wait = Annotated[float, Query(ge=0, le=MAX_WAIT, description="seconds to wait for a change, with If-None-Match")]
AnswerWait = Annotated[float, Query(ge=0, le=MAX_WAIT, description="seconds to wait for the leader's answer")]
UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "Nothing has changed since"}}


def add_cluster(router: APIRouter, source: Source, notes: Notes) -> None:
    """What tells of the cluster and changes nothing."""

    @router.get("/status", response_model=shapes.Status, tags=[CLUSTER])
    def get_status() -> Response:
        """The instance, its leader, and each bundle in one sentence."""
        return answer(bundles.status(source, notes))

    @router.get("/overview", response_model=record_shapes.Overview, responses=UNCHANGED, tags=[CLUSTER])
    def get_overview(if_none_match: IfNoneMatch = None) -> Response:
        """Everything the page shows, in one answer."""
        tag = _overview_tag(source, notes)
        if if_none_match == tag:
            return Response(status_code=304, headers={"ETag": tag})
        return answer(plans.overview(source, notes), ETag=tag, Cache_Control="no-cache")

    @router.get("/nodes", response_model=shapes.NodeList, tags=[CLUSTER])
    def get_nodes(bundle: Bundle = None, limit: Limit = 100, cursor: Cursor = "") -> Response:
        """Every node with its loads and capacities."""
        return answer(bundles.node_list(bundles.nodes(source, bundles.chosen(source, bundle)), limit, cursor))

    @router.get("/tables", response_model=shapes.TableList, tags=[CLUSTER])
    def get_tables(bundle: Bundle = None, limit: Limit = 100, cursor: Cursor = "") -> Response:
        """Every table."""
        return answer(tablets.table_list(source.follower().snapshot, bundle, limit, cursor))

    @router.get("/schedules", response_model=shapes.ScheduleList, tags=[CLUSTER])
    def get_schedules(
        bundle: Bundle = None,
        windows: Annotated[int, Query(ge=1, le=200, description="how many windows of each")] = 10,
        limit: Limit = 100,
        cursor: Cursor = "",
    ) -> Response:
        """Today's strip and the next windows of each bundle."""
        return answer(schedule_list(source, bundles.chosen(source, bundle), windows, limit, cursor))


def add_tablets(router: APIRouter, source: Source) -> None:
    """What tells of tablets."""

    @router.get("/tablets", response_model=shapes.TabletList, tags=[CLUSTER])
    def get_tablets(
        *,
        bundle: Bundle = None,
        table: str | None = None,
        node: str | None = None,
        state: TabletState | None = None,
        limit: Limit = 100,
        cursor: Cursor = "",
    ) -> Response:
        """Tablets in key order, page by page."""
        return answer(tablets.page(source, tablets.Filter(bundle, table, node, state), limit, cursor))

    @router.get("/tablets/{tablet}", response_model=shapes.TabletShape, tags=[CLUSTER])
    def get_tablet(tablet: Annotated[int, Path(ge=1, le=2**63 - 1)]) -> Response:
        """One tablet."""
        shaper = tablets.Shaper(source)
        return answer(shaper.shape(shaper.snapshot.tablet(tablet)))

    @router.get("/hot", response_model=shapes.TabletList, tags=[CLUSTER])
    def get_hot(bundle: Bundle = None, limit: FewLimit = 20) -> Response:
        """The tablets with the greatest shares of their bundle's writes and reads; nothing follows them."""
        return answer(shapes.TabletList(items=tablets.hottest(source, bundles.chosen(source, bundle), limit)))

    @router.get("/heatmap", response_model=shapes.HeatShape, tags=["pictures"])
    def get_heatmap(
        bundle: str,
        table: str,
        dimension: shapes.Dimension = shapes.Dimension.WRITES,
        rows: Annotated[int, Query(ge=1, le=360, description="maximum number of moments; neighbours are merged")] = 120,
        day: Annotated[bool, Query(description="the last day instead of the last hour")] = False,
    ) -> Response:
        """The key space of a table over the last hour or day, aggregated to at most 512 columns."""
        return answer(pictures.heat(source, bundle, table, dimension, rows, day=day))


def add_records(router: APIRouter, source: Source, notes: Notes) -> None:
    """What is planned, and what is kept in the directory's journal."""

    @router.get("/plans", response_model=record_shapes.PlanList, tags=[RECORDS])
    def get_plans(
        bundle: Bundle = None,
        actions: Annotated[
            int, Query(ge=1, le=1000, description="maximum number of actions, and of rejections, per plan")
        ] = 100,
        limit: Limit = 100,
        cursor: Cursor = "",
    ) -> Response:
        """The present plan of each bundle: actions with why, rejected candidates with why not."""
        return answer(plans.plan_list(plans.plans(bundles.chosen(source, bundle), actions), limit, cursor))

    @router.get("/migrations", response_model=record_shapes.MigrationList, tags=[RECORDS])
    def get_migrations(
        which: migrations.Which = migrations.Which.ALL,
        bundle: Bundle = None,
        tablet: int | None = None,
        limit: Limit = 100,
        cursor: Cursor = "",
    ) -> Response:
        """Running migrations with their progress, then finished ones, newest first."""
        snapshot = source.follower().snapshot
        chosen = migrations.Chosen(which, bundle, tablet)
        return answer(migrations.page(snapshot, notes.progress(snapshot), chosen, limit=limit, cursor=cursor))

    @router.get("/checks", response_model=record_shapes.CheckList, tags=[RECORDS])
    def get_checks(limit: Limit = 100, cursor: Cursor = "") -> Response:
        """What the consistency checker has found, and its rounds over time."""
        return answer(check_list(notes.checks(), limit, cursor))

    @router.get("/history", response_model=record_shapes.HistoryList, tags=[RECORDS])
    def get_history(
        *,
        bundle: Bundle = None,
        node: str | None = None,
        tablet: int | None = None,
        steps: Annotated[bool, Query(description="also each step of migrations and plans")] = True,
        limit: FewLimit = 50,
        cursor: Cursor = "",
    ) -> Response:
        """Who changed what, when and why, newest first."""
        wanted = migrations.HistoryQuery(bundle, node, tablet, steps)
        return answer(migrations.history_page(source.directory(), source.follower().snapshot, wanted, limit, cursor))


def add_commands(router: APIRouter, commands: Commands) -> None:
    """What is asked of the leader."""

    @router.post(
        "/commands",
        response_model=record_shapes.CommandShape,
        status_code=202,
        responses={200: {"model": record_shapes.CommandShape, "description": "It is done"}},
        tags=[COMMANDS],
    )
    async def post_command(request: Request, command: CommandBodyOf, wait: AnswerWait = 0.0) -> Response:
        """Gives an operator's command to the leader. 202: it waits; 200: it is done; 409: it is refused, and why."""
        given = await commands.give(command, request.client.host if request.client else "unknown", wait)
        return answer(given.shape, given.status, Location=f"/v1/commands/{given.shape.id}")

    @router.get("/commands", response_model=record_shapes.CommandList, tags=[COMMANDS])
    def get_commands(limit: Limit = 100, cursor: Cursor = "") -> Response:
        """The commands that were given, newest first, as long as the directory keeps them."""
        return answer(commands.given(limit, cursor))

    @router.get("/commands/{command}", response_model=record_shapes.CommandShape, tags=[COMMANDS])
    async def get_command(command: str, wait: AnswerWait = 0.0) -> Response:
        """What became of a command."""
        return answer(await commands.find(command, wait))


def add_routing(router: APIRouter, source: Source, watch: VersionWatch) -> None:
    """What applications need."""

    @router.get("/route/{table}", response_model=shapes.RouteShape, responses=UNCHANGED, tags=[ROUTING])
    async def get_route(
        request: Request,
        table: str,
        key: Annotated[
            list[str] | None, Query(description="the key's columns, in order; none for a whole table", max_length=32)
        ] = None,
        if_none_match: IfNoneMatch = None,
        wait: Wait = 0.0,
    ) -> Response:
        """The node that owns a key. The ETag is the directory's version; with `wait` it answers when that changes."""
        known = tablets.version_of(if_none_match)
        snapshot = source.follower().snapshot
        if known is not None and wait > 0:
            snapshot = await watch.newer_in_turn(known, wait)
        tag = f'"{snapshot.version}"'
        if known == snapshot.version:
            return Response(status_code=304, headers={"ETag": tag})
        return answer(
            tablets.route(snapshot, table, key or (), request.scope["knows_token"]), ETag=tag, Cache_Control="no-cache"
        )

    @router.post("/samples", response_model=shapes.SampleAnswer, status_code=202, tags=[ROUTING])
    def post_samples(samples: shapes.SampleRequest) -> Response:
        """Keys in use, reported by an application: they feed the splitting of hot ranges."""
        at = source.clock.now().timestamp()
        taken = publish(source.directory(), source.follower().snapshot, samples, at)
        return answer(shapes.SampleAnswer(taken=taken), 202)


def v1(source: Source, watch: VersionWatch, access: Access) -> APIRouter:
    """All of it."""
    router = APIRouter(prefix="/v1", responses=RESPONSES)
    notes = Notes(source)
    add_cluster(router, source, notes)
    add_tablets(router, source)
    add_records(router, source, notes)
    add_pictures(router, source)
    add_questions(router, source)
    commands = Commands(source, watch)
    add_trials(router, commands, access)
    add_commands(router, commands)
    add_routing(router, source, watch)
    add_feed(router, source, watch)
    return router


def _overview_tag(source: Source, notes: Notes) -> str:
    """Changes whenever the overview does; ages count in steps of ten seconds, for they always change."""
    follower, leader = source.follower(), source.leader()
    spread = leader.spread
    parts = [
        follower.snapshot.version,
        leader.name,
        leader.epoch,
        leader.is_self,
        spread and (spread.wanted, spread.waits_for, [(one.name, one.weight, one.unfit) for one in spread.instances]),
        int(follower.age() / 10),
        int(source.tick_age() / 10),
        *((name, state.at.timestamp(), state.sentence) for name, state in sorted(source.states().items())),
        dumps(notes.progress(follower.snapshot), sort_keys=True, default=str),
        dumps(notes.checks(), sort_keys=True, default=str),
    ]
    return f'"{blake2b(repr(parts).encode(), digest_size=12).hexdigest()}"'


PICTURES, QUESTIONS, COMMANDS = "pictures", "questions", "commands"
CommandBodyOf = Annotated[
    CommandRequest, Body(openapi_examples={name: {"value": dict(one)} for name, one in EXAMPLES.items()})
]
TabletId = Annotated[int, Path(ge=1, le=2**63 - 1)]


def add_pictures(router: APIRouter, source: Source) -> None:
    """What is drawn."""
    log = LogCache(source)

    @router.get("/cluster", response_model=record_shapes.ClusterShape, tags=[PICTURES])
    def get_cluster(
        bundle: str,
        at: Annotated[AwareDatetime | None, Query(description="a moment of the last day")] = None,
    ) -> Response:
        """A bundle as a picture: nodes as rows, tablets as blocks. With `at` as it was, as far as that is kept."""
        state = bundles.chosen(source, bundle)[0]
        return answer(cluster(state) if at is None else past_cluster(source, log, state.bundle, at.timestamp()))

    @router.get("/series", response_model=record_shapes.SeriesShape, tags=[PICTURES])
    def get_series(
        bundle: str, day: Annotated[bool, Query(description="the last day instead of the last hour")] = False
    ) -> Response:
        """A bundle over time: words, scores, loads of its nodes, migrations."""
        return answer(series(source, log, bundles.chosen(source, bundle)[0].bundle, day=day))


def add_questions(router: APIRouter, source: Source) -> None:
    """What is asked."""

    @router.get("/explain/tablets/{tablet}", response_model=record_shapes.ExplanationShape, tags=[QUESTIONS])
    def explain_tablet(tablet: TabletId) -> Response:
        """Why a tablet is where it is, since when, and what the plan does with it."""
        return answer(plans.about_tablet(source, tablet))

    @router.get("/explain/nodes/{node:path}", response_model=record_shapes.ExplanationShape, tags=[QUESTIONS])
    def explain_node(node: str) -> Response:
        """How full a node is, and what the plan takes from it and gives to it."""
        return answer(plans.about_node(source, node))

    @router.get("/why-not/{tablet}", response_model=record_shapes.WhyNotShape, tags=[QUESTIONS])
    def get_why_not(tablet: TabletId, node: str) -> Response:
        """Why a tablet does not go to a node, and the smallest change that would make it so."""
        return answer(plans.why_not(source, tablet, node))


def add_trials(router: APIRouter, commands: Commands, access: Access) -> None:
    """What would be done, and by whom."""

    @router.get("/access", response_model=record_shapes.AccessShape, tags=[COMMANDS])
    def get_access(request: Request) -> Any:
        """What the bearer of this request may do."""
        denial = access.change_denial(request.scope["scheme"], request.headers.get("authorization", ""))
        return record_shapes.AccessShape(
            may_change=denial is None,
            why_not=denial.reason if denial else "",
            sign_in=denial is not None and denial.status == 401,
        )

    @router.post("/commands/dry-run", response_model=record_shapes.DryRunShape, tags=[COMMANDS])
    def post_dry_run(request: Request, command: CommandBodyOf) -> Response:
        """What a command would do, by the code that the leader asks. 409: it would be refused, and why."""
        return answer(commands.try_out(command, request.client.host if request.client else "unknown"))


def answer(document: BaseModel, status: int = 200, **headers: str) -> Response:
    """A document as it is: views make valid ones, so nothing is validated a second time."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(document.model_dump_json(), status, named, "application/json")


def publish(directory: Directory, snapshot: Snapshot, request: SampleRequest, at: float) -> int:
    """Leaves the samples for the leader; returns how many."""
    table = snapshot.table(request.table)
    samples = [
        entry(position_of(table, list(map(str, sample.key))), sample.weight, sample.write) for sample in request.samples
    ]
    note = sample_note(at, request.seconds, {str(table.id): samples})
    directory.publish(SAMPLES, f"{request.reporter}.{table.id}", note)
    return len(samples)
