"""Who may do what in a directory in ZooKeeper: places for clients, what is open, and closing it.

Access lists are per znode and are not inherited, so an open directory is closed znode by znode, from the top: once a
folder is closed nobody else creates anything in it, and what was there before is found by listing it. Every step may be
repeated; the next run finishes an interrupted one.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.security import ACL

from balancer.directory.contract import Secured
from balancer.directory.notes import SAMPLES
from balancer.directory.snapshot import MOST_BLOCKS
from balancer.directory.zookeeper.paths import Paths
from balancer.directory.zookeeper.session import AccessLists, Session
from balancer.errors import Refused

_AT_ONCE = 500
_ROUNDS = 10  # somebody without our credentials may create znodes while we close the folders
_SHOWN = 5


class ZnodeAccess:
    """Of one directory and one session."""

    def __init__(self, session: Session, paths: Paths) -> None:
        self._session = session
        self._paths = paths
        self._lists: AccessLists = session.access_lists

    def adopt_lists(self) -> None:
        """Those that the directory has, for a writer that was not told who the reader is."""
        if self._lists.closed and not self._lists.knows_writer:
            try:
                found = self._ask(self._session.client.get_acls_async, [self._paths.root, self._paths.slots()[0]])
            except Refused:
                return  # we may not even read it: every other call says so
            if None not in found and self._lists.adopt(found[0][0], found[1][0]):
                self._session.client.default_acl = self._lists.map

    def make_places(self, tables: Sequence[int]) -> None:
        """Makes what clients write into, if it is missing; a reader cannot make it. Idempotent."""
        folders = [self._paths.ids, self._paths.topic(SAMPLES)]
        slots = [*self._paths.slots(), *(self._paths.block(str(table)) for table in tables)]
        for wanted in (folders, slots):
            found = self._ask(self._session.client.exists_async, wanted)
            missing = [path for path, stat in zip(wanted, found, strict=True) if stat is None]
            self._session.read(lambda: self._session.gather(map(self._make, missing), NodeExistsError))  # noqa: B023

    def _make(self, path: str) -> Any:
        return self._session.client.create_async(path, b"", acl=self._list_of(path))

    def take_block(self, table: int) -> int:
        """Counts up; two at once get two numbers. A lost answer costs a block."""
        path = self._paths.block(str(table))
        count = self._session.client.set_async
        (stat,) = self._session.read(lambda: self._session.gather([count(path, b"")], NoNodeError))
        if stat is None:
            self._make_block(path, table)
            (stat,) = self._session.read(lambda: self._session.gather([count(path, b"")]))
        if not 0 < stat.version <= MOST_BLOCKS:
            raise Refused(f"the ids of table {table} are used up")
        return int(stat.version) - 1

    def _make_block(self, path: str, table: int) -> None:
        try:
            self.make_places([table])
        except Refused:
            raise Refused(
                f"there is no place for ids of table {table} at {path} yet: the leader makes it when it is elected"
            ) from None

    def blocks(self) -> dict[int, int]:
        """How many were taken, by table."""
        (names,) = self._ask(self._session.client.get_children_async, [self._paths.ids])
        tables = [int(name) for name in names or () if name.isascii() and name.isdecimal()]
        found = self._ask(self._session.client.exists_async, [self._paths.block(str(table)) for table in tables])
        return {table: stat.version for table, stat in zip(tables, found, strict=True) if stat is not None}

    def exposures(self, everything: bool) -> list[str]:
        """A sentence for each kind of stranger, with the number of znodes concerned and one of them."""
        paths = self._walk() if everything else iter(self._important())
        about: dict[tuple[str, str], list[str]] = {}
        for path, found in self._found(paths):
            for stranger in self._lists.strangers(found, slot=self._paths.is_slot(path)):
                about.setdefault(stranger, []).append(path)
        return [
            f"{who} may {words} {len(places)} znodes of the directory, {places[0]} among them"
            for (who, words), places in about.items()
        ]

    def secure(self, dry_run: bool) -> Secured:
        """Gives every znode its list."""
        if not self._lists.closed:
            raise Refused(
                "there are no credentials to close the directory with: set user and reader_user in "
                "[directory_security], or BALANCER_DIRECTORY_AUTH, …_USER and …_READER_USER"
            )
        if not dry_run:
            self.make_places(())
        changed: list[str] = []
        for _ in range(_ROUNDS):
            parts, wrong = self._round(dry_run)
            changed += wrong
            if dry_run or not wrong:
                break
        return Secured(parts, len(changed), tuple(changed[:_SHOWN]))

    def _round(self, dry_run: bool) -> tuple[int, list[str]]:
        """Looks at every znode once: how many there are, and which had the wrong list."""
        parts, wrong = 0, []
        walk = self._walk()
        while some := list(islice(walk, _AT_ONCE)):
            parts += len(some)
            bad = [path for path, found in self._found(iter(some)) if not self._is_right(path, found)]
            if not dry_run:
                self._ask(lambda path: self._session.client.set_acls_async(path, self._list_of(path)), bad)
            wrong += bad
        return parts, wrong

    def _is_right(self, path: str, found: Sequence[ACL]) -> bool:
        return self._lists.right(found, slot=self._paths.is_slot(path))

    def _list_of(self, path: str) -> list[ACL]:
        return self._lists.slot if self._paths.is_slot(path) else self._lists.map

    def _important(self) -> list[str]:
        """What controls everything else, and the folders: others trust what is created there."""
        paths = self._paths
        folders = [paths.base, *paths.folders(), paths.topic(SAMPLES)]
        return [*folders, paths.root, paths.leader, *paths.slots()[:1]]

    def _walk(self) -> Iterator[str]:
        """Every znode, parents first."""
        level = [self._paths.base]
        while level:
            yield from level
            found = self._ask(self._session.client.get_children_async, level)
            level = [f"{path}/{name}" for path, names in zip(level, found, strict=True) for name in names or ()]

    def _found(self, paths: Iterator[str]) -> Iterator[tuple[str, list[ACL]]]:
        """Paths with their lists, without those that are gone."""
        while some := list(islice(paths, _AT_ONCE)):
            found = self._ask(self._session.client.get_acls_async, some)
            yield from ((path, one[0]) for path, one in zip(some, found, strict=True) if one is not None)

    def _ask(self, call: Callable[[str], Any], paths: Sequence[str]) -> list[Any]:
        """The answer for each path, with a few hundred in flight at once; None for those that are gone."""
        answers: list[Any] = []
        for start in range(0, len(paths), _AT_ONCE):
            some = paths[start : start + _AT_ONCE]
            answers += self._session.read(lambda: self._session.gather(map(call, some), NoNodeError))  # noqa: B023
        return answers
