"""What a conversion finds on the nodes, and everything that is in its way, before anything is touched.

The dry run is this and no more; the conversion itself begins with it. Only reads, except that the roots are made on
nodes that lack them and rolled back at once, because only PostgreSQL can tell what they need there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from balancer.errors import Refused
from balancer.features.convert.plain_table import LEAF, missing_rights_elsewhere
from balancer.features.convert.prepare import find_stub, index_state
from balancer.features.convert.statements import Conversion, read_conversions
from balancer.features.tables.adopt import TableRequest
from balancer.naming import Name, partition_name
from balancer.nodes.catalog.foreign_keys import outside_keys
from balancer.nodes.catalog.owners_code import check_named, check_readable, owners_code, owners_code_words
from balancer.nodes.catalog.roots import full_names
from balancer.nodes.definitions.root import check_no_sequences
from balancer.nodes.session.connection import Connection, Cursor, run_single, translated

_KINDS = """
SELECT n.nspname, c.relname, c.relkind::text,
       (SELECT array_agg(l.relname::text) FROM pg_inherits i JOIN pg_class l ON l.oid = i.inhrelid
        WHERE i.inhparent = c.oid AND c.relkind = 'p')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN unnest(%s::text[], %s::text[]) AS w (schema, name) ON w.schema = n.nspname AND w.name = c.relname
"""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Which node has the tables, and how far a conversion is there."""

    home: str
    converted: bool
    """Whether the swap has happened: the roots are there, each with its one leaf."""
    without: tuple[str, ...]
    """Nodes that have none of them."""


@dataclass(frozen=True, slots=True)
class Intent:
    """What a conversion would do on the node that has the tables."""

    whereabouts: Whereabouts
    conversions: tuple[Conversion, ...]
    """Empty: the swap has happened."""


def look(request: TableRequest, nodes: Mapping[str, Connection]) -> Whereabouts:
    """Who has the tables. Raises `Refused` unless exactly one node has them all, as plain tables or converted."""
    plain, converted, without = [], [], []
    for node, connection in nodes.items():
        with translated(node), connection.cursor() as cursor:
            kinds = _kinds(cursor, request.roots)
        if not kinds:
            without.append(node)
        elif missing := [str(root) for root in request.roots if root not in kinds]:
            there = ", ".join(map(str, kinds))
            raise Refused(f"table {request.name}: node {node} has {there}, but not {', '.join(missing)}")
        elif all(_is_converted(root, *kinds[root]) for root in request.roots):
            converted.append(node)
        elif any(kind != "p" for kind, _ in kinds.values()):
            plain.append(node)
        elif any(leaves for _, leaves in kinds.values()):
            raise Refused(
                f"table {request.name} is partitioned on node {node}: take it over with `balancer table adopt`"
            )
    if len(plain) + len(converted) > 1:
        both = " and ".join((*plain, *converted))
        raise Refused(f"table {request.name}: nodes {both} have it; a plain table is converted where it is on one node")
    if not plain and not converted:
        raise Refused(f"table {request.name}: no node of the bundle has {', '.join(map(str, request.roots))}")
    return Whereabouts((*plain, *converted)[0], bool(converted), tuple(without))


def _kinds(cursor: Cursor, roots: Sequence[Name]) -> dict[Name, tuple[str, Sequence[str]]]:
    rows = cursor.execute(_KINDS, ([root.schema for root in roots], [root.name for root in roots])).fetchall()
    return {Name(schema, name): (kind, leaves or ()) for schema, name, kind, leaves in rows}


def _is_converted(root: Name, kind: str, leaves: Sequence[str]) -> bool:
    return kind == "p" and list(leaves) == [partition_name(root, LEAF).name]


def find_plain(cursor: Cursor, roots: Sequence[Name]) -> bool:
    """Whether all of them are ordinary tables here."""
    kinds = _kinds(cursor, roots)
    return len(kinds) == len(roots) and all(kind == "r" for kind, _ in kinds.values())


def one_leaf(cursor: Cursor, roots: Sequence[Name]) -> bool:
    """Whether all of them are partitioned here and have one partition each."""
    kinds = _kinds(cursor, roots)
    return len(kinds) == len(roots) and all(kind == "p" and len(leaves) == 1 for kind, leaves in kinds.values())


def leaves_of(cursor: Cursor, roots: Sequence[Name]) -> list[Name]:
    """The partitions of all of them."""
    return [Name(root.schema, leaf) for root, (_, leaves) in _kinds(cursor, roots).items() for leaf in leaves]


def plan_conversion(request: TableRequest, nodes: Mapping[str, Connection], *, widen: bool) -> Intent:
    """What would be done; raises `Refused` naming everything that is in the way. Changes nothing."""
    whereabouts = look(request, nodes)
    if whereabouts.converted:
        return Intent(whereabouts, ())
    home = nodes[whereabouts.home]
    with translated(whereabouts.home), home.transaction(), home.cursor() as cursor:
        conversions = read_request(cursor, request, widen=widen)
        refusals = [text for conversion in conversions for text in conversion.refusals]
        if not refusals:
            refusals += outside_keys(cursor, request.roots, request.key, request.others)
            refusals += _of_owners(cursor, request)
            refusals += _names_taken(cursor, conversions)
    if not refusals:
        refusals += _null_keys(request, home, whereabouts.home, conversions)
    if not refusals:
        for node in whereabouts.without:
            refusals += _unfit_node(request, nodes[node], node, conversions)
    if refusals:
        raise Refused(f"table {request.name} on node {whereabouts.home}: {'; '.join(dict.fromkeys(refusals))}")
    return Intent(whereabouts, tuple(conversions))


def read_request(cursor: Cursor, request: TableRequest, *, widen: bool) -> list[Conversion]:
    """What converts the tables as they are now."""
    with full_names(cursor):
        return read_conversions(cursor, request.roots, request.layout, request.key, widen=widen)


def _of_owners(cursor: Cursor, request: TableRequest) -> list[str]:
    if request.trusts_owners:
        return []
    found = [(root, owners_code(cursor, [root])) for root in request.roots]
    return [owners_code_words(root, code) for root, code in found if code]


def _names_taken(cursor: Cursor, conversions: Sequence[Conversion]) -> list[str]:
    found = []
    for conversion in conversions:
        try:
            find_stub(cursor, conversion.plain.name)
            for new in conversion.new_keys:
                index_state(cursor, conversion.plain.name, new)
        except Refused as error:
            found.append(str(error))
    return found


def _null_keys(request: TableRequest, home: Connection, node: str, conversions: Sequence[Conversion]) -> list[str]:
    """Reads the tables whose key may be NULL, each to its end if there is none."""
    found = []
    for conversion in conversions:
        table, nullable = conversion.plain.name, conversion.plain.nullable
        if not nullable:
            continue
        with translated(node), home.transaction(), home.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout TO 0")
            check_readable(cursor, [table], trusted=request.trusts_owners)
            if cursor.execute(conversion.null_key()).fetchone() is not None:
                names = ", ".join(nullable)
                found.append(f"{table} has rows with NULL in its key ({names}): give them a value, or delete them")
    return found


def _unfit_node(request: TableRequest, there: Connection, node: str, conversions: Sequence[Conversion]) -> list[str]:
    """Makes the roots on a node that lacks them and rolls back: only PostgreSQL can tell what they need."""
    rules = [f"{c.plain.name} has the rewrite rule {rule}: make it yourself" for c in conversions for rule in c.rules]
    if rules:
        return [f"it cannot be made on node {node}: {text}" for text in rules]
    try:
        for conversion in conversions:
            own = conversion.own_sequences if request.spreads_sequences else frozenset()
            check_no_sequences(conversion.plain.name, conversion.drawing, own)
        with translated(node), there.transaction(force_rollback=True), there.cursor() as cursor, full_names(cursor):
            plain = [conversion.plain for conversion in conversions]
            rights = [text for one in plain for text in missing_rights_elsewhere(cursor, one.name, one.owner)]
            if rights:
                return [f"it cannot be made on node {node}: {text}" for text in rights]
            for conversion in conversions:
                if not request.trusts_owners:
                    check_named(cursor, conversion.plain.name, conversion.code)
                for statement in conversion.elsewhere:
                    run_single(cursor, statement)
    except Refused as error:
        return [f"it cannot be made on node {node}: {error}"]
    return []
