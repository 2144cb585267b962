"""What is forked for the tests is a process as a fresh Python would be one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import environment
from tests.support.forked import forked_beside, run_forked

PROGRAM = """
import atexit, os, sys, threading
if __name__ == "__main__":
    atexit.register(print, "at the end")
    print(sys.argv[1:], os.getcwd(), os.environ.get("GIVEN"), os.environ.get("BALANCER_MUTANT"), sys.stdin.read())
    print("complained", file=sys.stderr)
    threading.Timer(0.1, print, ["a thread's word"]).start()
    {end}
"""
ENDS = {
    "return": "pass",
    "code": "sys.exit(3)",
    "negative": "sys.exit(-1)",
    "words": "sys.exit('wrong')",
    "error": "raise ValueError('wrong')",
}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `given` in the working folder, where `-m` looks first."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "given.py"


@pytest.mark.parametrize("end", ENDS)
def test_it_is_given_and_gives_what_a_fresh_python_does(program: Path, end: str) -> None:
    program.write_text(PROGRAM.format(end=ENDS[end]))
    words = ["a", "b c"]
    changes = {"GIVEN": "x"}
    fresh = subprocess.run(
        [sys.executable, "-m", "given", *words],
        env=environment(changes),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    forked = run_forked("given", *words, env=changes)
    assert (forked.returncode, forked.stdout) == (fresh.returncode, fresh.stdout)
    assert forked.stderr.splitlines()[-1:] == fresh.stderr.splitlines()[-1:]


def test_a_signal_is_how_it_ended(program: Path) -> None:
    program.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    with forked_beside("given") as (process, printed):
        assert int(printed.readline()) == process.pid
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(30) == process.poll() == -signal.SIGKILL


def test_it_is_killed_where_it_takes_longer(program: Path, tmp_path: Path) -> None:
    program.write_text(
        f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        run_forked("given", timeout=5)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()
