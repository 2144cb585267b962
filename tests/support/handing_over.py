"""Two bundles in one directory, each with two nodes and a table; and a process that hands one over, until a named step.

Run as `python -m tests.support.handing_over FILE STEP [undo]`: FILE is a world as JSON; it is killed before STEP takes
effect.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from balancer.client import Router
from balancer.directory.contract import Directory
from balancer.directory.identity import made_identity
from balancer.directory.model import Node
from balancer.directory.open import open_directory
from balancer.features.handover.checks import in_the_way
from balancer.features.handover.run import HandingOver, HandoverSide
from balancer.features.tables.adopt import TableRequest
from balancer.features.tables.create import create
from balancer.naming import cluster_name, parse_name
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.nodes.session.connection import Address
from tests.support.cluster import COLUMNS
from tests.support.forked import run_forked
from tests.support.opening import connect

NODES = {"shop": ("a", "b"), "mail": ("c", "d")}
TABLES = {"shop": "orders", "mail": "letters"}


@dataclass
class World:
    """Where everything is."""

    giver: str
    taker: str
    dsns: dict[str, str]

    def make(self) -> None:
        """Both tables, with four tablets each on both nodes of their bundle, and a leader who has been there."""
        with open_directory(self.giver, lease=5.0) as directory:
            for bundle, nodes in NODES.items():
                self._make_table(directory, bundle, nodes)
            leadership = directory.campaign("test", 10.0)
            assert leadership is not None
            identity = made_identity("test", directory, leadership.epoch)
            for node in self.dsns:
                address = self.address(node, identity)
                with connect(address) as connection, node_transaction(connection, leadership.epoch, node):
                    pass
            leadership.resign()

    def _make_table(self, directory: Directory, bundle: str, nodes: tuple[str, ...]) -> None:
        table = TABLES[bundle]
        with ExitStack() as stack:
            opened = {node: stack.enter_context(connect(Address(node, self.dsns[node]))) for node in nodes}
            request = TableRequest(bundle, table, (parse_name(f"public.{table}"),), "hash", ("id",), "test")
            definition = f"CREATE TABLE public.{table} {COLUMNS} PARTITION BY HASH (id)"
            records = [Node(node, bundle, self.dsns[node]) for node in nodes]
            name = cluster_name(self.giver)
            create(request, directory, opened, records, name, tablets=4, definition=definition)

    def address(self, node: str, identity: str = "") -> Address:
        return Address(node, self.dsns[node], cluster=cluster_name(self.giver) if identity else "", identity=identity)

    @contextmanager
    def work(self, observe: Callable[[str], None] = lambda step: None) -> Iterator[HandingOver]:
        """A hand-over of the shop, as another process would have it."""
        with open_directory(self.giver) as giver, open_directory(self.taker) as taker:
            sides = HandoverSide(self.giver, giver), HandoverSide(self.taker, taker)
            yield HandingOver(*sides, ("shop",), self.address, "test", observe)

    def hand_over(self, observe: Callable[[str], None] = lambda step: None, lost: tuple[str, ...] = ()) -> str:
        """To its end."""
        with self.work(observe) as work:
            return work.run(lambda closed: in_the_way(work, closed=closed), lost).state

    def undo(self) -> None:
        with self.work() as work:
            work.undo()

    def until(self, step: str, folder: Path, *, undo: bool = False) -> int:
        """In a process of its own, killed there; its exit code."""
        file = folder / "world.json"
        file.write_text(json.dumps(asdict(self)))
        return run_forked("tests.support.handing_over", file, step, *(["undo"] if undo else [])).returncode

    def belongs(self, node: str) -> tuple[object, ...]:
        """What a node says about itself."""
        with connect(Address(node, self.dsns[node])) as connection:
            row = connection.execute(
                "SELECT cluster, identity, leader_epoch, changed_hands FROM balancer.node"
            ).fetchone()
        assert row is not None
        return tuple(row)

    def rows(self, table: str = "orders") -> list[int]:
        """Of all nodes."""
        found = []
        for node in NODES["shop" if table == "orders" else "mail"]:
            with connect(Address(node, self.dsns[node])) as connection:
                found += [row[0] for row in connection.execute(f"SELECT id FROM {table}".encode())]
        return sorted(found)


def write(router: Router, table: str, key: int, patience: float = 10.0) -> None:
    """One acknowledged row."""
    with router.transaction(table, key, patience=patience) as connection:
        connection.execute(f"INSERT INTO {table} (id) VALUES (%s)".encode(), (key,))


def main() -> None:
    file, last, *rest = sys.argv[1:]
    world = World(**json.loads(Path(file).read_text()))

    def observe(step: str) -> None:
        print(f"… {step}", flush=True)
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)

    with world.work(observe) as work:
        if rest:
            work.undo()
        else:
            work.run(lambda closed: in_the_way(work, closed=closed))


if __name__ == "__main__":
    main()
