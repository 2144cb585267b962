"""From the configuration to the nodes: how to reach each, and what the directory records about it.

Addresses are looked up in the current settings each time, so that a changed DSN or password takes effect at once.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from balancer.errors import Unavailable
from balancer.naming import cluster_name
from balancer.nodes.session.connection import DEFAULT_TIMEOUTS, Address, Connection, Timeouts, connect
from balancer.settings import BundleSettings, NodeSettings, Settings


def address_of(node: NodeSettings, *, trusts_owners: bool = False) -> Address:
    """How to connect to a node."""
    return Address(
        node.id,
        node.dsn,
        node.password.get_secret_value() if node.password is not None else None,
        forward_user=node.forward_user,
        forward_password=node.forward_password.get_secret_value() if node.forward_password is not None else None,
        peer_dsn=node.peer_dsn,
        peer_files=node.peer_files,
        has_standbys=node.has_standbys,
        trusts_owners=trusts_owners,
    )


def addresses_of(bundles: Iterable[BundleSettings], identity: str = "") -> dict[str, Address]:
    """By node, over several bundles."""
    return {
        node.id: replace(address_of(node, trusts_owners=bundle.migration.trust_table_owners), identity=identity)
        for bundle in bundles
        for node in bundle.nodes.values()
    }


def address_in(settings: Settings, node: str, identity: str = "") -> Address:
    """Where a node is, and which directory it must belong to (`directory.identity`); `Unavailable` if the configuration
    does not say: it may come back with the next reload."""
    for bundle in settings.bundles.values():
        if node in bundle.nodes:
            found = address_of(bundle.nodes[node], trusts_owners=bundle.migration.trust_table_owners)
            return replace(found, cluster=cluster_name(settings.daemon.directory), identity=identity)
    raise Unavailable(f"node {node} is not in the configuration")


@contextmanager
def connected(
    bundle: BundleSettings, purpose: str, timeouts: Timeouts = DEFAULT_TIMEOUTS, identity: str = ""
) -> Iterator[dict[str, Connection]]:
    """A connection to each node of a bundle, for the length of a block. `identity`: the directory's, if it already has
    one."""
    with ExitStack() as stack:
        yield {
            node.id: stack.enter_context(
                connect(replace(address_of(node), identity=identity), purpose=purpose, timeouts=timeouts)
            )
            for node in bundle.nodes.values()
        }
