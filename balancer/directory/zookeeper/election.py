"""Leadership through ZooKeeper.

Becoming leader is one multi: create the ephemeral `leader` and raise `epoch` from the version that was read. Every
commit checks the epoch, so the servers refuse a predecessor's commit, however late it comes.

A beat is a multi that changes nothing and checks that both still stand; it goes through the quorum, so a server that
is cut off from the others cannot answer it. The holder's deadline counts from the moment before the last good beat was
sent and is well within the session's timeout: it stops acting before the servers can let anybody else in. A silent new
session (kazoo opens one after an expiry) is noticed by its id.
"""

import json
import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from kazoo.exceptions import NoNodeError

from balancer.directory.contract import Lease
from balancer.directory.store.codec import read_json
from balancer.directory.zookeeper.paths import Paths
from balancer.directory.zookeeper.session import Lost, Session
from balancer.errors import BalancerError
from balancer.untrusted import one_line

_BEATS = 6  # per session timeout
_LEAVE_AGAIN = 0.2  # seconds


class ZooKeeperLeadership(Lease):
    """See `directory/contract.Leadership`."""

    def __init__(self, session: Session, paths: Paths, epoch: int, session_id: int, asked: float) -> None:
        super().__init__(session.clock, epoch, session.negotiated, asked)
        self._session = session
        self._paths = paths
        self._session_id = session_id
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="directory-leader", daemon=True)
        self._thread.start()

    def held(self) -> bool:
        """As usual; and a replacement session that kazoo has opened holds nothing."""
        if self._session.id not in (None, self._session_id):
            self.ended.set()
        return super().held()

    def resign(self) -> None:
        """Gives it up at once. Idempotent."""
        self.ended.set()
        self._join()

    def abandon(self) -> None:
        """Gives it up without telling the servers: closing the session, which is about to happen, tells them."""
        self._closing.set()
        self.resign()

    def _join(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(self._session.timeout * 2)

    def _run(self) -> None:
        while not self.ended.wait(self._session.negotiated / _BEATS) and self.held():
            self._beat()
        self._leave()

    def _beat(self) -> None:
        asked = self.trying()
        try:
            verdict = self._session.multi(self._fill_beat, self.deadline)
        except (Lost, BalancerError):  # away or denied: the deadline decides
            return
        if verdict.applied:
            self.prolong(asked)
        else:
            self.ended.set()

    def _fill_beat(self, request: Any) -> None:
        request.check(self._paths.epoch, self._epoch)
        request.check(self._paths.leader, -1)

    def _fill_leave(self, request: Any) -> None:
        request.check(self._paths.epoch, self._epoch)
        request.delete(self._paths.leader)

    def _leave(self) -> None:
        """Deletes our `leader`; otherwise nobody could lead while our session lives. A successor's epoch differs."""
        while not self._closing.is_set() and self._session.id in (None, self._session_id):
            deadline = self._session.clock.monotonic() + self._session.timeout
            try:
                self._session.multi(self._fill_leave, deadline)
            except Lost:
                self._closing.wait(_LEAVE_AGAIN)
            except BalancerError:
                return
            else:
                return


def campaign(session: Session, paths: Paths, name: str, timeout: float | None) -> ZooKeeperLeadership | None:
    """Waits until there is no leader, then becomes it; None when the timeout has passed."""
    deadline = None if timeout is None else session.clock.monotonic() + timeout
    token = uuid4().hex
    changed = threading.Event()
    wake: Callable[..., None] = lambda *_: changed.set()  # noqa: E731 - one object, so that kazoo keeps one watch
    session.add_waker(changed.set)
    try:
        while True:
            changed.clear()
            won = _try(session, paths, name, token, wake)
            if won is not None:
                return won
            left = None if deadline is None else deadline - session.clock.monotonic()
            if left is not None and left <= 0:
                return None
            changed.wait(1.0 if left is None else min(left, 1.0))
    finally:
        session.remove_waker(changed.set)


def _try(
    session: Session, paths: Paths, name: str, token: str, wake: Callable[..., None]
) -> ZooKeeperLeadership | None:
    """One look: take the leadership if it is free, or find that our own earlier attempt has taken it."""
    asked = session.clock.monotonic()
    session_id = session.id
    owner, epoch = _look(session, paths, wake)
    if owner is None:
        try:
            session.multi(lambda request: _fill_take(request, paths, name, token, epoch), asked + session.timeout)
        except Lost:
            return None  # the next look finds out
        owner, epoch = _look(session, paths, wake)
    if owner is None or session_id is None or owner != (token, session_id):
        return None
    return ZooKeeperLeadership(session, paths, epoch, session_id, asked)


def _look(session: Session, paths: Paths, wake: Callable[..., None]) -> tuple[tuple[str, int] | None, int]:
    """Who leads (token and session), and the epoch; the epoch changes only together with the leader."""
    client = session.client
    _, found, epoch = session.read(
        lambda: session.gather(
            [
                client.sync_async(paths.leader),
                client.get_async(paths.leader, watch=wake),
                client.exists_async(paths.epoch),
            ],
            NoNodeError,
        )
    )
    if found is None:
        return None, epoch.version
    data, stat = found
    return (_words(data)[1], stat.ephemeralOwner), epoch.version


def _words(data: bytes) -> tuple[str, str]:
    """Name and token of the leader in its znode; whatever else it contains, somebody leads, and it is not us."""
    try:
        document = read_json(data)
        return one_line(str(document["name"]), 200), str(document["token"])
    except (ValueError, TypeError, LookupError):
        return "somebody whose name cannot be read", ""


def _fill_take(request: Any, paths: Paths, name: str, token: str, epoch: int) -> None:
    data = json.dumps({"name": name, "token": token}).encode()
    request.create(paths.leader, data, ephemeral=True)
    request.set_data(paths.epoch, b"", version=epoch)


def leader_name(session: Session, paths: Paths) -> str | None:
    """The current leader's name."""
    client = session.client
    (found,) = session.read(lambda: session.gather([client.get_async(paths.leader)], NoNodeError))
    return _words(found[0])[0] if found else None
