"""Fills a copy of a reference table and makes it follow its home. The leader's keeper calls it as often as needed.

One snapshot at the home is both where the stream begins and what is copied; on the copy's node the rows, the guard and
the subscription are one transaction. Readers there see the rows before or after it. Whatever a failed attempt left has
the same name, and is removed first.

What the copy followed before ends before that snapshot is taken. Then the copy has no row that the snapshot lacks, and
no row is removed only to come back a moment later, when an application that refers to it would have been told that it
does not exist.
"""

from collections.abc import Sequence

from balancer.migration.links import Links
from balancer.nodes import replication
from balancer.nodes.connection import full_conninfo, translated
from balancer.nodes.copy import copy_rows
from balancer.nodes.definition import make_roots, read_plain_definition
from balancer.nodes.epoch_check import node_command, node_transaction
from balancer.nodes.kept_references import check_references_kept, remember_references
from balancer.nodes.owners_code import check_owners_code
from balancer.nodes.reference_copies import check_copy, copied_columns, drop_stream, guard_copy, open_copy
from balancer.polling.reference_streams import ReferenceTable


def make_tables(links: Links, leader_epoch: int, reference: ReferenceTable, node: str) -> None:
    """Makes the tables, empty, on a node that lacks them; closed to writes before anybody else can see them."""
    with translated(reference.home), links.control(reference.home).cursor() as cursor:
        definitions = [read_plain_definition(cursor, name) for name in reference.names]
    trusted = links.address(node).trusts_owners
    with node_transaction(links.control(node), leader_epoch, node) as cursor:
        make_roots(cursor, definitions, trusted=trusted)
        guard_copy(cursor, reference.names, reference.tablet.id, reference.home, reference.tablet.epoch)


def make_copy(links: Links, leader_epoch: int, reference: ReferenceTable, node: str, old: Sequence[str]) -> None:
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
            source = full_conninfo(links.address(home), links.control(home))
            replication.create_subscription(cursor, stream, source)
