"""Many followers over HTTP on plain sockets: `python -m tests.support.thin_pollers HOST:PORT CLUSTER TOKEN NUMBER`.

Each does what a follower of an instance does: a long poll for the root, and the next one when it is answered. Says
`ready`, then `VERSION MONOTONIC` when the last of them has seen a version or a later one; ends with its input.
"""

import asyncio
import sys
from contextlib import suppress

from balancer.clock import SystemClock
from balancer.directory.store.commit import DirectoryRoot

clock = SystemClock()


class ThinPoller:
    """One connection."""

    def __init__(self, place: str, cluster: str, token: str) -> None:
        self._host, port = place.rsplit(":", 1)
        self._port = int(port)
        self._path = f"/v1/directory/{cluster}/root"
        self._end = f" HTTP/1.1\r\nHost: {place}\r\nAuthorization: Bearer {token}\r\n\r\n"
        self.version = -1

    async def follow(self, seen: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        while True:
            query = f"?after={self.version}&wait=20" if self.version >= 0 else ""
            writer.write(f"GET {self._path}{query}{self._end}".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            assert head.startswith("http/1.1 200"), head
            size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            self.version = DirectoryRoot.unpack(await reader.readexactly(size), 0).version
            seen.set()


async def follow_all(place: str, cluster: str, token: str, number: int) -> None:
    pollers = [ThinPoller(place, cluster, token) for _ in range(number)]
    seen = asyncio.Event()
    tasks = [asyncio.create_task(poller.follow(seen)) for poller in pollers]
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    told = -1
    while not ended.done() and not any(task.done() for task in tasks):
        with suppress(TimeoutError):
            await asyncio.wait_for(seen.wait(), 0.5)
        seen.clear()
        oldest = min(poller.version for poller in pollers)
        if oldest > told:
            print(f"{oldest} {clock.monotonic()}" if told >= 0 else "ready", flush=True)
            told = oldest


if __name__ == "__main__":
    asyncio.run(follow_all(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
