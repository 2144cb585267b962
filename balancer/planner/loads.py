"""What the nodes of a bundle carry, per dimension: figures for people and metrics. Nothing is decided from these.

Used by the tick, the report (metrics), the summary and the API (bars on the page).
"""

from collections.abc import Mapping

import numpy as np

from balancer.policies.bundle_view import BundleView, Floats, NodeCondition


def dimension_columns(view: BundleView) -> Mapping[str, Floats]:
    """One column per dimension, an entry per tablet, under the names of `[placement] dimensions`."""
    columns = view.tablets
    return {
        "bytes": columns.sizes,
        "memory": columns.memory,
        "write_rate": columns.write_rate,
        "read_rate": columns.read_rate,
        "tablets": np.ones(len(columns)),
    }


def node_loads(view: BundleView) -> Mapping[str, Floats]:
    """Per dimension the sum of each node's tablets, in the order of `view.nodes`."""
    count = len(view.nodes)
    return {
        name: np.bincount(view.tablets.node, weights=column, minlength=count).astype(np.float64)[:count]
        for name, column in dimension_columns(view).items()
    }


def owned_tablets(view: BundleView) -> dict[str, int]:
    """How many tablets each node has."""
    counts = np.bincount(view.tablets.node, minlength=len(view.nodes)).tolist()
    return {node.id: counts[at] for at, node in enumerate(view.nodes)}


def imbalance(view: BundleView) -> Mapping[str, float]:
    """Per dimension with any load: the fullest node's load over the mean, each by its weight, of nodes not down."""
    counted = np.array([node.condition is not NodeCondition.DOWN for node in view.nodes], dtype=np.bool_)
    weights = np.array([node.weight for node in view.nodes], dtype=np.float64)[counted]
    ratios = {}
    for name, loads in node_loads(view).items():
        total = float(loads[counted].sum())
        if total > 0:
            ratios[name] = float((loads[counted] / weights).max() * weights.sum() / total)
    return ratios
