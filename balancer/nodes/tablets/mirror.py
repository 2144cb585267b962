"""The mirror of a reshard: a trigger that makes every change of an old partition in the new ones too, in the
application's own transaction. Statements only; called by the steps of a split or merge.

From the commit of `start` on (its transaction is called T1) every snapshot that sees T1 sees old and new partitions
equal: `balancer.migration.machine` says why. Until then `capture` logs the keys of changed rows; `start` silences it in
the same transaction, and `stop` turns it on again. So what the log's function says decides which of the two is at work:
a node that has lost T1 in a failover has lost both, and its log is complete.

The function has our rights and runs with every write of the application. So nobody else may put it on a table of their
own; its search path, row security and constraint exclusion are pinned; it passes on no value whose type is not the one
that it was made for (a type's owner may have a cast that would run as us); the new partitions are ours alone. Where it
has to read the old partition, whose owner may have given it an index or statistics with code of their own since, it
first looks for those. It never fails a statement: where it cannot follow (DDL of the owner, TRUNCATE), it notes in the
log that the copy is worthless. The one refusal is 40001, to a transaction whose only snapshot is older than T1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql
from psycopg.rows import TupleRow

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.catalog.bounds import check_expression
from balancer.nodes.catalog.shapes import Index, Shape
from balancer.nodes.session.connection import Connection, Cursor, Statement, run_together
from balancer.nodes.tablets import capture
from balancer.nodes.tablets.fence import lock_partitions
from balancer.nodes.tablets.object_names import MIRROR_TRIGGER, MIRROR_TRUNCATE_TRIGGER, log_name, mirror_name
from balancer.nodes.tablets.partition import Place, root_oid
from balancer.nodes.tablets.reshard import Family

TRIGGERS = (MIRROR_TRIGGER, MIRROR_TRUNCATE_TRIGGER)

# Variables have names with a space in them, which no sane column has. What a trigger or a function of the same
# statement changes arrives before what the statement itself did: hence the looks at how a row is now.
_BODY = """
#variable_conflict use_column
DECLARE
    "the same" boolean := false;
    "is fresh" boolean := true;
    "old part" int;
    "new part" int;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        {worthless}
        RETURN NULL;
    END IF;
    -- A snapshot older than the moment from which both sides are equal does not see the new rows.
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
       AND NOT pg_visible_in_snapshot(TG_ARGV[1]::xid8, pg_current_snapshot()) THEN
        RAISE EXCEPTION 'the partitions of %.% are being replaced since this transaction began', TG_TABLE_SCHEMA,
            TG_TABLE_NAME
            USING ERRCODE = '40001', DETAIL = format('TB001 migration=%s', TG_ARGV[0]),
                  HINT = 'Run the transaction again.';
    END IF;
    -- In a session that has seen a column with another type, looking at it is an error.
    BEGIN
        "the same" := TG_TABLE_SCHEMA = {schema} AND TG_TABLE_NAME = {name}
            AND (TG_OP = 'INSERT' OR ARRAY[{old_types}]::oid[] = {types})
            AND (TG_OP = 'DELETE' OR ARRAY[{new_types}]::oid[] = {types})
            -- The schema is its owner's, who may drop what is in it.
            AND ARRAY[{targets}]::oid[] = {target_oids};
    EXCEPTION WHEN datatype_mismatch OR undefined_column THEN
        NULL;
    END;
    IF NOT "the same" THEN
        {worthless}
        RETURN NULL;
    END IF;
    {defer}
    IF TG_OP <> 'INSERT' THEN
        "old part" := {old_part};
    END IF;
    -- A row with an xmax was changed or deleted since, or merely locked.
    IF TG_OP <> 'DELETE' THEN
        "is fresh" := NEW.xmax = '0'::xid;
    END IF;
    -- Planning a query evaluates what indexes and statistics of its table have.
    IF ({always} OR NOT "is fresh" OR TG_OP = 'DELETE' OR TG_OP = 'UPDATE' AND NOT ({same_key})) AND NOT (
        EXISTS (SELECT FROM pg_class c WHERE c.oid = TG_RELID AND c.relkind = 'r' AND NOT c.relrowsecurity)
        AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = TG_RELID AND NOT i.indexrelid = ANY ({indexes}))
        AND NOT EXISTS (SELECT FROM pg_statistic_ext s WHERE s.stxrelid = TG_RELID AND NOT s.oid = ANY ({statistics}))
    ) THEN
        {worthless}
        RETURN NULL;
    END IF;
    {work}
    RETURN NULL;
END
"""

_WORK = """
    IF TG_OP <> 'DELETE' AND NOT "is fresh" THEN
        PERFORM FROM ONLY {source} AS t WHERE {is_new};
        IF FOUND THEN
            SELECT t.* INTO NEW FROM ONLY {source} AS t WHERE {is_new};
        ELSE
            "new part" := {new_part};
            {delete_new}
            "new part" := -1;
        END IF;
    END IF;
    IF TG_OP <> 'DELETE' AND "new part" IS NULL THEN
        "new part" := {new_part};
        IF TG_OP = 'UPDATE' AND "old part" = "new part" AND {same_key} THEN
            {update}
        ELSE
            IF TG_OP = 'UPDATE' THEN
                {delete_old}
            END IF;
            {put_new}
        END IF;
    ELSIF TG_OP <> 'INSERT' THEN
        {delete_old}
    END IF;
    -- The old key may be taken again already, by a row whose turn was before this one's or is still to come.
    IF TG_OP = 'DELETE' OR TG_OP = 'UPDATE' AND NOT ({same_key}) THEN
        PERFORM FROM ONLY {source} AS t WHERE {is_old};
        IF FOUND THEN
            {put_old}
        END IF;
    END IF;
"""

# Where a key is checked late, two rows may have it for a while: those that have it now are put in, whatever happened.
_LATE = """
    IF TG_OP <> 'INSERT' THEN
        {delete_old}
        {put_old}
    END IF;
    IF TG_OP <> 'DELETE' THEN
        "new part" := {new_part};
        {delete_new}
        {put_current}
    END IF;
"""

# A row that waits for its turn may still hold, in a new partition, a value that is unique. The log says so.
_CAREFUL = """
    BEGIN
        {work}
    EXCEPTION WHEN unique_violation THEN
        IF TG_OP <> 'INSERT' THEN
            INSERT INTO {log} ({keys}) VALUES ({old_keys});
        END IF;
        IF TG_OP <> 'DELETE' THEN
            INSERT INTO {log} ({keys}) VALUES ({new_keys});
        END IF;
    END;
"""


@dataclass(frozen=True, slots=True)
class Mirror:
    """What is known of an old partition before anybody waits: everything but T1."""

    migration: str
    number: int
    source: Name
    body: str
    targets: tuple[Name, ...]
    references: bool
    """Whether the new partitions have foreign keys: what the old one's have checked is not checked again."""


@dataclass(frozen=True, slots=True)
class MirrorStanding:
    """A mirror at work on all old partitions of a migration."""

    transaction: str
    """T1: the one that started it."""


def compose(cursor: Cursor, family: Family, number: int, shape: Shape) -> Mirror:
    """The mirror of one of a family's sources. What it says is true for as long as nobody changes the definition."""
    source = next(name for index, name in family.sources if index == number)
    parts = _Parts(family, shape, source)
    targets = tuple(place.partition for place in family.targets)
    facts = _facts(cursor, source, family.copied)
    others = [index for index in shape.indexes if index.unique and not _is_key(index, shape)]
    work = sql.SQL(_LATE if parts.late else _WORK).format(
        source=source.identifier,
        is_new=parts.where("new"),
        is_old=parts.where("old"),
        same_key=parts.same_key(),
        new_part=parts.part_of("new"),
        delete_new=parts.each("new part", parts.delete("new")),
        delete_old=parts.each("old part", parts.delete("old")),
        update=parts.each("new part", parts.update),
        put_new=parts.each("new part", parts.put_new),
        put_old=parts.each("old part", parts.put_current("old")),
        put_current=parts.each("new part", parts.put_current("new")),
    )
    if any(not index.deferrable for index in others):
        work = sql.SQL(_CAREFUL).format(
            work=work,
            log=parts.log,
            keys=_list(shape.key),
            old_keys=_list(shape.key, "old"),
            new_keys=_list(shape.key, "new"),
        )
    body = sql.SQL(_BODY).format(
        worthless=parts.worthless,
        schema=sql.Literal(source.schema),
        name=sql.Literal(source.name),
        old_types=_typeof(family.copied, "old"),
        new_types=_typeof(family.copied, "new"),
        types=_oids(facts.types),
        targets=sql.SQL(", ").join(sql.SQL("to_regclass({})").format(sql.Literal(str(name))) for name in targets),
        target_oids=_oids([root_oid(cursor, name) for name in targets]),
        always=sql.SQL("true" if parts.late else "false"),
        indexes=_oids(facts.indexes),
        statistics=_oids(facts.statistics),
        defer=_defer(cursor, targets),
        old_part=parts.part_of("old"),
        same_key=parts.same_key(),
        work=work,
    )
    return Mirror(
        family.migration,
        number,
        source,
        body.as_string(cursor),
        targets,
        any(constraint.kind == "f" for constraint in shape.constraints),
    )


def start(cursor: Cursor, mirrors: Sequence[Mirror], transaction: str, *, may_silence: bool) -> None:
    """In the transaction that has replayed the rest of the log, under a lock that keeps writers out.

    `may_silence`: our role may switch off the triggers of foreign keys.
    """
    made: list[Statement] = []
    for mirror in mirrors:
        function = mirror_name(mirror.migration, mirror.number)
        made += [
            sql.SQL(
                "CREATE OR REPLACE FUNCTION {}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
                " SET search_path = pg_catalog, pg_temp SET row_security = off SET constraint_exclusion = off AS {}"
            ).format(function, sql.Literal(mirror.body)),
            sql.SQL("REVOKE ALL ON FUNCTION {}() FROM PUBLIC").format(function),
            *_trigger_statements(mirror, function, transaction),
            capture.silent_statement(mirror.migration, mirror.number),
        ]
        if may_silence and mirror.references:
            made += [sql.SQL("ALTER TABLE {} DISABLE TRIGGER ALL").format(name.identifier) for name in mirror.targets]
    run_together(cursor, made)


def stop(
    cursor: Cursor, migration: str, sources: Sequence[tuple[int, Name]], key: Callable[[int], Sequence[str]]
) -> None:
    """Changes are logged again, from this transaction on; under a lock that keeps writers out. Idempotent.

    `key` gives the logged columns of a source by its number.
    """
    for number, source in sources:
        if capture.is_silent(cursor, migration, number):
            capture.resume(cursor, migration, number, key(number))
        run_together(cursor, disable_statements(source, _present(cursor, source)))


def disable(cursor: Cursor, source: Name, lock_timeout: float) -> None:
    """The new partitions follow this one no more. Waits for writers, not for readers. Idempotent."""
    if statements := disable_statements(source, _present(cursor, source)):
        lock_partitions(cursor, [source], lock_timeout)
        run_together(cursor, statements)


def disable_statements(
    source: Name, names: Sequence[str] = (MIRROR_TRIGGER, MIRROR_TRUNCATE_TRIGGER)
) -> list[Statement]:
    """The same for a caller that keeps writers out, and knows that these triggers are there."""
    alter = sql.SQL("ALTER TABLE {} DISABLE TRIGGER {}")
    return [alter.format(source.identifier, sql.Identifier(name)) for name in names]


def wake_statements(targets: Sequence[Name]) -> list[Statement]:
    """Before ATTACH: the new partitions check their foreign keys again."""
    return [sql.SQL("ALTER TABLE {} ENABLE TRIGGER ALL").format(name.identifier) for name in targets]


def drop(cursor: Cursor, migration: str, number: int, source: Name) -> None:
    """Removes triggers and function; waits for readers of the source. Idempotent."""
    for name in _present(cursor, source):
        cursor.execute(sql.SQL("DROP TRIGGER {} ON {}").format(sql.Identifier(name), source.identifier))
    # The triggers of a partition that somebody has renamed go with it: nobody else may use it.
    cursor.execute(sql.SQL("DROP FUNCTION IF EXISTS {}() CASCADE").format(mirror_name(migration, number)))


def is_there(cursor: Cursor, migration: str, number: int, source: Name) -> bool:
    """Whether there is one that follows changes, or keeps the log from recording them."""
    row = cursor.execute(
        "SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND tgname = ANY (%s)"
        " AND tgenabled <> 'D')",
        (str(source), list(TRIGGERS)),
    ).fetchone()
    return bool(row and row[0]) or capture.is_silent(cursor, migration, number)


def find(connection: Connection | Cursor, migration: str, sources: Sequence[tuple[int, Name]]) -> MirrorStanding | None:
    """The mirror that is at work; None: changes are logged. Raises `Refused` if somebody has meddled with it.

    All of it was written by one transaction, T1, and by nobody since: a trigger that was switched off and on again has
    another, and changes that neither log nor new partitions have.
    """
    return found(connection.execute(find_statement(migration, sources)).fetchall())


def found(rows: Sequence[TupleRow]) -> MirrorStanding | None:
    """The same, from the rows of `find_statement`."""
    silent = [row[1] for row in rows]
    if not any(silent):
        return None
    started = {row[2] for row in rows}
    if not all(silent) or len(started) != 1 or None in started or not all(row[3] for row in rows):
        raise Refused("somebody has switched off what makes changes of the old partitions in the new ones too")
    return MirrorStanding(str(started.pop()))


_FIND = """
    SELECT number, c.prosrc = {silent},
           (SELECT min(split_part(encode(t.tgargs, 'escape'), '\\000', 2)) FROM pg_trigger t
            WHERE t.tgrelid = to_regclass(source) AND t.tgname = ANY ({triggers})),
           (SELECT count(*) = 2 AND bool_and(
                t.tgenabled = 'A' AND t.tgfoid = m.oid AND t.xmin = m.xmin AND t.xmin = c.xmin
                AND t.xmin = split_part(encode(t.tgargs, 'escape'), '\\000', 2)::xid8::xid)
            FROM pg_trigger t WHERE t.tgrelid = to_regclass(source) AND t.tgname = ANY ({triggers}))
    FROM unnest({numbers}::int[], {sources}::text[]) AS given (number, source)
    LEFT JOIN pg_proc c ON c.pronamespace = 'balancer'::regnamespace
                       AND c.proname = format('capture_%s_%s', {migration}::text, number)
    LEFT JOIN pg_proc m ON m.pronamespace = 'balancer'::regnamespace
                       AND m.proname = format('mirror_%s_%s', {migration}::text, number)
    ORDER BY number
"""


def find_statement(migration: str, sources: Sequence[tuple[int, Name]]) -> sql.Composed:
    """What `found` reads, for a message that asks for more."""
    return sql.SQL(_FIND).format(
        silent=sql.Literal(capture.SILENT),
        triggers=sql.Literal(list(TRIGGERS)),
        migration=sql.Literal(migration),
        numbers=sql.Literal([number for number, _ in sources]),
        sources=sql.Literal([str(source) for _, source in sources]),
    )


@dataclass(frozen=True, slots=True)
class _Facts:
    types: tuple[int, ...]
    indexes: tuple[int, ...]
    statistics: tuple[int, ...]


_FACTS = """
    SELECT ARRAY(SELECT a.atttypid::bigint FROM unnest(%(columns)s::text[]) WITH ORDINALITY AS w (name, place)
                 JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = w.name AND NOT a.attisdropped
                 ORDER BY place),
           ARRAY(SELECT indexrelid::bigint FROM pg_index WHERE indrelid = c.oid ORDER BY 1),
           ARRAY(SELECT oid::bigint FROM pg_statistic_ext WHERE stxrelid = c.oid ORDER BY 1)
    FROM pg_class c WHERE c.oid = to_regclass(%(table)s)
"""


def _facts(cursor: Cursor, source: Name, columns: Sequence[str]) -> _Facts:
    row = cursor.execute(_FACTS, {"table": str(source), "columns": list(columns)}).fetchone()
    if row is None or len(row[0]) != len(columns):
        raise Refused(f"the definition of {source} was changed while the migration ran")
    return _Facts(tuple(row[0]), tuple(row[1]), tuple(row[2]))


class _Parts:
    """The statements on the new partitions, each for the one that a row belongs to."""

    def __init__(self, family: Family, shape: Shape, source: Name) -> None:
        self._family, self._key = family, shape.key
        self._source = source
        self.late = any(index.deferrable and _is_key(index, shape) for index in shape.indexes)
        """Whether the key is checked late."""
        self._long = frozenset(column.name for column in shape.columns if column.storage != "p")
        number = next(index for index, name in family.sources if name == source)
        self.log = log_name(family.migration, number)
        self.worthless = sql.SQL("INSERT INTO {} DEFAULT VALUES;").format(self.log)

    def part_of(self, record: str) -> sql.Composable:
        """The number of the new partition that the record belongs to."""
        cases = []
        for number, place in enumerate(self._family.targets):
            columns = [column._replace(record=record) for column in place.columns]
            holds = check_expression(columns, place.part, self._family.root_oid)
            cases.append(sql.SQL("WHEN {} THEN {}").format(holds, sql.Literal(number)))
        return sql.SQL("CASE {} END").format(sql.SQL(" ").join(cases))

    def each(self, variable: str, make: Callable[[Place], sql.Composable]) -> sql.Composable:
        """The statement for the partition whose number is in this variable."""
        branches = [
            sql.SQL("IF {} = {} THEN\n{}\n").format(sql.Identifier(variable), sql.Literal(number), make(place))
            for number, place in enumerate(self._family.targets)
        ]
        # It belongs nowhere: that cannot be.
        return sql.SQL("ELS").join(branches) + sql.SQL("ELSE {}\nEND IF;").format(self.worthless)

    def where(self, record: str) -> sql.Composable:
        """The row `t` has the record's key."""
        return sql.SQL(" AND ").join(
            sql.SQL("t.{} = {}").format(sql.Identifier(one), sql.Identifier(record, one)) for one in self._key
        )

    def same_key(self) -> sql.Composable:
        return sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(sql.Identifier("old", one), sql.Identifier("new", one)) for one in self._key
        )

    def delete(self, record: str) -> Callable[[Place], sql.Composable]:
        def make(place: Place) -> sql.Composable:
            return sql.SQL("DELETE FROM ONLY {} AS t WHERE {};").format(place.partition.identifier, self.where(record))

        return make

    def update(self, place: Place) -> sql.Composable:
        return sql.SQL("UPDATE ONLY {} AS t SET {} WHERE {};\nIF NOT FOUND THEN\n{}\nEND IF;").format(
            place.partition.identifier, self._assigned("new"), self.where("old"), self.put_new(place)
        )

    def put_new(self, place: Place) -> sql.Composable:
        return self._put(place, sql.SQL("VALUES ({})").format(_list(self._family.copied, "new")))

    def put_current(self, record: str) -> Callable[[Place], sql.Composable]:
        """The row that has the record's key now."""

        def make(place: Place) -> sql.Composable:
            row = sql.SQL("SELECT {} FROM ONLY {} AS t WHERE {}")
            columns = _list(self._family.copied, "t")
            return self._put(place, row.format(columns, self._source.identifier, self.where(record)))

        return make

    def _put(self, place: Place, rows: sql.Composable) -> sql.Composable:
        insert = sql.SQL("INSERT INTO {} AS t ({}) {}").format(
            place.partition.identifier, _list(self._family.copied), rows
        )
        if self.late:
            return insert + sql.SQL(";")
        replace = sql.SQL(" ON CONFLICT ({}) DO UPDATE SET {};")
        return insert + replace.format(_list(self._key), self._assigned("excluded"))

    def _assigned(self, record: str) -> sql.Composable:
        # An unchanged value that lies outside of its row is not written once more; no operator of anybody's is called.
        return sql.SQL(", ").join(
            sql.SQL(_LONG if one in self._long else _SHORT).format(sql.Identifier(one), sql.Identifier(record, one))
            for one in self._family.copied
        )


_SHORT: LiteralString = "{0} = {1}"
_LONG: LiteralString = "{0} = CASE WHEN record_image_eq(ROW(t.{0}), ROW({1})) THEN t.{0} ELSE {1} END"

_DEFERRABLE = """
    SELECT n.nspname, k.conname FROM pg_constraint k JOIN pg_namespace n ON n.oid = k.connamespace
    WHERE k.conrelid = ANY (%s::regclass[]) AND k.contype IN ('p', 'u', 'x') AND k.condeferrable
"""


def _defer(cursor: Cursor, targets: Sequence[Name]) -> sql.Composable:
    """What may be checked at the end of a statement, or of the transaction, is checked at the end of the transaction:
    rows come one by one."""
    rows = cursor.execute(_DEFERRABLE, ([str(target) for target in targets],)).fetchall()
    if not rows:
        return sql.SQL("")
    names = sql.SQL(", ").join(sql.Identifier(schema, name) for schema, name in rows)
    return sql.SQL("SET CONSTRAINTS {} DEFERRED;").format(names)


def _trigger_statements(mirror: Mirror, function: sql.Identifier, transaction: str) -> list[Statement]:
    made: list[Statement] = []
    for name, events in (
        (MIRROR_TRIGGER, "AFTER INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW"),
        (MIRROR_TRUNCATE_TRIGGER, "AFTER TRUNCATE ON {} FOR EACH STATEMENT"),
    ):
        trigger, table = sql.Identifier(name), mirror.source.identifier
        arguments = sql.SQL(", ").join(map(sql.Literal, (mirror.migration, transaction)))
        made += [
            sql.SQL("CREATE OR REPLACE TRIGGER {} ").format(trigger)
            + sql.SQL(events).format(table)
            + sql.SQL(" EXECUTE FUNCTION {}({})").format(function, arguments),
            sql.SQL("ALTER TABLE {} ENABLE ALWAYS TRIGGER {}").format(table, trigger),
        ]
    return made


def _present(cursor: Cursor, source: Name) -> list[str]:
    rows = cursor.execute(
        "SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND tgname = ANY (%s) ORDER BY 1",
        (str(source), list(TRIGGERS)),
    ).fetchall()
    return [str(name) for (name,) in rows]


def _typeof(columns: Sequence[str], record: str) -> sql.Composable:
    return sql.SQL(", ").join(sql.SQL("pg_typeof({})").format(sql.Identifier(record, one)) for one in columns)


def _is_key(index: Index, shape: Shape) -> bool:
    """Whether it is the one by which rows are found."""
    return index.identity or (shape.replica_identity == "d" and index.constraint == "p")


def _oids(numbers: Sequence[int]) -> sql.Composable:
    return sql.SQL("{}::oid[]").format(sql.Literal("{" + ",".join(map(str, numbers)) + "}"))


def _list(columns: Sequence[str], record: str = "") -> sql.Composable:
    return sql.SQL(", ").join(sql.Identifier(record, one) if record else sql.Identifier(one) for one in columns)
