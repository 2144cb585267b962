"""A cluster whose table `orders` takes messages: `credit` adds to a user's row, or gives it back to the sender's.

`Mailing` has a router, and the leader's service, which delivers only when a test tells it to.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from balancer.client import PoolSettings, Router
from balancer.clock import SystemClock
from balancer.directory.locate import locate_key
from balancer.features.messages.enable import Switched, switch_on
from balancer.features.messages.service import MailRound, MessageService
from balancer.nodes.session.connection import Address
from balancer.settings.messages import MessageSettings
from tests.support.shards import Leader, Shards, new_shards, user_of

CREDIT = (
    "UPDATE orders SET n = n + (%(amount)s)::bigint, note = note || coalesce(%(mark)s, '') WHERE user_id = %(user_id)s"
)
MESSAGES: Mapping[str, MessageSettings] = {
    "credit": MessageSettings(CREDIT, CREDIT, attempts=2),
    "lasting": MessageSettings(CREDIT, attempts=2),
}
POOR = 10
"""What no row of the cluster may be below."""


@dataclass
class Mailing:
    """A cluster with messages."""

    shards: Shards
    router: Router
    move: Leader
    service: MessageService
    newest: int = 0
    """The highest user there ever was: what inboxes remember of one that is gone is not the next one's."""

    def users(self, count: int, n: int = 100) -> list[int]:
        """New users with a row of their own, each on a different node from the previous one."""
        nodes, found = sorted(self.shards.dsns), list[int]()
        there = self._all("SELECT coalesce(max(user_id), 0) FROM orders")
        highest = max(self.newest, *(int(str(row[0])) for row in there))
        for number in range(count):
            node = nodes[number % len(nodes)]
            highest = next(
                user for user in range(highest + 1, highest + 1000) if self.router.locate("orders", user).node == node
            )
            with self.router.transaction("orders", highest) as connection:
                connection.execute("INSERT INTO orders VALUES (%s, %s)", (highest, n))
            found.append(highest)
        self.newest = highest
        return found

    def pay(self, payer: int, payee: int, amount: int = 5, mark: str = "x", **options: bool) -> None:
        """Takes from the one and sends it to the other."""
        with self.router.transaction("orders", payer) as connection:
            connection.execute("UPDATE orders SET n = n - %s WHERE user_id = %s", (amount, payer))
            connection.send("orders", payee, "credit", {"amount": amount, "mark": mark}, **options)

    def look(self) -> MailRound:
        """One look by the leader, at everything that is waiting, however young."""
        for name in self.shards.dsns:
            self.shards.node(name).execute("UPDATE balancer_outbox_1 SET message_due = message_sent - interval '1 min'")
        return self.service.look(self.shards.directory.snapshot())

    def forget(self, kept: str = "0 seconds") -> int:
        return self.service.forget(self.shards.directory.snapshot(), kept=kept, after="0 seconds")

    def book(self, user: int) -> tuple[int, str]:
        """A user's row where its owner has it."""
        at = locate_key(self.shards.directory.snapshot(), "orders", user)
        statement = f"SELECT n, note FROM orders_t{at.tablet} WHERE user_id = %s"
        row = self.shards.node(at.node).execute(statement, (user,)).fetchone()
        assert row is not None, f"user {user} is not there"
        return int(str(row[0])), str(row[1])

    def outbox(self, user: int) -> list[tuple[object, ...]]:
        """State, tries and reason of a user's messages, in their order, where their owner has them."""
        return self._mail("outbox", user, "message_state, message_tries, message_reason", "message_number")

    def inbox(self, user: int) -> list[tuple[object, ...]]:
        """Outcomes that a user's owner remembers."""
        return self._mail("inbox", user, "message_outcome, message_reason", "message_at")

    def away(self, user: int) -> int:
        """Moves the user's tablet to the other node; returns its number."""
        at = self.router.locate("orders", user)
        other = next(node for node in sorted(self.shards.dsns) if node != at.node)
        assert self.move(at.tablet, other).state == "done"
        self.caught_up()
        return at.tablet

    def caught_up(self) -> None:
        self.router._routes.wait(self.shards.directory.snapshot().version - 1, 10)

    def _mail(self, root: str, user: int, columns: str, order: str) -> list[tuple[object, ...]]:
        at = locate_key(self.shards.directory.snapshot(), "orders", user)
        statement = f"SELECT {columns} FROM balancer_{root}_1_t{at.tablet} WHERE user_id = %s ORDER BY {order}"
        return self.shards.node(at.node).execute(statement, (user,)).fetchall()

    def _all(self, statement: str) -> list[tuple[object, ...]]:
        return [row for name in self.shards.dsns for row in self.shards.node(name).execute(statement).fetchall()]


def switch_messages_on(shards: Shards, messages: Mapping[str, MessageSettings] = MESSAGES) -> Switched:
    nodes = {name: shards.node(name) for name in shards.dsns}
    handlers = {"orders": messages}
    clock = SystemClock()
    return switch_on("orders", shards.directory, nodes, handlers, cluster="shop", author="test", clock=clock)


@contextmanager
def mailings(folder: Path, dsns: Sequence[str]) -> Iterator[Mailing]:
    with new_shards(folder, dsns) as shards:
        for name in shards.dsns:
            node = shards.node(name)
            node.execute("DROP TABLE IF EXISTS balancer_outbox_1, balancer_inbox_1")
            node.execute(f"ALTER TABLE orders ADD CONSTRAINT rich CHECK (n >= {POOR})")
        switch_messages_on(shards)
        with (
            Router.connect(shards.url, PoolSettings(size=4), samples=False) as router,
            shards.leading() as move,
        ):
            addresses = {node: Address(node, dsn) for node, dsn in shards.dsns.items()}
            service = MessageService(move.leadership, addresses.__getitem__, SystemClock())
            yield Mailing(shards, router, move, service)
            service.close()


__all__ = ["CREDIT", "MESSAGES", "Mailing", "mailings", "switch_messages_on", "user_of"]
