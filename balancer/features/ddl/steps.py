"""A file of schema changes as steps that each node can carry out: what is split up, and what is refused. Pure.

Statements are recognised by their words; PostgreSQL itself judges the rest. A step is one of two kinds: a statement in
a transaction of its own, or an index, which is built leaf by leaf without keeping writers out. What would keep them out
for long is done in parts where PostgreSQL allows it: a CHECK is added NOT VALID and then validated, NOT NULL is set by
way of a validated CHECK.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import sqlparse
from sqlparse import tokens
from sqlparse.lexer import tokenize

from balancer.errors import UserError
from balancer.naming import Name

_OBJECTS = (
    *("TABLE", "INDEX", "VIEW", "MATERIALIZED", "TYPE", "DOMAIN", "FUNCTION", "PROCEDURE", "ROUTINE", "TRIGGER"),
    *("POLICY", "SEQUENCE", "SCHEMA", "STATISTICS", "RULE", "AGGREGATE", "OPERATOR", "COLLATION", "EXTENSION", "CAST"),
)
_BETWEEN = frozenset({"OR", "REPLACE", "UNIQUE", "CONSTRAINT", "UNLOGGED", "RECURSIVE"})
_HEADS = ("CREATE", "ALTER", "DROP", "COMMENT", "GRANT", "REVOKE")
_SERIAL = frozenset({"SERIAL", "SERIAL2", "SERIAL4", "SERIAL8", "SMALLSERIAL", "BIGSERIAL"})
_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """An index of a root, which is built on each leaf separately."""

    name: str
    root: Name
    unique: bool
    tail: str  # from after the table's name


@dataclass(frozen=True, slots=True)
class DdlStep:
    """What each node carries out, and notes, at once."""

    text: str
    table: Name | None = None
    """The table whose owner carries it out; None: any owner of the bundle's roots."""
    index: IndexPlan | None = None
    undo: tuple[str, ...] | None = None
    """What undoes it, or nothing; None: nothing known does."""
    not_null: str = ""
    """The column that it makes NOT NULL: what undoes that is found out on each node."""
    scans: bool = False
    """It reads the whole table: not tried beforehand."""
    rewrites: bool = False
    """It may rewrite the whole table while everybody waits."""

    @property
    def digest(self) -> str:
        """Distinguishes it from another with the same number."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class RootKey:
    """What must stay in a root as the directory knows it."""

    columns: tuple[str, ...] = ()


@dataclass
class _Words:
    """A statement as words, with the text after each."""

    text: str
    words: list[str] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def upper(self, at: int) -> str:
        return self.words[at].upper() if at < len(self.words) else ""

    def starts(self, at: int, *expected: str) -> bool:
        return all(self.upper(at + place) == word for place, word in enumerate(expected))

    def skip(self, at: int, *optional: str) -> int:
        """The position after these words, if they are all there."""
        return at + len(optional) if self.starts(at, *optional) else at

    def name(self, at: int) -> tuple[Name, int]:
        """The name that begins here, and where it ends; without a schema it is in public."""
        first = self._identifier(at)
        if self.upper(at + 1) == ".":
            return Name(first, self._identifier(at + 2)), at + 3
        return Name("public", first), at + 1

    def _identifier(self, at: int) -> str:
        word = self.words[at] if at < len(self.words) else ""
        if word.startswith('"') and word.endswith('"') and len(word) > 2:
            return word[1:-1].replace('""', '"')
        if not _PLAIN.match(word):
            raise UserError(f"{shown(self.text)}: a name is expected where it says {word or 'nothing'!r}")
        return word.lower()

    identifier = _identifier

    def rest(self, at: int) -> str:
        """The text after the word before this one."""
        return self.text[self.ends[at - 1] :].strip()


def read_change(text: str, roots: Mapping[Name, RootKey], *, allow_rewrite: bool = False) -> tuple[DdlStep, ...]:
    """The steps of a file, in order. Raises `UserError` with one sentence for what cannot be among them."""
    if "\0" in text:
        raise UserError("the file has a zero byte in it")
    steps: list[DdlStep] = []
    for statement in sqlparse.split(text):
        words = _words(statement)
        if words.words:
            steps += _steps(words, roots)
    if not steps:
        raise UserError("there is no statement in it")
    for step in steps:
        if step.rewrites and not allow_rewrite:
            raise UserError(
                f"{shown(step.text)}: it may rewrite the whole table while everybody waits; add a column, fill it"
                " and change over, or use --allow-rewrite"
            )
    return tuple(steps)


def shown(text: str) -> str:
    """A statement, short, for messages."""
    line = " ".join(text.split())
    return line if len(line) <= 80 else f"{line[:77]}…"


def _words(statement: str) -> _Words:
    found = _Words(statement.rstrip().rstrip(";").rstrip())
    at = 0
    for kind, value in tokenize(statement):  # type: ignore[no-untyped-call]
        at += len(value)
        if kind in tokens.Whitespace or kind in tokens.Comment or value == ";":
            continue
        for word in value.split() if kind in tokens.Keyword else (value,):  # "NOT NULL" is one to the library
            found.words.append(word)
            found.ends.append(at)
    return found


def _steps(words: _Words, roots: Mapping[Name, RootKey]) -> Iterator[DdlStep]:
    _check_head(words)
    if words.starts(0, "ALTER", "TABLE"):
        yield from _alter_table(words, roots)
    elif words.starts(0, "DROP", "TABLE"):
        name, _ = words.name(words.skip(2, "IF", "EXISTS"))
        if name in roots:
            raise UserError(f"{shown(words.text)}: {name} is a sharded table of the bundle")
        yield DdlStep(words.text)
    elif words.starts(0, "DROP", "INDEX"):
        at = words.skip(2, "CONCURRENTLY")
        yield DdlStep(f"DROP INDEX {words.rest(at)}")  # on a root it cannot be done concurrently; it takes a moment
    elif words.starts(words.skip(1, "UNIQUE"), "INDEX") and words.upper(0) == "CREATE":
        yield _create_index(words, roots)
    else:
        yield DdlStep(words.text)


def _check_head(words: _Words) -> None:
    head = words.upper(0)
    if head not in _HEADS:
        allowed = ", ".join(_HEADS)
        raise UserError(f"{shown(words.text)}: it is not a schema change; allowed are {allowed}")
    if head in ("CREATE", "ALTER", "DROP"):
        at = 1
        while words.upper(at) in _BETWEEN:
            at += 1
        if words.upper(at) not in _OBJECTS:
            raise UserError(
                f"{shown(words.text)}: {words.upper(at) or 'nothing'} is not what every node has its own of"
            )
    for place, word in enumerate(words.words[:-1]):
        if word.strip('"').lower().startswith("balancer") and words.words[place + 1] == ".":
            raise UserError(f"{shown(words.text)}: {word} is a schema of tablet-balancer's own")


def _alter_table(words: _Words, roots: Mapping[Name, RootKey]) -> Iterator[DdlStep]:
    at = words.skip(2, "IF", "EXISTS")
    only = words.skip(at, "ONLY")
    table, behind = words.name(only)
    if table not in roots:
        yield DdlStep(words.text, table)
        return
    if only != at:
        raise UserError(f"{shown(words.text)}: ONLY would leave the tablets of {table} as they are")
    _check_root_action(words, behind, table, roots[table])
    yield from _root_action(words, behind, table)


def _check_root_action(words: _Words, at: int, table: Name, key: RootKey) -> None:
    if words.upper(at) in ("ATTACH", "DETACH"):
        raise UserError(f"{shown(words.text)}: tablets are attached and detached by tablet-balancer")
    if words.starts(at, "RENAME", "TO") or words.starts(at, "SET", "SCHEMA"):
        raise UserError(f"{shown(words.text)}: the directory knows {table} by this name")
    for place, word in enumerate(words.words[at:], at):
        column = word[1:-1] if word.startswith('"') else word.lower()
        before = {words.upper(place - 1), words.upper(place - 2)}
        if column in key.columns and before & {"DROP", "RENAME"}:
            raise UserError(f"{shown(words.text)}: {column} is part of the key of {table}")
        if column in key.columns and before & {"ALTER"} and "TYPE" in (words.upper(place + 1), words.upper(place + 3)):
            raise UserError(
                f"{shown(words.text)}: {column} is part of the key of {table}, whose type is known elsewhere"
            )


def _root_action(words: _Words, at: int, table: Name) -> Iterator[DdlStep]:
    several = _several(words, at)
    name = f"ALTER TABLE {_quoted(table)}"
    if words.starts(at, "ALTER"):
        place = words.skip(at + 1, "COLUMN")
        column, action = words.identifier(place), place + 1
        if words.starts(action, "SET", "NOT", "NULL"):
            _alone(words, several)
            yield from _not_null(words, table, name, column)
            return
    if words.starts(at, "ADD"):
        yield from _add(words, at, table, name, several)
        return
    yield DdlStep(words.text, table, rewrites=_rewrites(words, at))


def _rewrites(words: _Words, at: int) -> bool:
    """Whether one of its actions gives a column another type, or a new column a value in each row."""
    for place in _actions(words, at):
        column = words.skip(place + 1, "COLUMN")
        behind = words.skip(column, "IF", "NOT", "EXISTS") + 1
        end = next((one for one in _actions(words, at) if one > place), len(words.words) + 1) - 1
        if words.upper(place) == "ALTER":
            if words.starts(behind, "TYPE") or words.starts(behind, "SET", "DATA", "TYPE"):
                return True
        elif words.upper(place) == "ADD" and (words.upper(behind) in _SERIAL or words.upper(end - 1) == "STORED"):
            return True
    return False


def _add(words: _Words, at: int, table: Name, name: str, several: bool) -> Iterator[DdlStep]:
    if words.starts(at + 1, "CHECK"):
        raise UserError(f"{shown(words.text)}: give the constraint a name: ADD CONSTRAINT name CHECK …")
    if words.starts(at + 1, "CONSTRAINT"):
        constraint = _quote(words.identifier(at + 2))
        undo = None if several else (f"{name} DROP CONSTRAINT IF EXISTS {constraint}",)
        if words.starts(at + 3, "CHECK") and not _ends_not_valid(words):
            _alone(words, several)
            yield DdlStep(f"{words.text}\nNOT VALID", table, undo=undo)  # even after a comment
            yield DdlStep(f"{name} VALIDATE CONSTRAINT {constraint}", table, undo=(), scans=True)
            return
        yield DdlStep(words.text, table, undo=undo, scans=True)
        return
    if words.upper(at + 1) in ("PRIMARY", "UNIQUE", "FOREIGN", "EXCLUDE"):
        yield DdlStep(words.text, table, scans=True)
        return
    place = words.skip(at + 1, "COLUMN")
    known = words.starts(place, "IF", "NOT", "EXISTS")
    column = _quote(words.identifier(place + 3 if known else place))
    undo = None if several or known else (f"{name} DROP COLUMN IF EXISTS {column}",)
    yield DdlStep(words.text, table, undo=undo, rewrites=_rewrites(words, at))


def _not_null(words: _Words, table: Name, name: str, column: str) -> Iterator[DdlStep]:
    check = _quote(f"tb_not_null_{hashlib.sha256(_quote(column).encode()).hexdigest()[:12]}")
    drop = f"{name} DROP CONSTRAINT IF EXISTS {check}"
    condition = f"CHECK ({_quote(column)} IS NOT NULL)"
    yield DdlStep(f"{name} ADD CONSTRAINT {check} {condition} NOT VALID", table, undo=(drop,))
    yield DdlStep(f"{name} VALIDATE CONSTRAINT {check}", table, undo=(), scans=True)
    undo = (f"{name} ALTER COLUMN {_quote(column)} DROP NOT NULL",)
    yield DdlStep(words.text, table, undo=undo, not_null=column, scans=True)
    yield DdlStep(f"{name} DROP CONSTRAINT {check}", table, undo=())


def _create_index(words: _Words, roots: Mapping[Name, RootKey]) -> DdlStep:
    at = words.skip(1, "UNIQUE")
    unique = at == 2
    concurrently = words.skip(at + 1, "CONCURRENTLY")
    place = words.skip(concurrently, "IF", "NOT", "EXISTS")
    if words.starts(place, "ON"):
        raise UserError(f"{shown(words.text)}: give the index a name")
    index = words.identifier(place)
    if not words.starts(place + 1, "ON"):
        raise UserError(f"{shown(words.text)}: ON and a table are expected behind the index's name")
    only = words.skip(place + 2, "ONLY")
    table, behind = words.name(only)
    if table not in roots:
        if concurrently != at + 1:
            raise UserError(f"{shown(words.text)}: CONCURRENTLY is for the bundle's sharded tables")
        return DdlStep(words.text, table)
    if only != place + 2:
        raise UserError(f"{shown(words.text)}: ONLY would leave the tablets of {table} without it")
    plan = IndexPlan(index, table, unique, words.rest(behind))
    return DdlStep(words.text, table, plan, undo=(f"DROP INDEX IF EXISTS {_quoted(Name(table.schema, index))}",))


def _several(words: _Words, at: int) -> bool:
    """Whether there is more than one action."""
    return len(_actions(words, at)) > 1


def _actions(words: _Words, at: int) -> list[int]:
    """Where each action begins."""
    depth = 0
    found = [at]
    for place, word in enumerate(words.words[at:], at):
        depth += word.count("(") - word.count(")") if word in ("(", ")") else 0
        if word == "," and depth == 0:
            found.append(place + 1)
    return found


def _alone(words: _Words, several: bool) -> None:
    if several:
        raise UserError(f"{shown(words.text)}: SET NOT NULL and CHECK need a statement of their own")


def _ends_not_valid(words: _Words) -> bool:
    return [word.upper() for word in words.words[-2:]] == ["NOT", "VALID"]


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quoted(name: Name) -> str:
    return f"{_quote(name.schema)}.{_quote(name.name)}"


def undo_of(steps: Sequence[DdlStep]) -> list[tuple[int, tuple[str, ...]]]:
    """What undoes these steps, last one first. Raises `UserError` naming the first that nothing undoes."""
    found = []
    for number in range(len(steps), 0, -1):
        undo = steps[number - 1].undo
        if undo is None:
            raise UserError(f"step {number} cannot be undone: {shown(steps[number - 1].text)}; use --continue")
        found.append((number, undo))
    return found
