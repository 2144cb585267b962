"""A consistency checker over a test's cluster, and whole rounds of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.features.checker.loop import Checker, ground_of
from balancer.nodes.session.connection import Address
from balancer.policies.check_options import CheckOptions
from balancer.policies.checking import Anomaly, CheckRounds
from balancer.policies.options import BundleOptions
from balancer.settings import BundleSettings, MigrationSettings, Mode, NodeSettings


class Nodes(Protocol):
    """A test's cluster, as far as it is checked."""

    @property
    def dsns(self) -> dict[str, str]: ...

    @property
    def directory(self) -> Directory: ...


def bundle_of(shards: Nodes, options: CheckOptions, *, trusted: bool = True) -> BundleSettings:
    """The cluster as a bundle's file would describe it."""
    nodes = {
        name: NodeSettings(name, dsn, password=None, zone="", weight=1.0, disk=None, memory=None)
        for name, dsn in shards.dsns.items()
    }
    return BundleSettings(
        name="shop",
        file=Path("shop.toml"),
        mode=Mode.OBSERVE,
        timezone="UTC",
        options=BundleOptions(),
        migration=MigrationSettings(trust_table_owners=trusted),
        nodes=nodes,
        tables={},
        checks=options,
    )


@contextmanager
def checker_of(
    shards: Nodes,
    options: CheckOptions,
    book: CheckRounds | None = None,
    *,
    trusted: bool = False,
    cluster: str = "shop",
) -> Iterator[Checker]:
    """It continues from the book."""

    def address(node: str) -> Address:
        return Address(node, shards.dsns[node], trusts_owners=trusted)

    bundle = bundle_of(shards, options, trusted=trusted)
    with ground_of(bundle, shards.directory, address, cluster, SystemClock()) as ground:
        yield Checker(ground, book or CheckRounds())


def run_round(checker: Checker) -> CheckRounds:
    """A round from its beginning, or what is left of one, to its end."""
    if checker.book.running is None:
        checker.begin()
    while checker.book.running is not None:
        checker.step()
    return checker.book


def anomalies(book: CheckRounds) -> list[Anomaly]:
    return [standing.anomaly for standing in book.standing.values()]


def checked(shards: Nodes, options: CheckOptions, *, trusted: bool = False, cluster: str = "shop") -> list[Anomaly]:
    """What one round finds; nothing may have been left out."""
    with checker_of(shards, options, trusted=trusted, cluster=cluster) as checker:
        book = run_round(checker)
    assert book.round is not None
    assert book.round.why == (), book.round.why
    return anomalies(book)
