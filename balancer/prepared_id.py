"""The id under which the client library prepares its part of an atomic transaction. Pure.

`balancer/CLUSTER/HOME/NODE/TRANSACTION`, each part percent-encoded: HOME is the node whose decision row says how the
transaction ends, NODE the participant (two nodes may be databases of one server, where ids must differ), TRANSACTION a
digest of its client's secret. Written by the client, read by the leader that ends what was left behind. Any role may
prepare something under any id: what is read here names a transaction and proves nothing.
"""

from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote, unquote

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
