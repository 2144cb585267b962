"""Connections to nodes: the one place that opens them, so that each has a name, timeouts and known output formats.

Code that talks to a node calls `connect` (or keeps connections across calls, see `holder`) and wraps its
work in `translated`, which turns the driver's errors into ours. A password is never part of an error, a representation
or a log line.

Servers' and drivers' messages in as few words as a person needs. Pure; `nodes.session.connection` and the poll use it.

libpq says where it tried, then that it failed, then why, then its guesses; with several hosts, all of it again for
each. The sentence around it already names the node, so only the reason is kept.

Breaks connections that somebody has waited too long for: one thread for all, however many there are.
"""

import heapq
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from itertools import count
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from balancer.clock import SystemClock
from balancer.errors import BalancerError, NotGranted, Refused, Unavailable, UserError
from balancer.nodes.session import own_schema
from balancer.untrusted import one_line

Connection = psycopg.Connection[TupleRow]
Cursor = psycopg.Cursor[TupleRow]
PLANNED: WeakSet[psycopg.Connection[TupleRow]] = WeakSet()
"""Connections on which the query about our schema is prepared (`own_schema.PREPARE`)."""
IDENTITIES: WeakKeyDictionary[psycopg.Connection[TupleRow], str] = WeakKeyDictionary()
"""The directory for which a connection was opened, by its identity; it never changes: `nodes/schema/leader_transaction`
has the node compare it in every transaction, so a connection from before a node changed hands is refused afterwards."""
UNAWARE: WeakSet[psycopg.Connection[TupleRow]] = WeakSet()
"""Connections to nodes whose schema is too old to know identities, until `nodes/schema/install` has brought it up to
date."""
Statement = sql.Composable


class Target(StrEnum):
    """Which of several hosts in a DSN to take (libpq's `target_session_attrs`)."""

    PRIMARY = "read-write"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """In seconds. Every connection has all of them: no statement waits without a limit."""

    connect: float = 5.0
    """Per host of the DSN; libpq takes no less than 2."""
    statement: float = 30.0
    lock: float = 2.0
    """A statement that waits for a lock makes others wait behind it: kept short, and retried."""
    idle_in_transaction: float = 60.0
    """If this process hangs, the server ends its transaction and frees the locks."""
    network: float = 15.0
    """Data unacknowledged for longer than this breaks the connection."""


DEFAULT_TIMEOUTS = Timeouts()


@dataclass(frozen=True, slots=True)
class Address:
    """Where a node is. Without a password libpq looks for one as it always does (passfile, environment)."""

    node: str
    dsn: str = field(repr=False)  # a user may have put a password into it against our advice
    password: str | None = field(default=None, repr=False)
    cluster: str = ""
    """The cluster that the database must belong to; empty: not checked."""
    identity: str = ""
    """Identity of the directory that the database must belong to; empty: not checked either."""
    forward_user: str = ""
    """The login by which other nodes reach its tablets; empty: they do not."""
    forward_password: str | None = field(default=None, repr=False)
    peer_dsn: str = field(default="", repr=False)
    """Where other nodes' servers find it; empty: as `dsn` says (`peers`)."""
    peer_files: tuple[tuple[str, str], ...] = ()
    """Files as libpq names them (`sslrootcert`), with their places on the other nodes' servers."""
    has_standbys: bool | None = None
    """Whether somebody may be promoted in its place, as an operator says; None: as was seen."""
    trusts_owners: bool = False
    """Whether code of the tables' owners may run there with our rights (`trust_table_owners`)."""

    def __str__(self) -> str:
        return f"node {self.node}"

    def hosts(self) -> str:
        """Its hosts and database, for people."""
        parameters = parameters_of(self)
        return f"{parameters.get('host', 'local socket')}/{parameters.get('dbname', '')}"

    def host_and_port(self) -> str:
        """The same with its port, for an address that has one host."""
        parameters = parameters_of(self)
        return f"{parameters.get('host') or parameters.get('hostaddr', 'local socket')}:{parameters.get('port', 5432)}"

    def each_host(self) -> "list[Address]":
        """Addresses of one host each, in their order."""
        lists = {name: str(parameters_of(self).get(name) or "").split(",") for name in ("host", "hostaddr", "port")}
        number = max(map(len, lists.values()))
        if number == 1:
            return [self]
        found = []
        for at in range(number):
            # One port may be for all of them.
            one = {name: words[at if len(words) > 1 else 0] for name, words in lists.items()}
            words = {name: value for name, value in {**parameters_of(self), **one}.items() if value != ""}
            found.append(replace(self, dsn=make_conninfo("", **words)))
        return found

    def has_several_hosts(self) -> bool:
        """Whether the server behind it may change on its own (a failover)."""
        return _several_hosts(self.dsn) if self.dsn else False


def node_itself(address: Address) -> Target:
    """What looks at a node asks for: of several hosts the one that takes writes, whatever comes first; with one host a
    standby too, so that it can be named as one instead of as out of reach."""
    return Target.PRIMARY if address.has_several_hosts() else Target.ANY


def connect(
    address: Address,
    *,
    purpose: str = "",
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    target: Target = Target.PRIMARY,
    replication: bool = False,
    autocommit: bool = True,
) -> Connection:
    """A new connection. Raises `Unavailable` if no host answers in time or none fits the target, and `Refused` if the
    database has a schema `balancer` that is not ours, or is a node of a different cluster from the address's.

    `purpose` ends its application name. With `replication` it is one for slot commands of logical replication.
    """
    name = f"tablet-balancer {purpose}".strip()
    parameters = parameters_of(address)
    extra: dict[str, str | int] = {
        "application_name": name,
        "connect_timeout": max(2, round(timeouts.connect)),
        "tcp_user_timeout": _milliseconds(timeouts.network),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "target_session_attrs": str(target),
        "client_encoding": "UTF8",
        "options": f"{parameters.get('options', '')} {_options(timeouts)}".strip(),
    }
    if address.password is not None:
        extra["password"] = address.password
    if replication:
        extra["replication"] = "database"
    with translated(address.node):
        given: dict[str, Any] = {**parameters, **extra}
        connection = psycopg.connect(autocommit=True, **given)
        try:
            if not replication:
                with deadline(connection, max(2.0, timeouts.connect)):
                    asked = connection.execute(f"{own_schema.SURELY}; {own_schema.PREPARE}".encode())
                    PLANNED.add(connection)
                    sure, node = asked.fetchone() or (False, True)
                    if not sure:
                        connection.execute(own_schema.IF_THERE)
                    _check_cluster(connection, address, own_schema.read_belonging(connection) if node else None)
            connection.autocommit = autocommit
        except BaseException:
            connection.close()
            raise
        return connection


def _check_cluster(connection: Connection, address: Address, known: own_schema.Belonging | None) -> None:
    if address.identity:
        IDENTITIES[connection] = address.identity
    if known is None or not known.tells:
        UNAWARE.add(connection)
    if known is None:
        return
    if address.cluster and known.cluster != address.cluster:
        raise Refused(
            f"the DSN of node {address.node} leads to node {known.node} of cluster {known.cluster}, not of"
            f" {address.cluster}: nothing was done there"
        )
    if address.identity and known.identity and known.identity != address.identity:
        raise Refused(
            f"the DSN of node {address.node} leads to node {known.node} of another directory, named {known.cluster} as"
            f" well (its identity is {known.identity}, ours is {address.identity}): nothing was done there"
        )
    if known.identity:
        IDENTITIES[connection] = known.identity


def keep_out_of_logs(cursor: Cursor) -> None:
    """For the rest of the transaction, keeps what is sent out of the server's log and `pg_stat_activity`, as far as our
    role may: for statements that must contain a password."""
    cursor.execute(_QUIET)


_QUIET = """
SELECT set_config(name, value, true) FROM (VALUES
    ('log_statement', 'none'), ('log_min_error_statement', 'panic'), ('log_min_duration_statement', '-1'),
    ('log_min_duration_sample', '-1'), ('log_transaction_sample_rate', '0'), ('track_activities', 'off')
) AS wanted (name, value) WHERE has_parameter_privilege(name, 'SET')
"""


@contextmanager
def translated(node: str) -> Iterator[None]:
    """Turns the driver's errors into ours, classed by what the caller must do. Ours pass through."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(node, error) from error


_E = psycopg.errors
_MEANINGS: tuple[tuple[tuple[type[psycopg.Error], ...], type[BalancerError], str], ...] = (
    ((_E.QueryCanceled, _E.LockNotAvailable), NotGranted, "did not answer within the time allowed"),
    ((_E.ObjectNotInPrerequisiteState, _E.ObjectInUse), Unavailable, "cannot do that at this moment"),
    ((_E.DeadlockDetected,), NotGranted, "undid a transaction that met another"),
    ((_E.SerializationFailure,), Unavailable, "undid a transaction that met another"),
    ((_E.IdleInTransactionSessionTimeout,), Unavailable, "has ended a session that stood still"),
    ((_E.ReadOnlySqlTransaction,), Unavailable, "is read-only now, perhaps a standby"),
    ((_E.DiskFull,), Refused, "has no space left"),
    ((_E.InsufficientPrivilege,), Refused, "denies us a right"),
    ((psycopg.OperationalError, psycopg.InterfaceError), Unavailable, "cannot be reached"),
)
"""Special cases come before general ones: the first match counts."""


def translate(node: str, error: psycopg.Error) -> BalancerError:
    """What a driver's error means to the caller."""
    text = brief(error.diag.message_primary or str(error)) or type(error).__name__
    # The server's own reason for not letting us in.
    if "FATAL: " in str(error) and isinstance(error, psycopg.OperationalError):
        return Unavailable(f"node {node} does not let us in: {text}", f"{LOCKED_OUT}{text}")
    for kinds, meaning, words in _MEANINGS:
        if isinstance(error, kinds):
            sentence = f"node {node} {words} ({text})"
            if issubclass(meaning, Unavailable):
                return meaning(sentence, text)
            hint = ": see `balancer node check`" if isinstance(error, _E.InsufficientPrivilege) else ""
            return meaning(sentence + hint)
    if isinstance(error, _E.InternalError_) and "concurrently" in text:  # two sessions changed one definition at once
        return Unavailable(f"node {node} undid a transaction that met another ({text})")
    return Refused(f"node {node} refuses: {text}")


def statement_timeout(seconds: float) -> Statement:
    """For the rest of the transaction; 0: none."""
    milliseconds = _milliseconds(seconds) if seconds else 0
    return sql.SQL("SET LOCAL statement_timeout TO {}").format(sql.Literal(f"{milliseconds}ms"))


def lock_timeout(seconds: float) -> Statement:
    """For the rest of the transaction."""
    return sql.SQL("SET LOCAL lock_timeout TO {}").format(sql.Literal(f"{_milliseconds(seconds)}ms"))


def run_together(cursor: Cursor, statements: Sequence[Statement]) -> None:
    """Several statements as one message, in one transaction; the cursor then has the result of the first."""
    if statements:
        cursor.execute(sql.SQL("; ").join(statements))


class Ready(sql.Composable):
    """Statements whose text is composed before they are needed, for cases where somebody waits."""

    def __init__(self, connection: Connection, statements: Sequence[Statement]) -> None:
        super().__init__(sql.SQL("; ").join(statements).as_bytes(connection))

    def as_bytes(self, context: object = None) -> bytes:
        """The text as it is sent."""
        return bytes(self._obj)


def run_single(cursor: Cursor, statement: Statement) -> None:
    """One statement that contains text which a catalog printed: PostgreSQL refuses the message if there are two in it.

    A binary result makes the driver use the extended protocol, which has no lists of statements.
    """
    cursor.execute(sql.Composed([statement]), binary=True)


def printed(text: str) -> Statement:
    """Text as PostgreSQL printed it, for a statement that `run_single` sends."""
    return sql.SQL(text)


def rows_that_follow(cursor: Cursor) -> list[list[TupleRow]]:
    """The rows of each statement after the one that the cursor is at, of several that were sent together; those without
    rows are skipped."""
    found = []
    while (rows := next_rows(cursor)) is not None:
        found.append(rows)
    return found


def next_rows(cursor: Cursor) -> list[TupleRow] | None:
    """The rows of the next one of them that has any kind of rows; None: there is none."""
    while cursor.nextset():
        if cursor.description is not None:
            return cursor.fetchall()
    return None


def last_rows(cursor: Cursor) -> list[TupleRow]:
    """The rows of the last of several statements that were sent together."""
    while cursor.nextset():
        pass
    return cursor.fetchall()


def lost(error: psycopg.Error) -> bool:
    """Whether the outcome may be unknown to us: the connection broke without an error from the server."""
    return isinstance(error, psycopg.OperationalError) and (error.sqlstate is None or error.sqlstate.startswith("57P"))


@contextmanager
def deadline(connection: Connection, seconds: float) -> Iterator[None]:
    """Breaks the connection if the block takes longer: for servers that hang, where no timeout of theirs works.

    The block then fails with the driver's `OperationalError`.
    """
    # A duplicate, so that a connection closed meanwhile cannot hand its number to somebody else's socket.
    handle = socket.socket(fileno=os.dup(connection.fileno()))
    number = DEADLINES.begin(handle, seconds)
    try:
        yield
    finally:
        DEADLINES.end(number)
        handle.close()


@lru_cache(maxsize=8192)
def _several_hosts(dsn: str) -> bool:
    return "," in str(parameters_of(Address("", dsn)).get("host", ""))


def parameters_of(address: Address) -> dict[str, str | int]:
    """What its DSN says, name by name."""
    try:
        return dict(_parsed(address.dsn))
    except psycopg.ProgrammingError:
        # libpq quotes the offending part, which may be a password.
        raise UserError(f"the DSN of node {address.node} is not one that PostgreSQL's clients understand") from None


@lru_cache(maxsize=8192)
def _parsed(dsn: str) -> tuple[tuple[str, str | int], ...]:
    return tuple((name, value) for name, value in conninfo_to_dict(dsn).items() if value is not None)


@lru_cache(maxsize=64)
def _options(timeouts: Timeouts) -> str:
    settings = {
        "statement_timeout": _milliseconds(timeouts.statement),
        "lock_timeout": _milliseconds(timeouts.lock),
        "idle_in_transaction_session_timeout": _milliseconds(timeouts.idle_in_transaction),
        # Our statements end soon after we are gone; otherwise the session would keep its locks against our successor.
        "client_connection_check_interval": 1000,
        # Bounds and samples are read as text: one format, whatever the database's own settings are.
        "timezone": "UTC",
        "datestyle": "ISO",
        "intervalstyle": "postgres",
        "bytea_output": "hex",
        "extra_float_digits": 1,  # a float that is read as text is the same float afterwards
        "lc_monetary": "C",
        **_MEANING,
    }
    return " ".join(f"-c {name}={_escaped(str(value))}" for name, value in settings.items())


_MEANING = {
    # Nobody else's function, operator or table comes before the catalog's, and we act as the role we logged in as.
    "search_path": "pg_catalog,pg_temp",
    "role": "none",
    "local_preload_libraries": "",
    # Rows hidden by a policy are an error, instead of being silently left behind.
    "row_security": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",
    "xmloption": "content",
    "gin_fuzzy_search_limit": "0",
    "default_table_access_method": "heap",
    "check_function_bodies": "on",
}
"""What a database's owner could set with ALTER DATABASE to make our statements mean something else. What is set when a
connection begins overrides the settings of databases and roles. Parameters that only a superuser may set are not here:
our role could not set them either."""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


LOCKED_OUT: Final = "it does not let us in: "
"""How the reason begins where a server answers but refuses the session."""

_ATTEMPT: Final = re.compile(r'connection to server (?:at "[^"]*"(?: \([^)]*\))?, port \d+|on socket "[^"]*") failed: ')
_NOISE: Final = (
    re.compile(r" Multiple connection attempts failed\. All failures were:.*"),
    re.compile(r" Is the server running (?:on that host|locally) and accepting [^?]*\?"),
    re.compile(r" This probably means the server terminated abnormally before or while processing the request\."),
    re.compile(r"^(?:connection failed|connection is bad|consuming input failed|sending query failed): "),
    re.compile(r"^(?:error|ERROR|FATAL): +"),
    re.compile(r"\[Errno -?\d+\] "),
)
_STARTS: Final = ("Connection ", "No such file", "Network is", "No route to", "Name or service", "Host is")


_NO_DATABASE: Final = re.compile(r'database ".*" does not exist')


def is_up(why: str) -> bool:
    """Whether a server that we cannot reach for this reason still answers, and may serve others: giving its tablets to
    another node would then make two owners. One without the database has no tablets."""
    return why.startswith(LOCKED_OUT) and not _NO_DATABASE.search(why)


def brief(text: str) -> str:
    """Why something could not be done, and nothing else."""
    found = one_line(text)
    for noise in _NOISE[:3]:
        found = noise.sub("", found)
    found = _ATTEMPT.split(found)[-1]
    for noise in _NOISE[3:]:
        found = noise.sub("", found)
    found = found.strip().removesuffix(".")
    return found[0].lower() + found[1:] if found.startswith(_STARTS) else found


class Deadlines:
    """Safe to use from any thread."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._changed = threading.Condition()
        self._numbers = count()
        self._open: dict[int, socket.socket] = {}
        self._due: list[tuple[float, int]] = []
        self._thread: threading.Thread | None = None

    def begin(self, handle: socket.socket, seconds: float) -> int:
        """Shuts the socket down after this many seconds, unless `end` is called with what this returns."""
        with self._changed:
            number = next(self._numbers)
            self._open[number] = handle
            due = self._clock.monotonic() + seconds, number
            heapq.heappush(self._due, due)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="deadlines", daemon=True)
                self._thread.start()
            elif self._due[0] is due:
                self._changed.notify()
            return number

    def end(self, number: int) -> None:
        """From now on the socket is left alone. Idempotent."""
        with self._changed:
            self._open.pop(number, None)

    def _watch(self) -> None:
        with self._changed:
            while True:
                self._changed.wait(self._next())
                now = self._clock.monotonic()
                while self._due and self._due[0][0] <= now:
                    handle = self._open.pop(heapq.heappop(self._due)[1], None)
                    if handle is not None:
                        with suppress(OSError):  # it was closed at the same moment: the block is over
                            handle.shutdown(socket.SHUT_RDWR)

    def _next(self) -> float | None:
        """Seconds until the next one that still counts is due; None: there is none."""
        while self._due and self._due[0][1] not in self._open:
            heapq.heappop(self._due)
        return max(0.0, self._due[0][0] - self._clock.monotonic()) if self._due else None


DEADLINES = Deadlines()
"""Those of this process."""


PINNED: Mapping[str, str] = {
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmlbinary": "base64",
    "search_path": "pg_catalog, pg_temp",
    "quote_all_identifiers": "off",
}


def pin_output(connection: Connection, *first: sql.Composable, **others: str) -> None:
    """Makes equal values equal text on every server. Other settings of the session may come along in the same message,
    and statements before them."""
    wanted = {**PINNED, **others}
    pairs = [sql.SQL("set_config({}, {}, false)").format(*map(sql.Literal, pair)) for pair in wanted.items()]
    settings = sql.SQL("SELECT {}").format(sql.SQL(", ").join(pairs))
    connection.execute(sql.SQL("; ").join([*first, settings]))


def installed(cursor: Cursor) -> bool:
    """Whether our schema is there; an error if it is there and not ours."""
    cursor.execute("SELECT to_regclass('balancer.node') IS NOT NULL")
    row = cursor.fetchone()
    if row is None or not row[0]:
        return False
    cursor.execute(own_schema.REQUIRED)
    return True
