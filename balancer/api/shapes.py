"""The documents of `/v1`: what the OpenAPI document is made from. Times are seconds since 1970, sizes are bytes.

Views fill them from states, snapshots and plans; nothing here has behaviour.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Document(BaseModel):
    """What every document is: closed and immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Leader(Document):
    """Who leads."""

    name: str | None
    epoch: int
    is_self: bool


class ScheduleShape(Document):
    """Whether a bundle may be balanced now, and when."""

    bundle: str
    formula: str
    level: str = Field(description="whose formula it is; empty: nobody has one, so always open")
    timezone: str
    open: bool
    closes_at: float | None
    next_open: float | None
    day: str = Field(description="today's date in that zone")
    strip: str = Field(description="today's 1440 minutes on the wall clock as bits, hexadecimal, first minute first")
    windows: list[tuple[float, float | None]] = Field(description="the next windows: start, end (null: never closes)")


class ScoreShape(Document):
    """How even a bundle is, 0 to 100."""

    now: float
    after_plan: float
    bound: float = Field(description="no plan within the budgets can reach more")
    limit: float = Field(description="no placement of these tablets can reach more")


class NodeShape(Document):
    """A node and what it carries."""

    id: str
    bundle: str
    state: str
    reason: str
    zone: str
    weight: float
    reachable: bool
    unreachable_since: float | None
    error: str
    version: str
    disagreements: int
    rewound: str = Field(description="why it is known to have gone back in time, and what to do; empty: it is not")
    tablets: int
    loads: dict[str, float]
    capacity: dict[str, float] = Field(
        description="bytes of disk and of memory, rows written and read per second, where known"
    )
    day: list[float | None] = Field(
        description="for each hour of a working day, of the weekend on such a day: its reads and writes over its share;"
        " null: not known; empty: no hour is known"
    )
    database_bytes: float
    connections: int
    retained_wal_bytes: float


class ProgressShape(Document):
    """How far the work of a bundle has come since it last had nothing to do."""

    begun: float
    done: int
    running: int
    left: int = Field(description="actions that the plan wants and that have not begun")
    done_bytes: float
    left_bytes: float = Field(description="of what runs and of what is left")
    eta: float | None = Field(description="seconds; null: nothing has been copied yet that it could be told from")


class BundleShape(Document):
    """A bundle in one sentence and a few figures."""

    name: str
    mode: str
    word: str
    headline: str = Field(description="one short line")
    sentence: str
    progress: ProgressShape | None = Field(description="null: there is nothing to do")
    at: float = Field(description="when it was last looked at")
    paused: bool
    paused_until: float | None
    error: str
    score: ScoreShape | None
    imbalance: dict[str, float]
    tablets: int
    nodes: int
    plan: str = Field(description="id of the present plan; empty: none is kept")


class Status(Document):
    """The instance and its bundles."""

    instance: str
    version: str
    leader: Leader
    directory_version: int
    directory_age: float
    tick_age: float
    bundles: list[BundleShape]


class TabletShape(Document):
    """A tablet: where it is, what of the key space it holds, and how busy it is."""

    id: int
    table: str
    bundle: str
    node: str
    epoch: int
    state: str
    lower: list[str] | None = Field(None, description="range tables; null: unbounded")
    upper: list[str] | None = Field(None, description="range tables, not included; null: unbounded")
    modulus: int | None = Field(None, description="hash tables")
    remainder: int | None = None
    bytes: float | None = Field(None, description="null: not polled yet")
    rows: float | None = None
    write_rate: float | None = None
    read_rate: float | None = None
    pinned_until: float | None = None
    pinned: bool = False
    migration: str = Field("", description="the unfinished migration that it is part of")


class TabletPage(Document):
    """Some tablets in key order."""

    tablets: list[TabletShape]
    next: str = Field("", description="pass as `after` for the next page; empty: this was the last one")


class ActionShape(Document):
    """What a plan wants to do, and why."""

    kind: str
    table: str
    tablets: list[int]
    source: str
    target: str
    reason: str
    code: str
    bytes: float
    gain: float


class RejectionShape(Document):
    """What a plan did not take, and why not."""

    kind: str
    tablets: list[int]
    target: str
    code: str
    reason: str


class PlanShape(Document):
    """A bundle's present plan."""

    bundle: str
    id: str
    at: float
    score: ScoreShape
    actions: list[ActionShape]
    action_count: int
    rejections: list[RejectionShape]
    counts: dict[str, int] = Field(description="how many candidates each reason kept back")
    node_changes: list[dict[str, str]]
    pending_moves: int
    pending_bytes: float
    notes: list[str]


class MigrationShape(Document):
    """A migration: running, or how it ended."""

    id: str
    bundle: str
    table: str
    operation: str
    mode: str
    state: str
    finished: bool
    sources: list[int]
    targets: list[int]
    source_node: str
    target_node: str
    reason: str
    error: str
    attempt: int
    created: float
    updated: float
    detail: dict[str, Any] = Field(description="what it remembers: rows, size, pause, verification")
    progress: dict[str, Any] | None = Field(description="running ones: bytes, rate, eta, what it waits for")


class MigrationPage(Document):
    """Migrations, running first, then the newest."""

    migrations: list[MigrationShape]
    running: int
    finished: int


class ChangeShape(Document):
    """One record that a commit changed."""

    kind: str
    key: str
    what: str = Field(description="put or remove")
    text: str


class HistoryEntry(Document):
    """Who changed what, when and why."""

    version: int
    at: float
    author: str
    epoch: int | None
    reason: str
    changes: list[ChangeShape]
    change_count: int


class HistoryPage(Document):
    """Commits, newest first."""

    entries: list[HistoryEntry]
    next: int | None = Field(description="pass as `before` for older ones; null: there are none")


class TableShape(Document):
    """A table."""

    name: str
    bundle: str
    layout: str
    key: list[str]
    key_types: list[str]
    roots: list[str]
    tablets: int


class HeatBin(Document):
    """A column of the heat map: one tablet, or neighbours that share it."""

    tablets: int
    first: int = Field(description="id of its first tablet")
    busiest: int = Field(description="id of its busiest tablet; the following figures are of that one")
    node: str
    lower: str
    upper: str
    bytes: float
    write_rate: float
    read_rate: float


class HeatShape(Document):
    """A table's key space over time. `cells` and `owners` have a byte per time and bin, row by row, in base64."""

    bundle: str
    table: str
    dimension: str
    times: list[float]
    bins: list[HeatBin]
    max: float = Field(description="what the byte 255 stands for; byte b is expm1(b / 255 × log1p(max))")
    cells: str
    nodes: list[str]
    owners: str = Field(description="numbers of `nodes`; 255: another one")


class RouteShape(Document):
    """Where a key lives."""

    table: str
    tablet: int
    epoch: int
    node: str
    dsn: str = Field(description="only for requests with the token; empty for other readers")
    state: str
    moving: bool = Field(description="whether a migration concerns the tablet: expect a short wait")
    version: int = Field(description="of the directory")


class CommandRequest(BaseModel):
    """An operator's wish."""

    model_config = ConfigDict(extra="forbid")

    verb: str = Field(max_length=40)
    arguments: dict[str, Any] = {}
    author: str = Field("", max_length=100, description="for the history")
    wait: float = Field(0.0, ge=0, le=60, description="seconds to wait for the leader's answer")


class CommandShape(Document):
    """A command and what became of it."""

    id: str
    verb: str
    arguments: dict[str, Any]
    author: str
    created: float
    state: str
    result: str
    migration: str = ""
    """The migration that it began, if any."""


class Sample(BaseModel):
    """A key in use."""

    model_config = ConfigDict(extra="forbid")

    key: list[int | str] = Field(min_length=1, max_length=32)
    weight: float = Field(1.0, gt=0, allow_inf_nan=False)
    write: bool = True


class SampleRequest(BaseModel):
    """Keys in use, as an application's coordinator saw them."""

    model_config = ConfigDict(extra="forbid")

    table: str = Field(max_length=200)
    reporter: str = Field(
        pattern=r"^[A-Za-z0-9._-]{1,64}$", description="who reports; a newer report replaces his last"
    )
    seconds: float = Field(10.0, gt=0, allow_inf_nan=False, description="how long they were collected")
    samples: list[Sample] = Field(min_length=1, max_length=1000)


class SampleAnswer(Document):
    """How many were taken."""

    taken: int


class FindingShape(Document):
    """Something that the consistency checker has found."""

    kind: str
    text: str
    table: str
    tablet: int | None
    node: str
    root: str
    count: int
    advice: str
    first: float = Field(description="when it was first seen")
    last: float


class CheckRoundShape(Document):
    """A round of the consistency checker that is over."""

    number: int
    began: float
    ended: float
    rows: int
    findings: int
    unchecked: int


class ChecksShape(Document):
    """The consistency checker of one bundle."""

    bundle: str
    round: int = Field(description="the present or last round")
    kind: str = Field(description="what is being looked at; empty: the round is over")
    rows: int
    findings: list[FindingShape]
    more: int = Field(description="findings beyond those that are kept")
    unchecked: list[str] = Field(description="why something could not be looked at")
    past: list[CheckRoundShape] = Field(description="rounds over time, oldest first")


class Overview(Document):
    """Everything the page shows first, in one answer."""

    status: Status
    tables: list[TableShape]
    nodes: list[NodeShape]
    schedules: list[ScheduleShape]
    scores: dict[str, list[tuple[float, float]]] = Field(description="per bundle: time and score of the last hour")
    plans: list[PlanShape]
    migrations: list[MigrationShape]
    running: int
    quarantined: list[TabletShape]
    hot: list[TabletShape]
    checks: list[ChecksShape]
    history: list[HistoryEntry]
