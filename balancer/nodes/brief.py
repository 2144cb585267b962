"""Servers' and drivers' messages in as few words as a person needs. Pure; `nodes.connection` and the poll use it.

libpq says where it tried, then that it failed, then why, then its guesses; with several hosts, all of it again for
each. The sentence around it already names the node, so only the reason is kept.
"""

import re
from typing import Final

from balancer.outside import one_line

LOCKED_OUT: Final = "it does not let us in: "
"""How the reason begins where a server answers but refuses the session."""

_ATTEMPT: Final = re.compile(r'connection to server (?:at "[^"]*"(?: \([^)]*\))?, port \d+|on socket "[^"]*") failed: ')
_NOISE: Final = (
    re.compile(r" Multiple connection attempts failed\. All failures were:.*"),
    re.compile(r" Is the server running (?:on that host|locally) and accepting [^?]*\?"),
    re.compile(r" This probably means the server terminated abnormally before or while processing the request\."),
    re.compile(r"^(?:connection failed|connection is bad|consuming input failed|sending query failed): "),
    re.compile(r"^(?:error|ERROR|FATAL): +"),
    re.compile(r"\[Errno -?\d+\] "),
)
_STARTS: Final = ("Connection ", "No such file", "Network is", "No route to", "Name or service", "Host is")


_NO_DATABASE: Final = re.compile(r'database ".*" does not exist')


def is_up(why: str) -> bool:
    """Whether a server that we cannot reach for this reason still answers, and may serve others: giving its tablets to
    another node would then make two owners. One without the database has no tablets."""
    return why.startswith(LOCKED_OUT) and not _NO_DATABASE.search(why)


def brief(text: str) -> str:
    """Why something could not be done, and nothing else."""
    found = one_line(text)
    for noise in _NOISE[:3]:
        found = noise.sub("", found)
    found = _ATTEMPT.split(found)[-1]
    for noise in _NOISE[3:]:
        found = noise.sub("", found)
    found = found.strip().removesuffix(".")
    return found[0].lower() + found[1:] if found.startswith(_STARTS) else found
