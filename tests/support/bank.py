"""`make bank`: money moves between accounts on three servers by atomic transactions and by messages, while their
tablets move and clients, servers, the directory and the instance are killed. Run as `python -m tests.support.bank
SECONDS [TABLETS [MOVES]]`.

At the end every transfer is in both accounts or in neither, acknowledged ones are there, refused ones are not, messages
to accounts that do not exist have come back, the sum is what it was, and no prepared part, waiting message or server is
left. With MOVES it continues until every tablet has moved that often, and SECONDS is the longest that this may take.
`BANK_SEED` repeats a run.
"""

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from balancer.client import PoolSettings, Router
from balancer.clock import SystemClock
from balancer.directory.contract import Directory
from balancer.directory.model import Command, CommandState, Put, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.embedded.postgres import PostgresServer
from balancer.embedded.process import servers_below
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.errors import BalancerError
from balancer.features.messages.enable import mail_leaf, message_handlers, switch_on
from balancer.naming import cluster_name
from balancer.nodes.schema.decisions import prepared_parts
from balancer.nodes.session.connection import Address
from tests.support.directories import transaction
from tests.support.fleet import Fleet, Process, until
from tests.support.forked import forked_beside
from tests.support.opening import connect
from tests.support.servers import fast_place, kept, new_database, postgres

ACCOUNTS = 600
TELLERS = 3
TABLETS = 16
TELL_EVERY = 10.0
OFTEN, SELDOM = (0.0, 1.3), (2.0, 8.0)
"""Seconds between two troubles; rarely enough that a move gets through if every tablet must."""
AT_ONCE = 3
"""Tablets that move at the same time."""
CREDIT = "UPDATE orders SET n = n + (%(amount)s)::bigint, note = note || %(mark)s WHERE id = %(id)s"
BACK = "UPDATE orders SET n = n + (%(amount)s)::bigint, note = replace(note, %(mark)s, '') WHERE id = %(id)s"


@dataclass
class Bank:
    """The servers, the instance and the tellers; each may be killed and comes back."""

    fleet: Fleet
    servers: dict[str, PostgresServer]
    keeper: ZooKeeperServer
    directory: Directory
    chance: Random
    stack: ExitStack
    log: Path
    instance: Process | None = None
    tellers: list[ExitStack] = field(default_factory=list)
    made: Counter[str] = field(default_factory=Counter)
    hired: int = 0

    def open(self) -> None:
        self.instance = Process(self.fleet.config)
        until(self.instance.leads, 120, "an election")
        passfile = {"passfile": str(self.log.with_name("pgpass"))}
        with Router.connect(self.fleet.url, PoolSettings(connection=passfile), samples=False) as router:
            router.copy_into("orders", ((key, 1000, "") for key in range(1, ACCOUNTS + 1)), ["id", "n", "note"])
        for _ in range(TELLERS):
            self.tellers.append(self.hire())

    def hire(self) -> ExitStack:
        self.hired += 1
        teller = ExitStack()
        arguments = (
            self.fleet.url,
            self.log.with_name("pgpass"),
            f"{self.chance.randrange(1000)}-{self.hired}",
            str(ACCOUNTS),
            self.log,
        )
        teller.enter_context(forked_beside("tests.support.bank_client", *arguments))
        return teller

    def trouble(self) -> None:
        kinds = (self.kill_teller, self.kill_server, self.kill_instance, self.kill_directory)
        (kind,) = self.chance.choices(kinds, (6, 2, 1, 1))
        self.made[kind.__name__] += 1
        kind()

    def kill_teller(self) -> None:
        at = self.chance.randrange(len(self.tellers))
        self.tellers[at].close()
        self.tellers[at] = self.hire()

    def kill_server(self) -> None:
        server = self.servers[self.chance.choice(sorted(self.servers))]
        server.kill()
        server.start()

    def kill_instance(self) -> None:
        assert self.instance is not None
        self.instance.kill()
        self.instance = Process(self.fleet.config)

    def kill_directory(self) -> None:
        self.keeper.kill()
        self.keeper.start()

    def move_something(self) -> None:
        """Moves some of those that have moved least to the next node, whatever the balance."""
        with suppress(BalancerError):
            snapshot = self.directory.snapshot()
            waiting = [one for one in snapshot.commands.values() if one.state is CommandState.WAITING]
            room = AT_ONCE - len(snapshot.busy) - len(waiting)
            free = [one for one in self.tablets() if one.id not in snapshot.busy]
            self.chance.shuffle(free)
            names = sorted(self.servers)
            for tablet in sorted(free, key=lambda one: one.epoch)[: max(0, room)]:
                target = names[(names.index(tablet.node) + 1) % len(names)]
                arguments = {"tablet": str(tablet.id), "node": target}
                now = time.time()
                command = Command(f"c{now}.{tablet.id}", "move", arguments, "bank", now)
                self.directory.commit(transaction([Put(command)], self.directory.snapshot().version))

    def tablets(self) -> list[Tablet]:
        snapshot = self.directory.snapshot()
        return list(snapshot.tablets(snapshot.table("orders").id))

    def done(self, moves: int) -> bool:
        """Whether every tablet has moved this often; no if the directory is away right now."""
        with suppress(BalancerError):
            return min(self.moves()) >= moves
        return False

    def progress(self, moves: int) -> str:
        with suppress(BalancerError):
            made = self.moves()
            return f"{sum(min(one, moves) for one in made)} of {moves * len(made)} moves"
        return "the directory does not answer"

    def moves(self) -> list[int]:
        """How often each tablet has moved: its epoch says so, without any record of a migration."""
        return [tablet.epoch - 1 for tablet in self.tablets()]

    def close(self) -> None:
        for teller in self.tellers:
            teller.close()

    def quiet(self) -> bool:
        """Nothing moves, nothing is prepared, and no message is waiting."""
        return not self.directory.snapshot().busy and not any(self.prepared()) and not self.messages("pending")

    def messages(self, state: str) -> int:
        """How many messages are in this state, as their owners have them."""
        snapshot = self.directory.snapshot()
        table = snapshot.table("orders")
        total = 0
        for tablet in snapshot.tablets(table.id):
            with connect(Address(tablet.node, self.fleet.dsns[tablet.node])) as connection:
                statement = f"SELECT count(*) FROM {mail_leaf(table, tablet, 0)} WHERE message_state = %s"
                row = connection.execute(statement, (state,)).fetchone()
                total += int(str(row[0])) if row else 0
        return total

    def prepared(self) -> Iterator[str]:
        for name, dsn in self.fleet.dsns.items():
            with connect(Address(name, dsn)) as connection:
                yield from (part.gid for part in prepared_parts(connection))


@contextmanager
def banks(folder: Path, seed: int, tablets: int) -> Iterator[Bank]:
    with ExitStack() as stack:
        stack.enter_context(kept(folder))
        versions = {"a": 15, "b": 18, "c": 18}
        servers = {
            name: stack.enter_context(postgres(folder / name, version, {"max_prepared_transactions": 100}))
            for name, version in versions.items()
        }
        lines = [f"127.0.0.1:{server.port}:*:postgres:{server.password()}\n" for server in servers.values()]
        (folder / "pgpass").write_text("".join(lines))
        (folder / "pgpass").chmod(0o600)
        keeper = stack.enter_context(ZooKeeperServer(folder / "zookeeper"))
        dsns = {name: stack.enter_context(new_database(server)).dsn for name, server in servers.items()}
        fleet = Fleet(folder, f"zk://{keeper.address}/bank", dsns, tablets=tablets)
        fleet.bundle = {
            "tablet_balancer_config": "enable_cell_balancer = false",
            "tables.orders.messages.credit": f'apply = "{CREDIT}"\nreverse = "{BACK}"\nattempts = 3',
            "migration": 'retire_grace = "100ms"\nmoves_per_node = 2\ncool_down = "0s"\nback_off = "1s"',
        }
        fleet.write_daemon()
        fleet.write("autonomous")
        fleet.create(sorted(servers))
        directory = stack.enter_context(fleet.directory())
        _switch_messages_on(fleet, directory)
        bank = Bank(fleet, servers, keeper, directory, Random(seed), stack, folder / "tellers.log")
        try:
            bank.open()
            yield bank
        finally:
            bank.close()
            if bank.instance is not None:
                bank.instance.stop()


def _switch_messages_on(fleet: Fleet, directory: Directory) -> None:
    with ExitStack() as stack:
        nodes = {name: stack.enter_context(connect(Address(name, dsn))) for name, dsn in fleet.dsns.items()}
        handlers = message_handlers(fleet.settings())
        cluster, clock = cluster_name(fleet.url), SystemClock()
        switch_on("orders", directory, nodes, handlers, cluster=cluster, author="bank", clock=clock)


def books(bank: Bank) -> dict[int, tuple[int, str]]:
    """Every account as its owner has it."""
    snapshot: Snapshot = bank.directory.snapshot()
    found: dict[int, tuple[int, str]] = {}
    for tablet in snapshot.tablets(snapshot.table("orders").id):
        with connect(Address(tablet.node, bank.fleet.dsns[tablet.node])) as connection:
            rows = connection.execute(f"SELECT id, n, note FROM orders_t{tablet.id}").fetchall()
        found |= {int(str(key)): (int(str(n)), str(note)) for key, n, note in rows}
    return found


def faults(log: str, accounts: dict[int, tuple[int, str]]) -> list[str]:
    """What is wrong with the books, by what the tellers were told. Pure."""
    begun = {words[1]: words for words in map(str.split, log.splitlines()) if words[0] == "begun" and len(words) == 5}
    ends = {words[1]: words[0] for words in map(str.split, log.splitlines()) if words[0] != "begun" and len(words) == 2}
    notes = defaultdict(Counter, {key: Counter(note.split(";")[:-1]) for key, (_, note) in accounts.items()})
    total = sum(n for n, _ in accounts.values())
    found = [] if total == 1000 * ACCOUNTS else [f"the sum is {total}, not {1000 * ACCOUNTS}"]
    found += [] if len(accounts) == ACCOUNTS else [f"{len(accounts)} accounts, not {ACCOUNTS}"]
    for transfer, (_, _, payer, payee, _) in begun.items():
        there = notes[int(payer)][transfer], notes[int(payee)][transfer]
        end = ends.get(transfer, "unknown")
        if end == "missing":
            found.append(f"transfer {transfer} did not find an account of {payer} and {payee}, which are both there")
        allowed = {"done": [(1, 1)], "refused": [(0, 0)], "missing": [(0, 0)]}.get(end, [(0, 0), (1, 1)])
        if int(payee) > ACCOUNTS:
            allowed = [(0, 0)]  # it has come back, or was never sent
        if there not in allowed:
            found.append(f"transfer {transfer} is {end} and stands {there} times in its accounts")
    return found


def run(folder: Path, seconds: float, seed: int, tablets: int = TABLETS, moves: int = 0) -> list[str]:
    """Runs it; returns what is wrong."""
    with banks(folder, seed, tablets) as bank:
        _work(bank, seconds, moves)
        bank.close()
        until(bank.quiet, 180, "the end of every move, transaction and message")
        log = bank.log.read_text()
        ends_of = Counter(line.split()[0] for line in log.splitlines())
        moved = bank.moves()
        sent = sum(line.startswith("done #") for line in log.splitlines())
        failed = bank.messages("failed")
        print(f"transfers: {dict(ends_of)}; messages: {sent} sent, {failed} came back; troubles: {dict(bank.made)}")
        print(f"moves: {sum(moved)} of {len(moved)} tablets, each {min(moved)} to {max(moved)} times")
        assert ends_of["done"] > sent > 0, "no transfer of one kind got through"
        assert sum(moved) > 0, "nothing has moved"
        assert min(moved) >= moves, f"some tablet has moved {min(moved)} times only"
        found = faults(log, books(bank))
    left = servers_below(folder)
    return [*found, *(f"process {pid} is left behind" for pid in left)]


def _work(bank: Bank, seconds: float, moves: int) -> None:
    """Moves and troubles, until the time is over or every tablet has moved this often."""
    began = told = time.monotonic()
    trouble_at = began
    while time.monotonic() < began + seconds and not (moves and bank.done(moves)):
        bank.move_something()
        time.sleep(0.2)
        if time.monotonic() > trouble_at:
            bank.trouble()
            trouble_at = time.monotonic() + bank.chance.uniform(*(SELDOM if moves else OFTEN))
        if moves and time.monotonic() > told + TELL_EVERY:
            told = time.monotonic()
            print(f"{told - began:.0f} s: {bank.progress(moves)}; troubles: {dict(bank.made)}", flush=True)
    # A short run may end in the middle of its troubles: then wait for at least one move without any.
    until(partial(_has_moved, bank), 120, "a move")


def _has_moved(bank: Bank) -> bool:
    bank.move_something()
    with suppress(BalancerError):
        return sum(bank.moves()) > 0
    return False


def main() -> int:
    given = sys.argv[1:]
    seconds, tablets, moves = map(float, (*given, *("120", str(TABLETS), "0")[len(given) :]))
    seed = int(os.environ.get("BANK_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"BANK_SEED={seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and folder are tidied up as after Ctrl-C
    with tempfile.TemporaryDirectory(prefix="bank-", dir=fast_place()) as made:
        folder = Path(made)
        folder.chmod(0o755)
        found = run(folder, seconds, seed, int(tablets), int(moves))
    print(*(found or ["every transfer is whole"]), sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
