"""What a move would refuse, found before there is one: for `doctor`, `node check` and `verify`. Only reads."""

from collections.abc import Iterator, Mapping, Sequence, Set

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.catalog.foreign_keys import outside_keys
from balancer.nodes.catalog.roots import Facts, differences, find_root
from balancer.nodes.catalog.sequences import find_sequences
from balancer.nodes.session.connection import Cursor

_LEAVES = """
    SELECT n.nspname, c.relname, array_remove(ARRAY[
        CASE WHEN c.relpersistence = 'u' THEN 'is unlogged' END,
        CASE WHEN c.relrowsecurity OR EXISTS (SELECT FROM pg_policy WHERE polrelid = c.oid)
             THEN 'has row security policies of its own' END,
        CASE WHEN EXISTS (SELECT FROM pg_rewrite WHERE ev_class = c.oid) THEN 'has rewrite rules' END,
        CASE WHEN c.reltablespace <> 0 THEN 'is in a tablespace of its own' END,
        CASE WHEN c.relkind <> 'r' THEN 'is not an ordinary table' END], NULL)
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE i.inhparent = to_regclass(%s)
      AND (c.relpersistence = 'u' OR c.relrowsecurity OR c.relhasrules OR c.reltablespace <> 0 OR c.relkind <> 'r'
           OR EXISTS (SELECT FROM pg_policy WHERE polrelid = c.oid))
    ORDER BY 1, 2
"""


def root_findings(
    cursor: Cursor, roots: Sequence[Name], key: Sequence[str], others: Set[Name] = frozenset()
) -> Iterator[str]:
    """What is wrong with a table's roots on one node, in words."""
    for root in roots:
        try:
            if find_root(cursor, root, whole=not key) is None:
                yield f"there is no table {root}: no tablet can move here"
        except Refused as error:
            yield str(error)
    yield from outside_keys(cursor, roots, key, others)


def leaf_findings(cursor: Cursor, roots: Sequence[Name]) -> Iterator[str]:
    """Partitions that cannot be carried, and why."""
    for root in roots:
        for schema, name, reasons in cursor.execute(_LEAVES, (str(root),)).fetchall():
            for reason in reasons:
                yield f"partition {Name(schema, name)} {reason}: it cannot be moved"


def column_warnings(cursor: Cursor, roots: Sequence[Name]) -> Iterator[str]:
    """Columns whose values mean less on another node than they seem to."""
    found = cursor.execute(_CACHED, (list(find_sequences(cursor, roots)),)).fetchall()
    for sequence, cache in found:
        yield (
            f"sequence {sequence} has CACHE {cache}: after a move, sessions of the new owner may hand out numbers from"
            f" their cache that the former owner gave out, too: ALTER SEQUENCE {sequence} CACHE 1"
        )
    for root in roots:
        for column, kind in cursor.execute(_OIDS, (str(root),)).fetchall():
            yield f'column "{column}" of {root} is of type {kind}: large objects do not move with their rows'


_CACHED = """
    SELECT seqrelid::regclass::text, seqcache FROM pg_sequence
    WHERE seqrelid = ANY(%s::regclass[]) AND seqcache > 1 ORDER BY 1
"""
_OIDS = """
    SELECT a.attname, format_type(a.atttypid, NULL) FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
      AND 'pg_catalog.oid'::regtype IN (t.oid, t.typbasetype) ORDER BY a.attnum
"""


def compare_roots(facts: Mapping[str, Mapping[Name, Facts]]) -> Iterator[tuple[str, str]]:
    """Node and finding, for each fact in which its copy of a root differs from that of the first node that has it."""
    models: dict[Name, tuple[str, Facts]] = {}
    for node, roots in facts.items():
        for root, mine in roots.items():
            if not mine:
                continue  # it is not there, which is said elsewhere
            model, theirs = models.setdefault(root, (node, mine))
            for text in differences(mine, theirs, node, model):
                yield node, f"{root} differs between the nodes: {text}"
