"""`balancer demo --once`: the main job from empty folders to balanced, on real servers, without a failed operation.

What happens must be the same in every run: the hot range is split, tablets move, the score rises. When it happens, and
how many moves it takes, is the machine's business.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import balancer

pytestmark = pytest.mark.always


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the servers' account may enter."""
    made = Path(tempfile.mkdtemp(prefix="balancer-demo-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_the_demonstration_ends_balanced_and_no_operation_fails(folder: Path) -> None:
    done = balancer(
        *("demo", "--once", "--zookeeper", "--folder", folder, "--limit", "270", "--output", "json"), timeout=290
    )
    assert done.code == 0, done.err + done.out
    summary = json.loads(done.out)
    print(summary)
    assert summary["balanced"]
    assert (summary["failed_operations"], summary["failed_migrations"]) == (0, 0)
    assert summary["splits"] >= 1
    assert summary["moves"] >= 8
    assert summary["score_before"] < 40
    assert summary["score_after"] >= 80
    assert summary["operations"] > 1000
