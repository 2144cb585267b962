"""`balancer run` as a process: what it does before it leads."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from balancer.embedded.process import free_port
from tests.support.commands import balancer, started
from tests.support.fleet import CLIENT
from tests.support.running import until


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """A port that somebody listens on; nothing is ever answered there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def address(listener: socket.socket) -> str:
    host, port = listener.getsockname()
    return f"{host}:{port}"


def configuration(folder: Path, directory: str, listen: str) -> Path:
    file = folder / "balancer.toml"
    file.write_text(f'directory = "{directory}"\n[http]\nlisten = "{listen}"\n')
    return file


def test_a_port_that_is_taken_ends_it_before_it_has_touched_anything(tmp_path: Path, taken: socket.socket) -> None:
    file = configuration(tmp_path, f"sqlite://{tmp_path}/directory.db", address(taken))
    ended = balancer("run", "--config", file)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == f"cannot listen on {address(taken)}: Address already in use\n"
    assert list(tmp_path.iterdir()) == [file]


def test_it_answers_but_is_not_ready_until_the_directory_is_open(tmp_path: Path, taken: socket.socket) -> None:
    listen = f"127.0.0.1:{free_port()}"
    file = configuration(tmp_path, f"zk://{address(taken)}/shop", listen)
    answers: list[httpx.Response] = []

    def answered() -> bool:
        with suppress(httpx.TransportError):
            answers.append(CLIENT.get(f"http://{listen}/readyz"))
        return bool(answers)

    with started("-m", "balancer", "run", "--config", file):
        until(answered, "the instance answers")
    assert answers[0].status_code == 503
    assert answers[0].json()["detail"] == "the directory has not been read yet"
