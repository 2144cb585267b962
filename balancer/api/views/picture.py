"""A bundle as a picture: nodes as rows, tablets as blocks. Small at any number of tablets: neighbours share a block."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from balancer.api.page_shapes import ClusterNode, ClusterShape
from balancer.logs import mask
from balancer.planner.state import BundleState
from balancer.policies.bundle_view import BundleView, Floats, Ints

MOST_BLOCKS: Final = 12_000


@dataclass(frozen=True, slots=True)
class BlockColumns:
    """What blocks are made from: an entry for each tablet."""

    ids: Ints
    tables: Ints
    sizes: Floats
    writes: Floats
    reads: Floats


def cluster(state: BundleState) -> ClusterShape:
    """The newest picture of a bundle."""
    view = state.view
    return ClusterShape.model_construct(
        bundle=state.bundle,
        at=state.at,
        past=False,
        tables=[] if view is None else [table.name for table in view.tables],
        nodes=[_empty(report.id) for report in state.nodes] if view is None else _rows(state, view),
        tablets=0 if view is None else len(view.tablets),
        most_writes=0.0 if view is None else _most(view.tablets.write_rate),
        most_reads=0.0 if view is None else _most(view.tablets.read_rate),
        word=state.word,
        sentence=mask(state.sentence),
        score=None if state.plan is None else round(state.plan.score_before, 2),
    )


def fair_shares(sizes: Floats, weights: Floats, takes: Sequence[bool], gives: Sequence[bool]) -> list[int | None]:
    """Of the total load on nodes that take or give tablets, the share of each that takes them, by its weight."""
    taking = np.array(takes, dtype=np.bool_)
    shared = float(sizes[taking | np.array(gives, dtype=np.bool_)].sum())
    total = float(weights[taking].sum())
    if not total:
        return [None] * len(sizes)
    return [
        round(shared * float(weight) / total) if take else None for weight, take in zip(weights, takes, strict=True)
    ]


def _rows(state: BundleState, view: BundleView) -> list[ClusterNode]:
    reports = {report.id: report for report in state.nodes}
    reachable = [node.id not in reports or reports[node.id].reachable for node in view.nodes]
    words = [reports[node.id].state if node.id in reports else str(node.condition) for node in view.nodes]
    takes = [fine and word == "active" for fine, word in zip(reachable, words, strict=True)]
    gives = [fine and word == "draining" for fine, word in zip(reachable, words, strict=True)]
    count = len(view.nodes)
    sizes = np.bincount(view.tablets.node, weights=view.tablets.sizes, minlength=count).astype(np.float64)[:count]
    fair = fair_shares(sizes, np.array([node.weight for node in view.nodes]), takes, gives)
    columns = view.tablets
    blocks = BlockColumns(columns.ids, tables_of(view), columns.sizes, columns.write_rate, columns.read_rate)
    order = np.argsort(view.tablets.node, kind="stable")
    ends = np.searchsorted(view.tablets.node[order], np.arange(count + 1))
    most = max(1, MOST_BLOCKS // max(1, count))
    missing = [_empty(name) for name in reports if name not in {node.id for node in view.nodes}]
    return [
        *(
            row_of(blocks, order[ends[at] : ends[at + 1]], most, (node.id, fair[at], takes[at]))
            for at, node in enumerate(view.nodes)
        ),
        *missing,
    ]


def row_of(blocks: BlockColumns, rows: Ints, most: int, about: tuple[str, int | None, bool]) -> ClusterNode:
    """One node: its tablets, given by their places in the columns, in the order of tables."""
    name, fair, counts = about
    if not len(rows):
        return _empty(name, fair, counts)
    tables, firsts = blocks.tables, block_starts(blocks.tables[rows], most)
    sizes = blocks.sizes[rows]
    return ClusterNode.model_construct(
        id=name,
        fair=fair,
        counts=counts,
        ids=blocks.ids[rows][_largest(sizes, firsts)].tolist(),
        tablets=np.diff(np.append(firsts, len(rows))).tolist(),
        tables=tables[rows][firsts].tolist(),
        bytes=np.add.reduceat(sizes, firsts).round().astype(np.int64).tolist(),
        writes=significant(np.add.reduceat(blocks.writes[rows], firsts)),
        reads=significant(np.add.reduceat(blocks.reads[rows], firsts)),
    )


def block_starts(tables: Ints, most: int) -> Ints:
    """Where blocks begin: evenly, and wherever a table does."""
    count = len(tables)
    even = np.arange(min(most, count), dtype=np.int64) * count // min(most, count)
    return np.union1d(even, np.flatnonzero(np.diff(tables)) + 1).astype(np.int64)


def significant(column: Floats) -> list[float]:
    """To three digits: what a picture can show, and a third of what would otherwise be sent."""
    sizes = np.floor(np.log10(np.maximum(np.abs(column), 1e-3)))
    steps = 10.0 ** (2 - sizes)
    return [int(one) if one.is_integer() else round(one, 5) for one in (np.rint(column * steps) / steps).tolist()]


def _largest(sizes: Floats, firsts: Ints) -> Ints:
    """The place of each block's largest; the first of several."""
    ends = np.append(firsts[1:], len(sizes))
    found: Ints = np.array([first + int(np.argmax(sizes[first:end])) for first, end in zip(firsts, ends, strict=True)])
    return found


def tables_of(view: BundleView) -> Ints:
    """Each tablet's table, as a place in the view's tables."""
    found = np.zeros(len(view.tablets), dtype=np.int64)
    for at, table in enumerate(view.tables):
        found[table.first : table.last] = at
    return found


def _most(column: Floats) -> float:
    return round(float(column.max()), 2) if len(column) else 0.0


def _empty(name: str, fair: int | None = None, counts: bool = False) -> ClusterNode:
    return ClusterNode(id=name, fair=fair, counts=counts, ids=[], tablets=[], tables=[], bytes=[], writes=[], reads=[])
