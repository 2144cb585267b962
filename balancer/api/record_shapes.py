"""Documents of `/v1` that tell of what is done: plans, migrations, commands, history, checks; and the overview.

Further documents of `/v1`: pictures of a bundle, answers to questions about it, and what a command would do.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import ConfigDict, Field

from balancer.api.shapes import Document, Listing, NodeShape, ScheduleShape, ScoreShape, Status, TableShape, TabletShape
from balancer.directory.model import CommandState, MigrationKind, MigrationMode, NodeState, RecordKind
from balancer.migration.machine import State
from balancer.planner.bundle_state import StateWord
from balancer.policies.check_options import CheckKind
from balancer.policies.view import ActionKind


class ActionShape(Document):
    """What a plan wants to do, and why."""

    number: int = Field(description="the number of this action in its plan, from 1; `apply` takes it")
    kind: ActionKind
    table: str
    tablets: list[int]
    source: str
    target: str
    reason: str
    code: str
    bytes: int
    gain: float


class RejectionShape(Document):
    """What a plan did not take, and why not."""

    kind: ActionKind
    tablets: list[int]
    target: str
    code: str
    reason: str


class NodeChangeShape(Document):
    """A node that a plan would close or open."""

    node: str
    condition: NodeState
    code: str
    reason: str


class PlanShape(Document):
    """A bundle's present plan."""

    bundle: str
    id: str
    at: datetime
    score: ScoreShape
    actions: list[ActionShape]
    action_count: int
    rejections: list[RejectionShape]
    counts: dict[str, int] = Field(description="how many candidates each reason held back")
    node_changes: list[NodeChangeShape]
    pending_moves: int
    pending_bytes: int
    notes: list[str]


class PlanList(Listing[PlanShape]):
    """By bundle."""


class MigrationFacts(Document):
    """What a migration's journal remembers; null: not known yet."""

    bytes: int | None = None
    rows: int | None = None
    pause_seconds: float | None = Field(None, description="how long the switch held back writers")
    predicted_pause_seconds: float | None = None
    bulk_verified: bool | None = None
    switched: datetime | None = Field(None, description="when the owner changed")
    fences: int = 0
    retries: int = 0
    restarts: int = 0
    retreat: str = Field("", description="the reason for the last retry")
    mode_reason: str = Field("", description="why it has become read-only")
    kept: str = Field("", description="what it could not remove, and why")


class MigrationProgress(Document):
    """How far a running migration is."""

    bytes_done: int
    bytes_total: int
    rows_done: int
    bytes_per_second: float
    eta_seconds: float | None
    lag_bytes: int | None = Field(description="bytes of the stream that are not applied yet")
    state_seconds: float = Field(description="how long it has been in its state")
    waiting_for: str
    paused: bool


class MigrationShape(Document):
    """A migration: running, or how it ended."""

    id: str
    bundle: str
    table: str
    operation: MigrationKind
    mode: MigrationMode
    state: State
    finished: bool
    sources: list[int]
    targets: list[int]
    source_node: str
    target_node: str
    reason: str
    error: str
    attempt: int
    created: datetime
    updated: datetime
    detail: MigrationFacts
    progress: MigrationProgress | None = Field(description="null: it has ended, or has not reported yet")
    way: list[State] = Field(
        description="the states from the first to the last, if nothing comes in between; running ones"
    )


class MigrationList(Listing[MigrationShape]):
    """Running ones first, then the newest."""


class ChangeWord(StrEnum):
    """What a commit did with a record."""

    PUT = "put"
    REMOVE = "remove"


class ChangeShape(Document):
    """One record that a commit changed."""

    kind: RecordKind
    key: str
    what: ChangeWord
    text: str


class HistoryEntry(Document):
    """Who changed what, when and why."""

    version: int
    at: datetime
    author: str
    epoch: int | None
    reason: str
    changes: list[ChangeShape]
    change_count: int


class HistoryList(Listing[HistoryEntry]):
    """Newest first."""


class CommandShape(Document):
    """A command and what became of it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "5f0c0ffee123",
                    "verb": "move",
                    "arguments": {"tablet": 3, "node": "pg-a"},
                    "author": "ann@10.0.0.7",
                    "created": "2026-03-01T12:00:00Z",
                    "state": "done",
                    "result": "move of tablet 3 starts",
                    "migration": "m-81",
                }
            ]
        }
    )

    id: str
    verb: str = Field(description="a newer version's command may have a verb that is not known here")
    arguments: dict[str, Any]
    author: str
    created: datetime
    state: CommandState
    result: str
    migration: str = Field("", description="the migration that it began, if any")


class CommandList(Listing[CommandShape]):
    """Newest first."""


class FindingShape(Document):
    """Something that the consistency checker has found."""

    kind: CheckKind
    text: str
    table: str
    tablet: int | None
    node: str
    root: str
    count: int
    advice: str
    first: datetime = Field(description="when it was first seen")
    last: datetime


class CheckRoundShape(Document):
    """A round of the consistency checker that is over."""

    number: int
    began: datetime
    ended: datetime
    rows: int
    findings: int
    unchecked: int


class ChecksShape(Document):
    """The consistency checker of one bundle."""

    bundle: str
    round: int = Field(description="the current or last round")
    kind: CheckKind | None = Field(description="what is being checked; null: the round is over")
    rows: int
    findings: list[FindingShape]
    more: int = Field(description="how many more findings there were than are kept")
    unchecked: list[str] = Field(description="what could not be checked, and why")
    past: list[CheckRoundShape] = Field(description="rounds over time, oldest first")


class CheckList(Listing[ChecksShape]):
    """By bundle."""


class Overview(Document):
    """Everything the page shows first, in one answer."""

    status: Status
    tables: list[TableShape]
    nodes: list[NodeShape]
    schedules: list[ScheduleShape]
    plans: list[PlanShape]
    migrations: list[MigrationShape]
    running: int
    quarantined: list[TabletShape]
    hot: list[TabletShape]
    checks: list[ChecksShape]
    history: list[HistoryEntry]


class ClusterNode(Document):
    """A row of the picture. The lists have an entry for each block, in the order of tables and keys."""

    id: str
    fair: int | None = Field(description="its fair share in bytes; null: it gets none, see `counts`")
    counts: bool = Field(description="whether it counts in means: it is not down, draining or closed")
    ids: list[int] = Field(description="the id of each block's largest tablet")
    tablets: list[int] = Field(description="how many tablets each block stands for")
    tables: list[int] = Field(description="each block's table, as an index into `tables` of the document")
    bytes: list[int] = Field(description="total size of each block's tablets")
    writes: list[float] = Field(description="rows written per second to each block's tablets")
    reads: list[float]


class ClusterShape(Document):
    """A bundle as a picture: nodes as rows, tablets as blocks; neighbours share a block where there are too many."""

    bundle: str
    at: datetime
    past: bool = Field(description="whether it shows a moment in the past")
    tables: list[str]
    nodes: list[ClusterNode]
    tablets: int
    most_writes: float = Field(description="the highest rate of a single tablet: the end of a colour scale")
    most_reads: float
    word: StateWord | None = Field(description="null: the state at that moment is not known")
    sentence: str
    score: float | None


class ExplanationShape(Document):
    """Sentences, the most important first."""

    subject: str
    sentences: list[str]
    at: datetime = Field(description="when the figures behind them were polled")
    since: datetime | None = Field(None, description="for tablets: since when the node has owned it; null: not known")


class WhyNotShape(Document):
    """Why a tablet does not go to a node."""

    tablet: int
    node: str
    planned: bool
    code: str
    reason: str
    flip: str = Field(description="the smallest change that would lead to a different answer; empty: there is none")
    at: datetime = Field(description="when the figures behind it were polled")


class DryRunShape(Document):
    """A command that has not been given."""

    verb: str
    arguments: dict[str, Any]
    result: str = Field(description="what would be done")
    line: str = Field(description="the equivalent shell command; empty: there is none")


class AccessShape(Document):
    """What the bearer of this request may do."""

    may_change: bool
    why_not: str
    sign_in: bool = Field(description="whether a token would change that")


class NodeSeries(Document):
    """A node over time. The lists have an entry for each time of the series; null: it was not there."""

    id: str
    bytes: list[int | None]
    write_rate: list[float | None]
    read_rate: list[float | None]
    tablets: list[int | None]
    uncounted: list[int] = Field(description="indexes into `times` at which it was down or draining")


class MovedShape(Document):
    """A migration that is done."""

    at: datetime
    bytes: int


class SeriesShape(Document):
    """A bundle over time. The lists have an entry for each time."""

    bundle: str
    since: datetime = Field(description="the earliest moment for which /v1/cluster has a picture")
    times: list[datetime]
    words: list[StateWord]
    scores: list[float | None]
    running: list[int] = Field(description="how many migrations ran, as far as the directory still has them")
    nodes: list[NodeSeries]
    pause_seconds: list[float] = Field(
        description="how long writers waited at each switch that the directory still has"
    )
    pause_budget_seconds: float
    moved: list[MovedShape]
    kept: str = Field(description="what is kept, as a sentence")
