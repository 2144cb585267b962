"""One kazoo client with bounded waits and our errors. The other ZooKeeper modules talk to the servers through it.

kazoo's habits that matter here: a call made while the connection is down is queued and may be sent much later; a failed
multi is returned as a list, not raised; a new session is opened silently after an expiry; callbacks run on its own
thread and must never wait, so ours only set events.

Many znodes read by one request: ZooKeeper's multi-read, which kazoo does not offer.

A separate read costs kazoo a seventh of a millisecond of Python, and a directory has thousands of znodes; sixty-four in
one request cost as much as three. Servers before 3.6 answer that they have no such request: then each is read
separately. `session` calls this, on a connected client.

Who may do what with a znode: the access lists that we set, and what is wrong with those that we find.

The writer (daemons, operators) may do everything, the reader (applications) may read. Applications write in only two
places, into znodes that the writer has made for them: notes of key samples (`notes/samples/client-…`) and the counts of
id blocks (`ids/<table>`). They can neither create nor delete a znode anywhere. Without credentials everything is open.
"""

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    NoAuthError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
    UnimplementedError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionDropped
from kazoo.protocol.serialization import MultiHeader, read_buffer, stat_struct, write_string
from kazoo.protocol.states import KeeperState
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Id, Permissions, make_digest_acl_credential

from balancer.clock import Clock
from balancer.directory.credentials import Credentials, Scheme
from balancer.errors import Refused, Unavailable
from balancer.untrusted import one_line

_LOST = (
    ConnectionClosedError,
    ConnectionLoss,
    KazooTimeoutError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
_DENIED = (AuthFailedError, InvalidACLError, NoAuthError)
_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0, "max_jitter": 0.2}
_Result = TypeVar("_Result")

_quiet = logging.getLogger("balancer.directory.kazoo")
_quiet.setLevel(logging.CRITICAL)  # our own errors and the age of a view say what an operator needs


class Lost(Exception):
    """The connection was lost, or no answer came in time: a write may have been applied or not, or may still be."""


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, with connections of our own: its own TLS leaks the socket of a refused handshake, and hides why
    there is no connection."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        super().__init__()
        self._context = context
        self.last_error: OSError | None = None

    def create_connection(self, address: tuple[str, int], hostname: str, timeout: float, **_: object) -> socket.socket:
        """A connection to one server; with TLS, to the server that proves to have this name."""
        try:
            plain = socket.create_connection(address, timeout)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                return self._context.wrap_socket(plain, server_hostname=hostname) if self._context else plain
            except BaseException:
                plain.close()
                raise
        except OSError as error:
            self.last_error = error
            raise


class Session:
    """A client, connected when the constructor returns."""

    def __init__(self, hosts: str, credentials: Credentials, clock: Clock, lease: float, timeout: float) -> None:
        self.clock = clock
        self.timeout = timeout
        self.negotiated = lease
        """The session timeout that the server has granted, in seconds."""
        self._hosts = hosts
        self._one_by_one = False  # the servers have no multi-read
        self._denied = False
        self._closed = threading.Event()
        self._wakers: set[Callable[[], None]] = set()
        options = credentials.client_options()
        handler = Handler(credentials.tls_context())
        self.access_lists = AccessLists(credentials)
        self.client = KazooClient(
            hosts=hosts,
            timeout=lease,
            handler=handler,
            connection_retry=dict(_RECONNECT),
            default_acl=self.access_lists.map,
            logger=_quiet,
            **options,
        )
        self._learn_negotiated()
        self._hurry_handshakes(max(lease / 5, 1.0))
        self._forgive_dropped_logins()
        self.client.add_listener(self._on_state)
        try:
            self.client.start(timeout=timeout)
        except KazooTimeoutError:
            if self._denied:  # connected, and disconnected again before kazoo looked
                raise Refused(_denial(hosts)) from None
            why = f" ({_lowered(handler.last_error)})" if handler.last_error else ""
            raise Unavailable(f"no ZooKeeper server at {hosts} accepted us within {timeout:g} s{why}") from None

    def _learn_negotiated(self) -> None:
        """kazoo keeps the granted timeout to itself: two thirds of it is what its connecting step returns first."""
        connect = self.client._connection._connect

        def connecting(*arguments: Any) -> Any:
            result = connect(*arguments)
            self.negotiated = result[0] * 1.5 / 1000.0
            return result

        self.client._connection._connect = connecting

    def _hurry_handshakes(self, limit: float) -> None:
        """kazoo waits for a server's first answer as long as the session lasts.

        A server that is just starting may accept a connection, fail while it closes it, and leave it open forever: a
        client that waits on it until the session expires has lost the session to it.
        """
        invoke = self.client._connection._invoke

        def invoking(timeout: float, *arguments: Any, **options: Any) -> Any:
            return invoke(min(timeout, limit), *arguments, **options)

        self.client._connection._invoke = invoking

    def _forgive_dropped_logins(self) -> None:
        """kazoo never reconnects after a server hangs up during a SASL login. A wrong password looks like that, but so
        does a server that is being stopped: after a first successful login we reconnect."""
        connection = self.client._connection
        log_in = connection._authenticate_with_sasl
        let_in = False

        def logging_in(*arguments: Any) -> None:
            nonlocal let_in
            try:
                log_in(*arguments)
            except AuthFailedError as error:
                if let_in and isinstance(error.__cause__, ConnectionDropped):
                    raise error.__cause__ from None
                raise
            let_in = True

        connection._authenticate_with_sasl = logging_in

    @property
    def id(self) -> int | None:
        """The session's id as far as is known here; it changes silently after an expiry. None: not connected."""
        found = self.client.client_id
        return found[0] if found else None

    def add_waker(self, waker: Callable[[], None]) -> None:
        """Calls this, on kazoo's thread, whenever the connection's state changes: it may only set an event."""
        self._wakers.add(waker)

    def remove_waker(self, waker: Callable[[], None]) -> None:
        self._wakers.discard(waker)

    def _on_state(self, _: Any) -> None:
        self._denied = self._denied or self.client.client_state == KeeperState.AUTH_FAILED
        for waker in list(self._wakers):
            waker()

    def wait_connected(self, deadline: float) -> bool:
        """Whether there is a connection before the deadline (of the monotonic clock)."""
        if self.client.connected:
            return True
        changed = threading.Event()
        self.add_waker(changed.set)
        try:
            while not self.client.connected:
                left = deadline - self.clock.monotonic()
                if left <= 0 or self._closed.is_set():
                    return False
                changed.wait(min(left, 0.5))
                changed.clear()
            return True
        finally:
            self.remove_waker(changed.set)

    def answer(self, pending: Any, deadline: float) -> Any:
        """The result of an asynchronous call; `Lost` if it is not known, `Refused` if we may not."""
        try:
            return pending.get(timeout=max(deadline - self.clock.monotonic(), 0.001))
        except _LOST as error:
            raise Lost(type(error).__name__) from error
        except _DENIED:
            raise Refused(_denial(self._hosts)) from None

    def read(self, ask: Callable[[], _Result]) -> _Result:
        """Retries over lost connections until the timeout; only for what may be done twice."""
        deadline = self.clock.monotonic() + self.timeout
        while True:
            try:
                return ask()
            except Lost as error:
                if self.clock.monotonic() >= deadline or not self.wait_connected(deadline):
                    raise Unavailable(f"ZooKeeper at {self._hosts} does not answer ({error})") from None

    def gather(
        self, pending: Iterable[Any], *missing: type[Exception], each: Callable[[Any], Any] | None = None
    ) -> list[Any]:
        """The results of calls that were sent together; None for those that fail with one of `missing`.

        `each` is applied to a result while later ones are still in flight.
        """
        results: list[Any] = []
        for one in list(pending):
            try:
                result = self.answer(one, self.clock.monotonic() + self.timeout)
            except missing:
                results.append(None)
            else:
                results.append(each(result) if each else result)
        return results

    def read_many(self, paths: Sequence[str], each: Callable[[bytes], Any]) -> list[Any]:
        """What `each` makes of the data of many znodes, None for one that does not exist; in few requests."""
        if not self._one_by_one:
            try:
                return self.read(lambda: self._read_together(paths, each))
            except UnimplementedError:
                self._one_by_one = True
        get = self.client.get_async
        return self.read(lambda: self.gather(list(map(get, paths)), NoNodeError, each=lambda one: each(one[0])))

    def _read_together(self, paths: Sequence[str], each: Callable[[bytes], Any]) -> list[Any]:
        parts = self.gather(
            ask_many(self.client, paths), each=lambda part: [None if one is None else each(one) for one in part]
        )
        return [one for part in parts for one in part]

    def multi(self, build: Callable[[Any], None], deadline: float) -> "SessionVerdict":
        """Sends one atomic request; its verdict says whether it was applied, `Lost` that nobody knows."""
        request = self.client.transaction()
        build(request)
        return SessionVerdict(self.answer(request.commit_async(), deadline), self._hosts)

    def close(self) -> None:
        """Ends the session, so that its ephemeral znodes disappear at once. Idempotent."""
        self._closed.set()
        self._on_state(None)
        self.client.stop()
        self.client.close()


class SessionVerdict:
    """What became of an atomic request: kazoo returns the operations' errors, it does not raise them."""

    def __init__(self, results: Sequence[Any], hosts: str) -> None:
        self.failed_at: int | None = None
        self.error: Exception | None = None
        for number, result in enumerate(results):
            if isinstance(result, _DENIED):
                raise Refused(_denial(hosts))
            passive = isinstance(result, RolledBackError | RuntimeInconsistency)
            if isinstance(result, Exception) and (self.error is None or not passive):
                self.failed_at, self.error = number, result

    @property
    def applied(self) -> bool:
        return self.error is None

    def failed(self, number: int, kind: type[Exception]) -> bool:
        """Whether this operation is the one that failed, and in this way."""
        return self.failed_at == number and isinstance(self.error, kind)


def _denial(hosts: str) -> str:
    return f"ZooKeeper at {hosts} does not allow this with our credentials: they are a reader's, wrong, or missing"


def _lowered(error: OSError) -> str:
    """The system's words, as part of a sentence."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


AT_ONCE: Final = 64
"""Znodes per request: the answer has a few hundred kilobytes, and the server serves others in between."""
_GET, _ERROR = 4, -1
_WATCH = b"\0"  # none


class MultiRead:
    """The request and the reader of its answer, as kazoo wants them."""

    type = 22

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def serialize(self) -> bytearray:
        """The request's bytes."""
        request = bytearray()
        for path in self._paths:
            request += MultiHeader(_GET, False, -1).serialize() + write_string(path) + _WATCH
        request += MultiHeader(_ERROR, True, -1).serialize()
        return request

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[bytes | None]:
        """The data of each znode, None for one that does not exist; any other error is raised."""
        found: list[bytes | None] = []
        while True:
            header, offset = MultiHeader.deserialize(data, offset)
            if header.done:
                return found
            if header.type != _ERROR:
                content, offset = read_buffer(data, offset)
                offset += stat_struct.size
                found.append(content or b"")
                continue
            error = EXCEPTIONS[int.from_bytes(data[offset : offset + 4], "big", signed=True)]
            if not issubclass(error, NoNodeError):
                raise error
            offset += 4
            found.append(None)


def ask_many(client: Any, paths: Sequence[str]) -> Iterator[Any]:
    """Sends the requests; each of the pending results is a list."""
    for first in range(0, len(paths), AT_ONCE):
        pending = client.handler.async_result()
        client._call(MultiRead(paths[first : first + AT_ONCE]), pending)
        yield pending


_WORDS = {
    Permissions.READ: "read",
    Permissions.WRITE: "write",
    Permissions.CREATE: "create",
    Permissions.DELETE: "delete",
    Permissions.ADMIN: "change who may do what",
}


class AccessLists:
    """The lists that a client with these credentials gives to what it creates."""

    def __init__(self, credentials: Credentials) -> None:
        self.closed = credentials.scheme is not Scheme.NONE or credentials.certificate is not None
        """Whether what we create is closed to strangers."""
        self.knows_writer = credentials.scheme is not Scheme.NONE and bool(credentials.reader_user)
        """Whether we can be told apart from readers: a client with a single credential may be either."""
        self.map = self._list(credentials, Permissions.READ)
        self.slot = self._list(credentials, Permissions.READ | Permissions.WRITE)

    def adopt(self, of_map: Sequence[ACL], of_slot: Sequence[ACL]) -> bool:
        """Keeps using the lists that the directory has, if we are its writer and were not told the reader: what an
        operator's command creates must stay readable to applications. Returns whether it does."""
        if not self.closed or self.knows_writer:
            return False
        for found, most in ((of_map, Permissions.READ), (of_slot, Permissions.READ | Permissions.WRITE)):
            others = [entry for entry in found if entry != self.map[0]]
            # Anybody who may do more than a reader is not a reader: that is reported, not repeated.
            if len(others) == len(found) or any(one.id.scheme == "world" or one.perms & ~most for one in others):
                return False
        self.map, self.slot = list(of_map), list(of_slot)
        self.knows_writer = True
        return True

    def _list(self, credentials: Credentials, reader: int) -> list[ACL]:
        if not self.closed:
            return list(OPEN_ACL_UNSAFE)
        writer = _id(credentials.scheme, credentials.user, credentials.password)
        own = [ACL(Permissions.ALL, writer)] if writer else list(CREATOR_ALL_ACL)
        if not credentials.reader_user:
            return own
        other = _id(credentials.scheme, credentials.reader_user, credentials.reader_password)
        assert other is not None, "credentials with a reader have a scheme"
        return [*own, ACL(reader, other)]

    def strangers(self, found: Sequence[ACL], *, slot: bool) -> Iterator[tuple[str, str]]:
        """Who may do what they should not, each as two parts of a sentence."""
        known = {entry.id: entry.perms for entry in (self.slot if slot else self.map)} if self.knows_writer else {}
        for entry in found:
            everybody = entry.id.scheme == "world"
            if not everybody and not self.knows_writer:
                continue
            excess = entry.perms & ~known.get(entry.id, 0)
            if excess:
                words = ", ".join(word for bit, word in _WORDS.items() if excess & bit)
                yield "everybody" if everybody else _named(entry.id), words

    def right(self, found: Sequence[ACL], *, slot: bool) -> bool:
        """Whether a list is exactly the one that we set."""
        wanted = self.slot if slot else self.map
        return sorted((one.id, one.perms) for one in found) == sorted((one.id, one.perms) for one in wanted)


def _id(scheme: Scheme, user: str, password: str) -> Id | None:
    """Whom a list names; None: the server fills in whom it knows us as."""
    if scheme is Scheme.DIGEST:
        return Id("digest", make_digest_acl_credential(user, password))
    return Id("sasl", user) if scheme is Scheme.SASL and user else None


def _named(who: Id) -> str:
    """Without the hash of a password."""
    return one_line(f"{who.scheme} user {who.id.partition(':')[0]}", 200)
