"""A process that closes a directory and stops half-way: run as `python -m tests.support.securing URL`.

It says `half-way` when some znodes have their new access lists and others do not, and then waits to be killed.
"""

import sys

from balancer.clock import SystemClock
from balancer.directory.open import open_directory
from balancer.directory.zookeeper import access
from balancer.directory.zookeeper.access import ZnodeAccess
from tests.support.two_credentials import WRITER

_ZNODES = 10  # at once
_REQUESTS = 2


def main(url: str) -> None:
    access._AT_ONCE = _ZNODES
    found = ZnodeAccess._found
    looks: list[object] = []

    def counted(self: ZnodeAccess, paths: object) -> object:
        looks.append(paths)
        if len(looks) > _REQUESTS:
            print("half-way", flush=True)
            SystemClock().sleep(600)
        return found(self, paths)  # type: ignore[arg-type]

    ZnodeAccess._found = counted  # type: ignore[assignment,method-assign]
    with open_directory(url, credentials=WRITER, create=False) as directory:
        directory.secure(dry_run=False)


if __name__ == "__main__":
    main(sys.argv[1])
