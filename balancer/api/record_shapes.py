"""Documents of `/v1` that tell of what is done: plans, migrations, commands, history, checks; and the overview."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import ConfigDict, Field

from balancer.api.documents import Document, Listing
from balancer.api.shapes import NodeShape, ScheduleShape, ScoreShape, Status, TableShape, TabletShape
from balancer.directory.model import CommandState, MigrationKind, MigrationMode, NodeState, RecordKind
from balancer.migration.machine import State
from balancer.policies.bundle_view import ActionKind
from balancer.policies.check_options import CheckKind


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
