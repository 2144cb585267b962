"""Splits and merges on one node: new partitions filled next to the old ones, changes replayed, both compared.

Statements only; called by the steps of a reshard. Old partitions are *sources*, new ones *targets*; all belong to one
root. `log` is the capture of the source with the same place in the list.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.naming import Name
from balancer.nodes.catalog.bounds import check_expression
from balancer.nodes.session.connection import Connection, Cursor, Statement, run_together
from balancer.nodes.tablets.capture import SEQ
from balancer.nodes.tablets.checksum import Compared, Digest, pages, summed
from balancer.nodes.tablets.fence import has_trigger
from balancer.nodes.tablets.object_names import log_name, snapshot_trigger
from balancer.nodes.tablets.partition import Place


@dataclass(frozen=True, slots=True)
class Family:
    """The partitions of one root that a reshard replaces, and those that replace them."""

    migration: str
    root_oid: int
    sources: tuple[tuple[int, Name], ...]  # number of the capture, partition
    targets: tuple[Place, ...]
    compared: tuple[Compared, ...]
    copied: tuple[str, ...]  # written: without generated columns
    key: tuple[str, ...]


def pages_of(connection: Connection, partition: Name) -> int:
    """Pages of a partition now."""
    row = connection.execute(
        "SELECT pg_relation_size(to_regclass(%s)) / current_setting('block_size')::int", (str(partition),)
    ).fetchone()
    return int(row[0] or 0) if row else 0


def fill(cursor: Cursor, family: Family, source: Name, first: int, end: int | None) -> int:
    """Copies the rows of some pages of a source into the targets they belong to; returns how many."""
    written = 0
    for place in family.targets:
        cursor.execute(
            sql.SQL("INSERT INTO {} ({}) SELECT {} FROM ONLY {} AS t WHERE {} AND ({})").format(
                place.partition.identifier,
                _columns(family.copied),
                _columns(family.copied),
                source.identifier,
                pages(first, end),
                check_expression(place.columns, place.part, family.root_oid),
            )
        )
        written += cursor.rowcount
    return written


def replay(cursor: Cursor, family: Family, *, comparing: bool = True) -> tuple[int, Mapping[str, int]]:
    """Makes the targets equal the sources for every logged key; then compares just these keys.

    The caller's transaction sees one snapshot, or keeps the sources' writers out. Returns how many keys were replayed,
    and the number of keys that still differ, by source: that must be none. Without `comparing` the caller compares
    everything afterwards.
    """
    total = 0
    different: dict[str, int] = {}
    changed = changed_sources(cursor, family)
    # All keys are taken out before any is put in: rows may have swapped values that must be unique.
    for number, _ in changed:
        cursor.execute(sql.SQL("DROP TABLE IF EXISTS pg_temp.{}").format(_batch(number)))
        cursor.execute(
            sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT * FROM {}").format(
                _batch(number), log_name(family.migration, number)
            )
        )
        total += cursor.rowcount
        for place in family.targets:
            cursor.execute(
                sql.SQL("DELETE FROM {} AS t USING (SELECT DISTINCT {} FROM pg_temp.{}) AS k WHERE {}").format(
                    place.partition.identifier, _columns(family.key), _batch(number), _same(family.key)
                )
            )
    for number, source in changed:
        _put_back(cursor, family, number, source)
        wrong = _count_different(cursor, family, number, source) if comparing else 0
        if wrong:
            different[str(source)] = wrong
        cursor.execute(
            sql.SQL("DELETE FROM {} AS l USING pg_temp.{} AS k WHERE l.{} = k.{}").format(
                log_name(family.migration, number), _batch(number), sql.Identifier(SEQ), sql.Identifier(SEQ)
            )
        )
    return total, different


def truncated(cursor: Cursor, family: Family) -> bool:
    """Whether somebody has truncated a source: the log then has an entry without a key."""
    return bool(_with_entries(cursor, family, sql.SQL("WHERE {} IS NULL").format(sql.Identifier(family.key[0]))))


def changed_sources(connection: Connection | Cursor, family: Family) -> tuple[tuple[int, Name], ...]:
    """The sources with keys still to be replayed: a merge may have dozens, and few of them change."""
    numbers = _with_entries(connection, family, sql.SQL(""))
    return tuple((number, source) for number, source in family.sources if number in numbers)


def entries_statement(families: Sequence[Family]) -> Statement:
    """Asks whether there is any entry in the logs."""
    logs = [log_name(family.migration, number) for family in families for number, _ in family.sources]
    asked = [sql.SQL("EXISTS (SELECT FROM {})").format(log) for log in logs]
    return sql.SQL("SELECT {}").format(sql.SQL(" OR ").join(asked))


def _with_entries(connection: Connection | Cursor, family: Family, where: sql.Composable) -> set[int]:
    """Numbers of the captures whose log has such an entry. One statement: this is asked while everybody waits."""
    asked = [
        sql.SQL("SELECT {} WHERE EXISTS (SELECT FROM {} {})").format(
            sql.Literal(number), log_name(family.migration, number), where
        )
        for number, _ in family.sources
    ]
    return {number for (number,) in connection.execute(sql.SQL(" UNION ALL ").join(asked)).fetchall()}


def digest_chunk(
    connection: Connection, family: Family, partition: Name, first: int, end: int | None, *, waiting: Sequence[int]
) -> Digest:
    """Checksum of some pages of a source or target, without rows whose key waits in one of these captures' logs."""
    where = pages(first, end)
    for number in waiting:
        where += sql.SQL(" AND NOT EXISTS (SELECT FROM {} AS k WHERE {})").format(
            log_name(family.migration, number), _same(family.key)
        )
    rows = connection.execute(summed(family.compared, partition, where))
    return {bucket: (count, int(total)) for bucket, count, total in rows}


def remembered_statement(partitions: Sequence[Name]) -> Statement:
    """Asks whether what a SERIALIZABLE transaction has read of these is still remembered: writes to the partitions that
    replace them would not be compared with it."""
    return sql.SQL(_REMEMBERED).format(names=sql.Literal([str(name) for name in partitions]))


_REMEMBERED = """
    SELECT EXISTS (
        SELECT FROM pg_locks WHERE mode = 'SIReadLock'
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND relation IN (SELECT o FROM unnest({names}::regclass[]) AS o
                         UNION ALL SELECT indexrelid FROM pg_index WHERE indrelid = ANY ({names}::regclass[])))
"""


def refuse_old_snapshots(cursor: Cursor, root: Name, migration: str, transaction: str) -> None:
    """From the commit on, SERIALIZABLE writers whose snapshot does not have that transaction are refused, through the
    root."""
    trigger = sql.Identifier(snapshot_trigger(migration))
    run_together(
        cursor,
        [
            sql.SQL(
                "CREATE TRIGGER {} BEFORE INSERT OR UPDATE OR DELETE ON {} FOR EACH STATEMENT"
                " EXECUTE FUNCTION balancer.refuse_old_snapshot({}, {}, 'serializable')"
            ).format(trigger, root.identifier, sql.Literal(migration), sql.Literal(transaction)),
            sql.SQL("ALTER TABLE {} ENABLE ALWAYS TRIGGER {}").format(root.identifier, trigger),
        ],
    )


def admit_old_snapshots(cursor: Cursor, root: Name, migration: str) -> None:
    """Removes that refusal when no such writer is left. Idempotent; locks the root only if it has to."""
    trigger = snapshot_trigger(migration)
    if has_trigger(cursor, root, trigger):
        cursor.execute(sql.SQL("DROP TRIGGER {} ON {}").format(sql.Identifier(trigger), root.identifier))


def _put_back(cursor: Cursor, family: Family, number: int, source: Name) -> None:
    # EXISTS and not a join: the bound's expression names the key's columns without saying whose they are.
    for place in family.targets:
        cursor.execute(
            sql.SQL(
                "INSERT INTO {} ({}) SELECT {} FROM ONLY {} AS t WHERE ({})"
                " AND EXISTS (SELECT FROM pg_temp.{} AS k WHERE {})"
            ).format(
                place.partition.identifier,
                _columns(family.copied),
                _columns(family.copied),
                source.identifier,
                check_expression(place.columns, place.part, family.root_oid),
                _batch(number),
                _same(family.key),
            )
        )


def _count_different(cursor: Cursor, family: Family, number: int, source: Name) -> int:
    """Keys of this batch whose rows are not the same on both sides, counting absent as a value."""
    columns = sql.SQL(", ").join(sql.SQL("t.{}").format(sql.Identifier(one.name)) for one in family.compared)
    keyed = sql.SQL("SELECT DISTINCT {} FROM pg_temp.{}").format(_columns(family.key), _batch(number))
    pick = sql.SQL("SELECT ROW({})::text AS row FROM ONLY {} AS t JOIN ({}) AS k ON {}")
    mine = pick.format(columns, source.identifier, keyed, _same(family.key))
    theirs = sql.SQL(" UNION ALL ").join(
        pick.format(columns, place.partition.identifier, keyed, _same(family.key)) for place in family.targets
    )
    statement = sql.SQL(
        "SELECT count(*) FROM ((({mine}) EXCEPT ALL ({theirs})) UNION ALL (({theirs}) EXCEPT ALL ({mine}))) AS wrong"
    ).format(mine=mine, theirs=theirs)
    row = cursor.execute(statement).fetchone()
    return int(row[0]) if row else 0


def _batch(number: int) -> sql.Identifier:
    return sql.Identifier(f"balancer_batch_{number}")


def _columns(names: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _same(key: Sequence[str]) -> sql.Composable:
    return sql.SQL(" AND ").join(sql.SQL("t.{0} = k.{0}").format(sql.Identifier(name)) for name in key)
