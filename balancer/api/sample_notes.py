"""Key samples from coordinators in other languages, left as notes for the tick that splits hot ranges.

The note is that of the client library (`balancer.client.sampler`): {"at": …, "seconds": …, "tables": {table id:
[[position in hexadecimal, weight, whether it was a write], …]}} under the topic `samples`. Its name is
`<reporter>.<table id>`: a newer report of the same reporter replaces his last one, so notes stay bounded.
"""

from typing import Any, Final

from balancer.api.keytext import position_of
from balancer.api.shapes import SampleRequest
from balancer.directory.contract import Directory
from balancer.directory.snapshot import Snapshot

TOPIC: Final = "samples"
LONGEST_KEY: Final = 128
"""Bytes; a longer key is cut, which moves it by less than any split would care about."""


def publish(directory: Directory, snapshot: Snapshot, request: SampleRequest, at: float) -> int:
    """Leaves the samples for the leader; returns how many."""
    table = snapshot.table(request.table)
    samples = [
        [_hexadecimal(position_of(table, list(map(str, sample.key)))), sample.weight, sample.write]
        for sample in request.samples
    ]
    note: dict[str, Any] = {"at": at, "seconds": request.seconds, "tables": {str(table.id): samples}}
    directory.publish(TOPIC, f"{request.reporter}.{table.id}", note)
    return len(samples)


def _hexadecimal(position: int | bytes) -> str:
    return f"{position:016x}" if isinstance(position, int) else position[:LONGEST_KEY].hex()
