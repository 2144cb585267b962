"""The list of what can be looked at: for each kind its subjects, in order, and the look at one unit of work.

A further kind is a word in `policies.check_options.CheckKind` and a line here; the checker, the book, the metrics and
the page know no kind by name.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from balancer.checks.application_looks import (
    look_at_invariants,
    look_at_sum,
    sums_of_bundle,
    tablets_with_invariants,
)
from balancer.checks.ground import Ground
from balancer.checks.map_checks import look_at_map, look_for_strays, whole_bundle
from balancer.checks.message_looks import look_at_messages, tablets_with_messages
from balancer.checks.number_looks import look_at_copies, look_at_sequences, tables_on_nodes
from balancer.checks.row_looks import (
    look_at_bounds,
    look_at_ids,
    look_for_orphans,
    tablets_with_ids,
    tablets_with_keys,
    tablets_with_rows,
)
from balancer.directory.snapshot import Snapshot
from balancer.policies.check_options import CheckKind
from balancer.policies.checking import CheckUnit, Look


class KindOfCheck(NamedTuple):
    """What the checker needs to know about a kind."""

    subjects: Callable[[Ground, Snapshot], Sequence[int]]
    """The numbers of what to check, in order; only `look` knows what they mean."""
    look: Callable[[Ground, CheckUnit], Look]


KINDS: Mapping[CheckKind, KindOfCheck] = {
    CheckKind.MAP: KindOfCheck(whole_bundle, look_at_map),
    CheckKind.STRAYS: KindOfCheck(whole_bundle, look_for_strays),
    CheckKind.SEQUENCES: KindOfCheck(tables_on_nodes, look_at_sequences),
    CheckKind.COPIES: KindOfCheck(whole_bundle, look_at_copies),
    CheckKind.BOUNDS: KindOfCheck(tablets_with_keys, look_at_bounds),
    CheckKind.ORPHANS: KindOfCheck(tablets_with_rows, look_for_orphans),
    CheckKind.IDS: KindOfCheck(tablets_with_ids, look_at_ids),
    CheckKind.MESSAGES: KindOfCheck(tablets_with_messages, look_at_messages),
    CheckKind.INVARIANTS: KindOfCheck(tablets_with_invariants, look_at_invariants),
    CheckKind.SUMS: KindOfCheck(sums_of_bundle, look_at_sum),
}
