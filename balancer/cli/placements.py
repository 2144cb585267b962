"""`balancer compare-placements`: the sharding functions side by side, on synthetic keys or on a bundle's vbuckets."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
import typer

from balancer.clock import SystemClock
from balancer.directory.model import Layout, Node, NodeState
from balancer.directory.snapshot import Snapshot
from balancer.errors import UserError
from balancer.policies.keyspace.hash_leaves import Leaf
from balancer.policies.options import VIRTUAL_NODES, Placement
from balancer.policies.placement.sharding import FUNCTIONS, Comparison, UInts, compare, place, present
from balancer.policies.placement.sharding import Node as Weighted
from balancer.settings.cross_checks import MOST_POINTS
from balancer.terminal.options import ConfigOption, DirectoryOption, directory_of
from balancer.terminal.output import Output, OutputOption, show_json, show_rows

COLUMNS = (
    "function",
    "milliseconds",
    "stay_when_one_comes",
    "most_when_one_comes",
    "stay_when_one_goes",
    "most_when_one_goes",
    "keys_per_node",
    "deviation",
    "fullest",
)

KeysOption = Annotated[int, typer.Option("--keys", min=1, help="synthetic keys")]
NodesOption = Annotated[int, typer.Option("--nodes", min=1, help="synthetic nodes")]
WeightsOption = Annotated[str | None, typer.Option("--weights", help='of the nodes, as in "1,1,2"; sets their number')]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="of the synthetic keys")]
PointsOption = Annotated[
    str, typer.Option("--points", help='of a node of weight 1 on the ring, as in "1,100,1000": a line for each')
]
BundleOption = Annotated[str | None, typer.Option("--bundle", help="place this bundle's vbuckets on its own nodes")]


def compare_placements(
    keys: KeysOption = 1_000_000,
    nodes: NodesOption = 20,
    weights: WeightsOption = None,
    points: PointsOption = f"1,100,{VIRTUAL_NODES},1000",
    seed: SeedOption = 1,
    bundle: BundleOption = None,
    directory: DirectoryOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Compares the sharding functions: time, keys that stay when a node is added or removed, and evenness.

    The shares are of all keys; "most" is what a perfectly even function could keep. The deviation is in keys, from each
    node's fair share by weight; the fullest node is given as a multiple of its fair share.
    Fibonacci is the scaled interval: when a node comes, every border moves a little and about half of the keys stay.
    """
    counts = _points(points)
    if bundle is None:
        chosen = _synthetic_nodes(nodes, weights)
        numbers: UInts = np.random.default_rng(seed).integers(0, 1 << 64, keys, np.uint64)
        rows = _compared(numbers, chosen, counts)
    else:
        with directory_of(directory, config) as opened:
            snapshot = opened.snapshot()
        chosen = _bundle_nodes(snapshot, bundle)
        numbers, owners = _vbuckets(snapshot, bundle, chosen)
        rows = [_row(present(owners, chosen), None), *_compared(numbers, chosen, counts)]
    if output is Output.JSON:
        about = {"keys": len(numbers), "nodes": dict(chosen), "seed": None if bundle else seed, "bundle": bundle}
        show_json({**about, "functions": rows})
    else:
        show_rows([_readable(row) for row in rows], COLUMNS, output)


def _readable(row: dict[str, Any]) -> dict[str, str | None]:
    """Shares as percentages, counts in full."""
    points = f" ({row['points']:,})" if row["points"] else ""
    found: dict[str, str | None] = {"function": f"{row['function']}{points}"}
    for name in COLUMNS[1:]:
        value = row[name]
        if value is None:
            found[name] = None
        elif name.startswith(("stay", "most")):
            found[name] = f"{100 * value:.2f} %"
        else:
            found[name] = f"{value:,.3f}" if name == "fullest" else f"{value:,.1f}"
    return found


def _points(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text[:1000].split(",")]
    except ValueError:
        raise UserError(f'--points is "{text[:100]}": whole numbers with commas between them are expected') from None
    if not all(1 <= count <= MOST_POINTS for count in counts):
        raise UserError(f'--points is "{text[:100]}": every number must be between 1 and {MOST_POINTS}')
    return counts


def _compared(numbers: UInts, nodes: Sequence[Weighted], points: Sequence[int]) -> list[dict[str, Any]]:
    """Each function, timed on the placement alone. The added node weighs as much as the lightest."""
    clock, added = SystemClock(), ("one more", min(weight for _, weight in nodes))
    rows = []
    rings = [(Placement.RING, count) for count in points]
    others = [(function, VIRTUAL_NODES) for function in FUNCTIONS if function is not Placement.RING]
    for function, count in (*others, *rings):
        began = clock.monotonic()
        placed = place(function, numbers, nodes, count)
        taken = clock.monotonic() - began
        row = _row(compare(function, numbers, nodes, added, placed=placed, points=count), taken)
        rows.append({**row, "points": count if function is Placement.RING else None})
    return rows


def _row(comparison: Comparison, seconds: float | None) -> dict[str, Any]:
    return {**asdict(comparison), "points": None, "milliseconds": None if seconds is None else 1000 * seconds}


def _synthetic_nodes(count: int, weights: str | None) -> list[Weighted]:
    if weights is None:
        return [(f"node-{place}", 1.0) for place in range(1, count + 1)]
    try:
        values = [float(part) for part in weights.split(",")]
    except ValueError:
        raise UserError(f'--weights is "{weights}": numbers with commas between them are expected') from None
    if not all(0 < value < float("inf") for value in values):
        raise UserError(f'--weights is "{weights}": every weight must be above 0')
    return [(f"node-{place}", value) for place, value in enumerate(values, 1)]


def _bundle_nodes(snapshot: Snapshot, bundle: str) -> list[Weighted]:
    """The bundle's nodes that may receive tablets, by id."""
    if bundle not in snapshot.bundles:
        raise UserError(f"there is no bundle {bundle}; there are {', '.join(sorted(snapshot.bundles)) or 'none'}")
    found: list[Node] = sorted((node for node in snapshot.nodes.values() if node.bundle == bundle), key=lambda n: n.id)
    active = [(node.id, node.weight) for node in found if node.state is NodeState.ACTIVE]
    if not active:
        raise UserError(f"bundle {bundle} has no active node")
    return active


def _vbuckets(snapshot: Snapshot, bundle: str, nodes: Sequence[Weighted]) -> tuple[UInts, list[int]]:
    """The remainders of all vbuckets of a bundle, and where each is now: an index into the nodes, -1 for any other."""
    index = {name: place for place, (name, _) in enumerate(nodes)}
    numbers, owners = [], []
    for table in snapshot.tables.values():
        if table.bundle != bundle or table.layout is not Layout.HASH:
            continue
        for tablet in snapshot.tablets(table.id):
            assert isinstance(tablet.bounds, Leaf)
            numbers.append(tablet.bounds.remainder)
            owners.append(index.get(tablet.node, -1))
    if not numbers:
        raise UserError(f"bundle {bundle} has no vbuckets: none of its tables is a hash table")
    return np.array(numbers, np.uint64), owners
