"""Which tables of a database belong together as one sharded table, by which key, and which stay as they are. Pure.

`balancer init` reads the facts and writes the answer down as a bundle's file, for a person to change. A key is good if
many bytes have it: every table with that column can be colocated with the others, so that what belongs to one key stays
on one node. Small tables that sharded ones refer to become reference tables, which every node has. Others stay where
they are, and are named.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

SMALL = 0.01
"""Share of all bytes below which a table is not worth sharding for its own sake."""
LITTLE = 16 << 20
"""Bytes up to which a table is small whatever its share: a copy of it on every node costs nothing."""
TIMES = frozenset({"date", "timestamp with time zone"})
"""Types of keys whose newest values are the busiest: such a table is cut into ranges."""
MOST = 8192
"""Tablets that a new table may have."""
_WIDENED = 0.5
"""The weight of a table whose unique keys would have to be widened: the application must agree to it."""


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """Columns of a table that point to those of another one."""

    name: str
    columns: tuple[str, ...]
    table: str
    referenced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A plain table, as far as a proposal looks at it. `columns`: name → type of those that can be keys."""

    name: str
    bytes: int
    columns: tuple[tuple[str, str], ...]
    unique: tuple[tuple[str, ...], ...]
    """The columns of each unique index, the primary key's first."""
    foreign_keys: tuple[ForeignKey, ...] = ()
    identified: bool = True
    """Whether it has a primary key, or another replica identity: changes of its rows can be followed."""


@dataclass(frozen=True, slots=True)
class Group:
    """Tables that become colocated roots of one table."""

    name: str
    roots: tuple[str, ...]
    layout: str
    key: str
    tablets: int
    bytes: int
    widened: tuple[str, ...]
    """Those of the roots whose unique keys must be widened."""
    reason: str


@dataclass(frozen=True, slots=True)
class SmallGroup:
    """Small tables that sharded ones refer to, with what they refer to themselves: one reference table."""

    name: str
    roots: tuple[str, ...]
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Unsharded:
    """A table that stays where it is, and why."""

    table: str
    reason: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """What `init` writes down."""

    groups: tuple[Group, ...]
    left: tuple[Unsharded, ...]
    references: tuple[SmallGroup, ...] = ()


def propose(tables: Sequence[TableFacts], desired: int) -> Proposal:
    """Groups of tables, the largest first; `desired` is the size of a tablet in bytes."""
    total = sum(table.bytes for table in tables) or 1
    groups: list[Group] = []
    rest = {table.name: table for table in tables}
    referred = set().union(*map(_referred, tables))
    while anchor := _anchor(rest.values(), total, referred, first=not groups):
        group = _group(anchor, [*rest.values()], desired, {group.name for group in groups})
        groups.append(group)
        rest = {name: table for name, table in rest.items() if name not in group.roots}
    sharded = {root: group for group in groups for root in group.roots}
    names = {table.name: table for table in tables}
    references = _references(rest, [names[root] for root in sharded], total, {group.name for group in groups})
    copied = {root for reference in references for root in reference.roots}
    left = [
        Unsharded(name, _why_left(table, sharded, names, total)) for name, table in rest.items() if name not in copied
    ]
    return Proposal(tuple(groups), tuple(left), tuple(references))


def _references(
    rest: Mapping[str, TableFacts], sharded: Sequence[TableFacts], total: int, taken: Set[str]
) -> list[SmallGroup]:
    """Those of the rest that sharded tables refer to. A group refers to nothing outside itself."""
    fit = {name for name, table in rest.items() if table.unique and table.bytes <= max(LITTLE, SMALL * total)}
    while odd := [name for name in fit if not _referred(rest[name]) <= fit]:
        fit -= {*odd}
    found: list[SmallGroup] = []
    for name in sorted({foreign.table for table in sharded for foreign in table.foreign_keys} & fit):
        if all(name not in group.roots for group in found):
            roots = _tied(name, {root: rest[root] for root in fit})
            found.append(_small_group(name, [rest[root] for root in roots], sharded, taken | {g.name for g in found}))
    return found


def _referred(table: TableFacts) -> set[str]:
    return {foreign.table for foreign in table.foreign_keys}


def _tied(name: str, fit: Mapping[str, TableFacts]) -> list[str]:
    """A table and all that foreign keys tie to it, in either direction."""
    inside = {name}
    while more := {
        other
        for other, table in fit.items()
        if other not in inside and (_referred(table) & inside or any(other in _referred(fit[one]) for one in inside))
    }:
        inside |= more
    return [name, *sorted(inside - {name})]


def _small_group(
    name: str, members: Sequence[TableFacts], sharded: Sequence[TableFacts], taken: Set[str]
) -> SmallGroup:
    roots = tuple(table.name for table in members)
    users = sorted(table.name for table in sharded if not _referred(table).isdisjoint(roots))
    short = name.rpartition(".")[2]
    return SmallGroup(
        name.replace(".", "_") if short in taken else short,
        roots,
        sum(table.bytes for table in members),
        f"small, and {', '.join(users)} {'refers' if len(users) == 1 else 'refer'} to it: every node gets a copy",
    )


def _anchor(tables: Iterable[TableFacts], total: int, referred: Set[str], *, first: bool) -> TableFacts | None:
    """The largest table that has a column that can be a key; after the first, only those that are worth it."""

    def worth(table: TableFacts) -> bool:
        alone = not table.foreign_keys and (table.bytes > LITTLE or table.name not in referred)
        return table.bytes >= SMALL * total and alone

    fit = [table for table in tables if table.columns and (first or worth(table))]
    return max(fit, key=lambda table: (table.bytes, table.name), default=None)


def _group(anchor: TableFacts, tables: Sequence[TableFacts], desired: int, taken: Set[str]) -> Group:
    preferred = [column for columns in anchor.unique for column in columns]
    scored = [
        (_score(anchor, column, kind, tables), column in preferred, -place, column, kind)
        for place, (column, kind) in enumerate(anchor.columns)
    ]
    _, _, _, key, kind = max(scored)
    members = _members(anchor, key, kind, tables)
    size = sum(table.bytes for table in members)
    widened = tuple(table.name for table in members if _narrow(table, key))
    others = "" if len(members) == 1 else f", which {len(members)} tables have,"
    name = anchor.name.rpartition(".")[2]
    return Group(
        anchor.name.replace(".", "_") if name in taken else name,
        tuple(table.name for table in members),
        "range" if kind in TIMES else "hash",
        key,
        _tablets(size, desired),
        size,
        widened,
        f"{anchor.name} is the largest table; its column {key}{others} keeps most rows of one key together",
    )


def _score(anchor: TableFacts, column: str, kind: str, tables: Sequence[TableFacts]) -> float:
    return sum(
        table.bytes * (_WIDENED if _narrow(table, column) else 1.0)
        for table in tables
        if table is anchor or _shares(table, column, kind)
    )


def _shares(table: TableFacts, column: str, kind: str) -> bool:
    """Whether the column means the same there: what is unique by itself numbers that table's own rows."""
    tied = any(_paired(foreign, column) for foreign in table.foreign_keys)
    return (column, kind) in table.columns and (tied or (column,) not in table.unique)


def _narrow(table: TableFacts, column: str) -> bool:
    return any(column not in columns for columns in table.unique)


def _members(anchor: TableFacts, key: str, kind: str, tables: Sequence[TableFacts]) -> list[TableFacts]:
    """The anchor first, then what can be colocated with it: foreign keys among them must pair the key with itself.

    Tables that would have to be widened come only if a foreign key ties them to the others: a column's name alone is
    not worth another primary key.
    """
    having = {table.name: table for table in tables if table is anchor or _shares(table, key, kind)}
    inside = {anchor.name} | {name for name, table in having.items() if not _narrow(table, key)}
    inside |= {
        name for name, table in having.items() if any(_paired(k, key) and k.table in inside for k in table.foreign_keys)
    }
    while odd := [name for name in inside if name != anchor.name and not _fits(having[name], key, inside)]:
        inside -= {*odd}
    ordered = sorted(inside - {anchor.name}, key=lambda name: (-having[name].bytes, name))
    return [anchor, *(having[name] for name in ordered)]


def _paired(foreign: ForeignKey, key: str) -> bool:
    return (key, key) in zip(foreign.columns, foreign.referenced, strict=True)


def _fits(table: TableFacts, key: str, inside: Set[str]) -> bool:
    return all(_paired(foreign, key) for foreign in table.foreign_keys if foreign.table in inside)


def _tablets(size: int, desired: int) -> int:
    """The power of two with which no tablet is larger than wanted, as far as a bundle's file takes it."""
    count = 1
    while count * desired < size and count < MOST:
        count *= 2
    return count


def _why_left(table: TableFacts, sharded: Mapping[str, Group], names: Mapping[str, TableFacts], total: int) -> str:
    tied = [f"{k.name} to {k.table}" for k in table.foreign_keys if k.table in sharded]
    if tied:
        key = sharded[next(k.table for k in table.foreign_keys if k.table in sharded)].key
        return f"its foreign key {tied[0]} does not pair the key {key}: add the column, or drop the foreign key"
    users = sorted(name for name, other in names.items() if any(k.table == table.name for k in other.foreign_keys))
    if users:
        return f"referenced by {', '.join(users)}, but no reference table: {_why_no_reference(table)}"
    if not table.columns:
        return "no column of it can be a key"
    share = 100 * table.bytes / total
    return f"small ({share:.1f} % of all bytes)"


def _why_no_reference(table: TableFacts) -> str:
    if not table.unique:
        return "it has no primary key"
    if table.foreign_keys:
        foreign = table.foreign_keys[0]
        return f"its foreign key {foreign.name} points to {foreign.table}, which would not have a copy on every node"
    return "it is too large for a copy on every node, or only tables that stay refer to it"


def remarks(proposal: Proposal, tables: Sequence[TableFacts]) -> Iterator[str]:
    """What works, but not well."""
    bare = {table.name for table in tables if not table.identified}
    for group in proposal.groups:
        for root in group.roots:
            if root in bare:
                yield (
                    f"{root} has no primary key: table {group.name} is split and moved in read-only mode, where"
                    " writers wait for the whole copy; with a primary key that has"
                    f" {group.key} in it they wait for milliseconds"
                )


def obstacles(proposal: Proposal, tables: Sequence[TableFacts]) -> Iterator[str]:
    """Foreign keys that would be in the way of the groups, in words."""
    sharded = {root: group for group in proposal.groups for root in group.roots}
    for table in tables:
        for foreign in table.foreign_keys:
            target, mine = sharded.get(foreign.table), sharded.get(table.name)
            if target is not None and mine is not target:
                yield (
                    f"foreign key {foreign.name} of {table.name} points to {foreign.table}, whose tablets could then"
                    " not leave their node: drop it, or put both into one table"
                )
