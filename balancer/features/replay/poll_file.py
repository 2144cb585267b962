"""Polls in files: what `balancer record` keeps and `balancer simulate --from` replays.

One line of JSON per poll, with everything a plan is made from. The files are bounded: when FILE has reached its share
of the bytes it becomes FILE.1, FILE.1 becomes FILE.2, and the oldest is deleted. A file may come from anywhere:
whatever is in it, the caller gets polls or one sentence.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from balancer.directory.store.codec import read_json
from balancer.errors import BalancerError, UserError
from balancer.planner.plans import pack_input, unpack_input
from balancer.policies.options import BundleOptions
from balancer.policies.view import BundleView
from balancer.untrusted import quoted

FORMAT: Final = 1
LONGEST_LINE: Final = 64 << 20
MOST_BYTES: Final = 1 << 30
"""Of all files that are read together."""
MOST_FILES: Final = 100
_WHOLE: Final = ("ids", "node", "moduli", "remainders")
_OPTIONAL: Final = ("write_rate_1h", "read_rate_1h", "scan_rate")


@dataclass(frozen=True, slots=True)
class RecordedPoll:
    """One poll, and the settings of its moment."""

    view: BundleView
    options: BundleOptions
    timezone: str


class PollFile:
    """Writes polls. Belongs to one process; two that write the same file do not notice each other."""

    def __init__(self, file: Path, max_bytes: int, files: int) -> None:
        if not 1 <= files <= MOST_FILES:
            raise UserError(f"a record has 1 to {MOST_FILES} files, not {files}")
        self.file, self.files, self.each = file, files, max_bytes // files
        self.polls = 0
        _mend(file)

    def add(self, poll: RecordedPoll) -> None:
        """Appends a poll; on the disk when this returns."""
        line = _line(poll)
        if len(line) > min(self.each, LONGEST_LINE):
            most = min(self.each, LONGEST_LINE)
            raise UserError(
                f"a poll takes {len(line)} bytes, and each of the {self.files} files has {most}: allow more"
            )
        try:
            if _size(self.file) + len(line) > self.each:
                self._rotate()
            # Bounds of tablets are people's data.
            number = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(number, "ab") as opened:
                opened.write(line)
                opened.flush()
                os.fsync(opened.fileno())
        except OSError as error:
            raise UserError(f"the record {self.file} cannot be written: {os.strerror(error.errno or 0)}") from None
        self.polls += 1

    def _rotate(self) -> None:
        names = [self.file, *(_older(self.file, number) for number in range(1, self.files))]
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            if newer.exists():
                newer.replace(older)
        if self.files == 1:
            self.file.unlink()


def read_polls(file: Path) -> list[RecordedPoll]:
    """All polls of a record, oldest first; `UserError` says what is wrong."""
    older = [_older(file, number) for number in range(MOST_FILES, 0, -1)]
    names = [name for name in older if name.exists()] + [file]
    found: list[RecordedPoll] = []
    left = MOST_BYTES
    for name in names:
        for number, line in enumerate(_lines(name), start=1):
            left -= len(line)
            if left < 0:
                raise UserError(f"the record {file} has more than {MOST_BYTES} bytes")
            found.append(_read(name, number, line))
    return found


def _line(poll: RecordedPoll) -> bytes:
    # What is known about single keys and migrations has no place in a replay, and is not kept.
    view = replace(poll.view, samples={}, history={}, in_flight=())
    document = {"format": FORMAT, "timezone": poll.timezone, "input": pack_input(view, poll.options)}
    return json.dumps(document).encode() + b"\n"


def _lines(file: Path) -> Iterator[bytes]:
    """Whole lines: the last one may have been cut off when its writer was killed, and is then left out."""
    try:
        with file.open("rb") as opened:
            while line := opened.readline(LONGEST_LINE + 1):
                if line.endswith(b"\n"):
                    yield line
                elif len(line) > LONGEST_LINE:
                    raise UserError(f"the record {file} has a line of more than {LONGEST_LINE} bytes")
    except OSError as error:
        raise UserError(f"the record {file} cannot be read: {os.strerror(error.errno or 0)}") from None


def _read(file: Path, number: int, line: bytes) -> RecordedPoll:
    where = f"line {number} of the record {file}"
    try:
        document: Any = read_json(line)
        version, timezone, packed = document["format"], document["timezone"], document["input"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{where} is not a poll: only `balancer record` writes them") from None
    if version != FORMAT:
        raise UserError(f"{where} has the format {quoted(version)}, and this version reads {FORMAT}")
    if not isinstance(timezone, str) or not isinstance(packed, str):
        raise UserError(f"{where} is not a poll: only `balancer record` writes them")
    try:
        view, options = unpack_input(packed)
    except BalancerError:
        raise UserError(f"{where} is damaged") from None
    if not _well_formed(view):
        raise UserError(f"{where} is damaged")
    return RecordedPoll(view, options, timezone)


def _well_formed(view: BundleView) -> bool:
    """Whether everything has its type, and nodes have figures; `policies.simulator.replay` checks the rest."""
    columns = {
        field.name: getattr(view.tablets, field.name) for field in fields(view.tablets) if field.name != "lowers"
    }
    arrays = [one is not None or name in _OPTIONAL for name, one in columns.items()]
    arrays += [
        one.dtype == (np.int64 if name in _WHOLE else np.float64) for name, one in columns.items() if one is not None
    ]
    tables = [(table.name, table.hash, table.first, table.last) for table in view.tables]
    numbers = [view.now, view.measured_bytes_per_second or 1.0]
    numbers += [figure for node in view.nodes for figure in (node.weight, node.disk_capacity, node.memory) if figure]
    return (
        all(arrays)
        and isinstance(view.bundle, str)
        and all(list(map(type, table)) == [str, bool, int, int] for table in tables)
        and all(isinstance(tablet, int) for tablet in view.pinned | view.quarantined)
        and all(isinstance(number, int | float) and 0 < number < np.inf for number in numbers)
    )


def _mend(file: Path) -> None:
    """Cuts off an unfinished line; refuses to write into a file that is not a record."""
    try:
        with file.open("r+b") as opened:
            first = opened.readline(LONGEST_LINE + 1)
            if first.endswith(b"\n"):
                _read(file, 1, first)
            elif first:
                raise UserError(f"{file} exists and is not a record: name another file")
            opened.seek(0)
            whole = sum(len(line) for line in opened if line.endswith(b"\n"))
            opened.truncate(whole)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"the record {file} cannot be written: {os.strerror(error.errno or 0)}") from None


def _older(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.{number}")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
