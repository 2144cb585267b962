"""docs/adopt.md is run as written: every command in one shell, its output compared; `…` stands for anything."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from balancer.embedded.postgres import PostgresServer
from balancer.embedded.process import free_port
from tests.support.commands import environment
from tests.support.servers import Database

pytestmark = pytest.mark.always

TOUR = Path(__file__).parents[2] / "docs" / "adopt.md"
BLOCK = re.compile(r"```sh\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    return [(commands, output) for commands, output in BLOCK.findall(TOUR.read_text())]


def test_every_block_of_commands_shows_its_output() -> None:
    assert TOUR.read_text().count("```sh\n") == len(blocks()) > 5


def addresses(made: dict[str, Database], folder: Path) -> dict[str, str]:
    """The databases as the tour names them, with the passwords where libpq looks for them."""
    passfile = folder / "pgpass"
    lines = [f"127.0.0.1:{db.server.port}:*:postgres:{db.server.password()}\n" for db in made.values()]
    passfile.write_text("".join(lines))
    passfile.chmod(0o600)
    named = {name: f"postgresql://postgres@127.0.0.1:{db.server.port}/{db.name}" for name, db in made.items()}
    return {"PGPASSFILE": str(passfile), **named}


def likeness(output: str) -> str:
    """A pattern: text as it is, and `…` for anything, also for lines."""
    return ".*".join(re.escape(part) for part in output.split("…"))


def run_whole(script: str, folder: Path, variables: dict[str, str]) -> tuple[str, str]:
    """What the shell printed; everything that it started is ended with it."""
    shell = subprocess.Popen(
        ["/bin/bash", "-c", script],
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with shell:
        try:
            return shell.communicate(timeout=250)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)


def test_the_tour_runs_as_written(
    any_postgres: PostgresServer,
    postgres18: PostgresServer,
    database: Callable[[PostgresServer], Database],
    tmp_path: Path,
) -> None:
    made = {
        "FIRST": database(any_postgres),
        "SECOND": database(postgres18),
        "THIRD": database(any_postgres),
    }
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "balancer").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m balancer "$@"\n')
    (programs / "balancer").chmod(0o755)
    variables = addresses(made, tmp_path) | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "BALANCER_HTTP__LISTEN": f"127.0.0.1:{free_port()}",  # the usual one may be the demonstration's, beside us
    }
    marker = "--- end of block ---"
    script = "".join(f"{commands}\necho '{marker}'\n" for commands, _ in blocks())
    folder = tmp_path / "tour"
    folder.mkdir()
    out, err = run_whole(script, folder, environment(variables))
    shown = out.split(marker + "\n")[:-1]
    log = folder / "balancer.log"
    assert len(shown) == len(blocks()), out + err
    for (commands, expected), output in zip(blocks(), shown, strict=True):
        fits = re.fullmatch(likeness(expected), output, re.DOTALL)
        said = log.read_text()[-3000:] if log.exists() else ""
        assert fits, f"{commands}\nshould print\n{expected}\nand prints\n{output}\n{err}\n{said}"
