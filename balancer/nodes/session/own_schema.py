"""Whether the schema `balancer` in a database is the one that we made; checked before anything in it is read or called.

A role that may create schemas could have made one first, with views and functions of its own under our names; they
would run with our rights. So the schema must belong to our role or to a superuser, and nobody else may make things in
it: then everything in it is ours, and stays so. Sent by `connection` on every new connection, and again by code that
uses connections opened earlier, in the same message as the use.

Also whether it was made for this cluster: the leader of another directory has an epoch of its own, and would shut out
the node's own leader by raising the one that is recorded there. Directories are told apart by name and by identity.
"""

from typing import Any, NamedTuple

import psycopg

_HEAD = """
DO $own$
DECLARE
    home oid := (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = 'balancer');
    us CONSTANT oid[] := ARRAY(SELECT oid FROM pg_catalog.pg_roles WHERE rolsuper OR rolname = current_user);
    wrong text;
BEGIN
"""

_SCHEMA = """
    SELECT CASE
        WHEN NOT nspowner = ANY (us) THEN format(
            'schema balancer belongs to %I, not to tablet-balancer''s role %I: drop it or rename it',
            pg_get_userbyid(nspowner), current_user)
        ELSE (SELECT format('schema balancer lets %s make things in it: REVOKE CREATE ON SCHEMA balancer FROM %1$s',
                            CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END)
              FROM aclexplode(nspacl) a
              WHERE a.privilege_type = 'CREATE' AND NOT a.grantee = ANY (us) LIMIT 1)
        END INTO wrong FROM pg_namespace WHERE oid = home;
"""

_CONTENTS = """
    IF wrong IS NULL AND home IS NOT NULL THEN
        SELECT CASE
            WHEN NOT c.relowner = ANY (us) THEN format(
                'balancer.%I belongs to %I, not to tablet-balancer''s role %I',
                c.relname, pg_get_userbyid(c.relowner), current_user)
            ELSE format('balancer.%I is not the ordinary table that tablet-balancer made', c.relname)
            END INTO wrong
        FROM pg_class c
        WHERE c.relnamespace = home AND c.relname IN ('node', 'tablet', 'marker', 'ddl_step', 'decision',
                                                             'message_table', 'message_handler')
          AND (NOT c.relowner = ANY (us) OR c.relkind <> 'r' OR c.relpersistence <> 'p' OR c.relrowsecurity
               OR EXISTS (SELECT FROM pg_rewrite w WHERE w.ev_class = c.oid)
               OR EXISTS (SELECT FROM pg_inherits i WHERE c.oid IN (i.inhrelid, i.inhparent)))
        LIMIT 1;
    END IF;
    IF wrong IS NULL AND home IS NOT NULL THEN
        SELECT format('balancer.%I belongs to %I, not to tablet-balancer''s role %I',
                      p.proname, pg_get_userbyid(p.proowner), current_user) INTO wrong
        FROM pg_proc p WHERE p.pronamespace = home AND NOT p.proowner = ANY (us) LIMIT 1;
    END IF;
"""

_ABSENT = """
    IF home IS NULL THEN
        RAISE EXCEPTION 'schema balancer is not here' USING ERRCODE = 'invalid_schema_name';
    END IF;
"""

_TAIL = """
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION '%', wrong USING ERRCODE = 'TB006';
    END IF;
END $own$
"""

IF_THERE = _HEAD + _SCHEMA + _CONTENTS + _TAIL
"""Fails if there is such a schema and it, or a part of it, is not ours."""

REQUIRED = _HEAD + _ABSENT + _SCHEMA + _TAIL
"""Also fails if there is none, and checks only the schema itself, which is cheap: sent before every use."""

SURELY = """
SELECT NOT EXISTS (
    SELECT FROM pg_catalog.pg_namespace n WHERE n.nspname = 'balancer' AND (
        n.nspowner <> pg_catalog.quote_ident(current_user)::pg_catalog.regrole
        OR EXISTS (SELECT FROM pg_catalog.aclexplode(n.nspacl) a
                   WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner)
        OR EXISTS (SELECT FROM pg_catalog.pg_class c
                   WHERE c.relnamespace = n.oid AND c.relname IN ('node', 'tablet', 'marker', 'ddl_step', 'decision',
                                                                  'message_table', 'message_handler')
                     AND (c.relowner <> n.nspowner OR c.relkind <> 'r' OR c.relpersistence <> 'p' OR c.relrowsecurity
                          OR c.relhasrules OR c.relhassubclass OR c.relispartition
                          OR EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid)))
        OR EXISTS (SELECT FROM pg_catalog.pg_proc p
                   WHERE p.pronamespace = n.oid AND p.proowner <> n.nspowner))),
    EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = 'balancer' AND c.relname = 'node')
"""
"""First, true only where `IF_THERE` passes: if everything belongs to our own role and is as we made it, found out at
half the cost. Where it is false something may belong to a superuser, which is also fine: `IF_THERE` decides. Second,
whether the database is a node at all."""

_PLANNED = '"balancer ours"'
_US = "ARRAY(SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolsuper OR r.rolname = current_user)"
PREPARE = f"""
PREPARE {_PLANNED} AS SELECT CASE WHEN EXISTS (
    SELECT FROM pg_catalog.pg_namespace n
    WHERE n.nspname = 'balancer' AND n.nspowner = ANY ({_US})
      AND NOT EXISTS (SELECT FROM pg_catalog.aclexplode(n.nspacl) a
                      WHERE a.privilege_type = 'CREATE' AND NOT a.grantee = ANY ({_US})))
    THEN 0 ELSE ('not ours, says ' || current_user)::int END
"""  # noqa: S608 - nothing here comes from outside
"""What `REQUIRED` looks for, planned once for a connection: a block costs a server ten times as much, and writers wait
for it. It fails by casting a text that is not a number; `REQUIRED` then says in words what is wrong."""

EXECUTE = f"EXECUTE {_PLANNED}"
"""Fails where `REQUIRED` does, on a connection on which `PREPARE` was sent."""


class Belonging(NamedTuple):
    """Which node of which cluster a database is."""

    cluster: str
    node: str
    identity: str
    """Of the directory; empty: no leader that has one has worked here yet."""
    tells: bool
    """Whether our schema there knows identities at all: those of former versions do not."""


# A former version's table has no such columns.
_BELONGS = """
SELECT n.cluster, n.node, coalesce(d.j ->> 'identity', '') AS identity, d.j ? 'identity'
FROM balancer.node n, LATERAL (SELECT to_jsonb(n) AS j) d
"""


def belongs_to(connection: psycopg.Connection[Any]) -> Belonging | None:
    """Which node this database is; None: not of any cluster. The schema is known to be ours."""
    there = connection.execute("SELECT pg_catalog.to_regclass('balancer.node') IS NOT NULL").fetchone()
    return read_belonging(connection) if there and there[0] else None


def read_belonging(connection: psycopg.Connection[Any]) -> Belonging | None:
    """The same, for a database that has our schema."""
    row = connection.execute(_BELONGS).fetchone()
    return None if row is None else Belonging(*row)
