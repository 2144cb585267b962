"""A host with an instance for each group, in one process: `python -m tests.support.host CONFIG…`, until SIGTERM.

One process, so that SIGKILL ends all of them at once, as when a host dies; each has its own directory, its own session
and its own leadership. There is no HTTP.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

from balancer.clock import SystemClock
from balancer.daemon.daemon import Daemon
from balancer.daemon.run import Signals
from balancer.logs import set_up_logs
from balancer.settings import load_settings


def main(configs: list[str]) -> None:
    signals = Signals()
    set_up_logs("info", "text", sys.stderr)
    with ExitStack() as stack:
        daemons = [Daemon(load_settings(Path(config)), SystemClock()) for config in configs]
        for daemon in daemons:
            stack.callback(daemon.stop)
            daemon.start()
        while not signals.ended.wait(0.5):
            for daemon in daemons:
                daemon.step()


if __name__ == "__main__":
    main(sys.argv[1:])
