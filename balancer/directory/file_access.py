"""Who may read and write a directory in a file. Called by `sqlite`.

The file and what SQLite keeps next to it (`-wal`, `-shm`) belong to its owner: 0600, which is how it is made. It may be
opened to a group that is meant to share it (0640 to read, 0660 to write), but not to everybody.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from balancer.directory.contract import Secured
from balancer.errors import Refused


def check(path: Path) -> None:
    """Refuses a file that every account of this machine may change: whatever it says, anybody may have written it."""
    for file, mode in _modes(path):
        if mode & stat.S_IWOTH:
            raise Refused(f"every account of this machine may write the directory's file {file}: chmod o-rwx {file}")


def exposures(path: Path) -> list[str]:
    """A sentence for each thing that lets others read or change it."""
    found = []
    for file, mode in _modes(path):
        if mode & stat.S_IWOTH:
            found.append(f"every account of this machine may write the directory's file {file}")
        elif mode & stat.S_IROTH:
            found.append(f"every account of this machine may read the directory's file {file}")
    mode = path.parent.stat().st_mode
    # In a folder with the sticky bit only owners replace files.
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        found.append(f"every account of this machine may replace the directory's file: folder {path.parent} is open")
    return found


def secure(path: Path, *, dry_run: bool) -> Secured:
    """Revokes what every account may do; what the group may do is the owner's business."""
    parts, changed = 0, []
    for file, mode in _modes(path):
        parts += 1
        if mode & stat.S_IRWXO:
            changed.append(str(file))
            if not dry_run:
                _close(file, mode)
    return Secured(parts, len(changed), tuple(changed))


def _close(file: Path, mode: int) -> None:
    try:
        os.chmod(file, stat.S_IMODE(mode) & ~stat.S_IRWXO)
    except OSError as error:
        raise Refused(f"the rights of {file} cannot be changed: {error.strerror}") from None


def _modes(path: Path) -> Iterator[tuple[Path, int]]:
    """The files that there are, and their modes."""
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        try:
            yield file, file.stat().st_mode
        except OSError:
            continue
