"""Many followers on plain sockets: `python -m tests.support.thin_followers ADDRESS PATH NUMBER CONFIRM SPREAD`.

Each does to ZooKeeper what a follower of the product does, byte by byte: a session with its pings, a watch on the root,
a read of the root after each change, delayed as the product does (SPREAD = 1) or not, and every CONFIRM seconds (0:
never) a sync, a read and a look at the epoch. A thousand kazoo clients would need the whole machine. Says `ready`, then
`VERSION MONOTONIC` when the last of its followers has seen a version or a later one; ends with its input.
"""

import selectors
import socket
import struct
import sys
from random import random

from balancer.clock import SystemClock
from balancer.directory.store.follower import put_off

_CONNECT, _REPLY, _FRAME = struct.Struct(">iqiq"), struct.Struct(">iqi"), struct.Struct(">i")
_VERSION_AT = 32  # in a Stat: after czxid, mzxid, ctime, mtime
_EXISTS, _GET, _SYNC, _PING, _EVENT_XID, _PING_XID = 3, 4, 9, 11, -1, -2
SESSION = 10.0
_STEP = 0.01
clock = SystemClock()


def text(value: str) -> bytes:
    return _FRAME.pack(len(value)) + value.encode()


class ThinFollower:
    """One session."""

    def __init__(self, address: str, base: str, confirm: float, spreads: bool) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self._root, self._epoch = f"{base}/root", f"{base}/epoch"
        self._buffer = b""
        self._xid = 0
        self._reads: set[int] = set()
        self._confirm = confirm
        self._spreads = spreads
        self._took = 0.0
        self._asked = 0.0
        self._read_due = float("inf")
        self.version = -1
        self._connected = False
        now = clock.monotonic()
        self._ping_due, self._confirm_due = now + SESSION / 3, now + confirm * random()
        self._send(_CONNECT.pack(0, 0, int(SESSION * 1000), 0) + _FRAME.pack(16) + bytes(17))

    def _send(self, body: bytes) -> None:
        self.socket.sendall(_FRAME.pack(len(body)) + body)

    def _ask(self, kind: int, body: bytes) -> None:
        self._xid += 1
        if kind == _GET:
            self._reads.add(self._xid)
            self._asked, self._read_due = clock.monotonic(), float("inf")
        self._send(struct.pack(">ii", self._xid, kind) + body)

    def tick(self, now: float) -> None:
        """What is due by the clock."""
        if self._connected and now >= self._ping_due:
            self._ping_due = now + SESSION / 3
            self._send(struct.pack(">ii", _PING_XID, _PING))
        if now >= self._read_due:
            self._ask(_GET, text(self._root) + b"\1")
        if self._connected and self._confirm and now >= self._confirm_due:
            self._confirm_due = now + self._confirm
            self._ask(_SYNC, text(self._root))
            self._ask(_GET, text(self._root) + b"\1")
            self._ask(_EXISTS, text(self._epoch) + b"\0")

    def read(self) -> bool:
        """Reads what has arrived; returns whether another version was seen."""
        self._buffer += self.socket.recv(1 << 16)
        before = self.version
        while len(self._buffer) >= 4 and len(self._buffer) >= 4 + (size := _FRAME.unpack_from(self._buffer)[0]):
            self._take(self._buffer[4 : 4 + size])
            self._buffer = self._buffer[4 + size :]
        return self.version != before

    def _take(self, frame: bytes) -> None:
        if not self._connected:
            self._connected = True
            self._ask(_GET, text(self._root) + b"\1")
            return
        xid, _, error = _REPLY.unpack_from(frame)
        if xid == _EVENT_XID:
            self._read_due = clock.monotonic() + (put_off(self._took, random()) if self._spreads else 0.0)
            self.tick(clock.monotonic())
        elif xid in self._reads and not error:
            self._reads.discard(xid)
            self._took = clock.monotonic() - self._asked
            (size,) = _FRAME.unpack_from(frame, _REPLY.size)
            (self.version,) = _FRAME.unpack_from(frame, _REPLY.size + 4 + size + _VERSION_AT)


def main(addresses: str, base: str, number: int, confirm: float, spreads: bool) -> None:
    servers = addresses.split(",")
    followers = [ThinFollower(servers[place % len(servers)], base, confirm, spreads) for place in range(number)]
    events = selectors.DefaultSelector()
    for follower in followers:
        events.register(follower.socket, selectors.EVENT_READ, follower)
    events.register(sys.stdin, selectors.EVENT_READ, None)
    told, ticked = -1, 0.0
    while True:
        changed = False
        for key, _ in events.select(_STEP):
            if key.data is None:
                return
            changed |= key.data.read()
        now = clock.monotonic()
        if changed and (oldest := min(follower.version for follower in followers)) > told:
            print("ready" if told < 0 else f"{oldest} {now}", flush=True)
            told = oldest
        if now - ticked > _STEP:
            ticked = now
            for follower in followers:
                follower.tick(now)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5] == "1")
