"""Key samples from coordinators in other languages, left as notes for the poll that feeds hot-range splitting.

A note is `{"at": …, "table": id, "keys": [hex…], "weights": […], "writes": […]}` under the topic `samples`, its name
`<reporter>.<table id>`: a newer report of the same reporter replaces his last, so they stay bounded. Keys are those of
`policies.model.KeySamples`: encoded keys for range tables, positions of 8 bytes for hash tables.
"""

from typing import Any, Final

from balancer.api.keytext import position_of
from balancer.api.shapes import SampleRequest
from balancer.directory.contract import Directory
from balancer.directory.snapshot import Snapshot

TOPIC: Final = "samples"


def publish(directory: Directory, snapshot: Snapshot, request: SampleRequest, at: float) -> int:
    """Leaves the samples for the leader; returns how many."""
    table = snapshot.table(request.table)
    positions = [position_of(table, list(map(str, sample.key))) for sample in request.samples]
    document: dict[str, Any] = {
        "at": at,
        "table": table.id,
        "keys": [_hex(position) for position in positions],
        "weights": [sample.weight for sample in request.samples],
        "writes": [sample.write for sample in request.samples],
    }
    directory.publish(TOPIC, f"{request.reporter}.{table.id}", document)
    return len(positions)


def _hex(position: int | bytes) -> str:
    return position.hex() if isinstance(position, bytes) else position.to_bytes(8, "big").hex()
