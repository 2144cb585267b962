"""The heat map as a document: a byte per cell, so that an hour of any table fits into one small answer."""

import base64

import numpy as np
import numpy.typing as npt

from balancer.api.documents import instant
from balancer.api.keytext import bound_text
from balancer.api.shapes import Dimension, HeatBin, HeatShape
from balancer.api.source import Source
from balancer.errors import UserError
from balancer.planner.recorder import Present

_OTHER = 255


def heat(source: Source, bundle: str, table: str, dimension: Dimension, rows: int, *, day: bool = False) -> HeatShape:
    """One layer of a table over the last hour or day, in at most this many rows."""
    found = source.recorder.heat_map(bundle, table, str(dimension), day=day)
    if found is None:
        known = ", ".join(f"{a}/{b}" for a, b in source.recorder.tables()) or "none yet"
        raise UserError(f"nothing is recorded of the table {table!r} in {bundle!r}; recorded are: {known}")
    firsts = _firsts(len(found.times), rows)
    values = np.maximum.reduceat(found.values, firsts, axis=0)
    greatest = float(values.max())
    return HeatShape(
        bundle=bundle,
        table=table,
        dimension=dimension,
        times=[instant(found.times[first]) for first in firsts],
        bins=bins(found.present),
        max=greatest,
        cells=_packed(_levels(values, greatest)),
        nodes=list(found.nodes[:_OTHER]),
        owners=_packed(np.minimum(found.owners[[*firsts[1:] - 1, -1]], _OTHER).astype(np.uint8)),
    )


def _firsts(count: int, rows: int) -> npt.NDArray[np.int64]:
    """Where the rows into which moments are joined begin: equally many in each, the oldest row has the remainder."""
    step = -(-count // rows)
    starts = np.arange(count % step or step, count, step)
    return np.concatenate(([0], starts)).astype(np.int64)


def bins(present: Present) -> list[HeatBin]:
    """The columns of the map, left to right."""
    view, table, columns = present.view, present.table, present.view.tablets
    firsts, busiest = present.firsts.tolist(), present.busiest.tolist()
    ends = [*firsts[1:], table.last]
    labels = [_start_text(present, row) for row in firsts]
    labels.append("1" if table.hash else "")
    made = []
    for at, (first, row, end) in enumerate(zip(firsts, busiest, ends, strict=True)):
        made.append(
            HeatBin.model_construct(
                tablets=end - first,
                first=int(columns.ids[first]),
                busiest=int(columns.ids[row]),
                node=view.nodes[columns.node[row]].id,
                lower=labels[at],
                upper=labels[at + 1],
                bytes=round(columns.sizes[row]),
                write_rate=round(float(columns.write_rate[row]), 2),
                read_rate=round(float(columns.read_rate[row]), 2),
            )
        )
    return made


def _start_text(present: Present, row: int) -> str:
    """Where a tablet begins: its key, or for a vbucket its place among all hashes, 0 to 1."""
    table, columns = present.table, present.view.tablets
    if table.hash:
        return f"{columns.leaf(row).start() / 2**64:.6g}"
    return bound_text(table.key_types, columns.lowers[row])


def _levels(values: npt.NDArray[np.float32], greatest: float) -> npt.NDArray[np.uint8]:
    if not greatest:
        return np.zeros(values.shape, dtype=np.uint8)
    levels: npt.NDArray[np.uint8] = np.rint(np.log1p(values) * (255 / np.log1p(greatest))).astype(np.uint8)
    return levels


def _packed(cells: npt.NDArray[np.uint8]) -> str:
    return base64.b64encode(cells.tobytes()).decode()
