"""How far the daemon may go on its own in a bundle."""

from enum import StrEnum


class Mode(StrEnum):
    """What a bundle's daemon does with its plans."""

    OBSERVE = "observe"  # plans and reports only
    APPROVE = "approve"  # a plan waits for `balancer apply`
    AUTONOMOUS = "autonomous"
