"""`make fuzz`: every fuzzer for a few minutes, as a table; a seed repeats what was found."""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory

from balancer.embedded.zookeeper import ZooKeeperServer
from tests.support.fuzz_targets import every_target
from tests.support.fuzzing import HEAD, explore


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*", help="only targets whose name contains one of these")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(10**9))
    wanted = parser.parse_args()
    reports = []
    with TemporaryDirectory() as folder, ExitStack() as stack:
        Path(folder).chmod(0o755)  # the server has an account of its own
        zookeeper = stack.enter_context(ZooKeeperServer(Path(folder) / "zookeeper"))
        place = Path(folder) / "targets"
        place.mkdir()
        print(HEAD, flush=True)
        with every_target(place, zookeeper.address) as targets:
            for target in targets:
                if not wanted.words or any(word in target.name for word in wanted.words):
                    reports.append(explore(target, wanted.seed, seconds=wanted.seconds))
                    print(reports[-1].row(), flush=True)
    for report in reports:
        kinds = {failure.partition(": ")[2].partition("\n")[0]: failure for failure in report.failures}
        for failure in list(kinds.values())[:20]:
            print(f"{report.target}: {failure}")
        if report.longest > 1:
            print(f"{report.target}, longest: {report.longest_case}")
    return int(any(report.failures for report in reports))


if __name__ == "__main__":
    sys.exit(main())
