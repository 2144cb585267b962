"""Names on a node: roots as the user writes them, partitions as we name them, always quoted by the driver.

All code that builds SQL uses these; no statement glues a name into text by hand.

Names on a node, for everything that talks to one; the client library imports them from `balancer.naming`.

The id under which the client library prepares its part of an atomic transaction. Pure.

`balancer/CLUSTER/HOME/NODE/TRANSACTION`, each part percent-encoded: HOME is the node whose decision row says how the
transaction ends, NODE the participant (two nodes may be databases of one server, where ids must differ), TRANSACTION a
digest of its client's secret. Written by the client, read by the leader that ends what was left behind. Any role may
prepare something under any id: what is read here names a transaction and proves nothing.
"""

import re
from hashlib import sha256
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from psycopg import sql

from balancer.errors import UserError

MAX_BYTES = 63  # PostgreSQL's NAMEDATALEN − 1
SCHEMA = "balancer"
"""Our schema on every node."""

_PART = r'(?:"(?:[^"]|"")+"|[^".\s]+)'
_QUALIFIED = re.compile(rf"(?:({_PART})\.)?({_PART})")


class Name(NamedTuple):
    """A relation by schema and name, unquoted."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{_quoted(self.schema)}.{_quoted(self.name)}"

    @property
    def identifier(self) -> sql.Identifier:
        """For composing statements."""
        return sql.Identifier(self.schema, self.name)


def parse_name(text: str) -> Name:
    """A name as PostgreSQL reads it: unquoted parts are folded to lower case; without a schema it is in `public`."""
    match = _QUALIFIED.fullmatch(text.strip())
    if match is None:
        raise UserError(f"{text!r} is not a table's name; write schema.table, with double quotes where needed")
    schema, name = match.groups()
    return Name(_unquoted(schema) if schema else "public", _unquoted(name))


def partition_name(root: Name, tablet: int) -> Name:
    """`<root>_t<id>`; a root too long for it is cut and marked with a digest, so that colocated roots stay apart."""
    suffix = f"_t{tablet}"
    room = MAX_BYTES - len(suffix)
    if len(root.name.encode()) > room:
        digest = sha256(root.name.encode()).hexdigest()[:8]
        return Name(root.schema, f"{_cut(root.name, room - 9)}_{digest}{suffix}")
    return Name(root.schema, root.name + suffix)


def _cut(text: str, size: int) -> str:
    return text.encode()[:size].decode(errors="ignore")


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()


def _quoted(part: str) -> str:
    return part if re.fullmatch(r"[a-z_][a-z0-9_$]*", part) else '"' + part.replace('"', '""') + '"'


PREFIX = "balancer/"
LONGEST = 199
"""Bytes: PostgreSQL's limit."""


class PreparedId(NamedTuple):
    """One participant of one atomic transaction."""

    cluster: str
    home: str
    node: str
    transaction: str

    def __str__(self) -> str:
        return PREFIX + "/".join(quote(part, safe="") for part in self)


def transaction_id(secret: str) -> str:
    """What others may see of a transaction; the same as `balancer.transaction_id` on a node."""
    return sha256(secret.encode()).hexdigest()[:40]


def parse_prepared(text: str) -> PreparedId | None:
    """What an id says; None: it is not one that the client library writes."""
    if not text.startswith(PREFIX):
        return None
    parts = text.removeprefix(PREFIX).split("/")
    if len(parts) != len(PreparedId._fields) or not all(parts):
        return None
    found = PreparedId(*map(unquote, parts))
    return found if str(found) == text else None


def cluster_name(url: str) -> str:
    """What nodes are told about their cluster: the last part of the directory's name, without a file extension."""
    return PurePosixPath(urlsplit(url).path).stem or "cluster"
