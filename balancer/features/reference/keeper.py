"""Keeps the copies of reference tables on every node of a bundle. The leader calls it with each tick of a bundle.

What is wanted follows from the directory alone (`polling.view`), and what exists is known by its names: so
any leader may repeat it at any time. A copy that is missing, whose stream is lost, whose node or home has gone back in
time and was accepted, or whose home has changed, is filled again; streams that should not exist are removed. A home
that is being moved is left to its migration, a node out of reach to the next look.

Fills a copy of a reference table and makes it follow its home. The leader's keeper calls it as often as needed.

One snapshot at the home is both where the stream begins and what is copied; on the copy's node the rows, the guard and
the subscription are one transaction. Readers there see the rows before or after it. Whatever a failed attempt left has
the same name, and is removed first.

What the copy followed before ends before that snapshot is taken. Then the copy has no row that the snapshot lacks, and
no row is removed only to come back a moment later, when an application that refers to it would have been told that it
does not exist.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import structlog

from balancer.directory.contract import Leadership
from balancer.directory.model import NodeState
from balancer.directory.snapshot import Snapshot
from balancer.errors import BalancerError, Fenced, Refused
from balancer.nodes.catalog.owners_code import check_owners_code
from balancer.nodes.definitions.root import make_roots, read_plain_definition
from balancer.nodes.schema.install import install_schema, upgrade_schema
from balancer.nodes.schema.leader_transaction import node_command, node_transaction
from balancer.nodes.session import peers
from balancer.nodes.session.connection import translated
from balancer.nodes.session.holder import Addresses, NodeSessions
from balancer.nodes.tablets import replication
from balancer.nodes.tablets.copy import copy_rows
from balancer.nodes.tablets.partition import exists
from balancer.nodes.tablets.reference_copies import (
    Streams,
    check_copy,
    check_home,
    check_references_kept,
    copied_columns,
    copy_guarded,
    drop_stream,
    guard_copy,
    guard_home,
    home_guarded,
    open_copy,
    read_lags,
    read_streams,
    remember_references,
    tablet_of,
)
from balancer.planner.metrics import Reporter
from balancer.polling.view import ReferenceTable, reference_tables

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
        links = NodeSessions(self._addresses, "references")
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

    def _try(self, links: NodeSessions, node: str, work: Callable[[], None]) -> BalancerError | None:
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
        self, links: NodeSessions, snapshot: Snapshot, reference: ReferenceTable, refusals: dict[str, str]
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

    def _read_lags(self, links: NodeSessions, reference: ReferenceTable, lags: dict[str, float]) -> None:
        with translated(reference.home):
            found = read_lags(links.control(reference.home))
        for node, stream in reference.streams.items():
            if stream in found:
                lags[node] = max(lags.get(node, 0.0), found[stream])

    def _keep_home(self, links: NodeSessions, reference: ReferenceTable) -> None:
        home, epoch = reference.home, self._leadership.epoch
        with translated(home):
            if home_guarded(links.control(home), reference.names, reference.tablet.id):
                return
        with node_transaction(links.control(home), epoch, home) as cursor:
            upgrade_schema(cursor)
            cursor.execute("SET LOCAL lock_timeout TO '500ms'")
            check_home(cursor, reference.names, reference.tablet.id, reference.tablet.epoch)
            guard_home(cursor, reference.names, reference.tablet.id)

    def _keep_copy(self, links: NodeSessions, reference: ReferenceTable, node: str) -> None:
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

    def _ready_node(self, links: NodeSessions, reference: ReferenceTable, node: str) -> Streams:
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

    def _tidy(self, links: NodeSessions, bundle: str, node: str) -> None:
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


def make_tables(links: NodeSessions, leader_epoch: int, reference: ReferenceTable, node: str) -> None:
    """Makes the tables, empty, on a node that lacks them; closed to writes before anybody else can see them."""
    with translated(reference.home), links.control(reference.home).cursor() as cursor:
        definitions = [read_plain_definition(cursor, name) for name in reference.names]
    trusted = links.address(node).trusts_owners
    with node_transaction(links.control(node), leader_epoch, node) as cursor:
        make_roots(cursor, definitions, trusted=trusted)
        guard_copy(cursor, reference.names, reference.tablet.id, reference.home, reference.tablet.epoch)


def make_copy(links: NodeSessions, leader_epoch: int, reference: ReferenceTable, node: str, old: Sequence[str]) -> None:
    """Brings the node's rows to what the home has, and follows it from there. `old`: what it followed before."""
    home, names, stream = reference.home, reference.names, reference.streams[node]
    if old:
        with node_transaction(links.control(node), leader_epoch, node) as cursor:
            for former in old:
                replication.drop_subscription(cursor, former)
    with node_transaction(links.control(home), leader_epoch, home) as cursor:
        drop_stream(cursor, stream)
    with node_transaction(links.control(home), leader_epoch, home) as cursor:
        replication.create_publication(cursor, stream, names)
    with translated(home):
        columns = [copied_columns(links.control(home), name) for name in names]
    with links.data(home) as reader, links.data(node) as writer:
        with translated(home), links.replication(home) as maker:
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            with node_command(links.control(home), leader_epoch, home):
                slot = replication.create_slot(maker, stream)
            reader.execute(f"SET TRANSACTION SNAPSHOT '{slot.snapshot}'")
            reader.execute("SELECT 1")  # the snapshot is taken by the first query, while its maker lives
        with node_transaction(writer, leader_epoch, node, durable=True) as cursor:
            check_copy(cursor, names, reference.tablet.id)
            open_copy(cursor, names)
            trusted = links.address(node).trusts_owners
            if not trusted:
                check_owners_code(cursor, names)
            incoming = remember_references(cursor, names)
            for one in columns:
                one.begin(cursor)
                copy_rows(reader, writer, one.read(), one.write(), lambda _: None, source_node=home)
            for one in columns:
                one.merge(cursor)
            check_references_kept(cursor, incoming, home, trusted=trusted)
            guard_copy(cursor, names, reference.tablet.id, home, reference.tablet.epoch)
            source = peers.for_subscription(links.address(home), links.control(home))
            replication.create_subscription(cursor, stream, source)
