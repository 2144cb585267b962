"""A process that leads: run as `python -m tests.support.leading URL LEASE`, controlled line by line.

It campaigns, says `leading EPOCH`, and then answers each line: `commit` tries to move a tablet under its epoch and says
what happened, `held` says whether it still thinks it leads.
"""

import sys
from dataclasses import replace

from balancer.directory.model import Put
from balancer.directory.open import open_directory
from balancer.errors import BalancerError
from tests.support.directories import transaction


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(url: str, lease: float) -> None:
    with open_directory(url, lease=lease, timeout=5.0) as directory:
        leadership = directory.campaign("first", timeout=20)
        assert leadership is not None
        view = directory.snapshot()
        say(f"leading {leadership.epoch}")
        for line in sys.stdin:
            if line.strip() == "held":
                say(str(leadership.held()))
                continue
            tablet = replace(view.tablet(1), epoch=view.tablet(1).epoch + 1)
            try:
                version = directory.commit(transaction([Put(tablet)], view.version, leadership.epoch))
                view = directory.snapshot()
                say(f"committed {version}")
            except BalancerError as error:
                say(type(error).__name__)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
