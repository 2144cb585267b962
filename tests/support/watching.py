"""A process with several watching clients: run as `python -m tests.support.watching URL CLIENTS BARE`.

Each client says, for every version it sees, `VERSION MONOTONIC` — the clock is the machine's, so that another process
can compare. With BARE = 1 the clients are plain kazoo ones that watch the root and read it: what a watch costs at all.
"""

import sys
import threading
from typing import Any
from urllib.parse import urlsplit

from kazoo.client import KazooClient

from balancer.clock import SystemClock
from balancer.directory.codec import unpack
from balancer.directory.open import open_directory

_lock = threading.Lock()


def say(text: str) -> None:
    with _lock:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def follow(url: str) -> None:
    clock = SystemClock()
    with open_directory(url) as directory:
        follower = directory.follow()
        say("ready")
        version = follower.snapshot.version
        while True:
            version = follower.wait(version, 60.0).version
            say(f"{version} {clock.monotonic()}")


def watch(url: str) -> None:
    clock = SystemClock()
    parts = urlsplit(url)
    client = KazooClient(parts.netloc)
    client.start()
    changed = threading.Event()
    ready = False
    wake: Any = lambda _: changed.set()  # noqa: E731
    while True:
        changed.clear()
        data, _ = client.get(f"{parts.path}/root", watch=wake)
        say(f"{unpack(data)['version']} {clock.monotonic()}" if ready else "ready")
        ready = True
        changed.wait()


def main(url: str, clients: int, bare: bool) -> None:
    threads = [threading.Thread(target=watch if bare else follow, args=(url,), daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1")
