"""Key samples from coordinators in other languages, left as notes for the tick that splits hot ranges.

The note is that of the client library (`directory.sample_note`). Its name is `<reporter>.<table id>`: a newer report of
the same reporter replaces its last one, so notes stay bounded.
"""

from balancer.api.keytext import position_of
from balancer.api.shapes import SampleRequest
from balancer.directory.contract import Directory
from balancer.directory.sample_note import TOPIC, entry, sample_note
from balancer.directory.snapshot import Snapshot


def publish(directory: Directory, snapshot: Snapshot, request: SampleRequest, at: float) -> int:
    """Leaves the samples for the leader; returns how many."""
    table = snapshot.table(request.table)
    samples = [
        entry(position_of(table, list(map(str, sample.key))), sample.weight, sample.write) for sample in request.samples
    ]
    note = sample_note(at, request.seconds, {str(table.id): samples})
    directory.publish(TOPIC, f"{request.reporter}.{table.id}", note)
    return len(samples)
