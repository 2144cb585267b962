"""Each step of the argument left out: the story that shows what it is for. And the bounds of each search."""

from dataclasses import dataclass

from tests.model.moves import Budget

QUIET = Budget(switches=1, source_crashes=0, target_crashes=0, clock_set_back=0, cancels=0, sessions_end=0)
"""One switch in a quiet world; the others add what can happen in it."""
ORDINARY = Budget(switches=1)
TWICE = QUIET._replace(switches=2)
TARGET_LAGS = TWICE._replace(target_fails_over=1)
SOURCE_LAGS = QUIET._replace(source_fails_over=1)
UNKNOWN = QUIET._replace(answers_denied=1, reruns=1, sessions_end=1)
OWNER = QUIET._replace(fence_switched_off=1)


@dataclass(frozen=True)
class Bounds:
    """One search of the whole protocol."""

    name: str
    budget: Budget
    replicated: bool = True
    writers: int = 1
    quick: bool = True


BOUNDS = (
    Bounds("one switch, quiet", QUIET._replace(target_crashes=1)),
    Bounds("one switch, quiet", QUIET._replace(target_crashes=1), replicated=False),
    Bounds("the source lags", SOURCE_LAGS),
    Bounds("the source lags", SOURCE_LAGS, replicated=False),
    Bounds("answers are lost or denied", UNKNOWN),
    Bounds("answers are lost or denied", UNKNOWN, replicated=False),
    Bounds("the owner switches the fence off", OWNER),
    Bounds("the owner switches the fence off, a session ends", OWNER._replace(sessions_end=1)),
    Bounds("the target lags", TARGET_LAGS._replace(switches=1)),
    Bounds("the target lags", TARGET_LAGS._replace(switches=1), replicated=False),
    Bounds("crashes, a clock set back, a cancel", ORDINARY, quick=False),
    Bounds("crashes, a clock set back, a cancel", ORDINARY, replicated=False, quick=False),
    Bounds("the target lags, two switches", TARGET_LAGS, replicated=False, quick=False),
    Bounds("answers are lost, the source lags", UNKNOWN._replace(source_fails_over=1), quick=False),
    Bounds("two writers", QUIET._replace(target_crashes=1), writers=2, quick=False),
    Bounds("the target lags, two switches", TARGET_LAGS, quick=False),
)


@dataclass(frozen=True)
class Omission:
    """A step left out."""

    name: str
    step: str
    """Of the argument in `balancer.migration.machine`."""
    budget: Budget
    replicated: bool = True
    quick: bool = True

    @property
    def mutants(self) -> tuple[str, ...]:
        """The comparison would see most of them, and give the migration up: it is left out, too."""
        return (*self.name.split(","), "no-verification")


OMISSIONS = (
    Omission("no-guard", "1: T's copy refuses everybody but the stream", QUIET),
    Omission("no-fence", "2: the fence refuses writers", QUIET),
    Omission("fence-past-writers", "2: the fence waits for writers in flight", QUIET),
    Omission("marker-first", "2: the marker follows every write", QUIET),
    Omission("no-drain", "3: the marker is waited for", QUIET),
    Omission("no-flush", "3: ATTACH is durable", QUIET._replace(target_crashes=1)),
    Omission("arrival-unchecked,attach-on-any-session", "3: ATTACH sees the marker", QUIET._replace(target_crashes=1)),
    Omission("no-verification", "4: both sides are compared", TARGET_LAGS._replace(switches=1)),
    Omission("no-seal", "5: the fence is made permanent", QUIET),
    Omission("seal-unchecked", "5: only a fence that stands is sealed", QUIET._replace(source_crashes=1)),
    Omission("seal-unchecked", "5: only a fence that stands is sealed", QUIET, replicated=False),
    Omission("no-breaches", "5: writes that were let through are counted", ORDINARY, replicated=False),
    Omission("seal-without-effect", "6: a sealed fence lets nobody through", QUIET),
    Omission("sealed-fence-left-alone", "6: a transaction holds the lock", OWNER),
    Omission("no-take-back", "8: what was attached is taken back", TWICE, quick=False),
    Omission("commit-without-epoch", "9: the commit is the leader's", QUIET),
    Omission("commit-without-version", "9: the commit is based on the record's version", TWICE._replace(reruns=1)),
    Omission("answer-believed", "9: the journal is believed, not the answer", UNKNOWN),
    Omission("open-before-commit", "10: T opens after the commit", QUIET),
    Omission("moved-without-effect", "10: a former owner lets nobody through", QUIET),
    Omission("any-switch-opened", "10: T has what this very switch brought", TARGET_LAGS, replicated=False),
    Omission("opened-unseen", "10: what makes it durable sees T open", QUIET._replace(target_crashes=1)),
    Omission("no-epoch-check", "11: nodes refuse a former leader", TWICE),
    Omission("lifted-without-journal", "11: the fence goes after the journal has the way back", QUIET),
    Omission("retired-unasked", "12: T is asked before rows go", TARGET_LAGS._replace(switches=1)),
    Omission("standbys-overtaken", "12: T's standby has replayed it", TARGET_LAGS._replace(switches=1)),
    Omission("standbys-forgotten", "12: one that is gone has not said so", TARGET_LAGS._replace(switches=1)),
    Omission("unsealed-source-dropped", "12: an S without its seal was open", SOURCE_LAGS),
    Omission("written-rows-dropped", "12: what was written behind the fence is set aside", OWNER),
)

UNNEEDED = {
    "sent-unlooked": "a server may be replaced, or a session end, right after any look: it narrows the window in which"
    " the commit leaves a tablet that a person has to see to, or writes that are set aside",
    "deadline-unchecked": "the count of breaches shows every write that came through; the deadline is looked at all the"
    " same, because it is what an operator reads, and spares a seal that would be lifted again",
    "no-take-back": "a switch that is repeated writes a new number and attaches again; taking back is what lets the"
    " stream go on, which the model's stream does not need",
}
"""Steps that no counterexample was found without, and what they are for."""
