"""A snapshot in a file that the processes of one account on one host share, so that one of them loads it for all.

The file is a hint. A reader uses it only if the directory's own log says that its version was made by its transaction,
and continues from there by the log, so what it knows is never older than what it would have loaded. The folder must be
ours and closed to writers other than us. A file in it that is not ours, that others may read or write, that is not a
regular file, is truncated or damaged, or comes from other software is left alone, and replaced by the next one that is
written. Writers write a temporary file and rename it, so readers see a whole file, however many write at once.
"""

import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Final
from uuid import uuid4

from balancer.clock import Clock
from balancer.directory.snapshot import Snapshot
from balancer.directory.snapshot_codec import LONGEST_BEGINNING, pack_snapshot, peek, unpack_snapshot
from balancer.errors import Refused, UserError

REWRITE_AFTER: Final = 50
"""Commits that the file may be behind before one of the processes that follow writes it again. With a million tablets
each commit costs a starting process a third of a millisecond, and writing the file costs some sixty."""
_RANDOM: Final = Random()  # noqa: S311 - our own: a program may have seeded the shared one
LARGEST: Final = 1 << 30
"""Bytes. A million tablets take 15 MB."""
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OPEN: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO in its place must not block us
_LOOK: Final = 0.05  # seconds between checks whether the loading process has finished

log = logging.getLogger("balancer.directory.cache")


class HostCache:
    """The file of one directory, by the directory's address."""

    def __init__(self, folder: Path, address: str, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._name = blake2b(address.encode(), digest_size=12).hexdigest()
        self._due = REWRITE_AFTER * (1 + _RANDOM.random())  # so that not all processes write at once
        with self._opened():
            pass

    def read(self) -> Snapshot | None:
        """What the file says; None if there is none that may be used."""
        try:
            with self._opened() as folder:
                data = self._content(folder, LARGEST)
            return None if data is None else unpack_snapshot(data, lazy=True)
        except (OSError, Refused, UserError) as error:
            log.warning("the cache of the directory is left alone: %s", error)
            return None

    def write(self, view: Snapshot) -> None:
        """Replaces what is there with a snapshot. A cache that cannot be written costs the next process a load."""
        temporary = f"{self._name}.{uuid4().hex}"
        try:
            with self._opened() as folder:
                try:
                    made = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=folder)
                    with os.fdopen(made, "wb") as file:
                        file.write(pack_snapshot(view))
                    os.replace(temporary, self._file, src_dir_fd=folder, dst_dir_fd=folder)
                except BaseException:
                    with suppress(OSError):
                        os.unlink(temporary, dir_fd=folder)
                    raise
        except (OSError, UserError) as error:
            log.warning("the cache of the directory could not be written: %s", error)

    def keep(self, view: Snapshot, known: int) -> int:
        """For a following process: rewrites the file if it has fallen behind. `known` is the version that the file had
        at the last call; returns the current one."""
        if view.version - known < self._due:
            return known
        known = self._version()  # another process may have written it
        if view.version - known >= REWRITE_AFTER:
            self.write(view)
            return view.version
        return known

    @contextmanager
    def turn(self, patience: float) -> Iterator[None]:
        """One process at a time; after `patience` seconds proceeds anyway: the one before may hang."""
        deadline = self._clock.monotonic() + patience
        held: int | None = None
        try:
            with suppress(OSError), self._opened() as folder:
                held = os.open(f"{self._name}.lock", os.O_RDWR | os.O_CREAT | _OPEN, 0o600, dir_fd=folder)
            while held is not None and not _locked(held) and self._clock.monotonic() < deadline:
                self._clock.sleep(_LOOK * (0.5 + _RANDOM.random()))
            yield
        finally:
            if held is not None:
                os.close(held)

    @property
    def _file(self) -> str:
        return f"{self._name}.snapshot"

    def _version(self) -> int:
        """Version of the file, by its first bytes; 0 if there is none."""
        try:
            with self._opened() as folder:
                beginning = self._content(folder, LARGEST, LONGEST_BEGINNING)
            found = None if beginning is None else peek(beginning)
        except (OSError, Refused, UserError):
            return 0
        return found[0] if found else 0

    def _content(self, folder: int, largest: int, most: int = -1) -> bytes | None:
        """The file's bytes; None: it is not there. `OSError` or `Refused`: it must not be read."""
        try:
            opened = os.open(self._file, os.O_RDONLY | _OPEN, dir_fd=folder)
        except FileNotFoundError:
            return None
        with os.fdopen(opened, "rb", buffering=0) as file:
            found = os.fstat(opened)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:  # 0: it has just been replaced
                raise Refused("it is not a file of its own")
            if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
                raise Refused("it belongs to another account, or others may use it")
            if found.st_size > largest:
                raise Refused(f"it has {found.st_size} bytes")
            return file.read(most if most >= 0 else found.st_size)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The folder as it is at this moment: made if it is missing, refused if it is not ours alone."""
        with suppress(FileExistsError):
            try:
                os.mkdir(self._folder, 0o700)
            except FileExistsError:
                raise
            except OSError as error:
                raise UserError(f"the cache folder {self._folder} cannot be made: {error.strerror}") from None
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
        except OSError as error:
            raise UserError(f"the cache folder {self._folder} is none: {error.strerror}") from None
        try:
            found = os.fstat(folder)
            if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise UserError(
                    f"the cache folder {self._folder} must belong to the account that uses it,"
                    " and nobody else may write there"
                )
            yield folder
        finally:
            os.close(folder)


def _locked(held: int) -> bool:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
