"""A process with many bad connections: run as `python -m tests.support.crowd URL KIND NUMBER`, until it is ended.

`idle` says nothing; `slow` sends a header line every two seconds and never ends; `poll` waits for a newer directory all
the time. What the server closes is opened again. It says `ready` when all were open at once or each has been tried.
"""

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from balancer.api.server import raise_descriptor_limit
from tests.support.commands import started

KINDS = ("idle", "slow", "poll")
_LINE_SECONDS = 2.0
_AGAIN_SECONDS = 0.5


class Crowd:
    """One kind, in one loop."""

    def __init__(self, url: str, kind: str, number: int) -> None:
        found = urlsplit(url)
        self._host, self._port = found.hostname or "", found.port or 0
        self._kind = kind
        self._number = number
        self._tried = 0
        self._ready = asyncio.Event()

    async def run(self) -> None:
        members = [asyncio.create_task(self._member(at)) for at in range(self._number)]
        await self._ready.wait()
        print("ready", flush=True)
        await asyncio.gather(*members)

    async def _member(self, at: int) -> None:
        await asyncio.sleep(at / 1000)  # a burst of all of them would only fill the listener's queue
        first = True
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError, IndexError):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                if first:
                    self._count()
                    first = False
                with contextlib.closing(writer):
                    await getattr(self, f"_{self._kind}")(reader, writer)
            if first:
                self._count()
                first = False
            await asyncio.sleep(_AGAIN_SECONDS)

    def _count(self) -> None:
        self._tried += 1
        if self._tried == self._number:
            self._ready.set()

    async def _idle(self, reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async def _slow(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        while True:
            await writer.drain()
            await asyncio.sleep(_LINE_SECONDS)
            writer.write(b"X-More: 1\r\n")

    async def _poll(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tag = b'"0"'
        while True:
            writer.write(
                b"GET /v1/route/orders?key=1&wait=30 HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: " + tag + b"\r\n\r\n"
            )
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or b"0"))
            tag = head.partition(b"etag: ")[2].partition(b"\r\n")[0] or tag


@contextmanager
def crowds(url: str, number: int) -> Iterator[None]:
    """This many connections of each kind, for the length of a block."""
    with contextlib.ExitStack() as stack:
        for kind in KINDS:
            process = stack.enter_context(started("-m", "tests.support.crowd", url, kind, str(number), stdout=-1))
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield


if __name__ == "__main__":
    raise_descriptor_limit()
    asyncio.run(Crowd(sys.argv[1], sys.argv[2], int(sys.argv[3])).run())
