"""Programs in processes of their own that need not wait for Python's imports: forked by a process that has done them.

A fresh Python takes up to a second of a core until `balancer run` begins, and the suite starts hundreds. A forked
program is otherwise just as real: its own process, which can be killed, with the arguments, environment and files it
was given, run as `python -m` runs it. Its threads are waited for and its exit handlers are called; the modules are not
torn down, which would cost more than most programs do. Only its entry in /proc shows the command line of the process
that forked it. Whether modules can be imported in another order is left to tests that start a fresh Python.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from tests.support.commands import environment

_TREE = Path(__file__).parents[2]
# What most of the programs need. None of the programs themselves: they must be run, not found already imported.
_IMPORTED = (
    "balancer.client.router",
    "balancer.cli.main",
    "balancer.cli.run",
    "balancer.features.ddl.command",
    "balancer.features.convert.run",
    "balancer.features.handover.run",
    "balancer.features.import_tables.run",
    "balancer.features.convert.run",
    "balancer.migration.begin",
    "tests.support.cluster",
    "psycopg",
    "kazoo.client",
)


class Forked:
    """`python -m MODULE ARGUMENT…` in a process of its own: what tests need from `subprocess.Popen`."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str | Path],
        *,
        stdout: IO[Any],
        stderr: IO[Any],
        env: Mapping[str, str] | None = None,
    ) -> None:
        words = {"module": module, "arguments": [*map(str, arguments)], "env": environment(env), "cwd": os.getcwd()}
        with open(os.devnull) as nothing:
            self.pid = _nursery().fork(words, [nothing.fileno(), stdout.fileno(), stderr.fileno()])
        self._ended = os.pidfd_open(self.pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended: its code, or minus the signal's number; None while it lives."""
        return self.returncode if self._has_ended(0) else None

    def wait(self, timeout: float) -> int:
        """How it ended; `TimeoutExpired` if it has not within this time."""
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _has_ended(self, seconds: float) -> bool:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._ended, select.POLLIN)
            if not waiting.poll(seconds * 1000):
                return False
            self.returncode = _nursery().reap(self.pid)
            os.close(self._ended)
        return True


def run_forked(
    module: str, *arguments: str | Path, env: Mapping[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """The same to its end: how it ended, and what it printed. It is killed if it takes longer."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = Forked(module, arguments, stdout=out, stderr=err, env=env)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
            process.wait(60)
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess([module, *map(str, arguments)], code, out.read(), err.read())


@contextmanager
def forked_beside(module: str, *arguments: str | Path) -> Iterator[tuple[Forked, IO[str]]]:
    """The same alongside the test, with its output to be read; killed if it is still running at the end."""
    reading, writing = os.pipe()
    with open(reading) as printed:
        with open(writing, "w") as out:
            process = Forked(module, arguments, stdout=out, stderr=sys.__stderr__ or sys.stderr)
        try:
            yield process, printed
        finally:
            process.kill()
            process.wait(60)


class _Nursery:
    """The process that forks. It ends when this one does; any thread may ask it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forked", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environment(),
                cwd=_TREE,
            )
        self._socket = ours
        self._asking = threading.Lock()

    def fork(self, words: Mapping[str, object], files: Sequence[int]) -> int:
        return self._ask(words, files)

    def reap(self, pid: int) -> int:
        return self._ask({"reap": pid}, [])

    def _ask(self, words: Mapping[str, object], files: Sequence[int]) -> int:
        with self._asking:
            socket.send_fds(self._socket, [json.dumps(words).encode()], files)
            answer = self._socket.recv(64)
        assert answer, "the process that forks has ended"
        return int(answer)


@cache
def _nursery() -> _Nursery:
    return _Nursery()


def _serve(asked: socket.socket) -> dict[str, Any] | None:
    """Answers until nobody can ask any more. Returns arguments only in a forked process, which must run them: from the
    top, so that it ends as every Python does."""
    while True:
        message, files, _, _ = socket.recv_fds(asked, 1 << 20, 3)
        if not message:
            return None
        words: dict[str, Any] = json.loads(message)
        if "reap" in words:
            asked.send(str(os.waitstatus_to_exitcode(os.waitpid(words["reap"], 0)[1])).encode())
            continue
        pid = os.fork()
        if pid == 0:
            asked.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
            for file in files:
                os.close(file)
            return words
        for file in files:
            os.close(file)
        asked.send(str(pid).encode())


def _become(words: Mapping[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(words["env"])
    os.chdir(words["cwd"])
    sys.path[0] = words["cwd"]  # as `-m` has it
    sys.argv[1:] = words["arguments"]
    runpy.run_module(words["module"], run_name="__main__", alter_sys=True)


def _end(code: int) -> None:
    """Ends as Python does, without freeing one by one what the process's end is about to free anyway: 60 ms."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does before it calls the others
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    asked = socket.socket(fileno=int(sys.argv[1]))
    for name in _IMPORTED:
        import_module(name)
    gc.collect()
    gc.freeze()  # a forked process would copy every page of what is imported to look for garbage in it: 250 ms
    words = _serve(asked)
    if words is None:
        return
    code = 0
    try:
        _become(words)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        code = ended.code or 0
    _end(code & 0xFF)


if __name__ == "__main__":
    main()
