"""Whether the text of a statement ends the transaction that it is sent in, as PostgreSQL would read it. Pure.

Inside a block that is refused before it is sent: what follows in the same text, by AND CHAIN or by another BEGIN, would
run without a proof. Only the text can end it: procedures and DO cannot inside a transaction, and PREPARE accepts none
of these statements.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

_PART = re.compile(
    r"""(?P<hidden>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n\r]*)
    |(?P<word>[^\W\d][\w$]*)                                   # a $ in a name begins no quotation
    |(?P<quoted>\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$)
    |(?P<comment>/\*)
    |(?P<other>[^\w'"$/\-]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(r"/\*|\*/")
_ENDS = re.compile(
    r"\s*(?:commit|end|begin|(?:start|prepare)\s+transaction"
    r"|(?:rollback|abort)(?!\s+(?:(?:work|transaction)\s+)?to\b))\b",
    re.IGNORECASE,
)
_GOES_BACK = re.compile(r"\s*(?:rollback|abort)\s+(?:(?:work|transaction)\s+)?to\b", re.IGNORECASE)


@lru_cache(maxsize=1024)
def ends_transaction(text: str) -> bool:
    """Whether one of its statements ends it, or begins another."""
    return any(_ENDS.match(statement) for statement in bare(text).split(";"))


@lru_cache(maxsize=1024)
def goes_back(text: str) -> bool:
    """Whether one of its statements goes back to a savepoint."""
    return any(_GOES_BACK.match(statement) for statement in bare(text).split(";"))


def bare(text: str) -> str:
    """The text with a space for each comment and everything quoted."""
    return "".join(_bare(text))


def _bare(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        assert part is not None, "any character is a part"
        at = part.end()
        if part["comment"]:
            at = _end_of_comment(text, at)
        yield part["word"] or part["other"] or " "


def _end_of_comment(text: str, at: int) -> int:
    """Comments may be nested."""
    depth = 1
    for mark in _COMMENT.finditer(text, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(text)
