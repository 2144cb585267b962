"""What followers over HTTP cost an instance for each change, and how long it takes until all know of it.

Followers are plain sockets in another process; the instance's server runs in this one, whose processor time is taken,
without that of the same commits with nobody following. One minute.
"""

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time

import pytest
from pydantic import SecretStr

from balancer.api.app import create_app
from balancer.api.server import ApiServer
from balancer.directory.contract import Directory
from tests.benchmarks.test_followers import clock, commit_all
from tests.support.directories import fill
from tests.support.instance import http_settings, instance_in
from tests.support.tables import show_table

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

NUMBERS = (50, 200, 800)
COMMITS = 6
TOKEN = "correct-horse-reader"
TOP = Path(__file__).parents[2]


@contextmanager
def pollers(server: ApiServer, number: int) -> Iterator[list[subprocess.Popen[str]]]:
    if not number:
        yield []
        return
    place = server.url.partition("//")[2]
    command = [sys.executable, "-m", "tests.support.thin_pollers", place, "directory", TOKEN, str(number)]
    process = subprocess.Popen(command, cwd=TOP, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield [process]
    finally:
        process.terminate()
        process.communicate()


def cost(directory: Directory, server: ApiServer, number: int) -> tuple[float, float]:
    """Seconds of processor time a commit, and seconds until everybody knows of it."""
    with pollers(server, number) as processes:
        clock.sleep(2.0)
        commit_all(directory, processes, 1)
        began = process_time()
        _, known = commit_all(directory, processes, COMMITS)
        return (process_time() - began) / COMMITS, statistics.median(known)


def test_what_followers_cost_an_instance(tmp_path: Path) -> None:
    http = http_settings(read_token=SecretStr(TOKEN))
    with instance_in(tmp_path) as instance, ApiServer(create_app(instance, http), http) as server:
        directory = instance.directory()
        fill(directory)
        bare, _ = cost(directory, server, 0)
        rows = []
        for number in NUMBERS:
            spent, known = cost(directory, server, number)
            rows.append([number, spent * 1000, (spent - bare) / number * 1000, known * 1000])
    show_table(
        f"An instance and those who follow it over HTTP, {COMMITS} commits each; a commit alone {bare * 1000:.1f} ms",
        ("followers", "cpu a commit, ms", "cpu a follower, ms", "all know p50, ms"),
        rows,
    )
