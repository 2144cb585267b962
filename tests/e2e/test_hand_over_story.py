"""A bundle goes to a directory of its own under load, with daemons on both: nothing is lost, and one leader acts."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from psycopg.conninfo import conninfo_to_dict

from balancer.client import PoolSettings, Router
from balancer.clock import SystemClock
from balancer.daemon.daemon import Daemon
from balancer.directory.identity import identity_of
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.embedded.process import free_port
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.errors import BalancerError, Refused
from balancer.logs import set_up_logs
from balancer.nodes.schema.leader_transaction import node_transaction
from balancer.settings import load_settings
from tests.support.commands import balancer_here
from tests.support.handing_over import NODES, TABLES, World, write
from tests.support.logs import kept_logs
from tests.support.opening import connect
from tests.support.servers import Database
from tests.support.waiting import surely

TOLD = "was handed over to the directory {}: its applications open that one"


@pytest.fixture(autouse=True)
def _logs_apart() -> Iterator[None]:
    with kept_logs():
        set_up_logs("info", "text", sys.__stderr__)
        yield


def until(condition: Callable[[], object], what: str) -> None:
    assert surely(condition, 40, pause=0.1), f"{what} did not happen"


class Writer:
    """An application that writes new keys into one table, at a pace, by whatever router it was given last."""

    def __init__(self, table: str, url: str, pools: PoolSettings) -> None:
        self.table = table
        self._pools = pools
        self.acknowledged: list[int] = []
        self.errors: list[str] = []
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def switch(self, url: str) -> None:
        """The operator starts it again with another address."""
        self._url = url

    def _run(self) -> None:
        key, known = 0, ""
        router: Router | None = None
        while not self._over.wait(0.01):
            if known != self._url:
                if router is not None:
                    router.close()
                known = self._url
                router = Router.connect(known, self._pools, samples=False)
            key += 1
            assert router is not None
            try:
                write(router, self.table, key)
                self.acknowledged.append(key)
            except BalancerError as error:
                self.errors.append(str(error))
        if router is not None:
            router.close()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def goes_on(self) -> None:
        done = len(self.acknowledged)
        until(lambda: len(self.acknowledged) > done + 20, f"further rows of {self.table}")


class Group:
    """The files of one directory."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        (folder / "bundles").mkdir(parents=True)

    def instance(self, name: str) -> Path:
        file = self.folder / f"{name}.toml"
        lines = [f'directory = "{self.url}"', f'instance = "{name}"', 'tick = "300ms"', 'session_timeout = "4s"']
        file.write_text(
            "\n".join([*lines, "[http]", f'listen = "127.0.0.1:{free_port()}"', 'token = "a-long-token-here"'])
        )
        return file

    def bundle(self, name: str, dsns: dict[str, str]) -> Path:
        nodes = [f'[nodes.{node}]\ndsn = "{dsns[node]}"' for node in NODES[name]]
        table = TABLES[name]
        shape = f'[tables.{table}]\nroots = ["public.{table}"]\nlayout = "hash"\nkey = ["id"]\ntablets = 4'
        quick = '[migration]\nretire_grace = "100ms"\ncool_down = "0s"'
        file = self.folder / "bundles" / f"{name}.toml"
        file.write_text("\n".join(['mode = "autonomous"', quick, "[heat]\nenable = false", *nodes, shape]))
        return file


@contextmanager
def daemons(*files: Path) -> Iterator[list[Daemon]]:
    """Instances in this process, each with a thread that steps."""
    over = threading.Event()
    with ExitStack() as stack:
        made = []
        for file in files:
            daemon = Daemon(load_settings(file), SystemClock())
            daemon.start()
            stack.callback(daemon.stop)
            made.append(daemon)

        def step() -> None:
            while not over.wait(0.2):
                for one in made:
                    one.step()

        thread = threading.Thread(target=step)
        thread.start()
        stack.callback(thread.join)
        stack.callback(over.set)
        yield made


def say(*words: object) -> str:
    done = balancer_here(*map(str, words))
    assert done.code == 0, (words, done.out, done.err)
    return done.out


def test_a_bundle_gets_a_directory_and_a_leader_of_its_own(
    tmp_path: Path,
    postgres18: PostgresServer,
    zookeeper: ZooKeeperServer,
    database: Callable[[PostgresServer], Database],
) -> None:
    run = uuid4().hex[:8]
    dsns = {node: database(postgres18).dsn for nodes in NODES.values() for node in nodes}
    # Both have the same last name: nodes tell them apart by their identities.
    world = World(f"zk://{zookeeper.address}/{run}/all", f"zk://{zookeeper.address}/{run}-shop/all", dsns)
    world.make()
    pools = PoolSettings(connection={"password": conninfo_to_dict(dsns["a"])["password"]})
    everything, own = Group(tmp_path / "all", world.giver), Group(tmp_path / "own", world.taker)
    file = everything.bundle("shop", dsns)
    everything.bundle("mail", dsns)
    config, theirs = everything.instance("one"), own.instance("three")
    with ExitStack() as stack:
        running = stack.enter_context(daemons(config, everything.instance("two")))
        until(lambda: any(one.leading for one in running) and all(len(one.states()) == 2 for one in running), "ticks")
        (leader,) = [one for one in running if one.leading]
        assert leader.leading is not None
        epoch = leader.leading.leadership.epoch
        late = stack.enter_context(connect(leader.address("a")))
        with node_transaction(late, epoch, "a"):
            pass
        writers = [Writer(table, world.giver, pools) for table in TABLES.values()]
        for writer in writers:
            stack.callback(writer.end)
        shop, mail = writers
        shop.goes_on()

        assert say("directory", "hand-over", "shop", "--to", world.taker, "--dry-run", "--config", config).endswith(
            "nothing is in the way\n"
        )
        assert "handed over to" in say("directory", "hand-over", "shop", "--to", world.taker, "--config", config)
        told = TOLD.format(world.taker)
        until(lambda: all(told in one.states()["shop"].sentence for one in running), "the daemons leave it alone")
        for writer in writers:
            writer.goes_on()
        (document, _) = sorted(
            json.loads(say("status", "--config", config, "-o", "json")), key=lambda one: one["bundle"] != "shop"
        )
        assert told in document["sentence"]
        assert told in say("config", "check", "--config", config, "--ask-directory")
        assert told in balancer_here("doctor", "--config", config).out.replace("\n", " ")

        file.rename(own.folder / "bundles" / "shop.toml")
        for one in running:
            one.reload(confirmed=True)
        (new,) = stack.enter_context(daemons(theirs))
        until(lambda: new.leading and "shop" in new.states(), "the new directory's leader ticks")
        until(lambda: new.states()["shop"].view is not None, "and sees its nodes")
        assert [node.disagreements for node in new.states()["shop"].nodes] == [(), ()]
        shop.switch(world.taker)
        shop.goes_on()
        say("resume", "shop", "--config", theirs)
        snapshot = new.follower().snapshot
        tablet = next(one for one in snapshot.tablets(snapshot.table("orders").id) if one.node == "a")
        say("move", tablet.id, "b", "--config", theirs)
        until(lambda: new.directory().snapshot().tablet(tablet.id).node == "b", "the move")
        until(lambda: all(one.finished for one in new.directory().snapshot().migrations.values()), "its end")
        for writer in writers:
            writer.goes_on()

        # The former leader still leads, with a connection from before; and an application that nobody has switched.
        assert leader.leading is not None
        for number in (epoch, epoch + 1000):
            with (
                pytest.raises(Refused, match="node a belongs to another directory"),
                node_transaction(late, number, "a"),
            ):
                raise AssertionError("it was let in")
        with Router.connect(world.giver, pools, samples=False) as old:
            gone = next(key for key in range(10_000) if old.locate("orders", key).tablet == tablet.id)
            with pytest.raises(Refused, match=told):
                write(old, "orders", gone, patience=3600)
            write(old, "letters", -1)
            mail.acknowledged.append(-1)
        say("directory", "hand-over", "shop", "--to", world.taker, "--forget", "--config", config)
        mail.goes_on()
    for writer in writers:
        assert writer.errors == []
        assert world.rows(writer.table) == sorted(writer.acknowledged)
    with open_directory(world.giver) as giver, open_directory(world.taker) as taker:
        assert set(giver.snapshot().bundles) == {"mail"}
        assert set(taker.snapshot().bundles) == {"shop"}
        assert world.belongs("a")[1] == identity_of(taker.snapshot())
        assert world.belongs("c")[1] == identity_of(giver.snapshot())
