"""A process that imports a range table and stops half-way: run as `python -m tests.support.importing URL`.

It says `half-way` when some pages are written and others are not, and then waits to be killed.
"""

import sys
import threading

from balancer.clock import SystemClock
from balancer.directory.open import open_directory
from balancer.directory.zookeeper import load
from balancer.directory.zookeeper.session import Session, SessionVerdict
from tests.support.directories import RANGED, frame, ranges

TABLETS = 3000
_ROWS = 2  # znodes per request
_REQUESTS = 8  # the mark, five to delete what was there, two of the three that write pages


def main(url: str) -> None:
    load._CHUNK_ROWS = _ROWS
    send = Session.multi
    sent: list[SessionVerdict] = []

    def counted(session: Session, *arguments: object) -> SessionVerdict:
        if threading.current_thread() is not threading.main_thread():  # the leader's beats: any number
            return send(session, *arguments)  # type: ignore[arg-type]
        if len(sent) == _REQUESTS:
            print("half-way", flush=True)
            SystemClock().sleep(600)
        sent.append(send(session, *arguments))  # type: ignore[arg-type]
        return sent[-1]

    with open_directory(url, lease=4.0) as directory:
        leadership = directory.campaign("import", timeout=10)
        assert leadership is not None
        Session.multi = counted  # type: ignore[assignment,method-assign]
        records = [*frame(), RANGED, *ranges(range(TABLETS - 1), first=1)]
        directory.restore(records, reason="import", author="test", leader_epoch=leadership.epoch)


if __name__ == "__main__":
    main(sys.argv[1])
