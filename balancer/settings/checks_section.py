"""Rules between the keys of `[checks]` and the tables of the bundle: what a type alone cannot say."""

from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Protocol

from balancer.policies.check_options import CheckOptions, Invariant, OrphanRule


class _Table(Protocol):
    @property
    def roots(self) -> tuple[str, ...]: ...

    @property
    def layout(self) -> str: ...


def check_checks(options: CheckOptions, tables: Mapping[str, _Table]) -> Iterator[tuple[str, str]]:
    """Everything that is wrong, with the key."""
    if not 0 < options.share <= 1:
        yield "share", "must be greater than 0 and at most 1"
    for name in ("every", "statement_timeout", "message_age"):
        if getattr(options, name) <= 0:
            yield name, "must be longer than 0s"
    names: set[str] = set()
    for number, invariant in enumerate(options.invariants):
        for key, message in _invariant(invariant, tables):
            yield f"invariants.{number}.{key}", message
        if invariant.name in names:
            yield f"invariants.{number}.name", f"{invariant.name!r} is the name of another invariant too"
        names.add(invariant.name)
    for number, rule in enumerate(options.orphans):
        for key, message in _orphans(rule, tables):
            yield f"orphans.{number}.{key}", message
    for number, ids in enumerate(options.ids):
        if ids.table not in tables or tables[ids.table].layout == "everywhere":
            yield f"ids.{number}.table", _no_table(ids.table, tables)
        elif ids.root and _full(ids.root) not in tables[ids.table].roots:
            yield f"ids.{number}.root", f"table {ids.table} has no root {ids.root}"


def _invariant(invariant: Invariant, tables: Mapping[str, _Table]) -> Iterator[tuple[str, str]]:
    if not invariant.name.strip():
        yield "name", "must say what is promised, in a few words"
    if bool(invariant.sql.strip()) == bool(invariant.sum.strip()):
        yield "sql", "give either sql, which must return no rows, or sum, which returns one number per tablet"
    if invariant.equals is not None and not invariant.sum.strip():
        yield "equals", "only works with sum"
    table = tables.get(invariant.table)
    if table is None or table.layout == "everywhere":
        yield "table", _no_table(invariant.table, tables)
        return
    known = {*table.roots, *(root.rpartition(".")[2] for root in table.roots)}
    key = "sum" if invariant.sum.strip() else "sql"
    try:
        named = {name for _, name, _, _ in Formatter().parse(invariant.sum or invariant.sql) if name is not None}
    except ValueError as error:
        yield key, f"{error}: write literal braces twice"
        return
    if not named or not named <= known:
        allowed = " or ".join(f"{{{root}}}" for root in sorted(known))
        yield key, f"must name the tablet's partitions: write {allowed} in place of the table's name"


def _orphans(rule: OrphanRule, tables: Mapping[str, _Table]) -> Iterator[tuple[str, str]]:
    child, parent = _full(rule.child), _full(rule.parent)
    roots = [(table.roots, table.layout) for table in tables.values()]
    mine = [own for own, layout in roots if child in own and layout != "everywhere"]
    if not mine:
        yield "child", f"no sharded table of the bundle has the root {rule.child}"
    elif not any(parent in own and (own is mine[0] or layout == "everywhere") for own, layout in roots):
        yield "parent", f"{rule.parent} is neither colocated with {rule.child} nor a reference table"
    if not rule.columns:
        yield "columns", "must name at least one column"
    elif rule.references and len(rule.references) != len(rule.columns):
        yield "references", f"has {len(rule.references)} columns, and columns has {len(rule.columns)}"


def _full(root: str) -> str:
    return root if "." in root else f"public.{root}"


def _no_table(name: str, tables: Mapping[str, _Table]) -> str:
    known = ", ".join(sorted(name for name, table in tables.items() if table.layout != "everywhere")) or "none"
    return f"there is no sharded table {name!r} in the bundle; there are: {known}"
