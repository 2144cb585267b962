"""Two credentials of a directory in ZooKeeper, and every znode's access list compared with what it should be.

What the lists should be is spelled out here again, by path and in words: it does not ask the code under test.
"""

from typing import Any

from kazoo.security import make_digest_acl_credential

from balancer.directory.contract import Directory
from balancer.directory.credentials import Credentials, Scheme

WRITER = Credentials(
    Scheme.DIGEST, "balancer", "writers-secret", reader_user="applications", reader_password="readers-secret"
)
READER = Credentials(Scheme.DIGEST, "applications", "readers-secret")
_WRITER_ID = make_digest_acl_credential("balancer", "writers-secret")
_READER_ID = make_digest_acl_credential("applications", "readers-secret")
_ALL, _READ, _READ_WRITE = 31, 1, 3


def every_znode(directory: Directory) -> list[str]:
    """The paths of a directory in ZooKeeper, its own first."""
    inner: Any = directory
    return _below(inner.session.client, inner.paths.base)


def wrong_lists(directory: Directory) -> list[str]:
    """Every znode whose list is not that of its place, and what it is."""
    inner: Any = directory
    wrong = []
    for path in every_znode(directory):
        place = path.removeprefix(inner.paths.base)
        written = place.startswith(("/ids/", "/notes/samples/client-"))
        wanted = {("digest", _WRITER_ID, _ALL), ("digest", _READER_ID, _READ_WRITE if written else _READ)}
        found = {(one.id.scheme, one.id.id, one.perms) for one in inner.session.client.get_acls(path)[0]}
        if found != wanted:
            wrong.append(f"{place}: {sorted(found)}")
    return wrong


def _below(client: Any, path: str) -> list[str]:
    found = [path]
    for name in client.get_children(path):
        found += _below(client, f"{path}/{name}")
    return found
