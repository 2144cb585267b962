"""Errors, classed by what the caller must do, not by where they arose.

Any module may raise and catch these; nothing here imports the rest of the product.

| class            | what the caller does                                              |
|------------------|-------------------------------------------------------------------|
| `UserError`      | shows the sentence and stops: the input is wrong                  |
| `Refused`        | gives up: a precondition does not hold, and trying again won't help |
| `Damaged`        | gives up: what is stored is not what was written; somebody must look |
| `Conflict`       | reads again and decides again: somebody else was faster            |
| `Fenced`         | steps down: another leader holds a newer epoch                    |
| `OutcomeUnknown` | finds out what happened before doing anything else                |
| `TooLarge`       | makes the request smaller                                         |
| `Unavailable`    | tries again later                                                 |
| `NotGranted`     | likewise: the server is there, others hold what was asked for     |
"""


class BalancerError(Exception):
    """The base of all our errors; its text is one sentence for a person."""


class UserError(BalancerError):
    """The user's input is wrong: what, where, and what is allowed. Exit code 2, never a traceback."""


class Refused(BalancerError):
    """A precondition does not hold; the same request will be refused again until something changes."""


class Damaged(Refused):
    """Stored data is not what this software wrote: nothing that the caller could supply would help. Exit code 1."""


class Conflict(BalancerError):
    """What the caller based its change on has changed: nothing was applied, read again."""


class Fenced(BalancerError):
    """A newer leader exists: nothing was applied, and nothing we send from now on will be."""


class OutcomeUnknown(BalancerError):
    """The request may or may not have been applied, and it could not be found out in time."""


class TooLarge(BalancerError):
    """The request would exceed a limit of the server and was not sent."""


class Unavailable(BalancerError):
    """A server cannot be reached or does not answer in time: nothing was applied, try again later."""

    def __init__(self, text: str = "", why: str = "") -> None:
        super().__init__(text)
        self.why = why or text
        """The reason alone, for a sentence that names the server itself."""


class NotGranted(Unavailable):
    """A lock was not granted in time, or the statement behind it took too long: nothing was applied."""
