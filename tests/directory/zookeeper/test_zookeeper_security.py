"""Who may read and write, and whom we talk to: digest, access lists, TLS with the host's name, SASL."""

import socket
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.protocol.connection import ConnectionDropped
from kazoo.protocol.states import KeeperState

from balancer.directory.credentials import Credentials, Scheme
from balancer.directory.model import Bundle, Put
from balancer.directory.open import open_directory
from balancer.embedded import process
from balancer.embedded.zookeeper import ZooKeeperServer
from balancer.errors import Refused, Unavailable, UserError
from tests.support.directories import fill, transaction
from tests.support.waiting import surely
from tests.support.zookeeper_certificates import Authority

NETTY = tuple(
    f"netty-{part}.jar"
    for part in ("buffer", "codec", "common", "handler", "resolver", "transport", "transport-native-unix-common")
)
BY_SASL = Credentials(Scheme.SASL, "balancer", "hunter2")
US = Credentials(Scheme.DIGEST, "balancer", "hunter2")


def test_what_we_create_is_closed_to_others(zookeeper: ZooKeeperServer) -> None:
    cluster = f"closed-{uuid4().hex}"
    url = f"zk://{zookeeper.address}/{cluster}"
    with open_directory(url, credentials=US) as directory:
        fill(directory)
        assert directory.campaign("one", timeout=10) is not None
        directory.publish("status", "one", 1)
        stranger = KazooClient(zookeeper.address)
        stranger.start()
        try:
            paths = _below(directory.session.client, f"/{cluster}")  # type: ignore[attr-defined]
            assert len(paths) > 20
            for path in paths:
                with pytest.raises(NoAuthError):
                    stranger.get(path)
                with pytest.raises(NoAuthError):
                    stranger.set(path, b"")
        finally:
            stranger.stop()
            stranger.close()
    with open_directory(url, credentials=US) as again:
        assert again.snapshot().tables


@pytest.mark.parametrize(
    "credentials", [Credentials(), Credentials(Scheme.DIGEST, "balancer", "wrong")], ids=["none", "wrong password"]
)
def test_without_our_credentials_there_is_a_sentence(zookeeper: ZooKeeperServer, credentials: Credentials) -> None:
    url = f"zk://{zookeeper.address}/closed-{uuid4().hex}"
    with open_directory(url, credentials=US) as directory:
        fill(directory)
    with (
        open_directory(url, credentials=credentials) as stranger,
        pytest.raises(Refused, match="does not allow this with our credentials"),
    ):
        stranger.snapshot()


def test_credentials_from_the_environment_are_used(zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"zk://{zookeeper.address}/closed-{uuid4().hex}"
    with open_directory(url, credentials=US) as directory:
        fill(directory)
    for name, value in (("AUTH", "digest"), ("USER", "balancer"), ("PASSWORD", "hunter2")):
        monkeypatch.setenv(f"BALANCER_DIRECTORY_{name}", value)
    with open_directory(url) as again:
        assert again.snapshot().tables


@pytest.fixture(scope="module")
def authority(server_folder: Path) -> Authority:
    return Authority(server_folder / "certificates")


@pytest.fixture(scope="module")
def secure_port(server_folder: Path, authority: Authority) -> Iterator[int]:
    """A server whose certificate is for `localhost` only, and which asks for no client certificate."""
    port = process.free_port()
    settings = {
        "secureClientPort": port,
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": authority.issue("server", "DNS:localhost"),
        "ssl.trustStore.location": authority.certificate,
        "ssl.clientAuth": "none",
    }
    with ZooKeeperServer(server_folder / "secure", settings, extra_jars=NETTY):
        yield port


def test_the_directory_works_through_tls(secure_port: int, authority: Authority) -> None:
    trusting = Credentials(Scheme.DIGEST, "balancer", "hunter2", ca=str(authority.certificate))
    with open_directory(f"zks://localhost:{secure_port}/tls", credentials=trusting) as directory:
        view = fill(directory)
        assert directory.commit(transaction([Put(Bundle("more"))], view.version)) == view.version + 1
        assert directory.follow().snapshot.bundles.keys() == {"shop", "more"}


def test_a_server_under_another_name_is_not_talked_to(secure_port: int, authority: Authority) -> None:
    trusting = Credentials(ca=str(authority.certificate))
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1.*(hostname|IP address) mismatch"):
        open_directory(f"zks://127.0.0.1:{secure_port}/tls", credentials=trusting, timeout=2.0)


def test_a_server_with_an_unknown_certificate_is_not_talked_to(secure_port: int, server_folder: Path) -> None:
    stranger = Authority(server_folder / "certificates", "stranger")
    with pytest.raises(Unavailable, match="certificate verify failed"):
        open_directory(
            f"zks://localhost:{secure_port}/tls",
            credentials=Credentials(ca=str(stranger.certificate)),
            timeout=2.0,
        )


@pytest.fixture(scope="module")
def sasl(server_folder: Path) -> Iterator[ZooKeeperServer]:
    login = server_folder / "jaas.conf"
    login.write_text(
        'Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_balancer="hunter2"'
        ' user_applications="hunter3"; };\n'
    )
    provider = {"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
    options = (f"-Djava.security.auth.login.config={login}",)
    with ZooKeeperServer(server_folder / "sasl", provider, options) as server:
        yield server


def test_sasl_without_its_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """pure-sasl is the user's to install."""
    monkeypatch.setattr("balancer.directory.credentials.find_spec", lambda _: None)
    with pytest.raises(UserError, match="pip install pure-sasl"):
        open_directory("zk://localhost:1/sasl", credentials=BY_SASL)


def test_sasl_authenticates(sasl: ZooKeeperServer) -> None:
    url = f"zk://{sasl.address}/sasl"
    with open_directory(url, credentials=BY_SASL) as directory:
        fill(directory)
    writer = Credentials(Scheme.SASL, "balancer", "hunter2", reader_user="applications")
    reader = Credentials(Scheme.SASL, "applications", "hunter3")
    with open_directory(f"{url}-of-two", credentials=writer) as directory:
        version = fill(directory).version
        with open_directory(f"{url}-of-two", credentials=reader) as other:
            assert other.snapshot().tables
            assert other.take_block(1) == 0
            with pytest.raises(Refused, match="a reader's"):
                other.commit(transaction([Put(Bundle("mine"))], version))
        assert list(directory.exposures(everything=True)) == []


@pytest.mark.parametrize("looked", ["in time", "too late"])
def test_a_wrong_sasl_password_is_a_sentence(
    sasl: ZooKeeperServer, looked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends the connection at the login: before or after kazoo looks whether there is one."""
    start = KazooClient.start_async

    def late(client: KazooClient) -> object:
        event = start(client)
        assert surely(lambda: client.client_state in (KeeperState.AUTH_FAILED, KeeperState.CLOSED), 5)
        return event

    if looked == "too late":
        monkeypatch.setattr(KazooClient, "start_async", late)
    with pytest.raises(Refused, match="does not allow"):
        open_directory(
            f"zk://{sasl.address}/wrong", credentials=Credentials(Scheme.SASL, "balancer", "wrong"), timeout=1.0
        )


def test_a_server_that_hangs_up_during_a_login_is_asked_again(sasl: ZooKeeperServer) -> None:
    with open_directory(f"zk://{sasl.address}/hangs", credentials=BY_SASL) as directory:
        fill(directory)
        connection = directory.session.client._connection  # type: ignore[attr-defined]
        read = connection._read_header
        hung_up: list[int] = []

        def hanging_up(timeout: float) -> object:
            if not hung_up and connection.client.sasl_cli and not connection.client.sasl_cli.complete:
                hung_up.append(1)
                raise ConnectionDropped("the server is stopped")
            return read(timeout)

        connection._read_header = hanging_up
        connection._socket.shutdown(socket.SHUT_RDWR)
        assert surely(lambda: hung_up, 5)
        assert directory.snapshot().tables


def _below(client: KazooClient, path: str) -> list[str]:
    """Every path below one, other than folders that we did not make."""
    found: list[str] = []
    for name in client.get_children(path):
        found += [f"{path}/{name}", *_below(client, f"{path}/{name}")]
    return found
