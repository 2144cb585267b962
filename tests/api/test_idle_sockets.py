"""Connections that say nothing, or too slowly, and too many of them: closed, and the server answers others."""

import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from balancer.api.app import create_app
from balancer.api.server import ApiServer, SocketLimits, connections_for, raise_descriptor_limit
from tests.support.certificates import self_signed
from tests.support.commands import environment
from tests.support.instance import Instance, http_settings
from tests.support.running import until

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
DESCRIPTORS = 256


@contextmanager
def limited(instance: Instance, connections: int, seconds: float, **changes: object) -> Iterator[ApiServer]:
    http = http_settings(**changes)
    with ApiServer(create_app(instance, http), http, SocketLimits(connections, seconds)) as server:
        yield server


def opened(url: str) -> socket.socket:
    found = httpx.URL(url)
    return socket.create_connection((found.host, found.port or 0), timeout=20)


def ends(connection: socket.socket) -> bool:
    """Whether the server closes it before our patience ends."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def is_answered(connection: socket.socket) -> bool:
    connection.sendall(REQUEST + b"\r\n")
    answer = b""
    while not answer.endswith(b"ok\n"):
        part = connection.recv(4096)
        if not part:
            return False
        answer += part
    return b" 200 " in answer


def takes(connection: socket.socket, data: bytes) -> bool:
    try:
        connection.sendall(data)
    except ConnectionError:
        return False
    return True


def test_a_connection_that_says_nothing_is_closed(instance: Instance) -> None:
    with limited(instance, 100, 0.3) as server, opened(server.url) as idle:
        assert ends(idle)


def test_headers_that_never_end_are_not_waited_for(instance: Instance) -> None:
    with limited(instance, 100, 1.0) as server, opened(server.url) as slow:
        slow.sendall(REQUEST)
        until(lambda: not takes(slow, b"X-More: 1\r\n"), "the server has given up", 20)


def test_the_same_after_an_answer(instance: Instance) -> None:
    with limited(instance, 100, 0.5) as server, opened(server.url) as kept:
        assert is_answered(kept)
        kept.sendall(b"GET /hea")  # a byte of the next request ends uvicorn's own time limit
        assert ends(kept)


def test_a_handshake_that_never_comes_does_not_count_for_ever(instance: Instance, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    with limited(instance, 3, 5.0, tls_certificate=certificate, tls_key=key) as server, ExitStack() as stack:
        idle = [stack.enter_context(opened(server.url)) for _ in range(10)]
        for one in idle[3:]:
            assert ends(one)
        for one in idle:
            one.close()
        trusting = ssl.create_default_context(cafile=str(certificate))
        until(lambda: answers(server.url, trusting), "the server answers")


def answers(url: str, verify: ssl.SSLContext | bool = True) -> bool:
    try:
        return httpx.get(f"{url}/healthz", verify=verify, timeout=20).status_code == 200
    except httpx.TransportError:
        return False


def test_what_is_over_the_cap_is_closed_at_once_and_the_rest_goes_on(instance: Instance) -> None:
    with limited(instance, 5, 60.0) as server, ExitStack() as stack:
        first = stack.enter_context(opened(server.url))
        assert is_answered(first)
        others = [stack.enter_context(opened(server.url)) for _ in range(40)]
        assert all(ends(one) for one in others[4:])
        assert is_answered(first)
        for one in others:
            one.close()
        until(lambda: answers(server.url), "there is room again")


@pytest.mark.parametrize(("descriptors", "connections"), [(65536, 8192), (1024, 512), (4096, 3072), (64, 32), (1, 1)])
def test_the_cap_leaves_descriptors_to_the_daemon(descriptors: int, connections: int) -> None:
    assert connections_for(descriptors) == connections


def test_the_limit_of_descriptors_is_raised_to_what_is_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        raised = raise_descriptor_limit()
        assert raised > 512
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (raised, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_daemon_with_few_descriptors_lives_through_many_connections(tmp_path: Path) -> None:
    (tmp_path / "bundles").mkdir()
    (tmp_path / "balancer.toml").write_text(
        f'directory = "sqlite://{tmp_path}/directory.db"\ninstance = "one"\ntick = "500ms"\nsession_timeout = "3s"\n'
        f'[http]\nlisten = "127.0.0.1:{free_port()}"\n'
    )
    url = (tmp_path / "balancer.toml").read_text().rpartition("listen = ")[2].strip().strip('"')
    with daemon(tmp_path) as process, ExitStack() as stack:
        until(lambda: answers(f"http://{url}"), "the daemon answers")
        until(lambda: leader(url)["is_self"], "the daemon leads")
        epoch = leader(url)["epoch"]
        idle = [stack.enter_context(opened(f"http://{url}")) for _ in range(4 * DESCRIPTORS)]
        bundle = tmp_path / "bundles" / "late.toml"
        bundle.write_text("mode = 'observe'\n")  # it must open files now
        time.sleep(3.0)  # as long as a leader lives without a sign of life: the time itself is what is tested
        assert process.poll() is None
        for one in idle:
            one.close()
        until(lambda: answers(f"http://{url}"), "the daemon answers again")
        until(lambda: "late" in httpx.get(f"http://{url}/v1/status").text, "the file was read")
        assert leader(url) == {"name": "one", "epoch": epoch, "is_self": True}


def leader(url: str) -> dict[str, object]:
    found: dict[str, object] = httpx.get(f"http://{url}/v1/status", timeout=20).json()["leader"]
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def daemon(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`balancer run` that may have few descriptors and can have no more."""
    limit = f"import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS},) * 2);"
    code = f"{limit} sys.argv[:1] = ['balancer', 'run', '--config']; from balancer.cli.main import main; main()"
    command = [sys.executable, "-c", code, str(folder / "balancer.toml")]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, env=environment(), stdout=log, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            process.kill()
