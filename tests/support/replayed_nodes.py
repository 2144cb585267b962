"""Many nodes in one process: answers of a real PostgreSQL, recorded and replayed with each node's own names and ids.

`python -m tests.support.replayed_nodes record HOST:PORT FILE` is a proxy that records what is asked and answered; `…
replay FILE SPAN CHANGES` answers as any node, whose number is in the name of its database (`n7`): its tablets are SPAN
times the number ahead of the recorded ones. Both print their port, and end when their input does. A poll is answered as
a quiet node would (`CHANGES` 0: what is known is not sent again) or with the next recorded figures. A question that was
never recorded is an error that names it; `replay` prints how often that happened.
"""

import asyncio
import pickle
import re
import struct
import sys
import time
from binascii import a2b_base64, b2a_base64
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

RECORDED = "n0"
"""The node that is recorded."""
READY = b"Z\0\0\0\5I"
_STARTUP, _SSL, _GSS = 196608, 80877103, 80877104
_LET_IN, _LAST_WORD = struct.pack("!i", 0), struct.pack("!i", 12)
_LITERAL = re.compile(rb"'(?:[^']|'')*'|\b\d+\b")
_ENTER = re.compile(rb"balancer\.enter\((\d+), '[^']*'(?:, '([^']*)')?")
_PARTITION = re.compile(rb"(_t)(\d+)\b")
_IDENTITY, _FACTS = 6, 11  # columns of these answers
_MARKING = re.compile(rb"(UPDATE|INSERT INTO) balancer\.marker ")
_KNOWN = re.compile(rb"'[0-9a-f]{64}'")


def frames(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The messages in a piece of the stream: kind and body."""
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("!i", data, at + 1)
        yield data[at : at + 1], data[at + 5 : at + 1 + length]
        at += 1 + length


def frame(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def question(request: bytes) -> bytes:
    """A request without its values: equal for the same statement about another node."""
    return _LITERAL.sub(b"?", b"".join(kind + body for kind, body in frames(request) if kind in b"QP"))


async def message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)


async def startup(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The first message; encryption is declined."""
    while True:
        length, code = struct.unpack("!ii", await reader.readexactly(8))
        body = await reader.readexactly(length - 8)
        if code not in (_SSL, _GSS):
            return struct.pack("!ii", length, code) + body
        writer.write(b"N")


async def request_of(reader: asyncio.StreamReader) -> bytes:
    """Everything up to the message that is answered with `ReadyForQuery`; empty: the client has left."""
    parts = []
    while True:
        part = await message(reader)
        parts.append(part)
        if part[:1] in b"QS":
            return b"".join(parts)
        if part[:1] == b"X":
            return b""


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    while not parts or parts[-1][:1] != b"Z":
        parts.append(await message(reader))
    return b"".join(parts)


async def _greeted(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    from_server: asyncio.StreamReader,
    to_server: asyncio.StreamWriter,
) -> bytes:
    """Lets the client log in; returns what the server says once it has."""
    said = b""
    while not said.endswith(READY):
        part = await message(from_server)
        writer.write(part)
        asks = part[:1] == b"R" and part[5:9] not in (_LET_IN, _LAST_WORD)
        if asks:
            to_server.write(await message(reader))
        elif part[5:9] != _LAST_WORD or part[:1] != b"R":
            said += part
    return said


class Tape:
    """What was recorded: the greeting, and by question the answers in their order."""

    def __init__(self) -> None:
        self.greeting = b""
        self.answers: dict[bytes, list[bytes]] = defaultdict(list)

    def first_mark(self) -> list[bytes] | None:
        """The answer to the first mark on a node."""
        return next((found for asked, found in self.answers.items() if b"INSERT INTO balancer.marker" in asked), None)

    async def serve(self, upstream: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the proxy."""
        host, port = upstream.split(":")
        from_server, to_server = await asyncio.open_connection(host, int(port), limit=1 << 26)
        try:
            to_server.write(await startup(reader, writer))
            self.greeting = await _greeted(reader, writer, from_server, to_server)
            while request := await request_of(reader):
                to_server.write(request)
                answer = await answer_of(from_server)
                self.answers[question(request)].append(answer)
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            to_server.close()


def fields_of(row: bytes) -> list[bytes | None]:
    (count,) = struct.unpack_from("!h", row)
    at, found = 2, []
    for _ in range(count):
        (length,) = struct.unpack_from("!i", row, at)
        at += 4
        found.append(None if length < 0 else row[at : at + length])
        at += max(0, length)
    return found


def row_of(fields: list[bytes | None]) -> bytes:
    packed = (struct.pack("!i", -1) if field is None else struct.pack("!i", len(field)) + field for field in fields)
    return struct.pack("!h", len(fields)) + b"".join(packed)


def columns_of(description: bytes) -> list[bytes]:
    (count,) = struct.unpack_from("!h", description)
    at, names = 2, []
    for _ in range(count):
        end = description.index(0, at)
        names.append(description[at:end])
        at = end + 19
    return names


class Replayed:
    """Answers as many nodes."""

    def __init__(self, tape: Tape, span: int, changes: bool) -> None:
        self._tape = tape
        self._span = span
        self._changes = changes
        self._marks: dict[str, bytes] = {}
        self._epochs: dict[str, bytes] = {}
        self._directories: dict[str, bytes] = {}
        self._turn: Counter[tuple[str, bytes]] = Counter()
        self.unknown: Counter[bytes] = Counter()
        self.connections = self.most = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        self.most = max(self.most, self.connections)
        try:
            words = (await startup(reader, writer))[8:].split(b"\0")
            node = dict(zip(words[::2], words[1::2], strict=False))[b"database"].decode()
            writer.write(self._tape.greeting)
            while request := await request_of(reader):
                writer.write(self.answer(node, request))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.connections -= 1
            writer.close()

    def answer(self, node: str, request: bytes) -> bytes:
        """What the node says."""
        asked = question(request)
        recorded = self._tape.answers.get(asked)
        if _MARKING.search(request):
            self._marks[node] = b"%d" % time.time()
            # A second mark comes a minute after the first, and nobody records for that long: it is answered like the
            # first.
            recorded = recorded or self._tape.first_mark()
        if recorded is None:
            self.unknown[asked[:300]] += 1
            return frame(b"E", b"SERROR\0CXX000\0Mnever recorded\0\0") + READY
        chosen = recorded[self._place(node, asked, request, recorded)]
        entered = _ENTER.search(request)
        if entered is not None:
            self._epochs[node] = entered[1]
            self._directories[node] = entered[2] or self._directories.get(node, b"")
        values = {b"enter": entered[1] if entered else b""}
        known = [found.strip(b"'") for found in _KNOWN.findall(request)]
        if known:  # what is not sent again is what the asker knows
            values |= {b"of_names": known[0], b"digest": known[-1]}
            values |= {} if self._changes else {b"of_numbers": known[2]}
        return b"".join(self._own(node, chosen, values))

    def _place(self, node: str, asked: bytes, request: bytes, recorded: list[bytes]) -> int:
        """A poll that knows nothing gets the first answer, a quiet node's next poll the shortest, others the next."""
        if b"balancer.tablet" not in asked or b"pg_inherits" not in asked:
            return 0
        sizes = [len(answer) for answer in recorded]
        if not _KNOWN.search(request):
            return sizes.index(max(sizes))
        if not self._changes:
            return sizes.index(min(sizes))
        # Names and claims are known; only figures differ. (A quiet answer may be a digit longer than another.)
        changed = [at for at, size in enumerate(sizes) if 2 * min(sizes) < size < max(sizes)]
        self._turn[node, asked] += 1
        return changed[self._turn[node, asked] % len(changed)] if changed else sizes.index(max(sizes))

    def _own(self, node: str, answer: bytes, values: dict[bytes, bytes]) -> Iterator[bytes]:
        shift = (int(node.removeprefix("n")) - int(RECORDED.removeprefix("n"))) * self._span
        columns: list[bytes] = []
        for kind, body in frames(answer):
            if kind == b"T":
                columns = columns_of(body)
            elif kind == b"D":
                fields = fields_of(body)
                self._replace(node, shift, columns, fields, values)
                body = row_of(fields)  # noqa: PLW2901 - the message with its own values
            yield frame(kind, body)

    def _replace(
        self, node: str, shift: int, columns: list[bytes], fields: list[bytes | None], values: dict[bytes, bytes]
    ) -> None:
        for at, (column, field) in enumerate(zip(columns, fields, strict=True)):
            if field is None:
                continue
            if field == RECORDED.encode():
                fields[at] = node.encode()
            elif column in values:
                fields[at] = values[column]
            elif column == b"mark" and len(columns) == _IDENTITY:
                fields[at] = self._marks.get(node, b"0")
            elif column == b"identity":
                fields[at] = self._directories.get(node, b"")
            elif column == b"leader_epoch":
                fields[at] = self._epochs.get(node, b"0")
            elif len(columns) == _FACTS == at + 1:  # the end of its log, which never goes back
                fields[at] = b"%d" % (time.time() * 1000)
            elif column == b"id":
                fields[at] = b"%d" % (int(field) + shift)
            elif column == b"numbers":  # of claims: ids and epochs
                numbers = struct.unpack(f"!{len(a2b_base64(field)) // 8}q", a2b_base64(field))
                moved = [number + shift * (place % 2 == 0) for place, number in enumerate(numbers)]
                fields[at] = b2a_base64(struct.pack(f"!{len(moved)}q", *moved))
            elif b"_t" in field:
                fields[at] = _PARTITION.sub(lambda found: b"%s%d" % (found[1], int(found[2]) + shift), field)


async def _until_input_ends() -> None:
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, sys.stdin.read)


async def main(arguments: list[str]) -> None:
    if arguments[0] == "record":
        tape = Tape()
        server = await asyncio.start_server(
            lambda reader, writer: tape.serve(arguments[1], reader, writer), "127.0.0.1", 0, limit=1 << 26
        )
    else:
        replayed = Replayed(pickle.loads(Path(arguments[1]).read_bytes()), int(arguments[2]), arguments[3] != "0")
        server = await asyncio.start_server(replayed.serve, "127.0.0.1", 0, limit=1 << 26, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await _until_input_ends()
    if arguments[0] == "record":
        Path(arguments[2]).write_bytes(pickle.dumps(tape))
    else:
        for asked, times in replayed.unknown.items():
            print(f"never recorded, asked {times} times: {asked.decode(errors='replace')}")
        print(f"connections at most: {replayed.most}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
