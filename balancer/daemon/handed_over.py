"""Bundles that belong to another directory, or are going there: this instance leaves them alone, whatever files say.

It is as if their files were not there: no ticks, no leader's work, no enrolment. Their state says where they are.
"""

from dataclasses import replace

import structlog

from balancer.daemon.ticks import Ticks
from balancer.directory.handover_record import handovers_in
from balancer.directory.snapshot import Snapshot
from balancer.settings import Settings

log = structlog.get_logger()


class HandedOver:
    """Of one instance."""

    def __init__(self) -> None:
        self._gone: frozenset[str] = frozenset()

    def left(self, read: Settings) -> Settings:
        """The configuration without them."""
        if not self._gone:
            return read
        return replace(read, bundles={name: one for name, one in read.bundles.items() if name not in self._gone})

    def look(self, snapshot: Snapshot, read: Settings, ticks: Ticks) -> bool:
        """Updates by the newest snapshot known; returns whether they have changed."""
        found = handovers_in(snapshot)
        listed = read.bundles
        ticks.leave_alone([(listed[name], one.sentence(name)) for name, one in found.items() if name in listed])
        before, self._gone = self._gone, frozenset(found)
        for bundle in sorted(self._gone - before):
            log.info("left alone", bundle=bundle, why=found[bundle].sentence(bundle))
        return before != self._gone
