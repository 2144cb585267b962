"""Who may do what with a znode: the access lists that we set, and what is wrong with those that we find.

The writer (daemons, operators) may do everything, the reader (applications) may read. Applications write in only two
places, into znodes that the writer has made for them: notes of key samples (`notes/samples/client-…`) and the counts of
id blocks (`ids/<table>`). They can neither create nor delete a znode anywhere. Without credentials everything is open.
"""

from collections.abc import Iterator, Sequence

from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Id, Permissions, make_digest_acl_credential

from balancer.directory.credentials import Credentials, Scheme
from balancer.outside import one_line

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
