"""Reader and writer on a real ZooKeeper: what a reader can do, what it cannot, and how an open directory is closed."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NotEmptyError
from kazoo.security import make_digest_acl

from balancer.client import Router
from balancer.client.keys.ids import Ids
from balancer.client.keys.routes import Routes
from balancer.client.observing import Sampler
from balancer.directory.contract import Directory
from balancer.directory.credentials import Credentials, Scheme
from balancer.directory.invariants import TABLET_COUNTER
from balancer.directory.model import Bundle, Counter, Put
from balancer.directory.notes import SAMPLES, SLOTS
from balancer.directory.open import open_directory
from balancer.directory.snapshot import BLOCK
from balancer.directory.store.codec import pack
from balancer.directory.zookeeper.access import ZnodeAccess
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.errors import Refused, UserError
from tests.support.directories import HASHED, fill, leaves, small_cluster, transaction
from tests.support.two_credentials import READER, WRITER, every_znode, wrong_lists


@pytest.fixture
def url(zookeeper: ZooKeeperServer) -> str:
    return f"zk://{zookeeper.address}/two-{uuid4().hex}"


@pytest.fixture
def writer(url: str) -> Iterator[Directory]:
    with open_directory(url, credentials=WRITER) as opened:
        fill(opened)
        yield opened


@pytest.fixture
def reader(url: str, writer: Directory) -> Iterator[Directory]:
    with open_directory(url, credentials=READER, create=False) as opened:
        yield opened


def test_a_reader_routes_leaves_samples_and_takes_ids(url: str, writer: Directory) -> None:
    with Router.connect(url, samples=False, credentials=READER) as router:
        assert router.locate("orders", 5).node in {"pg-a", "pg-b", "pg-c"}
    routes = Routes.open(url, credentials=READER)
    try:
        sampler = Sampler(routes)
        sampler.note("orders", 5, 1.0, True)
        sampler.publish()
        ((name, note),) = writer.published(SAMPLES).items()
        assert name in SLOTS
        assert list(note["tables"]) == ["1"]
        sampler.close()
        assert writer.published(SAMPLES) == {}
        taken = [*Ids(routes, "orders").take(2), Ids(routes, "orders").next()]
        assert taken == [1, 2, 1 + BLOCK]
        assert writer.blocks()[1] == 2
    finally:
        routes.close()


def test_a_reader_cannot_lead_change_the_map_or_replace_it(reader: Directory, writer: Directory) -> None:
    version = writer.snapshot().version
    with pytest.raises(Refused, match="a reader's"):
        reader.campaign("intruder", timeout=5)
    with pytest.raises(Refused, match="a reader's"):
        reader.commit(transaction([Put(Bundle("mine"))], version))
    with pytest.raises(Refused, match="a reader's"):
        reader.restore(small_cluster(), reason="mine", author="intruder", leader_epoch=0)
    with pytest.raises(Refused, match="a reader's"):
        reader.publish("status", "shop", {"word": "balanced"})
    with pytest.raises(Refused, match="a reader's"):
        reader.secure(dry_run=False)
    assert writer.leader() is None
    assert writer.snapshot().version == version


def test_a_reader_can_neither_write_nor_delete_nor_create_any_znode_but_its_places(
    zookeeper: ZooKeeperServer, reader: Directory, writer: Directory
) -> None:
    assert writer.campaign("one", timeout=10) is not None
    writer.publish("status", "shop", {"word": "balanced"})
    paths = every_znode(writer)
    places = [path for path in paths if "/notes/samples/client-" in path or path.rpartition("/")[0].endswith("/ids")]
    assert len(places) == len(SLOTS) + 2
    client = reader.session.client  # type: ignore[attr-defined]
    for path in paths:
        client.get(path)
        acts: list[Any] = [
            (client.delete, path),
            (client.create, f"{path}/mine"),
            (client.set_acls, path, client.get_acls(path)[0]),
        ]
        if path not in places:
            acts.append((client.set, path, b"mine"))
        for act, *arguments in acts:
            # Whether the uppermost may be deleted is for ZooKeeper's own root to say, once it is empty.
            with pytest.raises((NoAuthError, NotEmptyError) if path == paths[0] else NoAuthError):
                act(*arguments)
    for path in places:
        client.set(path, b"whatever")


def test_without_credentials_nothing_is_read(zookeeper: ZooKeeperServer, url: str, writer: Directory) -> None:
    stranger = KazooClient(zookeeper.address)
    stranger.start()
    try:
        for path in every_znode(writer):
            for act in (stranger.get, stranger.get_children, stranger.get_acls):
                with pytest.raises(NoAuthError):
                    act(path)
    finally:
        stranger.stop()
        stranger.close()
    with (
        open_directory(url, credentials=Credentials(), create=False) as nobody,
        pytest.raises(Refused, match="does not allow"),
    ):
        nobody.snapshot()


def test_ids_are_never_handed_out_twice_whatever_a_reader_writes_there(reader: Directory, writer: Directory) -> None:
    client = reader.session.client  # type: ignore[attr-defined]
    place = reader.paths.block("1")  # type: ignore[attr-defined]
    taken = [reader.take_block(1)]
    client.set(place, b"-1")
    client.set(place, b"")
    taken += [reader.take_block(1), writer.take_block(1)]
    assert taken == sorted(set(taken))


def test_what_a_reader_writes_as_samples_hides_nobody_elses(reader: Directory, writer: Directory) -> None:
    client = reader.session.client  # type: ignore[attr-defined]
    writer.publish(SAMPLES, "http.1", {"at": 1.0, "tables": {}})
    for name, data in zip(SLOTS, (b"\xff" * 1000, b"{", b"\x02\x01" + b"x" * 100_000), strict=False):
        client.set(reader.paths.note(SAMPLES, name), data)  # type: ignore[attr-defined]
    assert writer.published(SAMPLES) == {"http.1": {"at": 1.0, "tables": {}}}


def test_a_compressed_note_that_swells_is_not_unpacked(reader: Directory, writer: Directory) -> None:
    client = reader.session.client  # type: ignore[attr-defined]
    whole = pack({"at": 1.0, "tables": {"1": "x" * (2 << 20)}})
    assert len(whole) < 100_000
    client.set(reader.paths.note(SAMPLES, SLOTS[0]), whole)  # type: ignore[attr-defined]
    client.set(reader.paths.note(SAMPLES, SLOTS[1]), b"\xff" * (900 << 10))  # type: ignore[attr-defined]
    good = {"at": 1.0, "tables": {}}
    reader.publish(SAMPLES, SLOTS[2], good)
    assert writer.published(SAMPLES) == {SLOTS[2]: good}


def test_a_writer_that_was_not_told_the_reader_keeps_the_lists_that_there_are(url: str, writer: Directory) -> None:
    """An operator's shell may have the writer's credential alone."""
    alone = Credentials(Scheme.DIGEST, WRITER.user, WRITER.password)
    with open_directory(url, credentials=alone, create=False) as operator:
        view = operator.snapshot()
        operator.commit(transaction([Put(Bundle("more"))], view.version))
        operator.publish("status", "more", {"word": "balanced"})
    assert wrong_lists(writer) == []
    with open_directory(url, credentials=READER, create=False) as reader:
        assert reader.snapshot().bundles.keys() == {"shop", "more"}


def test_a_stranger_who_may_write_is_not_taken_for_the_reader(url: str, writer: Directory) -> None:
    alone = Credentials(Scheme.DIGEST, WRITER.user, WRITER.password)
    client, root = writer.session.client, writer.paths.root  # type: ignore[attr-defined]
    bob = make_digest_acl("bob", "bobs", all=True)
    client.set_acls(root, [*client.get_acls(root)[0], bob])
    with open_directory(url, credentials=alone, create=False) as operator:
        operator.commit(transaction([Put(Bundle("more"))], operator.snapshot().version))
        lists = [client.get_acls(path)[0] for path in every_znode(writer) if path != root]
    assert not [found for found in lists if bob in found]


def test_the_tables_of_an_imported_directory_have_places_for_ids(writer: Directory, reader: Directory) -> None:
    leadership = writer.campaign("import", timeout=10)
    assert leadership is not None
    more = replace(HASHED, id=7, name="more")
    records = [*small_cluster(), more, *(replace(one, id=one.id + 5000, table=7) for one in leaves(8))]
    records = [Counter(TABLET_COUNTER, 9000) if isinstance(one, Counter) else one for one in records]
    writer.restore(records, reason="import", author="test", leader_epoch=leadership.epoch)
    assert reader.take_block(7) == 0
    assert wrong_lists(writer) == []


def test_every_list_is_right_and_nobody_is_named(writer: Directory) -> None:
    assert wrong_lists(writer) == []
    assert list(writer.exposures(everything=True)) == []
    assert writer.secure(dry_run=True).changed == 0


def test_an_open_directory_is_named_to_everybody_who_asks(url: str) -> None:
    with open_directory(url, credentials=Credentials()) as opened:
        fill(opened)
        (sentence,) = opened.exposures()
    assert sentence.startswith("everybody may read, write, create, delete, change who may do what ")
    for credentials in (READER, WRITER):
        with open_directory(url, credentials=credentials, create=False) as directory:
            assert any(one.startswith("everybody may read, write") for one in directory.exposures())


def test_somebody_else_who_may_write_is_named(writer: Directory) -> None:
    stranger = replace(WRITER, user="bob", password="bobs")
    with open_directory(f"zk://{writer.session._hosts}/other-{uuid4().hex}", credentials=stranger) as other:  # type: ignore[attr-defined]
        client = writer.session.client  # type: ignore[attr-defined]
        theirs = other.session.access_lists.map  # type: ignore[attr-defined]
        client.set_acls(writer.paths.root, [*client.get_acls(writer.paths.root)[0], theirs[0]])  # type: ignore[attr-defined]
    (sentence,) = writer.exposures()
    assert sentence.startswith("digest user bob may read, write")
    assert "=" not in sentence, "the hash of a password"
    assert writer.secure(dry_run=False).changed == 1
    assert list(writer.exposures()) == []


def test_an_open_directory_is_closed_under_clients_that_go_on(url: str) -> None:
    """Applications and daemons have their credentials already, as the README says; then the directory is closed."""
    with open_directory(url, credentials=Credentials()) as opened:
        fill(opened)
        opened.publish("status", "shop", {"word": "balanced"})
    routes = Routes.open(url, credentials=READER)
    try:
        ids = Ids(routes, "orders")
        first = ids.next()
        with open_directory(url, credentials=WRITER) as daemon, open_directory(url, credentials=WRITER) as command:
            leadership = daemon.campaign("daemon", timeout=10)
            assert leadership is not None
            told = command.secure(dry_run=True)
            assert 0 < told.changed <= told.parts
            assert wrong_lists(daemon) != []
            done = command.secure(dry_run=False)
            assert done.changed == told.changed
            assert wrong_lists(daemon) == []
            assert command.secure(dry_run=False).changed == 0
            view = daemon.snapshot()
            version = daemon.commit(transaction([Put(Bundle("more"))], view.version, leadership.epoch))
            assert leadership.held()
            assert routes._follower.wait(version - 1, 10.0).bundles.keys() == {"shop", "more"}
            assert Ids(routes, "orders").next() == first + BLOCK
            assert wrong_lists(daemon) == []
    finally:
        routes.close()
    with open_directory(url, credentials=Credentials(), create=False) as nobody, pytest.raises(Refused):
        nobody.snapshot()


def test_closing_that_was_killed_half_way_is_finished_by_the_next(url: str) -> None:
    with open_directory(url, credentials=Credentials()) as opened:
        fill(opened)
    command = [sys.executable, "-m", "tests.support.securing", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half-way\n"
        process.kill()
    with open_directory(url, credentials=WRITER, create=False) as directory:
        wrong = wrong_lists(directory)
        assert 0 < len(wrong) < len(every_znode(directory))
        assert directory.secure(dry_run=False).changed == len(wrong)
        assert wrong_lists(directory) == []


def test_what_a_stranger_creates_while_it_is_being_closed_is_closed_too(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ZnodeAccess._found
    with open_directory(url, credentials=Credentials()) as stranger:
        fill(stranger)

        def disturbed(self: ZnodeAccess, paths: Iterator[str]) -> Any:
            monkeypatch.setattr(ZnodeAccess, "_found", found)
            stranger.publish("status", "late", {"word": "balanced"})  # after the listing, before the lists are set
            return found(self, paths)

        with open_directory(url, credentials=WRITER, create=False) as directory:
            monkeypatch.setattr(ZnodeAccess, "_found", disturbed)
            directory.secure(dry_run=False)
            assert any(path.endswith("/late") for path in every_znode(directory))
            assert wrong_lists(directory) == []


def test_a_directory_of_one_credential_is_turned_over_to_two(url: str) -> None:
    old = Credentials(Scheme.DIGEST, "shared", "everybody-knows")
    with open_directory(url, credentials=old) as opened:
        fill(opened)
    with open_directory(url, credentials=WRITER, create=False) as hasty, pytest.raises(Refused):
        hasty.secure(dry_run=False)
    both = replace(WRITER, previous_user=old.user, previous_password=old.password)
    with open_directory(url, credentials=both, create=False) as directory:
        assert directory.secure(dry_run=False).changed > 20
        assert wrong_lists(directory) == []
    with open_directory(url, credentials=READER, create=False) as reader:
        assert reader.snapshot().tables
    with open_directory(url, credentials=old, create=False) as former, pytest.raises(Refused):
        former.snapshot()


def test_closing_needs_credentials(url: str) -> None:
    with open_directory(url, credentials=Credentials()) as opened:
        fill(opened)
        with pytest.raises(Refused, match="no credentials to close the directory with: set user and reader_user"):
            opened.secure(dry_run=True)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (Credentials(reader_user="apps", reader_password="x"), "needs a user beside it"),
        (replace(WRITER, reader_user="balancer"), "are both 'balancer'"),
        (replace(WRITER, reader_password=""), "needs a reader_password"),
        (replace(WRITER, reader_user="a:b"), "cannot have a colon in its name: 'a:b'"),
    ],
)
def test_a_reader_that_cannot_be_is_refused(wrong: Credentials, says: str) -> None:
    with pytest.raises(UserError, match=says):
        open_directory("zk://localhost:1/nowhere", credentials=wrong)
