"""Every code with which a plan takes or leaves a candidate, and what it means, in one place.

Placement, movers, budgets and explanations use these; metrics and tests know them by their short words.

How figures are written in the policies' sentences. Everything here is called while a reason is put into words.
"""

from enum import StrEnum

from balancer.policies.options import GB, KB, MB


class Taken(StrEnum):
    """Why a move was proposed."""

    DRAIN = "drain"
    DISK_FULL = "disk-full"
    RULE = "rule"
    CAPACITY = "capacity"
    SPREAD = "spread"
    FUNCTION = "function"
    IN_MEMORY = "in-memory"
    COUNT = "count"
    METRIC = "metric"
    LOAD = "load"
    SWAP = "swap"
    CHAIN = "chain"


class Left(StrEnum):
    """Why a candidate was not taken."""

    # The tablet does not move, no matter who asks.
    PINNED = "pinned"
    QUARANTINED = "quarantined"
    IN_FLIGHT = "in-flight"
    BACKING_OFF = "backing-off"
    SOURCE_DOWN = "source-down"
    # The tablet does not move to balance; it moves when its node is drained or its disk is full.
    SOURCE_CLOSED = "source-closed"
    COOLING_DOWN = "cooling-down"
    TABLE_OFF = "table-off"
    MOVER_OFF = "mover-off"
    GROUP_OFF = "group-off"
    BROKEN_METRIC = "broken-metric"
    FUNCTION_PLACED = "function-placed"
    OTHER_MOVER = "other-mover"
    NO_PAYBACK = "no-payback"
    # The target does not take it.
    SAME_NODE = "same-node"
    TARGET_DOWN = "target-down"
    TARGET_DRAINING = "target-draining"
    TARGET_CLOSED = "target-closed"
    TARGET_DISK = "target-disk"
    TARGET_MEMORY = "target-memory"
    TARGET_CAPACITY = "target-capacity"
    WRONG_ZONE = "wrong-zone"
    AGAINST_RULE = "against-a-rule"
    TABLE_SPREAD = "table-spread"
    NO_ROOM = "no-room"
    OVER_CAPACITY = "over-capacity"
    ACROSS_A_RULE = "across-a-rule"
    RULE_BETWEEN = "rule-between"
    BROKEN_RULE = "broken-rule"
    # It would not help enough.
    BALANCED = "balanced"
    NO_GAIN = "no-gain"
    OTHERS_BETTER = "others-better"
    # It would help, but not now.
    MOVES_TOTAL = "moves-total"
    MOVES_PER_NODE = "moves-per-node"
    BYTES_PER_WINDOW = "bytes-per-window"
    WINDOW_TOO_SHORT = "window-too-short"
    UNSETTLED = "unsettled"
    WAITS = "waits"
    TAKEN = "taken"


BUDGETS = (Left.MOVES_TOTAL, Left.MOVES_PER_NODE, Left.BYTES_PER_WINDOW, Left.WINDOW_TOO_SHORT)

MEANINGS: dict[str, str] = {
    Taken.DRAIN: "the node is draining and must be emptied",
    Taken.DISK_FULL: "the node's disk is over the share at which nodes are closed",
    Taken.RULE: "a rule forbids the node, or wants the tablet elsewhere",
    Taken.CAPACITY: "the node does more than its capacity allows",
    Taken.SPREAD: "the node has more tablets of the table than table_spread allows",
    Taken.FUNCTION: "the table's sharding function puts the tablet there",
    Taken.IN_MEMORY: "in-memory tables are spread evenly over the nodes' memory",
    Taken.COUNT: "every node gets an equal number of the table's tablets",
    Taken.METRIC: "the group's metric is spread evenly over the nodes",
    Taken.LOAD: "the node carries more than its share and the target less",
    Taken.SWAP: "no single move helps the node, an exchange of two tablets does",
    Taken.CHAIN: "no single move helps the node, several one after the other do",
    Left.PINNED: "an operator pinned the tablet where it is",
    Left.QUARANTINED: "the tablet failed too often and waits for an operator",
    Left.IN_FLIGHT: "a migration of the tablet is running",
    Left.BACKING_OFF: "the tablet's last migration failed and the back-off is not over",
    Left.SOURCE_DOWN: "the tablet's node is down: nothing can be copied from it",
    Left.SOURCE_CLOSED: "an operator closed the tablet's node: it keeps what it has",
    Left.COOLING_DOWN: "the tablet was migrated a short time ago and rests",
    Left.TABLE_OFF: "the table has enable_auto_tablet_move = false",
    Left.MOVER_OFF: "the mover of the tablet's kind is switched off in tablet_balancer_config",
    Left.GROUP_OFF: "the table's group has enable_move = false",
    Left.BROKEN_METRIC: "the metric of its group has no meaning for some tablet",
    Left.FUNCTION_PLACED: "the table's placement is a sharding function, which alone decides",
    Left.OTHER_MOVER: "another mover decides about the table",
    Left.NO_PAYBACK: "copying the tablet costs more than it carries off within payback_horizon",
    Left.SAME_NODE: "the tablet is on that node already",
    Left.TARGET_DOWN: "the target is down",
    Left.TARGET_DRAINING: "the target is being drained",
    Left.TARGET_CLOSED: "the target is closed to new data",
    Left.TARGET_DISK: "the target's disk would be over close_at_disk_share",
    Left.TARGET_MEMORY: "the target's memory for in-memory tables would not hold it",
    Left.TARGET_CAPACITY: "the target's capacity for reads or writes would be exceeded",
    Left.AGAINST_RULE: "a rule of the bundle forbids the target",
    Left.WRONG_ZONE: "the target is outside the table's zones",
    Left.TABLE_SPREAD: "the target has as many tablets of the table as table_spread allows",
    Left.NO_ROOM: "no node may take the tablet",
    Left.OVER_CAPACITY: "the node does more than its capacity allows, and no placement was found that would not",
    Left.ACROSS_A_RULE: "a rule ends in the middle of the tablet",
    Left.RULE_BETWEEN: "a rule ends between the tablets, which must stay apart",
    Left.BROKEN_RULE: "a rule names keys that are not of the table's types",
    Left.BALANCED: "every node is within start_threshold of its share",
    Left.NO_GAIN: "the move would not make the balance better by min_gain",
    Left.OTHERS_BETTER: "other moves relieve the node for fewer bytes",
    Left.MOVES_TOTAL: "moves_total migrations run already",
    Left.MOVES_PER_NODE: "moves_per_node migrations run on one of the two nodes already",
    Left.BYTES_PER_WINDOW: "bytes_per_window would be exceeded",
    Left.WINDOW_TOO_SHORT: "the move would not finish before the window closes",
    Left.UNSETTLED: "it helps only with others, and too little: it waits for six cool_downs without migrations",
    Left.WAITS: "it helps only once other moves of the plan are done",
    Left.TAKEN: "an earlier action of this plan changes the tablet",
}


def bytes_text(size: float) -> str:
    """A size as people say it: `10.0 GB`, `640 B`."""
    for unit, name in ((GB * KB, "TB"), (GB, "GB"), (MB, "MB"), (KB, "KB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} B"


def rate_text(rate: float) -> str:
    """Rows per second."""
    return f"{rate:,.0f} rows/s" if rate >= 10 or not rate else f"{rate:.1f} rows/s"


def duration_text(seconds: float) -> str:
    """A duration as people write it in a file: `90d`, `36h`, `10m`."""
    for unit, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "m")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:.0f}{name}"
    return f"{seconds:g}s"


def share_text(share: float) -> str:
    """A share as a percentage."""
    return f"{100 * share:.0f} %" if share >= 0.1 or not share else f"{100 * share:.1f} %"
