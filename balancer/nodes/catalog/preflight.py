"""What a node must offer before tablets may live on it: versions, settings, privileges, replica identities.

Each finding is a sentence with the statement that fixes it and what follows if nobody does. Only reads.

The script that gives a role what the balancer needs on a node, and no more: no superuser where that is possible.

Run by a superuser in the node's database, once or repeatedly. It finds out versions and owners by itself, so writing it
needs no connection. `preflight` checks what it gives.

Who may send messages from a table, and for which of them the balancer's role cannot deliver: for the preflight.

A message is applied with the rights of the role that sent it, which is its session's role. Only reads.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

from psycopg import sql

from balancer.naming import Name
from balancer.nodes.catalog.findings import column_warnings, leaf_findings, root_findings
from balancer.nodes.catalog.owners_code import owners_findings
from balancer.nodes.session.connection import Connection, Cursor

OLDEST, NEWEST = 15, 18
SUBSCRIPTIONS_WITHOUT_SUPERUSER = 16
STARTS_EACH_AT_ONCE = 16
"""From this version on, each new subscription's worker starts at once, no matter when another's did."""
SLOW_LAUNCH = 1.0


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"  # the node cannot be used
    LIMIT = "limit"  # moves run in read-only mode: writers wait while rows are copied
    WARNING = "warning"  # it works, but something may go wrong under load


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One thing that is missing."""

    level: Severity
    subject: str
    text: str
    remedy: str = ""
    """The statement that fixes it; empty: there is none."""


@dataclass(frozen=True, slots=True)
class TableNeeds:
    """A table of the bundle: its roots and key, as the file has them."""

    roots: tuple[Name, ...]
    key: tuple[str, ...]
    name: str = ""
    messages: bool = False
    """Whether the file declares messages for it; a table without any may send."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What this bundle needs from a node."""

    tables: tuple["TableNeeds", ...] = ()
    moves: int = 2
    """Moves that may touch a node at once, as source and as target."""
    trusts_owners: bool = False
    """Whether code of the tables' owners may run with our rights."""

    @property
    def roots(self) -> tuple[Name, ...]:
        return tuple(root for table in self.tables for root in table.roots)


def preflight(connection: Connection, needs: Needs) -> list[Shortfall]:
    """Everything that is missing, worst first."""
    with connection.cursor() as cursor:
        facts = _read_facts(cursor)
        found = [finding for check in _CHECKS for finding in check(facts, needs)]
        found += _roots(cursor, facts, needs.roots)
        for table in needs.tables:
            found += _table(cursor, table, frozenset(needs.roots))
            found += _senders(cursor, facts, table)
            found += _owners_code(cursor, table) if not needs.trusts_owners else ()
    return sorted(found, key=lambda finding: list(Severity).index(finding.level))


def why_not_send(cursor: Cursor) -> str:
    """What keeps this server from streaming changes to another, in words; empty: nothing that lasts."""
    facts = _read_facts(cursor)
    if facts.wal_level != "logical":
        return f"wal_level is {facts.wal_level}, so changes cannot be streamed"
    for name, total in (("max_replication_slots", facts.slots), ("max_wal_senders", facts.senders)):
        if total == 0:
            return f"{name} is 0, so changes cannot be streamed"
    return "" if facts.replication else f"role {facts.role} may not create replication slots"


def why_not_receive(cursor: Cursor) -> str:
    """What keeps this server from applying another's changes, in words; empty: nothing that lasts."""
    facts = _read_facts(cursor)
    if facts.appliers == 0:
        return "max_logical_replication_workers is 0, so changes cannot be applied"
    return "" if facts.subscriptions else f"role {facts.role} may not create subscriptions"


@dataclass(frozen=True, slots=True)
class _Facts:
    major: int
    role: str
    database: str
    superuser: bool
    replication: bool
    monitor: bool
    subscriptions: bool
    create: bool
    encoding: str
    in_recovery: bool
    wal_level: str
    wal_keep: int
    slots_free: int
    slots: int
    senders_free: int
    senders: int
    appliers: int
    workers: int
    prepared: int
    launches: float
    """Seconds between two starts of workers that apply a stream."""


_FACTS = """
SELECT current_setting('server_version_num')::int / 10000, r.rolname, current_database(), r.rolsuper,
       r.rolsuper OR r.rolreplication, pg_has_role('pg_monitor', 'USAGE'),
       CASE WHEN r.rolsuper THEN true
            ELSE EXISTS (SELECT FROM pg_roles s WHERE s.rolname = 'pg_create_subscription'
                         AND pg_has_role(s.oid, 'USAGE')) END,
       has_database_privilege(current_database(), 'CREATE'),
       current_setting('server_encoding'), pg_is_in_recovery(), current_setting('wal_level'),
       (SELECT setting::int FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
       current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots)::int,
       current_setting('max_replication_slots')::int,
       current_setting('max_wal_senders')::int - (SELECT count(*) FROM pg_stat_replication)::int,
       current_setting('max_wal_senders')::int,
       current_setting('max_logical_replication_workers')::int, current_setting('max_worker_processes')::int,
       current_setting('max_prepared_transactions')::int,
       (SELECT setting::float8 / 1000 FROM pg_settings WHERE name = 'wal_retrieve_retry_interval')
FROM pg_roles r WHERE r.rolname = current_user
"""


def _read_facts(cursor: Cursor) -> _Facts:
    row = cursor.execute(_FACTS).fetchone()
    assert row is not None
    return _Facts(*row)


def _server(facts: _Facts, needs: Needs) -> Iterator[Shortfall]:
    if not OLDEST <= facts.major <= NEWEST:
        yield Shortfall(
            Severity.ERROR, "version", f"PostgreSQL {facts.major} is not supported; {OLDEST} to {NEWEST} are"
        )
    if facts.encoding != "UTF8":
        text = f"the database's encoding is {facts.encoding}; text keys are hashed as UTF8"
        yield Shortfall(Severity.ERROR, "encoding", text, "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0")
    if facts.in_recovery:
        yield Shortfall(Severity.ERROR, "recovery", "the server is a standby: name its primary in the DSN")


def _settings(facts: _Facts, needs: Needs) -> Iterator[Shortfall]:
    if facts.wal_level != "logical":
        text = f"wal_level is {facts.wal_level}, so changes cannot be streamed; a restart is needed"
        yield _setting(Severity.LIMIT, "wal_level", text, "'logical'")
    if facts.prepared == 0:
        text = "max_prepared_transactions is 0: transactions over several nodes (router.atomic) are refused here"
        yield _setting(Severity.WARNING, "max_prepared_transactions", f"{text}; a restart is needed", 100)
    if facts.major < STARTS_EACH_AT_ONCE and facts.launches > SLOW_LAUNCH:
        text = (
            f"wal_retrieve_retry_interval is {facts.launches:g} s: PostgreSQL {facts.major} starts one stream in that"
            " time, and moves to this node that follow each other wait as long before they switch"
        )
        yield _setting(Severity.WARNING, "wal_retrieve_retry_interval", text, "'200ms'")
    if facts.wal_keep < 0:
        text = "max_slot_wal_keep_size is not limited: an abandoned replication slot can fill the disk"
        yield _setting(Severity.WARNING, "max_slot_wal_keep_size", text, "'16GB'")
    for name, free, total in (
        ("max_replication_slots", facts.slots_free, facts.slots),
        ("max_wal_senders", facts.senders_free, facts.senders),
    ):
        if free < needs.moves:
            text = f"{name} is {total} and leaves {free} free, but {needs.moves} moves at once need as many"
            yield _setting(Severity.LIMIT, name, f"{text}; a restart is needed", total + needs.moves - free)
    # Each subscription has an apply worker; PostgreSQL's own launcher takes one of the processes.
    for name, total, least in (
        ("max_logical_replication_workers", facts.appliers, needs.moves),
        ("max_worker_processes", facts.workers, needs.moves + 1),
    ):
        if total < least:
            text = f"{name} is {total}, but {needs.moves} moves at once need {least}; a restart is needed"
            yield _setting(Severity.LIMIT, name, text, least)


def _setting(level: Severity, name: str, text: str, value: object) -> Shortfall:
    return Shortfall(level, name, text, f"ALTER SYSTEM SET {name} = {value}")


def _privileges(facts: _Facts, needs: Needs) -> Iterator[Shortfall]:
    role = facts.role
    if not facts.create:
        text = f"role {role} may not create the balancer's schema and publications in database {facts.database}"
        yield Shortfall(Severity.ERROR, "CREATE", text, f'GRANT CREATE ON DATABASE "{facts.database}" TO "{role}"')
    if not facts.monitor:
        text = f"role {role} may not see other sessions' locks and the server's statistics"
        yield Shortfall(Severity.ERROR, "pg_monitor", text, f'GRANT pg_monitor TO "{role}"')
    if not facts.replication:
        text = f"role {role} may not create replication slots: moves run in read-only mode"
        yield Shortfall(Severity.LIMIT, "REPLICATION", text, f'ALTER ROLE "{role}" REPLICATION')
    if not facts.subscriptions:
        if facts.major < SUBSCRIPTIONS_WITHOUT_SUPERUSER:
            text = f"PostgreSQL {facts.major} lets only superusers create subscriptions: moves run in read-only mode"
            yield Shortfall(Severity.LIMIT, "subscriptions", text, f'ALTER ROLE "{role}" SUPERUSER')
        else:
            text = f"role {role} may not create subscriptions: moves to this node run in read-only mode"
            yield Shortfall(Severity.LIMIT, "pg_create_subscription", text, f'GRANT pg_create_subscription TO "{role}"')


_CHECKS: tuple[Callable[[_Facts, Needs], Iterator[Shortfall]], ...] = (_server, _settings, _privileges)


def _table(cursor: Cursor, table: TableNeeds, all_roots: Set[Name]) -> Iterator[Shortfall]:
    """What a move would refuse; missing roots are made when the table is adopted."""
    there = [root for root in table.roots if _visible(cursor, root)]
    for text in root_findings(cursor, there, table.key, all_roots - {*table.roots}):
        yield Shortfall(Severity.ERROR, str(there[0]), text)
    for text in (*leaf_findings(cursor, there), *column_warnings(cursor, there)):
        yield Shortfall(Severity.WARNING, str(there[0]), text)


def _senders(cursor: Cursor, facts: _Facts, table: TableNeeds) -> Iterator[Shortfall]:
    if facts.superuser or not (table.messages or takes_messages(cursor, table.name)):
        return
    for sender in unreachable_senders(cursor, table.roots[0], facts.major):
        text = f"role {facts.role} may not act as {sender}, who may send messages from table {table.name}: they wait"
        remedy = sql.SQL("GRANT {} TO {}").format(sql.Identifier(sender), sql.Identifier(facts.role)).as_string(cursor)
        yield Shortfall(Severity.WARNING, "messages", f"{text} when it cannot deliver them itself", remedy)


def _owners_code(cursor: Cursor, table: TableNeeds) -> Iterator[Shortfall]:
    for name, text in owners_findings(cursor, table.roots):
        yield Shortfall(Severity.ERROR, str(name), text)


def _visible(cursor: Cursor, root: Name) -> bool:
    row = cursor.execute(_VISIBLE, root).fetchone()
    return row is not None


_VISIBLE = """
SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND has_schema_privilege(n.oid, 'USAGE')
"""

_ROOTS = """
SELECT pg_get_userbyid(c.relowner), pg_has_role(c.relowner, 'USAGE'),
       has_schema_privilege(c.relnamespace, 'CREATE'),
       c.relreplident IN ('f', 'i')
           OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND c.relreplident = 'd')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""


def _roots(cursor: Cursor, facts: _Facts, roots: Sequence[Name]) -> Iterator[Shortfall]:
    for root in roots:
        row = cursor.execute(_ROOTS, root).fetchone()
        if row is None:
            yield from _missing_root(cursor, facts, root)
            continue
        owner, member, create, identity = row
        if not member:
            text = f"role {facts.role} does not act for {owner}, who owns {root}, and so cannot attach its partitions"
            yield Shortfall(Severity.ERROR, str(root), text, f'GRANT "{owner}" TO "{facts.role}"')
        if not create:
            text = f"role {facts.role} may not create partitions in the schema of {root}"
            remedy = f'GRANT USAGE, CREATE ON SCHEMA "{root.schema}" TO "{facts.role}"'
            yield Shortfall(Severity.ERROR, str(root), text, remedy)
        if not identity:
            text = f"{root} has no primary key and no other replica identity: it moves in read-only mode"
            yield Shortfall(Severity.LIMIT, str(root), text, f"ALTER TABLE {root} ADD PRIMARY KEY (…)")


def _missing_root(cursor: Cursor, facts: _Facts, root: Name) -> Iterator[Shortfall]:
    """A node may lack the roots until a table is created, converted or adopted; then they are made."""
    allowed = "SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %s"
    if cursor.execute(allowed, (root.schema,)).fetchone() == (False,):
        text = f"{root} is not here yet, and role {facts.role} may not create it"
        remedy = f'GRANT USAGE, CREATE ON SCHEMA "{root.schema}" TO "{facts.role}"'
        yield Shortfall(Severity.WARNING, str(root), text, remedy)


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


# The schema may be closed to a role that is being checked: it is asked before the table in it is read.
_MAY_ASK = """
SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'balancer' AND c.relname = 'message_table' AND has_schema_privilege(n.oid, 'USAGE')
  AND has_table_privilege(c.oid, 'SELECT')
"""
# Before version 16 every member may act as the role; since then a membership may exclude that.
_SENDERS = """
SELECT r.rolname FROM pg_roles r, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND r.rolcanlogin AND NOT r.rolsuper
  AND has_schema_privilege(r.oid, n.oid, 'USAGE') AND has_table_privilege(r.oid, c.oid, 'INSERT, UPDATE, DELETE')
  AND NOT pg_has_role(r.oid, %s)
ORDER BY 1
"""
_SET_SINCE = 16


def takes_messages(cursor: Cursor, table: str) -> bool:
    """Whether this node has been told that the table takes part in messages."""
    if cursor.execute(_MAY_ASK).fetchone() is None:
        return False
    return cursor.execute("SELECT FROM balancer.message_table WHERE name = %s", (table,)).fetchone() is not None


def unreachable_senders(cursor: Cursor, root: Name, major: int) -> list[str]:
    """Roles that can log in and write to the root, but as which we may not act."""
    right = "SET" if major >= _SET_SINCE else "MEMBER"
    return [str(name) for (name,) in cursor.execute(_SENDERS, (*root, right)).fetchall()]
