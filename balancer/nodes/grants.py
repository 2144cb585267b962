"""The script that gives a role what the balancer needs on a node, and no more: no superuser where that is possible.

Run by a superuser in the node's database, once or repeatedly. It finds out versions and owners by itself, so writing it
needs no connection. `preflight` checks what it gives.
"""

from collections.abc import Sequence

from psycopg import sql

from balancer.nodes.names import Name

_HEAD = """\
-- What tablet-balancer needs in this database. Run it as a superuser, in the database itself; it may be run again.
-- Afterwards give the role a password: \\password {role}
-- Settings of the server (wal_level = logical and others) are named by: balancer node check
"""

_BODY = """
DO $grant$
DECLARE
    balancer constant name := {role};
    forward constant name := {forward};
    other name;
    root record;
    part record;
BEGIN
    -- The login by which other nodes reach tablets here (forwarding = true). Triggers of the tables' owners run with
    -- its rights, so it gets none; the balancer lets it use its own views in balancer_here.
    IF forward <> '' AND NOT EXISTS (SELECT FROM pg_roles WHERE rolname = forward) THEN
        EXECUTE format('CREATE ROLE %I LOGIN NOSUPERUSER NOINHERIT', forward);
    END IF;
    IF forward <> '' THEN
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), forward);
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = balancer) THEN
        EXECUTE format('CREATE ROLE %I LOGIN', balancer);
    END IF;
    -- Replication slots, from which moves stream their changes.
    EXECUTE format('ALTER ROLE %I REPLICATION', balancer);
    -- Sizes, counters, locks and sessions.
    EXECUTE format('GRANT pg_monitor TO %I', balancer);
    -- Ending sessions that keep a lock from us, with terminate_blockers = true and never without it. It lets a role end
    -- any session that is not a superuser's; take it away (REVOKE pg_signal_backend) where you do not use that setting.
    EXECUTE format('GRANT pg_signal_backend TO %I', balancer);
    -- Questions about the keys of a hot tablet that are not counted as its load.
    EXECUTE format('GRANT SET ON PARAMETER track_counts TO %I', balancer);
    -- CREATE SUBSCRIPTION and CREATE USER MAPPING have a password in them: these keep it out of the server's log.
    EXECUTE format('GRANT SET ON PARAMETER log_statement, log_min_error_statement, log_min_duration_statement,'
                   ' log_min_duration_sample, log_transaction_sample_rate, track_activities TO %I', balancer);
    -- Our schema and the publications of moves.
    EXECUTE format('GRANT CONNECT, CREATE ON DATABASE %I TO %I', current_database(), balancer);
    IF current_setting('server_version_num')::int >= 160000 THEN
        EXECUTE format('GRANT pg_create_subscription TO %I', balancer);
    ELSE
        RAISE NOTICE 'PostgreSQL 15 lets only superusers create subscriptions: moves will run in read-only mode';
    END IF;
    -- Tables that are not here yet are made here, with the owners that they have on other nodes.
    FOR other IN SELECT nspname FROM pg_namespace WHERE nspname = ANY ({schemas}::text[]) LOOP
        EXECUTE format('GRANT USAGE, CREATE ON SCHEMA %I TO %I', other, balancer);
    END LOOP;
    FOREACH other IN ARRAY {owners}::name[] LOOP
        IF EXISTS (SELECT FROM pg_roles WHERE rolname = other AND rolsuper) THEN
            RAISE EXCEPTION '% is a superuser: a table of the balancer''s needs an owner that is none', other;
        ELSIF other <> balancer THEN
            EXECUTE format('GRANT %I TO %I', other, balancer);
        END IF;
    END LOOP;
    -- Only a table's owner can attach and detach its partitions.
    FOR root IN
        SELECT c.oid, c.oid::regclass AS name, n.nspname, r.rolname AS owner, r.rolsuper
        FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_roles r ON r.oid = c.relowner
        JOIN unnest({schemas}::text[], {names}::text[]) AS wanted (schema, name)
            ON wanted.schema = n.nspname AND wanted.name = c.relname
    LOOP
        IF root.owner = balancer THEN
            CONTINUE;
        ELSIF root.rolsuper THEN
            -- Acting for a superuser would be as much as being one: the table gets a new owner instead.
            EXECUTE format('ALTER TABLE %s OWNER TO %I', root.name, balancer);
            FOR part IN SELECT inhrelid::regclass AS name FROM pg_inherits WHERE inhparent = root.oid LOOP
                EXECUTE format('ALTER TABLE %s OWNER TO %I', part.name, balancer);
            END LOOP;
        ELSE
            EXECUTE format('GRANT %I TO %I', root.owner, balancer);
        END IF;
    END LOOP;
END $grant$;
"""


def grant_script(role: str, roots: Sequence[Name], forward: str = "", owners: Sequence[str] = ()) -> str:
    """SQL text for a superuser to run in the node's database.

    `forward` is the login of other nodes, if any; `owners` are those of tables that the node does not have yet.
    """
    body = sql.SQL(_BODY).format(
        role=sql.Literal(role),
        forward=sql.Literal(forward),
        owners=sql.Literal([*owners]),
        schemas=sql.Literal([root.schema for root in roots]),
        names=sql.Literal([root.name for root in roots]),
    )
    return _HEAD.format(role=role) + body.as_string(None)
