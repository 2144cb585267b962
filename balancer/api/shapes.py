"""Documents of `/v1` that tell of the cluster: what the OpenAPI document is made from. Sizes are bytes.

Views fill them from states, snapshots and plans; nothing here has behaviour.

What every document of `/v1` has in common: closed fields, times as RFC 3339 writes them, lists in one envelope.

A list is cut at a cursor: the place of its last entry in the list's order, so that entries that come and go between two
requests neither hide nor repeat others. Clients pass the cursor on and do not read it.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from enum import StrEnum
from json import JSONDecodeError, dumps, loads
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from balancer.directory.model import Layout, NodeState, TabletState
from balancer.errors import UserError
from balancer.planner.bundle_state import StateWord
from balancer.settings import Mode

T = TypeVar("T")
Place = tuple[int | float | str, ...]
"""An entry's place in the order of its list."""

_LONGEST_CURSOR = 2000
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


class Document(BaseModel):
    """What every document is: closed and immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Listing(Document, Generic[T]):
    """Some entries of a list."""

    items: list[T]
    next: str | None = Field(None, description="pass it as `cursor` to get the next entries; null: these were the last")


def instant(seconds: float) -> datetime:
    """Seconds since 1970 as a time in documents, to the millisecond. Records may have any number."""
    try:
        return datetime.fromtimestamp(round(seconds, 3), UTC)
    except (OverflowError, ValueError, OSError):
        return _LATEST if seconds > 0 else _EARLIEST


def instant_or_none(seconds: float | None) -> datetime | None:
    """The same where there may be no time."""
    return None if seconds is None else instant(seconds)


def cut_at(found: Sequence[T], place: Callable[[T], Place], limit: int, cursor: str) -> tuple[Sequence[T], str | None]:
    """Up to `limit` entries after a cursor, and the cursor for the rest. `found` is in the order of its places."""
    after = read_cursor(cursor)
    try:
        left = found if after is None else [one for one in found if place(one) > after]
    except TypeError:
        raise foreign(cursor) from None
    return left[:limit], write_cursor(place(left[limit - 1])) if len(left) > limit else None


def write_cursor(place: Place) -> str:
    """A place as clients pass it on."""
    return base64.urlsafe_b64encode(dumps(place).encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> Place | None:
    """The place that a cursor stands for; None: the beginning."""
    if not cursor:
        return None
    try:
        if len(cursor) > _LONGEST_CURSOR:
            raise foreign(cursor[:40])
        place = loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True))
    except (binascii.Error, JSONDecodeError, UnicodeError, RecursionError, ValueError):
        raise foreign(cursor) from None
    if not isinstance(place, list) or not all(isinstance(one, int | float | str) for one in place):
        raise foreign(cursor)
    return tuple(place)


def foreign(cursor: str) -> UserError:
    """What is said about a cursor that does not belong to this list."""
    return UserError(f"{cursor!r} is not a cursor: pass the `next` of the previous answer")


class InstanceShape(Document):
    """An instance that is present."""

    name: str
    weight: float = Field(description="its share of the directories, relative to the other instances")
    unfit: str = Field(description="why it should not lead; empty: it could")


class Leader(Document):
    """Who leads."""

    name: str | None
    epoch: int
    is_self: bool


class SpreadShape(Document):
    """How leadership is spread over the instances of this directory."""

    wanted: str = Field(description="who should lead")
    waits_for: str = Field(
        description="what must happen before the leader hands over to the wanted one; empty: nothing"
    )
    instances: list[InstanceShape] = Field(description="those that are present, by name")


class WindowShape(Document):
    """A time in which a schedule is open."""

    start: datetime
    end: datetime | None = Field(description="null: it never closes")


class ScheduleShape(Document):
    """Whether a bundle may be balanced now, and when."""

    bundle: str
    formula: str
    level: str = Field(description="whose formula applies; empty: there is none, so it is always open")
    timezone: str
    open: bool
    closes_at: datetime | None
    next_open: datetime | None
    day: date = Field(description="today's date in that zone")
    strip: str = Field(description="today's 1440 minutes on the wall clock as bits, hexadecimal, first minute first")
    windows: list[WindowShape] = Field(description="the next ones")
    too_short: str = Field(
        default="",
        description="that no tablet of the desired size fits into any of them, and which would; empty: some do",
    )


class ScheduleList(Listing[ScheduleShape]):
    """By bundle."""


class ScoreShape(Document):
    """How even a bundle is, 0 to 100."""

    now: float
    after_plan: float
    bound: float = Field(description="no plan within the budgets can reach more")
    limit: float = Field(description="no placement of these tablets can reach more")


class LoadsShape(Document):
    """What a node carries; of nodes that could not be polled, nothing."""

    bytes: int = 0
    memory: int = Field(0, description="bytes of in-memory tables")
    write_rate: float = Field(0.0, description="rows written per second")
    read_rate: float = Field(0.0, description="rows read per second")
    tablets: int = 0


class CapacityShape(Document):
    """What a node can carry; null: not known or not limited."""

    bytes: int | None = None
    memory: int | None = None
    write_rate: float | None = None
    read_rate: float | None = None


class NodeShape(Document):
    """A node and what it carries."""

    id: str
    bundle: str
    state: NodeState
    reason: str
    zone: str
    weight: float
    reachable: bool
    unreachable_since: datetime | None
    error: str
    version: str
    disagreements: int
    rewound: str = Field(
        description="how the node is known to have gone back in time, and what to do; empty: it has not"
    )
    loads: LoadsShape
    capacity: CapacityShape
    day: list[float | None] = Field(
        description="for each hour of a working day, of the weekend on such a day: its reads and writes over its share;"
        " null: not known; empty: no hour is known"
    )
    database_bytes: int
    connections: int
    retained_wal_bytes: int


class NodeList(Listing[NodeShape]):
    """By bundle and name."""


class ProgressShape(Document):
    """How far the work of a bundle has come since it last had nothing to do."""

    begun: datetime
    done: int
    running: int
    left: int = Field(description="actions that the plan wants but that have not begun")
    done_bytes: int
    left_bytes: int = Field(description="bytes of what runs and of what is left")
    eta_seconds: float | None = Field(description="null: nothing has been copied yet to estimate it from")


class BundleShape(Document):
    """A bundle in one sentence and a few figures."""

    name: str
    mode: Mode
    word: StateWord
    headline: str = Field(description="one short line")
    sentence: str
    progress: ProgressShape | None = Field(description="null: there is nothing to do")
    at: datetime = Field(description="the time of its last tick")
    paused: bool
    paused_until: datetime | None
    error: str
    score: ScoreShape | None
    imbalance: dict[str, float] = Field(description="per dimension: the fullest node's load over the mean")
    tablets: int
    nodes: int
    plan: str = Field(description="id of the current plan; empty: none is kept")


class Status(Document):
    """The instance and its bundles."""

    cluster: str = Field(description="the directory's name")
    instance: str
    version: str
    leader: Leader
    spread: SpreadShape | None = Field(description="null: leadership is not spread over instances")
    directory_version: int
    directory_age_seconds: float
    tick_age_seconds: float
    bundles: list[BundleShape]


class TabletShape(Document):
    """A tablet: where it is, what of the key space it holds, and how busy it is."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": 3,
                    "table": "orders",
                    "bundle": "shop",
                    "node": "pg-b",
                    "epoch": 7,
                    "state": "owned",
                    "lower": None,
                    "upper": None,
                    "modulus": 8,
                    "remainder": 2,
                    "bytes": 1048576,
                    "rows": 12000,
                    "write_rate": 12.5,
                    "read_rate": 80.0,
                    "pinned": False,
                    "pinned_until": None,
                    "migration": "",
                }
            ]
        }
    )

    id: int
    table: str
    bundle: str
    node: str
    epoch: int
    state: TabletState
    lower: list[str] | None = Field(None, description="range tables; null: unbounded")
    upper: list[str] | None = Field(None, description="range tables, not included; null: unbounded")
    modulus: int | None = Field(None, description="hash tables")
    remainder: int | None = None
    bytes: int | None = Field(None, description="null: not polled yet")
    rows: int | None = None
    write_rate: float | None = None
    read_rate: float | None = None
    pinned_until: datetime | None = None
    pinned: bool = False
    migration: str = Field("", description="the unfinished migration that it is part of")


class TabletList(Listing[TabletShape]):
    """In key order."""


class TableShape(Document):
    """A table."""

    name: str
    bundle: str
    layout: Layout
    key: list[str]
    key_types: list[str]
    roots: list[str]
    tablets: int


class TableList(Listing[TableShape]):
    """By bundle and name."""


class Dimension(StrEnum):
    """What a heat map shows."""

    WRITES = "writes"
    READS = "reads"
    BYTES = "bytes"


class HeatBin(Document):
    """A column of the heat map: one tablet, or neighbours that share it."""

    tablets: int
    first: int = Field(description="id of its first tablet")
    busiest: int = Field(description="id of its busiest tablet, which the following figures describe")
    node: str
    lower: str
    upper: str
    bytes: int
    write_rate: float
    read_rate: float


class HeatShape(Document):
    """A table's key space over time. `cells` and `owners` have a byte per time and bin, row by row, in base64."""

    bundle: str
    table: str
    dimension: Dimension
    times: list[datetime]
    bins: list[HeatBin]
    max: float = Field(description="what the byte 255 stands for; byte b is expm1(b / 255 × log1p(max))")
    cells: str
    nodes: list[str]
    owners: str = Field(description="indexes into `nodes`; 255: another node")


class RouteShape(Document):
    """Where a key lives."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "table": "orders",
                    "tablet": 3,
                    "epoch": 7,
                    "node": "pg-b",
                    "state": "owned",
                    "moving": False,
                    "dsn": "postgresql://shop@pg-b/shop",
                    "version": 1234,
                }
            ]
        }
    )

    table: str
    tablet: int
    epoch: int
    node: str
    dsn: str = Field(description="only for requests with the token; empty for other readers")
    state: TabletState
    moving: bool = Field(description="whether a migration concerns the tablet: expect a short wait")
    version: int = Field(description="of the directory")
    handed_over: str = Field("", description="the bundle is in another directory, and where; empty: it is in this one")


class Sample(BaseModel):
    """A key in use."""

    model_config = ConfigDict(extra="forbid")

    key: list[int | str] = Field(min_length=1, max_length=32)
    weight: float = Field(1.0, gt=0, allow_inf_nan=False)
    write: bool = True


class SampleRequest(BaseModel):
    """Keys in use, as an application's coordinator saw them."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "table": "orders",
                    "reporter": "web-3",
                    "seconds": 10.0,
                    "samples": [{"key": [42], "weight": 12.0, "write": True}],
                }
            ]
        },
    )

    table: str = Field(max_length=200)
    reporter: str = Field(
        pattern=r"^[A-Za-z0-9._-]{1,64}$", description="who reports; a newer report replaces the last one"
    )
    seconds: float = Field(10.0, gt=0, allow_inf_nan=False, description="how long the samples were collected")
    samples: list[Sample] = Field(min_length=1, max_length=1000)


class SampleAnswer(Document):
    """How many were taken."""

    taken: int
