"""A starting application process: `python -m tests.support.starting URL [CACHE]` says what that took, as JSON.

The time for Python's own imports is reported separately: they do not grow with the directory.
"""

import json
import os
import sys
import time


def main(url: str, cache: str | None) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    from balancer.client import Router  # noqa: PLC0415 - what it takes is measured
    from balancer.directory.store import host_cache  # noqa: F401, PLC0415 - imported late by those who need them
    from balancer.directory.zookeeper import backend  # noqa: F401, PLC0415 - imported late by those who need them

    imported, cpu_imported = time.perf_counter(), time.process_time()
    with Router.connect(url, samples=False, cache=cache, timeout=120.0) as router:
        location = router.locate("orders", 5)
        known, cpu_known = time.perf_counter(), time.process_time()
        tablets = router.snapshot.tablet_count()
    figures = {
        "imports": imported - began,
        "imports_cpu": cpu_imported - cpu,
        "known": known - imported,
        "known_cpu": cpu_known - cpu_imported,
        "tablets": tablets,
        "node": location.node,
    }
    print(json.dumps(figures), flush=True)
    os._exit(0)  # what follows is not measured


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
