"""What a message does, as a bundle's file declares it: `[tables.accounts.messages.credit]`. Pure.

    apply = "UPDATE accounts SET balance = balance + (%(amount)s)::bigint WHERE id = %(id)s"
    reverse = "UPDATE accounts SET balance = balance + (%(amount)s)::bigint WHERE id = %(id)s"

`apply` runs where the target is, `reverse` where the sender is, if the message was given up. `%(name)s` is a value: of
the key, where a key column is called so, with that column's type, else of the message's body, as text. `compiled` makes
parameters of them; a value never becomes part of a statement.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ATTEMPTS = 8
"""With waits of 1, 2, 4 … seconds between them: a few minutes."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_MARK = re.compile(r"%(?:\((?P<name>[^)]*)\)s|%|(?P<wrong>.?))", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MessageSettings:
    """One message that a table understands."""

    apply: str
    reverse: str = ""
    attempts: int = ATTEMPTS


def check_message(name: str, message: MessageSettings) -> Iterator[tuple[str, str]]:
    """Key and sentence of each mistake."""
    if not _NAME.fullmatch(name):
        yield "", "the name of a message has letters, digits and underscores, as in credit"
    for key, text in (("apply", message.apply), ("reverse", message.reverse)):
        if key == "apply" and not text.strip():
            yield key, "must be an SQL statement"
        if "\0" in text:
            yield key, "must not contain a zero character"
        for mark in _MARK.finditer(text):
            if mark["wrong"] is not None or (mark["name"] is not None and not _NAME.fullmatch(mark["name"])):
                yield key, f"has {mark[0]!r}; write values as %(name)s and a percent sign as %%"
    if message.attempts < 1:
        yield "attempts", "must be 1 or more"


def compiled(text: str, columns: Sequence[tuple[str, str]]) -> str:
    """The statement with $1 for the body and $2 for the key, whose columns have these names and SQL types."""
    places = {name: f"(($2)[{number}]::{kind})" for number, (name, kind) in enumerate(columns, 1)}

    def value(mark: re.Match[str]) -> str:
        return "%" if mark["name"] is None else places.get(mark["name"], f"($1 ->> '{mark['name']}')")

    return _MARK.sub(value, text)


def values_of(text: str) -> set[str]:
    """The names of the values that a statement uses."""
    return {mark["name"] for mark in _MARK.finditer(text) if mark["name"] is not None}
