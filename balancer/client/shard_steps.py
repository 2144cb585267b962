"""Questions to every tablet of a table: which are asked together, how, and what is left to ask. Does no I/O.

`every_shard` carries them out in threads, `every_shard` in tasks; the logic is here once. Each tablet is asked in a
transaction of its own, whose node has proven that it owns it (`balancer.hold`): former owners keep rows for a while,
and a question to their root would count those twice. So statements name partitions: `{orders}` in a statement stands
for the tablet's partition of that root. There is no single moment for all tablets: each answers for the moment at which
it is asked.

Every key of a table once, while tablets move, split and merge: which tablets are asked, and for which. Pure.

A question to all of a table goes to the tablets of one version of the map. One that has moved is asked where it went.
One that no longer exists has been split: its parts are asked instead. Or it was merged with others: then what replaced
it also has their rows, and asking it would count them twice. That ends the question, in one sentence.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from psycopg import sql

from balancer.client.keys.routes import Routes
from balancer.client.transaction.steps import Isolation, Request, Steps, TransactionRequest, ask, ask_together, enter
from balancer.client.transaction.wire import OVER, ends_transaction
from balancer.directory.locate import Location
from balancer.directory.model import Table, Tablet
from balancer.directory.snapshot import Snapshot
from balancer.errors import Unavailable, UserError
from balancer.naming import Name, parse_name, partition_name


class KeyStretch(NamedTuple):
    """A tablet to ask, and the part of the key space that it had in the map's version."""

    tablet: int
    start: Any
    end: Any  # None: to the end
    partitions: tuple[Name, ...]
    """In the order of the table's roots."""


class Vanished(Exception):
    """The tablet is no longer in the map."""


def stretches(snapshot: Snapshot, table: Table) -> list[KeyStretch]:
    """All tablets of a table, in key order."""
    columns = snapshot.columns(table.id)
    starts = [*columns.starts, None]
    return [
        KeyStretch(number, starts[at], starts[at + 1], leaves(table, snapshot.tablet(number)))
        for at, number in enumerate(columns.ids)
    ]


def leaves(table: Table, tablet: Tablet) -> tuple[Name, ...]:
    """The names of a tablet's partitions, in the order of the table's roots."""
    roots = tuple(map(parse_name, table.roots))
    if tablet.partitions:
        return tuple(Name(root.schema, name) for root, name in zip(roots, tablet.partitions, strict=True))
    return tuple(partition_name(root, tablet.id) for root in roots)


def parts(snapshot: Snapshot, table: Table, gone: KeyStretch) -> list[KeyStretch]:
    """What has exactly the keys of a tablet that is gone; `Unavailable` if others' keys are among them."""
    inside = [one for one in stretches(snapshot, table) if _within(one, gone)]
    if not inside or (inside[0].start, inside[-1].end) != (gone.start, gone.end):
        raise Unavailable(
            f"tablet {gone.tablet} of table {table.name} was merged with others while the table was read: ask again"
        )
    return inside


def _within(one: KeyStretch, gone: KeyStretch) -> bool:
    ends_inside = gone.end is None or (one.end is not None and one.end <= gone.end)
    return bool(one.start >= gone.start and ends_inside)


def tablet_finder(newest: Callable[[], Snapshot], tablet: int) -> Callable[[], tuple[int, Location]]:
    """For `enter` and `ask`: where a tablet is by the newest snapshot known; raises `Vanished`."""

    def find() -> tuple[int, Location]:
        snapshot = newest()
        found = snapshot.find_tablet(tablet)
        if found is None:
            raise Vanished
        return snapshot.version, Location(found.node, found.id, found.epoch)

    return find


Outcome = TypeVar("Outcome")
Row = tuple[Any, ...]
Values = Sequence[Any] | Mapping[str, Any] | None
Found = tuple[KeyStretch, tuple[Outcome, ...]]
"""A tablet that was asked and its one answer; none: it no longer exists."""
Answer = tuple[int, str, list[Row]]
"""Tablet, node and rows."""

MOST_TOGETHER = 32
"""Tablets that one message asks: their answers are kept until the last of them is there."""
PAGE = 1_000
"""Rows that `scan` fetches at once."""
PAGES = 4
"""Pages that it keeps for a slow reader."""


class Shard(NamedTuple):
    """A tablet that is being asked."""

    tablet: int
    node: str
    partitions: Mapping[str, Name]
    """By root, as the table's settings name it, and by its bare name."""

    def format(self, statement: str) -> sql.Composed:
        """A statement in which `{orders}` stands for the tablet's partition of that root."""
        names = {root: name.identifier for root, name in self.partitions.items()}
        try:
            return sql.SQL(statement).format(**names)
        except (KeyError, IndexError, ValueError):
            known = ", ".join(f"{{{root}}}" for root in self.partitions)
            raise UserError(
                f"{statement!r} does not name partitions as it must: write {known} in place of the table's name, and"
                " write other braces twice"
            ) from None


class Questions(Generic[Outcome]):
    """What is still to be asked of a table: every tablet once, at one version of the map."""

    def __init__(self, routes: Routes, table: Table, waiting: list[list[KeyStretch]]) -> None:
        self._routes = routes
        self._table = table
        self._done = 0
        self.waiting = waiting

    def answered(self, found: Sequence[Found[Outcome]]) -> list[Outcome]:
        """Takes the answers; what replaced a tablet that is gone is to be asked as well."""
        given: list[Outcome] = []
        for stretch, answers in found:
            if not answers:
                self.waiting[:0] = [[part] for part in parts(self._routes.snapshot, self._table, stretch)]
            self._done += len(answers)
            given += answers
        return given

    def failed(self, error: Unavailable) -> Unavailable:
        """The first failure ends it, with the number of tablets that had answered by then."""
        return Unavailable(f"{error}; {self._done} tablets had answered")


class ShardSteps:
    """One call for one table."""

    def __init__(self, routes: Routes, table: str, *, at_once: int, patience: float) -> None:
        if at_once < 1:
            raise UserError(f"at_once is {at_once}; at least one tablet must be asked at a time")
        self._routes = routes
        self._table: Table = routes.snapshot.table(table)
        self._patience = patience
        self.at_once = at_once

    def one_by_one(self) -> Questions[Any]:
        """Every tablet by itself."""
        return Questions(self._routes, self._table, [[one] for one in stretches(self._routes.snapshot, self._table)])

    def in_groups(self, statement: str) -> Questions[Answer]:
        """Tablets of one node together, in groups such that every worker gets some: most of the cost is in messages."""
        first = self.shard(stretches(self._routes.snapshot, self._table)[0], "")
        if ends_transaction(first.format(statement).as_string(None)):  # it is sent with its proof and COMMIT
            raise UserError(OVER)
        snapshot = self._routes.snapshot
        by_node: dict[str, list[KeyStretch]] = {}
        for stretch in stretches(snapshot, self._table):
            by_node.setdefault(snapshot.tablet(stretch.tablet).node, []).append(stretch)
        total = sum(map(len, by_node.values()))
        size = max(1, min(MOST_TOGETHER, -(-total // self.at_once)))
        groups = [mine[at : at + size] for mine in by_node.values() for at in range(0, len(mine), size)]
        return Questions(self._routes, self._table, groups)

    def ask_group(
        self, statement: str, values: Values, group: list[KeyStretch]
    ) -> Generator[Request, Any, list[Found[Answer]]]:
        """All in one message or, if something is in the way of one of them, one by one."""
        found = yield from self._ask_together(statement, values, group)
        if found is None:
            found = []
            for stretch in group:
                found.append((yield from self._ask_one(statement, values, stretch)))
        return found

    def _ask_one(self, statement: str, values: Values, stretch: KeyStretch) -> Generator[Request, Any, Found[Answer]]:
        """One message: proof, statement, end. No answer: the tablet has vanished."""
        text = self.shard(stretch, "").format(statement)
        try:
            location, rows = yield from ask(
                self._finder(stretch), self._wish(), self._routes.clock.monotonic, text, values
            )
        except Vanished:
            return stretch, ()
        return stretch, ((stretch.tablet, location.node, rows),)

    def _ask_together(
        self, statement: str, values: Values, group: list[KeyStretch]
    ) -> Generator[Request, Any, list[Found[Answer]] | None]:
        """None: something is in the way of one of them. They only read: they may be asked again."""
        try:
            places = [self._finder(stretch)()[1] for stretch in group]
        except Vanished:
            return None
        if len(group) == 1 or len({place.node for place in places}) > 1:
            return None
        wish = self._wish()
        texts = [self.shard(stretch, "").format(statement) for stretch in group]
        together = [(wish.opening(place), text) for place, text in zip(places, texts, strict=True)]
        rows = yield from ask_together(places[0].node, together, values)
        if rows is None:
            return None
        return [
            (stretch, ((stretch.tablet, place.node, mine),))
            for stretch, place, mine in zip(group, places, rows, strict=True)
        ]

    def begin(self, stretch: KeyStretch, *, read_only: bool) -> Steps:
        """A transaction on the tablet's owner. Raises `Vanished`."""
        return enter(self._finder(stretch), self._wish(read_only=read_only), self._routes.clock.monotonic)

    def shard(self, stretch: KeyStretch, node: str) -> Shard:
        """The tablet as the caller's function sees it."""
        names: dict[str, Name] = {}
        for root, leaf in zip(self._table.roots, stretch.partitions, strict=True):
            names |= {root: leaf, parse_name(root).name: leaf}
        return Shard(stretch.tablet, node, names)

    def _finder(self, stretch: KeyStretch) -> Callable[[], tuple[int, Location]]:
        return tablet_finder(lambda: self._routes.snapshot, stretch.tablet)

    def _wish(self, *, read_only: bool = True) -> TransactionRequest:
        deadline = self._routes.clock.monotonic() + self._patience
        return TransactionRequest(
            deadline, Isolation.READ_COMMITTED, read_only, proof=self._routes.proof, signpost=self._routes.signpost
        )
