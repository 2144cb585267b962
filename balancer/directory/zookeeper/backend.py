"""The directory in ZooKeeper: the production backend. The layout is in `paths`; the protocol is in ARCHITECTURE.md.

The root's znode version *is* the directory's version and the epoch's znode version *is* the leader's epoch, so a
commit's two conditions are checked by the servers themselves, inside the single multi that writes it.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from balancer.clock import Clock, SystemClock
from balancer.directory.contract import Leadership, Secured
from balancer.directory.credentials import Credentials
from balancer.directory.model import Json, RecordKind
from balancer.directory.notes import MAX_NOTE, check_note
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.backend import PagedDirectory, Stale
from balancer.directory.store.codec import StoredEntry, pack, unpack_entry, unpack_notes
from balancer.directory.store.commit import Batch, Contents, DirectoryRoot, RecordKey
from balancer.directory.zookeeper.access import ZnodeAccess
from balancer.directory.zookeeper.election import ZooKeeperLeadership, campaign, leader_name
from balancer.directory.zookeeper.load import Loader, RootSignal, replace_all
from balancer.directory.zookeeper.paths import Paths
from balancer.directory.zookeeper.session import Lost, Session
from balancer.errors import BalancerError, Fenced, OutcomeUnknown, Refused, Unavailable, UserError

_NEIGHBOURS = 20  # znodes that are searched for the names of other directories


class ZooKeeperDirectory(PagedDirectory):
    """See `directory/contract.Directory`. `lease` is the session timeout asked for, in seconds: how long a leader that
    died silently keeps others waiting. The servers may grant a different one, between 2 and 20 of their ticks."""

    def __init__(
        self,
        hosts: str,
        cluster: str,
        *,
        credentials: Credentials | None = None,
        clock: Clock | None = None,
        timeout: float = 10.0,
        lease: float = 10.0,
        create: bool = True,
    ) -> None:
        super().__init__(clock or SystemClock(), timeout)
        self.paths = Paths("/" + cluster.strip("/"))
        self.session = Session(hosts, credentials or Credentials(), self.clock, lease, timeout)
        self._access = ZnodeAccess(self.session, self.paths)
        self._signals: list[RootSignal] = []
        self._leaderships: list[ZooKeeperLeadership] = []
        try:
            self._prepare(hosts, create)
        except BaseException:
            self.session.close()
            raise

    def _prepare(self, hosts: str, create: bool) -> None:
        """Makes the layout if it is missing; the root comes last, so a client that sees it sees all of it."""
        client, root = self.session.client, self.paths.root
        # A sync first: our server may be a moment behind the one through which somebody has just made it.
        _, found = self.session.read(lambda: self.session.gather([client.sync_async(root), client.exists_async(root)]))
        if found is not None:
            self._access.adopt_lists()
            return
        if not create:
            others = ", ".join(self._others()) or "none"
            raise UserError(f"there is no directory {self.paths.base[1:]} in ZooKeeper at {hosts}; there are: {others}")
        for path in self.paths.folders():
            self._create(path, b"")
        self._access.make_places(())
        self._create(self.paths.root, DirectoryRoot(0, 1, 1, "").pack())

    def _others(self) -> list[str]:
        """The directories next to this one, the most similar first, as far as we may look: a name may be mistyped."""
        client, beside = self.session.client, self.paths.base.rpartition("/")[0]
        try:
            (names,) = self.session.read(
                lambda: self.session.gather([client.get_children_async(beside or "/")], NoNodeError)
            )
            alike = get_close_matches(self.paths.base[len(beside) + 1 :], names or (), _NEIGHBOURS, cutoff=0.0)
            near = [f"{beside}/{name}" for name in alike]
            found = self.session.read(
                lambda: self.session.gather([client.exists_async(Paths(base).root) for base in near])
            )
        except Refused:
            return []
        return [base[1:] for base, there in zip(near, found, strict=True) if there is not None]

    def _create(self, path: str, data: bytes) -> None:
        client = self.session.client
        self.session.read(
            lambda: self.session.gather([client.create_async(path, data, makepath=True)], NodeExistsError)
        )

    def _read_root(self, fresh: bool = True) -> DirectoryRoot:
        return self.session.read(lambda: self._ask(fresh))

    def _ask(self, fresh: bool) -> DirectoryRoot:
        """The root, alone or together with the epoch. A sync before them makes the server that we are connected to
        catch up with the others; after a watch has fired, one request is enough, and with forty clients more would be
        felt."""
        client = self.session.client
        sync = [client.sync_async(self.paths.root)] if fresh else []
        root = client.get_async(self.paths.root, watch=self._on_root if self._signals else None)
        epoch = [client.exists_async(self.paths.epoch)] if fresh else []
        *_, found = self.session.gather([*sync, root], NoNodeError)
        known = self.session.gather(epoch)
        if found is None or None in known:
            raise Unavailable(f"the directory {self.paths.base} is not there any more")
        return DirectoryRoot.unpack(found[0], known[0].version if known else 0)

    def _on_root(self, _: Any) -> None:
        for signal in list(self._signals):
            signal.wake()

    def _load(self) -> tuple[Snapshot, DirectoryRoot]:
        return Loader(self.session, self.paths, self._read_root, self._read_entries).load()

    def _read_entries(self, after: int, upto: int) -> list[StoredEntry] | None:
        paths = [self.paths.entry(version) for version in range(after + 1, upto + 1)]
        found = self.session.read_many(paths, unpack_entry)
        return None if None in found else found

    def _write(self, batch: Batch) -> None:
        """Sends the same conditional request until its outcome is known.

        At most one of the copies can be applied, because each needs the root as it was. A copy that is still in flight
        when the root or the epoch has moved can never be applied: what the log says then is final.
        """
        deadline = self.clock.monotonic() + self.timeout
        if not self.session.wait_connected(deadline):
            raise Unavailable("there is no connection to ZooKeeper; nothing was sent")
        doubtful = False
        while True:
            try:
                verdict = self.session.multi(lambda request: self._fill(request, batch), deadline)
                if verdict.applied or (doubtful and self._is_ours(batch)):
                    break
            except Lost as error:
                doubtful = True
                if self.clock.monotonic() >= deadline or not self.session.wait_connected(deadline):
                    raise OutcomeUnknown(
                        f"commit {batch.root.transaction} was sent, and its outcome could not be found out ({error})"
                    ) from None
                continue
            if batch.leader_epoch is not None and verdict.failed(1, BadVersionError):
                raise Fenced(f"a commit under leader epoch {batch.leader_epoch} was refused: there is a newer one")
            if verdict.failed(0, BadVersionError):
                self._raise_if_fenced(batch)
                raise Stale
            raise Refused(f"ZooKeeper has refused a part of the commit: {verdict.error!r} (part {verdict.failed_at})")
        self._make_places_of(batch.created_records)

    def _make_places_of(self, created: Iterable[RecordKey]) -> None:
        """For the ids of tables that were made. The commit stands: what fails here, the next leader makes."""
        tables = [int(key) for kind, key in created if kind is RecordKind.TABLE]
        if tables:
            with suppress(BalancerError):
                self._access.make_places(tables)

    def _fill(self, request: Any, batch: Batch) -> None:
        paths = self.paths
        request.set_data(paths.root, batch.packed_root, version=batch.base)
        if batch.leader_epoch is not None:
            request.check(paths.epoch, batch.leader_epoch)
        for number, data in batch.created_pages.items():
            request.create(paths.page(number), data)
        for number, data in batch.changed_pages.items():
            request.set_data(paths.page(number), data)
        for number in batch.dropped_pages:
            request.delete(paths.page(number))
        for (kind, key), data in batch.created_records.items():
            request.create(paths.record(kind, key), data)
        for (kind, key), data in batch.changed_records.items():
            request.set_data(paths.record(kind, key), data)
        for kind, key in batch.removed_records:
            request.delete(paths.record(kind, key))
        request.create(paths.entry(batch.version), batch.entry)
        for version in batch.trimmed:
            request.delete(paths.entry(version))

    def _is_ours(self, batch: Batch) -> bool:
        """Whether the commit that followed the batch's base is the batch itself."""
        entries = self._read_entries(batch.base, batch.version)
        if entries is None and self._read_root().first > batch.version:
            raise OutcomeUnknown(
                f"commit {batch.root.transaction} is older than the log: what became of it is not known"
            )
        return entries is not None and entries[0].entry.transaction == batch.root.transaction

    def _raise_if_fenced(self, batch: Batch) -> None:
        epoch = self._read_root().epoch
        if batch.leader_epoch is not None and epoch != batch.leader_epoch:
            raise Fenced(f"a commit under leader epoch {batch.leader_epoch} was refused: the newest is {epoch}")

    def _import_version(self) -> int:
        return self._read_root().version + 2  # one change marks the import, one ends it

    def _replace(self, contents: Contents, root: DirectoryRoot, entry: StoredEntry, leader_epoch: int) -> None:
        replace_all(self.session, self.paths, contents, root, entry=entry, leader_epoch=leader_epoch)
        self._make_places_of(contents.records)

    def _signal(self) -> RootSignal:
        signal = RootSignal(self.session, self._signals)
        self._signals.append(signal)
        return signal

    def campaign(self, name: str, timeout: float | None = None) -> Leadership | None:
        """Waits to become leader; None when the timeout has passed."""
        leadership = campaign(self.session, self.paths, name, timeout)
        if leadership is not None:
            self._leaderships.append(leadership)
            self._make_places()
        return leadership

    def _make_places(self) -> None:
        """Makes those that an earlier version, or a process that died, has not made. The leadership was won anyway; if
        the directory cannot be read, what comes next reports it."""
        with suppress(BalancerError):
            self._access.make_places(list(self.snapshot().tables))

    def leader(self) -> str | None:
        """The name of the current leader, for information."""
        return leader_name(self.session, self.paths)

    def publish(self, topic: str, name: str, document: Json) -> int:
        """Leaves a note; the last one wins."""
        data = pack(document)
        check_note(topic, name, data)
        # Tries to write before making it: a reader may write into an existing slot, but cannot make one.
        while (written := self._set_note(topic, name, data)) is None:
            self._create(self.paths.note(topic, name), data)
        return written

    def _set_note(self, topic: str, name: str, data: bytes) -> int | None:
        client, path = self.session.client, self.paths.note(topic, name)
        (stat,) = self.session.read(lambda: self.session.gather([client.set_async(path, data)], NoNodeError))
        return None if stat is None else int(stat.version)

    def published(self, topic: str) -> Mapping[str, Json]:
        """The notes under a topic. One that is too long is not even requested."""
        client, folder = self.session.client, self.paths.topic(topic)
        (names,) = self.session.read(lambda: self.session.gather([client.get_children_async(folder)], NoNodeError))
        paths = {self.paths.note(topic, name): name for name in names or ()}
        stats = self.session.read(lambda: self.session.gather(map(client.exists_async, paths)))
        wanted = [path for path, stat in zip(paths, stats, strict=True) if stat and 0 < stat.dataLength <= MAX_NOTE]
        found = self.session.read_many(wanted, bytes)
        read = [(paths[path], data) for path, data in zip(wanted, found, strict=True) if data is not None]
        return unpack_notes(topic, read)

    def unpublish(self, topic: str, name: str) -> None:
        """Removes a note. Idempotent."""
        client, path = self.session.client, self.paths.note(topic, name)
        if self.paths.is_slot(path):
            self._set_note(topic, name, b"")
        else:
            self.session.read(lambda: self.session.gather([client.delete_async(path)], NoNodeError))

    def take_block(self, table: int) -> int:
        """The number of a block of a table's ids, from 0 on, that nobody else gets."""
        return self._access.take_block(table)

    def blocks(self) -> Mapping[int, int]:
        """How many blocks of ids have been taken, by table."""
        return self._access.blocks()

    def exposures(self, *, everything: bool = False) -> Sequence[str]:
        """Who may read or change it but should not; see the contract."""
        return self._access.exposures(everything)

    def secure(self, *, dry_run: bool) -> Secured:
        """Closes what is open; see the contract."""
        return self._access.secure(dry_run)

    def _close(self) -> None:
        for leadership in self._leaderships:
            leadership.abandon()
        self.session.close()
