"""A tablet's partition in one root: made next to the root, completed, attached; detached and dropped. Statements only.

Migrations call these inside a `node_transaction` of the node, except `detach`, which PostgreSQL does not allow in one.
Only `drop_partition` drops a partition, after checking that it is detached.

Empty partitions of a new table, made and, if that fails, removed again.

Called by `balancer.features.tables`. Migrations deal with partitions that hold rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.catalog.bounds import KeyColumn, Part, check_expression, for_values
from balancer.nodes.catalog.roots import Root
from balancer.nodes.catalog.shapes import Constraint, Index, Shape, Trigger
from balancer.nodes.schema.proof import bury, readers_kept_out
from balancer.nodes.session.connection import Connection, Cursor, Statement, printed, run_single


@dataclass(frozen=True, slots=True)
class Place:
    """A partition, its root, and the part of the key space it holds."""

    root: Name
    partition: Name
    columns: tuple[KeyColumn, ...]
    part: Part


def create_twin(cursor: Cursor, root: Name, shape: Shape, partition: Name) -> None:
    """Makes a detached, empty twin of the partition that `shape` describes, without keys and indexes.

    It takes the columns from the root, so that it can be attached, and from the shape whatever was set only on the
    original. It is ours until `give_to_owner`, and ours alone until `grant`.
    """
    name = partition.identifier
    cursor.execute(
        sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL EXCLUDING INDEXES EXCLUDING IDENTITY)").format(
            name, root.identifier
        )
    )
    take_defaults_away(cursor, partition)
    alter = sql.SQL("ALTER TABLE {} ").format(name)
    for column in shape.columns:
        for clause in _column_clauses(column.name, shape):
            run_single(cursor, alter + clause)
        if column.comment is not None:
            cursor.execute(
                sql.SQL("COMMENT ON COLUMN {}.{} IS {}").format(name, sql.Identifier(column.name), column.comment)
            )
    if shape.options:
        cursor.execute(alter + option_clause(shape.options))
    if shape.toast_options:
        cursor.execute(alter + option_clause(shape.toast_options, "toast"))
    for check in shape.constraints:
        if check.kind == "c" and check.own:
            _add_constraint(cursor, name, check)
    if shape.comment is not None:
        cursor.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(name, shape.comment))


def give_to_owner(cursor: Cursor, shape: Shape, partition: Name) -> None:
    """In the transaction that attaches it: earlier, its owner could add a check that our copy would run."""
    cursor.execute(owner_statement(shape, partition))


def owner_statement(shape: Shape, partition: Name) -> sql.Composed:
    """What `give_to_owner` sends."""
    alter = sql.SQL("ALTER TABLE {} OWNER TO {}")
    return alter.format(partition.identifier, sql.Identifier(shape.owner))


def grant(cursor: Cursor, shape: Shape, partition: Name) -> None:
    """Gives the rights on the original to the same roles, while it is still ours. Idempotent.

    Not before it is guarded, or attached: what somebody writes to a copy by its own name may be thrown away with it.
    """
    for role, privilege, grantable in shape.grants:
        grantee = sql.SQL("PUBLIC") if role == "public" else sql.Identifier(role)
        option = " WITH GRANT OPTION" if grantable else ""
        cursor.execute(sql.SQL("GRANT " + privilege + " ON {} TO {}" + option).format(partition.identifier, grantee))


def set_replica_identity(cursor: Cursor, shape: Shape, partition: Name) -> None:
    """FULL or NOTHING as on the original; an index was chosen when it was built."""
    if shape.replica_identity in ("f", "n"):
        word = "FULL" if shape.replica_identity == "f" else "NOTHING"
        cursor.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY " + word).format(partition.identifier))


def analyze(partition: Name) -> sql.Composed:
    """The statement that gives the planner statistics before the first query comes."""
    return sql.SQL("ANALYZE {}").format(partition.identifier)


def count_rows(cursor: Cursor, partition: Name) -> int:
    """How many rows it has; reads all of it."""
    cursor.execute(sql.SQL("SELECT count(*) FROM ONLY {}").format(partition.identifier))
    found = cursor.fetchone()
    assert found is not None, "an aggregate has one row"
    return int(found[0])


def build_index(cursor: Cursor, shape: Shape, index: Index, partition: Name) -> None:
    """Builds one index of the shape on its twin; readers continue meanwhile."""
    name = index_name(index.name, shape.name, partition)
    if index.tail is None:
        raise Refused(f"the index {index.name} of {shape.name} has a definition that is not understood")
    word = "UNIQUE INDEX" if index.unique else "INDEX"
    create = sql.SQL("CREATE " + word + " {} ON {} ").format(sql.Identifier(name), partition.identifier)
    run_single(cursor, create + printed(index.tail))


def share_workers(connection: Connection, workers: int | None, sessions: int) -> None:
    """How many parallel workers an index of this session gets; None: its share of the server's own setting, as one of
    this many sessions at work. Workers sort through files: where others use the cores anyway, an index that one process
    sorts in memory costs a third less."""
    connection.execute(
        "SELECT set_config('max_parallel_maintenance_workers',"
        " coalesce(%s, current_setting('max_parallel_maintenance_workers')::int / %s)::text, false)",
        (workers, sessions),
    )


def index_exists(cursor: Cursor, shape: Shape, index: Index, partition: Name) -> bool:
    """Whether the twin has it. It is built in one transaction: an index that is there is whole."""
    return exists(cursor, Name(partition.schema, index_name(index.name, shape.name, partition)))


def has_constraint(cursor: Cursor, partition: Name, constraint: str) -> bool:
    """Whether the partition has a constraint of this name."""
    found = cursor.execute(
        "SELECT 1 FROM pg_constraint WHERE conrelid = to_regclass(%s) AND conname = %s", (str(partition), constraint)
    )
    return found.fetchone() is not None


def finish_index(cursor: Cursor, shape: Shape, index: Index, partition: Name) -> None:
    """Makes a built index what it is on the original (primary key, replica identity …): brief, but exclusive.

    Idempotent."""
    name = index_name(index.name, shape.name, partition)
    alter = sql.SQL("ALTER TABLE {} ").format(partition.identifier)
    if index.constraint in ("p", "u") and not has_constraint(cursor, partition, name):
        kind = "PRIMARY KEY" if index.constraint == "p" else "UNIQUE"
        add = "ADD CONSTRAINT {0} " + kind + " USING INDEX {0}" + index.deferrable
        cursor.execute(alter + sql.SQL(add).format(sql.Identifier(name)))
    if index.comment is not None:
        cursor.execute(
            sql.SQL("COMMENT ON INDEX {} IS {}").format(sql.Identifier(partition.schema, name), index.comment)
        )
    if index.identity:
        cursor.execute(alter + sql.SQL("REPLICA IDENTITY USING INDEX {}").format(sql.Identifier(name)))
    if index.clustered:
        cursor.execute(alter + sql.SQL("CLUSTER ON {}").format(sql.Identifier(name)))


def index_name(index: str, old: Name, new: Name) -> str:
    """The same name for a twin of the same name; otherwise the partition's name in it is replaced, or put before it."""
    if old == new:
        return index
    name = index.replace(old.name, new.name) if old.name in index else f"{new.name}_{index}"
    cut = new.name.encode()[:40].decode(errors="ignore")
    return name if len(name.encode()) <= 63 else f"{cut}_{hash_text(name):x}"


def hash_text(text: str) -> int:
    """A number that depends on the text alone, in every process."""
    value = 0
    for byte in text.encode():
        value = (value * 1_000_003 + byte) % (1 << 61)
    return value


def add_triggers(cursor: Cursor, shape: Shape, partition: Name) -> None:
    """The partition's own triggers, in the transaction that attaches it; the root's come with ATTACH."""
    for trigger in shape.triggers:
        for statement in trigger_statements(trigger, partition):
            run_single(cursor, statement)


def trigger_statements(trigger: Trigger, table: Name) -> list[Statement]:
    """What makes the trigger on this table, enabled as it was."""
    if trigger.tail is None:
        raise Refused(f"the trigger {trigger.name}, wanted on {table}, has a definition that is not understood")
    name = sql.Identifier(trigger.name)
    word = "CONSTRAINT TRIGGER" if trigger.constraint else "TRIGGER"
    create = sql.SQL("CREATE " + word + " {} {} ON {} ").format(name, printed(trigger.events), table.identifier)
    made: list[Statement] = [create + printed(trigger.tail)]
    state = {"D": "DISABLE", "R": "ENABLE REPLICA", "A": "ENABLE ALWAYS"}.get(trigger.enabled)
    if state:
        made.append(sql.SQL("ALTER TABLE {} " + state + " TRIGGER {}").format(table.identifier, name))
    return made


def add_bound(cursor: Cursor, place: Place, constraint: str) -> None:
    """Adds the CHECK that makes ATTACH instant; scans the partition if it has rows already."""
    expression = check_expression(place.columns, place.part, root_oid(cursor, place.root))
    cursor.execute(
        sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} CHECK ({})").format(
            place.partition.identifier, sql.Identifier(constraint), expression
        )
    )


def attach(cursor: Cursor, place: Place) -> None:
    """Makes the partition part of its root; the CHECK of `add_bound` is not needed afterwards (`drop_bound`)."""
    cursor.execute(attach_statement(place))


def attach_statement(place: Place) -> sql.Composed:
    """What `attach` sends."""
    clause = for_values(place.columns, place.part)
    attach = sql.SQL("ALTER TABLE {} ATTACH PARTITION {} ")
    return attach.format(place.root.identifier, place.partition.identifier) + clause


def drop_bound(cursor: Cursor, partition: Name, constraint: str) -> None:
    """Removes the CHECK of `add_bound`. Idempotent; waits for readers of the partition."""
    cursor.execute(drop_bound_statement(partition, constraint))


def drop_bound_statement(partition: Name, constraint: str) -> sql.Composed:
    """What `drop_bound` sends."""
    drop = sql.SQL("ALTER TABLE IF EXISTS {} DROP CONSTRAINT IF EXISTS {}")
    return drop.format(partition.identifier, sql.Identifier(constraint))


def drop_triggers(cursor: Cursor, shape: Shape, partition: Name) -> None:
    """Undoes `add_triggers`. Idempotent."""
    for trigger in shape.triggers:
        drop = sql.SQL("DROP TRIGGER IF EXISTS {} ON {}")
        cursor.execute(drop.format(sql.Identifier(trigger.name), partition.identifier))


def detach_locked(cursor: Cursor, root: Name, partition: Name) -> None:
    """Detaches within a transaction that already holds the root's ACCESS EXCLUSIVE lock."""
    cursor.execute(detach_statement(root, partition))


def detach_statement(root: Name, partition: Name) -> sql.Composed:
    """What `detach_locked` sends."""
    return sql.SQL("ALTER TABLE {} DETACH PARTITION {}").format(root.identifier, partition.identifier)


def detach_wherever(cursor: Cursor, partition: Name) -> None:
    """Detaches a partition that nobody may write to from the root it is in. Idempotent."""
    row = cursor.execute(
        "SELECT n.nspname, c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE i.inhrelid = to_regclass(%s)",
        (str(partition),),
    ).fetchone()
    if row is not None:
        detach_locked(cursor, Name(*row), partition)


def detach(connection: Connection, root: Name, partition: Name) -> None:
    """Detaches outside a transaction; finishes an interrupted detach. Idempotent.

    Waits for clients that read this very tablet (it was theirs when they began), and keeps nobody else out.
    """
    pending = detach_pending(connection, partition)
    if pending is None:
        return
    word = "FINALIZE" if pending else "CONCURRENTLY"
    with readers_kept_out(connection, partition):
        connection.execute(
            sql.SQL("ALTER TABLE {} DETACH PARTITION {} " + word).format(root.identifier, partition.identifier)
        )


def set_lock_timeout(cursor: Cursor, seconds: float) -> None:
    """Sets how long the rest of the transaction waits for a lock: others wait behind it."""
    cursor.execute("SELECT set_config('lock_timeout', %s, true)", (f"{max(1, round(seconds * 1000))}ms",))


def release_references(cursor: Cursor, partition: Name, lock_timeout: float) -> None:
    """Drops a detached partition's foreign keys: its old rows would keep those that they refer to from being deleted.

    It locks the referenced tables against everybody, so it does not wait for them; it does wait for the partition,
    which a vacuum may hold and nobody uses.
    """
    names = cursor.execute(
        """
        SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(%s) AND contype = 'f' AND conparentid = 0
        AND NOT (SELECT relispartition FROM pg_class WHERE oid = conrelid)
        """,
        (str(partition),),
    ).fetchall()
    if names:
        cursor.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE").format(partition.identifier))
        set_lock_timeout(cursor, lock_timeout)
    for (name,) in names:
        cursor.execute(
            sql.SQL("ALTER TABLE {} DROP CONSTRAINT IF EXISTS {}").format(partition.identifier, sql.Identifier(name))
        )


def detach_pending(connection: Connection | Cursor, partition: Name) -> bool | None:
    """None: not attached; True: a detach has begun but not finished; False: attached."""
    row = connection.execute(
        "SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = to_regclass(%s)", (str(partition),)
    ).fetchone()
    return None if row is None else bool(row[0])


def attachments(cursor: Cursor, partitions: Sequence[Name]) -> dict[Name, bool | None]:
    """`detach_pending` of those among several that exist, in one query."""
    rows = cursor.execute(
        "SELECT to_regclass(name) IS NOT NULL, inhdetachpending"
        " FROM unnest(%s::text[]) WITH ORDINALITY AS n (name, place)"
        " LEFT JOIN pg_inherits ON inhrelid = to_regclass(name) ORDER BY place",
        ([str(partition) for partition in partitions],),
    ).fetchall()
    return {partition: pending for partition, (there, pending) in zip(partitions, rows, strict=True) if there}


def drop_partition(cursor: Cursor, partition: Name) -> None:
    """Drops a detached partition; one that is already gone is fine. Raises `Refused` for an attached one."""
    if detach_pending(cursor, partition) is not None:
        raise Refused(f"{partition} is still attached and is not dropped")
    bury(cursor, partition)
    cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(partition.identifier))


def exists(cursor: Cursor, name: Name) -> bool:
    """Whether there is a relation of this name."""
    row = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (str(name),)).fetchone()
    return bool(row and row[0])


def root_oid(cursor: Cursor, root: Name) -> int:
    """The root's oid on this node. Raises `Refused` if it is not there."""
    row = cursor.execute("SELECT to_regclass(%s)::oid::bigint", (str(root),)).fetchone()
    if row is None or row[0] is None:
        raise Refused(f"there is no table {root}")
    return int(row[0])


def _column_clauses(name: str, shape: Shape) -> list[sql.Composed]:
    column = next(column for column in shape.columns if column.name == name)
    alter = sql.SQL("ALTER COLUMN {} ").format(sql.Identifier(name))
    storage = {"p": "PLAIN", "e": "EXTERNAL", "m": "MAIN", "x": "EXTENDED"}[column.storage]
    clauses = [alter + sql.SQL("SET STORAGE " + storage)]
    if column.compression:
        method = {"p": "pglz", "l": "lz4"}[column.compression]
        clauses.append(alter + sql.SQL("SET COMPRESSION " + method))
    if column.statistics != -1:
        clauses.append(alter + sql.SQL("SET STATISTICS {}").format(column.statistics))
    if column.options:
        clauses.append(alter + option_clause(column.options))
    if not column.generated:
        if column.default is None:
            clauses.append(alter + sql.SQL("DROP DEFAULT"))
        else:
            clauses.append(alter + sql.SQL("SET DEFAULT ") + printed(column.default))
        if column.not_null:
            clauses.append(alter + sql.SQL("SET NOT NULL"))
    return clauses


def option_clause(texts: Sequence[str], *prefix: str) -> sql.Composed:
    """`fillfactor=70` and others as a clause."""
    pairs = (text.partition("=") for text in texts)
    settings = [sql.SQL("{} = {}").format(sql.Identifier(*prefix, name), value) for name, _, value in pairs]
    return sql.SQL("SET ({})").format(sql.SQL(", ").join(settings))


def _add_constraint(cursor: Cursor, table: sql.Identifier, constraint: Constraint) -> None:
    alter = sql.SQL("ALTER TABLE {} ").format(table)
    add = sql.SQL("ADD CONSTRAINT {} ").format(sql.Identifier(constraint.name))
    run_single(cursor, alter + add + printed(constraint.definition))


def create_partition(cursor: Cursor, root: Root, name: Name, part: Part) -> None:
    """Makes an empty attached partition; it belongs to the root's owner, as if that role had made it."""
    cursor.execute(
        sql.SQL("CREATE TABLE {} PARTITION OF {} {}").format(
            name.identifier, root.name.identifier, for_values(root.columns, part)
        )
    )
    take_defaults_away(cursor, name)
    cursor.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(name.identifier, sql.Identifier(root.owner)))


def take_defaults_away(cursor: Cursor, made: Name) -> None:
    """Leaves a new table to its owner alone. ALTER DEFAULT PRIVILEGES may give others rights on every table that our
    role makes; on a partition they would go past the root's grants and policies."""
    for role in [str(role) for (role,) in cursor.execute(_OTHERS, (str(made),))]:
        grantee = sql.Identifier(role) if role else sql.SQL("PUBLIC")
        cursor.execute(sql.SQL("REVOKE ALL ON {} FROM {}").format(made.identifier, grantee))


_OTHERS = """
SELECT DISTINCT CASE g.grantee WHEN 0 THEN '' ELSE pg_get_userbyid(g.grantee) END
FROM pg_class c, aclexplode(c.relacl) g
WHERE c.oid = to_regclass(%s) AND g.grantee <> c.relowner
"""


def drop_empty(cursor: Cursor, root: Name, names: Sequence[Name]) -> None:
    """Drops partitions that were made for nothing. Refuses one that somebody has written to."""
    for name in names:
        # Detached first: a foreign key of a colocated root prevents an attached partition from being dropped.
        cursor.execute(sql.SQL("ALTER TABLE {} DETACH PARTITION {}").format(root.identifier, name.identifier))
        row = cursor.execute(sql.SQL("SELECT EXISTS (SELECT FROM {})").format(name.identifier)).fetchone()
        if row is not None and row[0]:
            raise Refused(f"{name} holds rows already and is not dropped")
        cursor.execute(sql.SQL("DROP TABLE {}").format(name.identifier))


def run_definition(cursor: Cursor, text: str) -> None:
    """Runs the user's CREATE TABLE statements, in the caller's transaction; names without a schema are in public."""
    cursor.execute("SET LOCAL search_path TO public")
    cursor.execute(text.encode())
    cursor.execute("SET LOCAL search_path TO pg_catalog, pg_temp")
