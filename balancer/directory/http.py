"""The directory through the daemons' HTTP, for applications that may not reach its servers. Read-only.

`https://host:port,host:port/cluster`: any of the instances answers; one that does not, or is itself cut off from the
directory, is skipped for the next. A long poll says that something has changed; the root that it returns includes the
commit itself if that is small, so a change costs one request. Versions never go back, whichever instance answers. A
view's age counts from when the answering instance last confirmed its own.
"""

import http.client
import ipaddress
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn
from urllib.parse import quote, urlencode, urlsplit

from balancer.clock import Clock
from balancer.directory.contract import Leadership, Secured
from balancer.directory.credentials import Credentials
from balancer.directory.model import Json
from balancer.directory.snapshot import Snapshot
from balancer.directory.store.backend import PagedDirectory
from balancer.directory.store.codec import StoredEntry, read_json
from balancer.directory.store.commit import Batch, Contents, DirectoryRoot
from balancer.directory.store.follower import CONFIRM_EVERY, PollingFollower
from balancer.directory.store.host_cache import unpack_log, unpack_snapshot
from balancer.errors import BalancerError, Refused, Unavailable, UserError
from balancer.untrusted import one_line

POLL_SECONDS: Final = 20.0
"""How long an instance is asked to wait for a change. Each answer costs it a millisecond."""
OLDEST: Final = 5.0
"""In seconds: an instance that has not confirmed its own view for longer is not asked."""
_LARGEST: Final = 1 << 30  # bytes of an answer; a million tablets take 15 MB
_READ_ONLY: Final = "the directory is followed over HTTP, where it can only be read: {} needs its own address"
_ADDRESS: Final = "https://host:port,host:port/cluster"
_GONE: Final = 410
_ATTEMPTS: Final = 5
_HURRY_FIRST, _HURRY_MOST = 0.02, 0.5


def split_servers(url: str) -> tuple[str, list[tuple[str, int]], str]:
    """Scheme, servers and cluster of an address; `UserError` says what is wrong with it."""
    parts = urlsplit(url)
    cluster = parts.path.strip("/")
    if not cluster or "/" in cluster or parts.query or parts.fragment:
        raise UserError(f"{url!r} is not a directory address: it needs servers and a cluster, as {_ADDRESS}")
    if "@" in parts.netloc:
        raise UserError(
            "a directory address must not contain a user or a password: the token comes from the environment"
        )
    servers = []
    for one in parts.netloc.split(","):
        try:
            place = urlsplit(f"//{one}")
            servers.append((place.hostname or "", place.port or (443 if parts.scheme == "https" else 80)))
        except ValueError:
            raise UserError(f"{one!r} in a directory address is not a host and port") from None
        if not servers[-1][0]:
            raise UserError(f"{url!r} is not a directory address: a server's name is missing")
        if parts.scheme == "http" and not _is_here(servers[-1][0]):
            raise UserError(f"the token would be sent to {servers[-1][0]} in clear text: use https")
    return parts.scheme, servers, cluster


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Channel:
    """One request at a time, to the first instance that answers; the next request goes to the same one."""

    def __init__(self, url: str, credentials: Credentials, timeout: float) -> None:
        self._scheme, self._servers, self._cluster = split_servers(url)
        self._context = credentials.tls_context() if self._scheme == "https" else None
        self._token = credentials.token
        self._timeout = timeout
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._closed = False

    def get(self, what: str, *, oldest: float | None = None, wait: float = 0.0, **query: int) -> "InstanceAnswer":
        """What one of the instances answers; `Unavailable` if none does, `Refused` if we may not.

        `oldest`: skips one whose own view may be older than this many seconds.
        """
        asked = {**query, **({"wait": wait} if wait else {})}
        path = f"/v1/directory/{quote(self._cluster, safe='')}/{what}" + (f"?{urlencode(asked)}" if asked else "")
        failure: BalancerError = Unavailable("the directory has been closed")
        with self._lock:
            for _ in range(2 * len(self._servers)):
                if self._closed:
                    break
                kept, (host, port) = self._connection is not None, self._servers[0]
                try:
                    return self._ask(path, wait).checked(oldest)
                except (OSError, http.client.HTTPException, ValueError) as error:
                    failure = Unavailable(
                        f"the instance at {host}:{port} does not answer ({one_line(str(error) or repr(error), 200)})"
                    )
                except BalancerError as error:
                    kept, failure = False, type(error)(f"the instance at {host}:{port} {error}")
                self.drop()
                if not kept:  # a kept connection may have been closed meanwhile: the same instance is asked again
                    self._servers = [*self._servers[1:], self._servers[0]]
        raise failure

    def _ask(self, path: str, wait: float) -> "InstanceAnswer":
        connection = self._connection
        if connection is None:
            connection = self._connection = self._opened(*self._servers[0])
        connection.sock.settimeout(self._timeout + wait)
        connection.request("GET", path, headers={"Authorization": f"Bearer {self._token}"})
        with closing(connection.getresponse()) as response:
            if response.length is None:
                data = response.read(_LARGEST + 1)
            elif response.length <= _LARGEST:
                data = response.read()
            else:
                raise ValueError(f"an answer has {response.length} bytes")
            headers = response.headers
        return InstanceAnswer(
            response.status, data, int(headers.get("Balancer-Epoch", "0")), float(headers.get("Balancer-Age", "0"))
        )

    def _opened(self, host: str, port: int) -> http.client.HTTPConnection:
        if self._context is None:
            connection = http.client.HTTPConnection(host, port, timeout=self._timeout)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=self._timeout, context=self._context)
        connection.connect()
        return connection

    def close(self) -> None:
        """Ends a request that is under way, and accepts no more. From any thread; idempotent."""
        self._closed = True
        self.drop()
        with self._lock:  # a connection that was being opened
            self.drop()

    def drop(self) -> None:
        """Closes the connection; the next request opens another. From any thread: a request under way fails."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(2)
            connection.close()


@dataclass(frozen=True, slots=True)
class InstanceAnswer:
    """An instance's answer."""

    status: int
    data: bytes
    epoch: int
    age: float
    """How old its own view may be, in seconds."""

    def checked(self, oldest: float | None) -> "InstanceAnswer":
        """Returns itself if it answers what was asked, from a view that is not too old."""
        if self.status >= 500:
            raise Unavailable(f"does not answer: {self._sentence()}")
        if self.status not in (200, _GONE):
            raise Refused(f"refuses: {self._sentence()}")
        if oldest is not None and not 0 <= self.age <= oldest:
            raise Unavailable(f"has not heard from the directory for {self.age:.0f} s")
        return self

    def _sentence(self) -> str:
        """Its problem's own."""
        try:
            return one_line(str(read_json(self.data)["detail"]), 300)
        except (ValueError, KeyError, TypeError):
            return f"status {self.status}"


class HttpDirectory(PagedDirectory):
    """See `contract.Directory`; refuses any change in one sentence."""

    def __init__(self, url: str, credentials: Credentials, clock: Clock | None, timeout: float) -> None:
        super().__init__(clock, timeout)
        self._channel = Channel(url, credentials, timeout)
        if not credentials.token:
            raise UserError("an instance's directory needs a token: BALANCER_DIRECTORY_TOKEN (or …_TOKEN_FILE)")
        self._address, self._credentials = url, credentials
        self._news: DirectoryRoot | None = None  # what the last long poll returned
        self.lag = 0.0
        """How old the view of the last instance to answer was, in seconds."""

    def _read_root(self, fresh: bool = True) -> DirectoryRoot:
        news, self._news = self._news, None
        if news is not None and not fresh:
            return news
        answer = self._channel.get("root", oldest=OLDEST)
        self.lag = answer.age
        return read_root(answer)

    def _load(self) -> tuple[Snapshot, DirectoryRoot]:
        """A snapshot, which an instance may have made some commits ago, and the commits since."""
        for _ in range(_ATTEMPTS):
            view = unpack_snapshot(self._channel.get("snapshot").data, lazy=False)
            root = self._read_root()
            entries = self._read_entries(view.version, root.version)
            if entries is not None and root.version >= view.version and not any(stored.reset for stored in entries):
                return self._applied(view, entries), root
        raise Unavailable("the instances disagree about the directory's version, or its log is too short")

    def _read_entries(self, after: int, upto: int) -> list[StoredEntry] | None:
        if upto <= after:
            return []
        answer = self._channel.get("log", after=after, upto=upto)
        if answer.status == _GONE:
            # Another instance may have announced them: this one need not know them yet, and must not take us back.
            if read_root(self._channel.get("root")).version < upto:
                raise Unavailable("the instance that answers is behind another one")
            return None
        entries = unpack_log(answer.data)
        complete = [stored.entry.version for stored in entries] == [*range(after + 1, upto + 1)]
        return entries if complete else None

    def _signal(self) -> "LongPoll":
        return LongPoll(self)

    def poll(self, channel: Channel, after: int) -> bool:
        """Waits for a version above `after`; whether there is one."""
        root = read_root(channel.get("root", oldest=OLDEST, after=after, wait=POLL_SECONDS))
        self._news = root
        return root.version > after

    def polling(self) -> Channel:
        """A connection for long polls, in addition to the one for requests."""
        return Channel(self._address, self._credentials, self.timeout)

    def known(self) -> int:
        """The version of the view."""
        return self._view.version if self._view is not None else 0

    def follow(self, confirm_every: float = CONFIRM_EVERY) -> PollingFollower:
        """Starts following; the age counts from when the answering instance last confirmed its view."""
        follower = HttpFollower(self, self._refresh_followed, self._signal(), self.clock, confirm_every)
        self._followers = [*(one for one in self._followers if not one.closed), follower]
        return follower

    def _close(self) -> None:
        self._channel.close()

    def _refuse(self, what: str) -> NoReturn:
        raise Refused(_READ_ONLY.format(what))

    def _write(self, batch: Batch) -> None:
        self._refuse("a commit")

    def _replace(self, contents: Contents, root: DirectoryRoot, entry: StoredEntry, leader_epoch: int) -> None:
        self._refuse("an import")

    def campaign(self, name: str, timeout: float | None = None) -> Leadership | None:
        """Refused."""
        self._refuse("an election")

    def leader(self) -> str | None:
        """Not known."""
        return None

    def publish(self, topic: str, name: str, document: Json) -> int:
        """Refused: samples of keys are not reported over HTTP."""
        self._refuse("a note")

    def published(self, topic: str) -> Mapping[str, Json]:
        """None."""
        return {}

    def unpublish(self, topic: str, name: str) -> None:
        """Refused."""
        self._refuse("a note")

    def take_block(self, table: int) -> int:
        """Refused."""
        self._refuse("a block of ids")

    def blocks(self) -> Mapping[int, int]:
        """None."""
        return {}

    def exposures(self, *, everything: bool = False) -> Sequence[str]:
        """None that could be seen from here."""
        return ()

    def secure(self, *, dry_run: bool) -> Secured:
        """Refused."""
        self._refuse("closing it")


class HttpFollower(PollingFollower):
    """A follower whose instance may itself be behind."""

    def __init__(self, directory: HttpDirectory, *arguments: Any) -> None:
        self._directory = directory
        self._asking = threading.Lock()
        super().__init__(*arguments)

    def age(self) -> float:
        """Seconds since the snapshot was last known to be the newest."""
        return super().age() + self._directory.lag

    def wait(self, after: int, timeout: float, *, patient: bool = False) -> Snapshot:
        """As usual; but instances answer thousands of long polls in turns, so a caller in a hurry asks."""
        deadline = self._clock.monotonic() + timeout
        pause = timeout if patient else _HURRY_FIRST
        while True:
            if not patient and self._snapshot.version <= after and self._asking.acquire(blocking=False):
                try:
                    self._look()
                finally:
                    self._asking.release()
            left = deadline - self._clock.monotonic()
            found = super().wait(after, max(min(pause, left), 0.0), patient=patient)
            if found.version > after or left <= pause or self.closed:
                return found
            pause = min(2 * pause, _HURRY_MOST)


class LongPoll:
    """See `directory/store/follower.Signal`: a thread that keeps one request waiting at an instance."""

    def __init__(self, directory: HttpDirectory) -> None:
        self._directory = directory
        self._channel = directory.polling()
        self._event = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def wait(self, timeout: float) -> None:
        """Returns when the root may have changed since the last call."""
        if self._thread is None:  # not before there is a first view: until then nothing is new
            self._thread = threading.Thread(target=self._poll, name="directory-poll", daemon=True)
            self._thread.start()
        self._event.wait(timeout)
        self._event.clear()

    def wake(self) -> None:
        """Makes a waiter return at once."""
        self._event.set()

    def close(self) -> None:
        """Ends the request that is waiting."""
        self._closed.set()
        self._channel.close()

    def _poll(self) -> None:
        pause = 0.05
        while not self._closed.is_set():
            known = self._directory.known()
            try:
                newer = self._directory.poll(self._channel, known)
                pause = 0.05
            except BalancerError:  # the regular reads say what is wrong
                newer = False
                self._closed.wait(pause)
                pause = min(2 * pause, 2.0)
            if newer:
                self._event.set()
                # The view must have it before the next request, which would get the same answer at once.
                self._closed.wait(0.001)
                while self._directory.known() <= known and not self._closed.wait(0.02):
                    continue


def read_root(answer: InstanceAnswer) -> DirectoryRoot:
    """The root in an answer."""
    return DirectoryRoot.unpack(answer.data, answer.epoch)
