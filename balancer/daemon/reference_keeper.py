"""Keeps the copies of reference tables on every node of a bundle. The leader calls it with each tick of a bundle.

What is wanted follows from the directory alone (`polling.reference_streams`), and what exists is known by its names: so
any leader may repeat it at any time. A copy that is missing, whose stream is lost, whose node or home has gone back in
time and was accepted, or whose home has changed, is filled again; streams that should not exist are removed. A home
that is being moved is left to its migration, a node out of reach to the next look.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

import structlog

from balancer.directory.contract import Leadership
from balancer.directory.model import NodeState
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Fenced, Refused
from balancer.migration.links import Addresses, Links
from balancer.migration.reference_copying import make_copy, make_tables
from balancer.nodes import replication
from balancer.nodes.connection import translated
from balancer.nodes.epoch_check import node_transaction
from balancer.nodes.partition import exists
from balancer.nodes.reference_copies import (
    Streams,
    check_copy,
    check_home,
    copy_guarded,
    drop_stream,
    guard_copy,
    guard_home,
    home_guarded,
    read_lags,
    read_streams,
    tablet_of,
)
from balancer.nodes.schema import install_schema, upgrade_schema
from balancer.planner.metrics import Reporter
from balancer.polling.reference_streams import ReferenceTable, reference_tables

log = structlog.get_logger()


class ReferenceKeeper:
    """Under one leadership; used by one thread at a time for each bundle."""

    def __init__(
        self, leadership: Leadership, snapshot: Callable[[], Snapshot], addresses: Addresses, reporter: Reporter
    ) -> None:
        self._leadership = leadership
        self._snapshot = snapshot
        self._addresses = addresses
        self._reporter = reporter
        self._refusals: dict[str, Mapping[str, str]] = {}
        self._filling: dict[str, str] = {}

    def refusals(self) -> Mapping[str, str]:
        """Why copies cannot be made until a person has done something, by node; as of the last look."""
        return {node: why for found in [*self._refusals.values()] for node, why in found.items()}

    def filling(self) -> list[str]:
        """The tables whose copies are being filled at this moment."""
        return [*self._filling.values()]

    def keep(self, bundle: str) -> None:
        """One look at everything."""
        snapshot = self._snapshot()
        references = reference_tables(snapshot, bundle)
        if not references:
            self._reporter.references(bundle, {}, {})
            self._refusals.pop(bundle, None)
            return
        self._leadership.check()
        links = Links(self._addresses, "references")
        missing: Counter[str] = Counter()
        lags: dict[str, float] = {}
        refusals: dict[str, str] = {}
        try:
            for reference in references:
                missing.update(dict.fromkeys(reference.streams, 0))
                if snapshot.migration_of(reference.tablet.id) is None:
                    missing.update(self._keep_one(links, snapshot, reference, refusals))
                self._try(links, reference.home, partial(self._read_lags, links, reference, lags))
            for node in snapshot.nodes.values():
                if node.bundle == bundle and node.state is not NodeState.LOST and not node.rewound:
                    self._try(links, node.id, partial(self._tidy, links, bundle, node.id))
        finally:
            links.close()
        self._reporter.references(bundle, missing, lags)
        self._refusals[bundle] = refusals

    def _try(self, links: Links, node: str, work: Callable[[], None]) -> BalancerError | None:
        """Why it was not done; None: it was done."""
        try:
            work()
        except Fenced:
            raise
        except BalancerError as error:
            log.warning("copies of reference tables wait", node=node, error=str(error))
            links.close()
            return error
        return None

    def _keep_one(
        self, links: Links, snapshot: Snapshot, reference: ReferenceTable, refusals: dict[str, str]
    ) -> list[str]:
        """The nodes whose copy is missing."""
        home = reference.home
        if snapshot.nodes[home].rewound or self._try(links, home, partial(self._keep_home, links, reference)):
            return list(reference.streams)
        missing = []
        for node in reference.streams:
            keep = partial(self._keep_copy, links, reference, node)
            if snapshot.nodes[node].rewound:
                missing.append(node)
            elif error := self._try(links, node, keep):
                missing.append(node)
                if isinstance(error, Refused):
                    refusals[node] = f"no copy of the reference table {reference.table.name}: {error}"
        return missing

    def _read_lags(self, links: Links, reference: ReferenceTable, lags: dict[str, float]) -> None:
        with translated(reference.home):
            found = read_lags(links.control(reference.home))
        for node, stream in reference.streams.items():
            if stream in found:
                lags[node] = max(lags.get(node, 0.0), found[stream])

    def _keep_home(self, links: Links, reference: ReferenceTable) -> None:
        home, epoch = reference.home, self._leadership.epoch
        with translated(home):
            if home_guarded(links.control(home), reference.names, reference.tablet.id):
                return
        with node_transaction(links.control(home), epoch, home) as cursor:
            upgrade_schema(cursor)
            cursor.execute("SET LOCAL lock_timeout TO '500ms'")
            check_home(cursor, reference.names, reference.tablet.id, reference.tablet.epoch)
            guard_home(cursor, reference.names, reference.tablet.id)

    def _keep_copy(self, links: Links, reference: ReferenceTable, node: str) -> None:
        home, epoch, stream = reference.home, self._leadership.epoch, reference.streams[node]
        with translated(home):
            at_home = read_streams(links.control(home))
        there = self._ready_node(links, reference, node)
        tablet = reference.tablet
        if stream in there.subscriptions and at_home.slots.get(stream) and stream in at_home.publications:
            with translated(node):
                guarded = copy_guarded(links.control(node), reference.names, tablet.id, home, tablet.epoch)
            if guarded and there.subscriptions[stream]:
                return
            with node_transaction(links.control(node), epoch, node) as cursor:
                cursor.execute("SET LOCAL lock_timeout TO '500ms'")
                check_copy(cursor, reference.names, tablet.id)
                guard_copy(cursor, reference.names, tablet.id, home, tablet.epoch)
                replication.enable_subscription(cursor, stream)
            return
        old = sorted(there.of(tablet.id) & there.subscriptions.keys())
        self._filling[reference.table.bundle] = reference.table.name
        try:
            make_copy(links, epoch, reference, node, old)
        finally:
            del self._filling[reference.table.bundle]
        log.info("a copy of a reference table was filled", table=reference.table.name, node=node, home=home)

    def _ready_node(self, links: Links, reference: ReferenceTable, node: str) -> Streams:
        """Our schema and the tables are there; what streams it has."""
        address = links.address(node)
        with translated(node):
            install_schema(links.control(node), address.cluster, node)
            with links.control(node).cursor() as cursor:
                missing = [name for name in reference.names if not exists(cursor, name)]
        if missing:
            make_tables(links, self._leadership.epoch, reference, node)
        with translated(node):
            return read_streams(links.control(node))

    def _tidy(self, links: Links, bundle: str, node: str) -> None:
        """Removes what belongs to nobody: to a former home, a node that has left, a table that is gone.

        The newest snapshot decides: a home may have moved since this look began.
        """
        with translated(node):
            there = read_streams(links.control(node)).all()
        snapshot = self._snapshot()
        wanted = {
            stream
            for reference in reference_tables(snapshot, bundle)
            for copy, stream in reference.streams.items()
            if node in (copy, reference.home)
        }
        for stream in sorted(there - wanted):
            if snapshot.migration_of(tablet_of(stream)) is None:
                with node_transaction(links.control(node), self._leadership.epoch, node) as cursor:
                    drop_stream(cursor, stream)
