"""The file that `balancer init` proposes, as text."""

import pytest

from balancer.features.propose import bundle_text
from balancer.policies.proposal import Proposal

pytestmark = pytest.mark.quick


def test_the_proposed_file_says_that_nothing_moves_before_its_key_is_set() -> None:
    text = bundle_text("dbname=shop", Proposal((), ()))
    assert "Idle by configuration" in text
    assert "enable_cell_balancer = true" in text
