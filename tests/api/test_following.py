"""Applications that follow the directory through instances' HTTP: the same routes, whoever answers, and never older."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from balancer.api import directory_feed
from balancer.api.app import create_app
from balancer.api.directory_feed import Turns
from balancer.api.server import ApiServer
from balancer.client import Router
from balancer.directory import http
from balancer.directory.contract import Directory
from balancer.directory.credentials import Credentials
from balancer.directory.handover_record import HandoverRecord, signpost
from balancer.directory.model import Command, Counter, Pause, Put
from balancer.directory.open import open_directory
from balancer.directory.snapshot import Snapshot
from balancer.directory.store import commit, host_cache
from balancer.directory.store.page_codec import pack_page
from balancer.errors import Damaged, Refused, Unavailable, UserError
from balancer.settings import load_settings
from tests.support.certificates import self_signed
from tests.support.directories import HASHED, RANGED, migration, moved, puts, small_cluster, transaction
from tests.support.fleet import until
from tests.support.instance import TOKEN, Instance, bearer, http_settings

READ_TOKEN = "battery-horse-correct"
READER = Credentials(token=READ_TOKEN)


class Instances:
    """Several instances of one cluster, each with a server that can be stopped."""

    def __init__(self, first: Instance, folder: Path) -> None:
        self.first = first
        self._address = f"sqlite://{folder}/directory.db"
        self._settings = load_settings(folder / "balancer.toml")
        self._stack = ExitStack()
        self.all: list[Instance] = []
        self.servers: list[ApiServer] = []

    def add(self, **changes: object) -> Instance:
        instance = Instance(open_directory(self._address), self._settings)
        self._stack.callback(instance.close)
        http = http_settings(read_token=SecretStr(READ_TOKEN), **changes)
        server = self._stack.enter_context(ApiServer(create_app(instance, http), http))
        self.servers.append(server)
        self.all.append(instance)
        return instance

    def url(self, cluster: str = "directory") -> str:
        scheme = self.servers[0].url.partition(":")[0]
        return f"{scheme}://{','.join(server.url.partition('//')[2] for server in self.servers)}/{cluster}"

    def follow(self, credentials: Credentials = READER, **options: object) -> Directory:
        opened = open_directory(self.url(), credentials=credentials, timeout=5.0, **options)  # type: ignore[arg-type]
        return self._stack.enter_context(opened)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def instances(instance: Instance, tmp_path: Path) -> Iterator[Instances]:
    made = Instances(instance, tmp_path)
    try:
        yield made
    finally:
        made.close()


def move(instance: Instance, tablet: int, node: str) -> int:
    snapshot = instance.directory().snapshot()
    return instance.directory().commit(transaction(puts([moved(snapshot.tablet(tablet), node)]), snapshot.version))


def owners(directory_or_instance: Directory | Instance) -> dict[int, tuple[str, int]]:
    found = directory_or_instance.directory() if isinstance(directory_or_instance, Instance) else directory_or_instance
    view = found.snapshot()
    return {one.id: (one.node, one.epoch) for table in (HASHED.id, RANGED.id) for one in view.tablets(table)}


def test_a_router_knows_what_the_directory_says_and_hears_of_changes(instances: Instances) -> None:
    instances.add()
    with Router.connect(instances.url(), credentials=READER) as router:
        before = router.locate("orders", 5)
        target = next(node for node in ("pg-a", "pg-b", "pg-c") if node != before.node)
        version = move(instances.first, before.tablet, target)
        until(lambda: router.snapshot.version >= version, 10, "the change")
        until(lambda: router.locate("orders", 5).node == target, 10, "the new owner")
        assert router.locate("orders", 5).epoch == before.epoch + 1
        assert router.snapshot.node(target).dsn == f"postgresql://balancer@{target}/shop"
        assert "0 s" in str(router.explain("orders", 5)) or router.explain("orders", 5).node == target


def test_only_bearers_of_a_token_are_told(instances: Instances) -> None:
    instances.add(read_requires_token=False)
    with pytest.raises(UserError, match="BALANCER_DIRECTORY_TOKEN"):
        instances.follow(Credentials())
    with pytest.raises(Refused, match="a bearer token is needed"):
        instances.follow(Credentials(token="battery-horse-wrong")).snapshot()
    for token in (TOKEN, READ_TOKEN):
        assert instances.follow(Credentials(token=token)).snapshot().version == 1


def test_another_cluster_than_the_one_that_was_named_is_refused(instances: Instances) -> None:
    instances.add()
    with (
        open_directory(instances.url("shop"), credentials=READER) as directory,
        pytest.raises(Refused, match="there is no cluster 'shop' here: this is 'directory'"),
    ):
        directory.snapshot()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://balancer.example.com:8080/shop", "in clear text: use https"),
        ("https://127.0.0.1:1/", "needs servers and a cluster"),
        ("https://127.0.0.1:1/a/b", "needs servers and a cluster"),
        ("https://user:secret@127.0.0.1:1/shop", "must not contain a user or a password"),
        ("https://127.0.0.1:99999/shop", "not a host and port"),
        ("https://127.0.0.1:1,/shop", "a server's name is missing"),
    ],
)
def test_an_address_that_cannot_be_is_refused_in_a_sentence(url: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        open_directory(url, credentials=READER)
    assert "secret" not in str(caught.value)


def test_it_can_only_be_read(instances: Instances) -> None:
    instances.add()
    directory = instances.follow()
    view = directory.snapshot()
    for act in (
        lambda: directory.commit(transaction([Put(moved(view.tablet(1), "pg-c"))], view.version)),
        lambda: directory.campaign("me"),
        lambda: directory.publish("samples", "client-00", {}),
        lambda: directory.take_block(1),
        lambda: directory.restore([], reason="", author="", leader_epoch=0),
    ):
        with pytest.raises(Refused, match="over HTTP, where it can only be read"):
            act()


def test_what_applications_do_not_need_is_not_sent(instances: Instances) -> None:
    first = instances.first.directory()
    running = migration(first.snapshot().tablet(1), "pg-c")
    secret = Command("c1", "move", {"to": "a-secret-place"}, "an-operator", 0.0)
    first.commit(transaction([Put(running), Put(secret)], 1, reason="a-secret-reason"))
    instance = instances.add()
    directory = instances.follow()
    follower = directory.follow()
    assert [*follower.snapshot.migrations] == [running.id]
    first.commit(transaction([Put(Counter("n", 5))], 2, reason="another-secret-reason"))
    assert follower.wait(2, 10).version == 3
    feed = directory_feed.DirectoryFeed(instance)
    sent = [feed.snapshot(), feed.root(), *(feed.log(0, 3) or ())]
    for secret_word in (b"secret", b"operator"):
        assert not any(secret_word in part for part in sent)
    assert not follower.snapshot.commands
    assert not follower.snapshot.counters


def test_when_an_instance_stops_another_one_is_asked(instances: Instances) -> None:
    instances.add()
    instances.add()
    follower = instances.follow().follow()
    for number, server in enumerate(instances.servers):
        version = move(instances.first, number + 1, "pg-c")
        assert follower.wait(version - 1, 10).version == version
        if number == 0:
            server.stop()
    instances.servers[1].stop()
    assert follower.wait(version, 0.3).version == version
    until(lambda: follower.age() > 1.0, 10, "an age that tells that nobody answers")


def test_an_instance_that_is_cut_off_from_the_directory_is_passed_over(
    instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "OLDEST", 1.5)
    stale = instances.add()
    instances.add()
    directory = instances.follow()
    follower = directory.follow()
    stale.follower().close()
    until(lambda: stale.follower().age() > 1.5, 10, "an old view")
    version = move(instances.first, 1, "pg-c")
    assert follower.wait(version - 1, 10).version == version
    assert follower.age() < 4.0
    instances.servers[1].stop()
    with pytest.raises(Unavailable, match=r"has not heard from the directory for|does not answer"):
        directory.snapshot()


def test_an_instance_that_is_behind_takes_nobody_back(instances: Instances, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "OLDEST", 1000.0)
    instances.add()
    behind = instances.add()
    behind.follower().close()
    follower = instances.follow().follow()
    version = move(instances.first, 1, "pg-c")
    assert follower.wait(version - 1, 10).version == version
    instances.servers[0].stop()
    until(lambda: behind.follower().age() > 5.0, 20, "an old view")
    assert follower.snapshot.version == version
    assert follower.age() > 3.0, "it is as old as the view of the instance that answers"


def test_commits_that_one_instance_has_told_of_and_another_has_not_are_waited_for(
    instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long polls and questions may go to different instances: one that is behind costs no load, nor takes us back."""
    monkeypatch.setattr(http, "OLDEST", 1000.0)
    ahead, behind = instances.add(), instances.add()
    behind.follower().close()
    directory = instances.follow()
    assert isinstance(directory, http.HttpDirectory)
    known = move(instances.first, 1, "pg-c")
    until(lambda: directory.snapshot().version == known, 10, "the first instance's view")
    loads: list[int] = []

    def loaded(data: bytes, *, lazy: bool) -> Snapshot:
        loads.append(1)
        return host_cache.unpack_snapshot(data, lazy=lazy)

    monkeypatch.setattr(http, "unpack_snapshot", loaded)
    version = [move(instances.first, number, "pg-b") for number in (2, 3)][-1]
    until(lambda: ahead.follower().snapshot.version == version, 10, "the commits")
    channel = directory.polling()
    assert directory.poll(channel, known)
    channel.close()
    directory._channel.drop()
    directory._channel._servers.reverse()
    with pytest.raises(Unavailable, match="is behind"):
        directory._refresh(fresh=False)
    assert (directory.snapshot().version, loads) == (known, [])
    directory._channel.drop()
    directory._channel._servers.reverse()
    assert (directory.snapshot().version, loads) == (version, [])


def test_who_was_away_for_longer_than_the_log_loads_again(
    instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "LOG_KEPT", 3)
    instances.add()
    directory = instances.follow()
    assert directory.snapshot().version == 1
    for number in range(9):
        move(instances.first, number % 8 + 1, "pg-abc"[:3] + "abc"[number % 3])
    until(lambda: instances.all[0].follower().snapshot.version == 10, 10, "the instance")
    assert owners(directory) == owners(instances.first)


def test_an_import_is_followed(instances: Instances) -> None:
    instances.add()
    follower = instances.follow().follow()
    with open_directory(f"{instances._address}") as writer:
        leadership = writer.campaign("importer", timeout=20)
        assert leadership is not None
        records = [moved(one, "pg-c") if one.kind == "tablet" else one for one in small_cluster()]  # type: ignore[arg-type]
        version = writer.restore(records, reason="test", author="test", leader_epoch=leadership.epoch)
    for view in (follower.wait(version - 1, 10), instances.follow().snapshot()):
        assert {tablet.node for tablet in view.tablets(HASHED.id)} == {"pg-c"}


def test_those_who_wait_are_not_kept_by_the_turns_of_others(
    instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of long polls are answered one after the other; a refused transaction asks on its own."""
    instances.add()
    monkeypatch.setattr(Turns, "take", lambda *_: 60.0)
    follower = instances.follow().follow(1000.0)
    version = move(instances.first, 1, "pg-c")
    assert follower.wait(version - 1, 0.5, patient=True).version == version - 1
    assert follower.wait(version - 1, 10).version == version


def test_a_host_cache_spares_the_snapshot(
    instances: Instances, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances.add()
    instances.follow(cache=tmp_path / "cache").snapshot()
    move(instances.first, 1, "pg-c")
    until(lambda: instances.all[0].follower().snapshot.version == 2, 10, "the instance")
    monkeypatch.setattr(directory_feed.DirectoryFeed, "snapshot", lambda _: b"nothing")
    assert owners(instances.follow(cache=tmp_path / "cache")) == owners(instances.first)


def well_signed(data: bytes) -> bytes:
    """With the checksum that belongs to it: whoever answers can make that, too."""
    start = len(host_cache.MARK) + 16
    return data[: len(host_cache.MARK)] + host_cache._digest(data[start:]) + data[start:]


def test_what_is_no_directory_is_not_believed(instances: Instances, monkeypatch: pytest.MonkeyPatch) -> None:
    instances.add()
    true = directory_feed.DirectoryFeed(instances.all[0]).snapshot()
    view = instances.all[0].follower().snapshot
    last = len(pack_page(view.pages[[*view.index.values()][-1].numbers[-1]]))
    no_page = well_signed(true[:-last] + b"x" + true[1 - last :])
    for lie in (b"", b"nothing", bytes(1000), true[:-1], no_page, well_signed(true + b"x")):
        monkeypatch.setattr(directory_feed.DirectoryFeed, "snapshot", lambda _, lie=lie: lie)
        with pytest.raises(Damaged):
            instances.follow().snapshot()


def test_the_servers_certificate_is_checked(instances: Instances, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    instances.add(tls_certificate=certificate, tls_key=key)
    assert instances.url().startswith("https://")
    with pytest.raises(Unavailable, match=r"(?i)certificate"):
        instances.follow().snapshot()
    assert instances.follow(Credentials(token=READ_TOKEN, ca=str(certificate))).snapshot().version == 1


def test_the_endpoints_take_no_nonsense(instances: Instances) -> None:
    instances.add()
    with httpx.Client(base_url=instances.servers[0].url, headers=bearer(READ_TOKEN)) as client:
        queries: list[dict[str, int | str]] = [
            {"after": -1, "upto": 1},
            {"after": 0},
            {"after": "x", "upto": 1},
            {"after": 0, "upto": 2**70},
        ]
        for query in queries:
            assert client.get("/v1/directory/directory/log", params=query).status_code == 422
        assert client.get("/v1/directory/directory/log", params={"after": 0, "upto": 10**9}).status_code == 410
        assert client.get("/v1/directory/directory/log", params={"after": 5, "upto": 1}).content == b""
        assert client.get("/v1/directory/directory/root", params={"after": 0, "wait": 1e9}).status_code == 422


def test_a_router_hears_where_a_bundle_was_handed_over_to_and_of_no_other_pause(instances: Instances) -> None:
    instances.add()
    directory = instances.first.directory()
    gone = HandoverRecord("h1", "gone", "zk://zk-1/other", "abc", ("shop",))
    marks = [gone.pause("shop", "test"), Pause("shop", None, "test", "a reason")]

    def told(view: Snapshot) -> tuple[str, set[str]]:
        return signpost(view, HASHED.id), set(view.pauses)

    with instances.follow() as before:
        assert told(before.snapshot()) == ("", set())
        for mark in reversed(marks):
            directory.commit(transaction(puts([mark]), directory.snapshot().version))
        said = "bundle shop was handed over to the directory zk://zk-1/other: its applications open that one"
        until(lambda: told(before.snapshot()) == (said, {"shop handover"}), 20, "the signpost")
        assert told(instances.follow().snapshot()) == (said, {"shop handover"})
