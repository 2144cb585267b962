"""What a node has is, byte for byte, what that version of our schema has always been.

Nodes keep it for years, and only a step with a new number changes it: a text that differs under an old number would be
on new nodes and not on old ones.
"""

from hashlib import sha256

from balancer.nodes.schema.install import STEPS, install_schema
from balancer.nodes.session.connection import Connection

VERSION = 20
INSTALLED = {
    15: "4ed65e3a0c7d44217b502a49dc7a410b42558349019ce297f5af24758d5ea4e0",
    18: "367e8a9e08972090cbb8d7e3004ad87c0da11d013277a24bf133713a5242050d",
}
"""Of that version of our schema, by PostgreSQL's. Whoever changes a text appends a step, and changes all three."""

_FUNCTIONS = """
    SELECT p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), p.prosrc,
        pg_get_function_sqlbody(p.oid), l.lanname, p.prokind, p.prosecdef, p.provolatile, p.proisstrict, p.proparallel,
        p.proconfig, replace(p.proacl::text, current_user, 'owner'), obj_description(p.oid, 'pg_proc')
    FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
    WHERE p.pronamespace = 'balancer'::regnamespace ORDER BY 1, 2
"""
_RELATIONS = """
    SELECT c.relname, c.relkind, replace(c.relacl::text, current_user, 'owner'), obj_description(c.oid, 'pg_class'),
        ARRAY(SELECT concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
                               pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum))
              FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND c.relkind = 'r' ORDER BY a.attnum),
        ARRAY(SELECT pg_get_constraintdef(k.oid) FROM pg_constraint k
              WHERE k.conrelid = c.oid AND k.contype <> 'n' ORDER BY 1),
        CASE WHEN c.relkind = 'i' THEN pg_get_indexdef(c.oid) END
    FROM pg_class c WHERE c.relnamespace = 'balancer'::regnamespace ORDER BY 1
"""


def test_it_is_what_it_was(connection: Connection) -> None:
    assert install_schema(connection, "shop", "a") == len(STEPS) == VERSION
    found = [connection.execute(query).fetchall() for query in (_FUNCTIONS, _RELATIONS)]
    assert all(len(rows) > 10 for rows in found)
    assert sha256(repr(found).encode()).hexdigest() == INSTALLED[connection.info.server_version // 10_000]


def test_shared_numbers_are_in_it(connection: Connection) -> None:
    """No `{WORD}` is left where a constant belongs."""
    install_schema(connection, "shop", "a")
    left = connection.execute(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'balancer'::regnamespace AND prosrc ~ '{[A-Z_]+}'"
    ).fetchall()
    assert left == []
