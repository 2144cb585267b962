"""Further documents of `/v1`: pictures of a bundle, answers to questions about it, and what a command would do."""

from datetime import datetime
from typing import Any

from pydantic import Field

from balancer.api.documents import Document
from balancer.planner.state import StateWord


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
