"""Gives the new roots of an import the names of the plain tables, with everything that those carry along.

As in a conversion, the parts of an old table and what names it from outside are printed while it has the name, and run
again when the new root has it (`nodes/definitions/name_transfer`). Foreign keys between the tables go to the partitions
first, not validated: a scan alongside the writers validates them afterwards, and then the root gets them
(`nodes/definitions/dependents`). A node that never had the tables gets the same parts from the texts of one that has.
Everything runs in one transaction per node; the caller has set full names. Called by `features.import_tables.switch`,
and by the rehearsal in `features.import_tables.plan`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from balancer.features.convert.statements import in_phases
from balancer.features.import_tables.statements import beside
from balancer.naming import Name
from balancer.nodes.catalog.roots import read_root
from balancer.nodes.catalog.sequences import read_drawn, spread
from balancer.nodes.definitions.name_transfer import Carried, near_keys, read_carried
from balancer.nodes.definitions.root import Definition, new_sequences, read_definition
from balancer.nodes.definitions.table_parts import Grant, read_columns, read_grants, roles_with_rights, set_grants
from balancer.nodes.session.connection import Cursor, Statement, printed, run_single


@dataclass(frozen=True, slots=True)
class Taking:
    """One of the tables that are imported together, on one node."""

    table: Name
    partitions: tuple[Name, ...] = ()
    """Those of the new root on this node; none: it is rehearsed with an empty root."""

    @property
    def root(self) -> Name:
        """The new root until then."""
        return beside(self.table, "import")

    @property
    def before(self) -> Name:
        """The old table from then on."""
        return beside(self.table, "before_import")


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What a node that never had the tables is given, as one that has them prints it."""

    indexes: tuple[Mapping[str, str], ...]
    """By table, in the order of the tables."""
    sequences: tuple[Statement, ...]
    """Before the names change."""
    parts: tuple[Statement, ...]
    """After it."""
    keys: tuple[Mapping[str, Statement], ...]
    """By table: what the foreign keys between the tables say, by name."""
    owners: tuple[tuple[str, tuple[Grant, ...]], ...]
    """By table: whose it is, and who may do what."""


_OWNER = "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = %s"
_OID = "SELECT to_regclass(%s)::oid::bigint"


def take_names(cursor: Cursor, together: Sequence[Taking], close: Callable[[], None]) -> None:
    """On a node that has the old tables; `close` ends what watches and fences them, while they have their names."""
    lock = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE")
    for one in together:
        run_single(cursor, lock.format(one.table.identifier))
        run_single(cursor, lock.format(one.root.identifier))
    names = [one.table for one in together]
    read = [_read(cursor, one, names) for one in together]
    _run(cursor, in_phases([(carried.locks,) for carried, _, _ in read]))
    before = [((*carried.before, *carried.sequences.aside),) for carried, _, _ in read]
    _run(cursor, in_phases(before))
    close()
    for one, (_, indexes, _) in zip(together, read, strict=True):
        _rename_indexes(cursor, one.table.schema, indexes, old=True)
        _rename(cursor, one.table, one.before)
        _rename(cursor, one.root, one.table)
        owner = _owner(cursor, _oid(cursor, one.before))
        _run(cursor, _given_to(owner, one.partitions))
    phases = [
        (carried.owner, (*carried.sequences.give, *carried.sequences.end), carried.after, keys, carried.last)
        for carried, _, keys in read
    ]
    _run(cursor, in_phases(phases))


def read_elsewhere(cursor: Cursor, together: Sequence[Taking]) -> Elsewhere:
    """On a node where the old tables still have their names, next to the new roots."""
    names = [one.table for one in together]
    sequences: list[Statement] = []
    numbered: list[Statement] = []
    rest: list[Statement] = []
    keys: list[Mapping[str, Statement]] = []
    owners: list[tuple[str, tuple[Grant, ...]]] = []
    for one in together:
        oid = _oid(cursor, one.table)
        made = new_sequences(cursor, oid, one.table, lane=0)  # the caller says which lane
        sequences += made.before
        numbered += [*_defaults(cursor, oid, one.table), *made.after]
        rest += read_carried(cursor, oid, one.table, one.before, names, near_to=one.table).after
        keys.append(near_keys(cursor, oid, names))
        owners.append((_owner(cursor, oid), read_grants(cursor, oid)))
    indexes = tuple(_index_names(cursor, one.table, one.root) for one in together)
    return Elsewhere(indexes, tuple(sequences), (*numbered, *rest), tuple(keys), tuple(owners))


def read_definitions(cursor: Cursor, together: Sequence[Taking]) -> list[Definition]:
    """What makes the new roots on a node that never had the tables. Their grants come with their names."""
    found = []
    for one in together:
        oid = _oid(cursor, one.table)
        root = replace(read_root(cursor, one.root), owner=_owner(cursor, oid))
        roles = {grant.role for grant in read_grants(cursor, oid) if grant.role is not None}
        definition = read_definition(cursor, root, drawing=False)
        found.append(replace(definition, grants=(), roles=frozenset({root.owner, *roles})))
    return found


def take_names_elsewhere(cursor: Cursor, together: Sequence[Taking], given: Elsewhere) -> None:
    """On a node that never had the tables."""
    _run(cursor, given.sequences)
    for one, indexes in zip(together, given.indexes, strict=True):
        _rename_indexes(cursor, one.table.schema, indexes, old=False)
        _rename(cursor, one.root, one.table)
    for one, (owner, grants) in zip(together, given.owners, strict=True):
        _run(cursor, _given_to(owner, (one.table, *one.partitions)))
        roles = roles_with_rights(cursor, one.table)
        _run(cursor, set_grants(one.table, roles, grants, cursor.connection.info.server_version))
    _run(cursor, given.parts)
    for one, keys in zip(together, given.keys, strict=True):
        _run(cursor, _keys_of(one, keys))


def spread_numbers(cursor: Cursor, tables: Sequence[Name], lane: int | None, above: int) -> None:
    """Makes the tables' sequences on this node count in its lane, above what any node has handed out."""
    for sequence in read_drawn(cursor, tables) if lane is not None else ():
        spread(cursor, sequence, lane or 0, above)


def highest_number(cursor: Cursor, tables: Sequence[Name]) -> int:
    """The highest numbers that the tables' sequences on this node have handed out."""
    return max((one.last or one.start for one in read_drawn(cursor, tables)), default=0)


def _read(cursor: Cursor, one: Taking, names: Sequence[Name]) -> tuple[Carried, dict[str, str], tuple[Statement, ...]]:
    oid = _oid(cursor, one.table)
    carried = read_carried(cursor, oid, one.table, one.before, names, near_to=one.table, other=_oid(cursor, one.root))
    keys = tuple(_keys_of(one, near_keys(cursor, oid, names)))
    return carried, _index_names(cursor, one.table, one.root), keys


def _keys_of(one: Taking, keys: Mapping[str, Statement]) -> Iterator[Statement]:
    """The foreign keys for the partitions or, where there are none, for the empty root."""
    add = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}{}")
    rest = sql.SQL(" NOT VALID" if one.partitions else "")
    for name, text in keys.items():
        for table in one.partitions or (one.table,):
            yield add.format(table.identifier, sql.Identifier(name), text, rest)


def _defaults(cursor: Cursor, oid: int, table: Name) -> Iterator[Statement]:
    """What columns draw from, once their sequences exist."""
    alter = sql.SQL("ALTER TABLE {} ALTER COLUMN {} SET DEFAULT {}")
    for column in read_columns(cursor, oid):
        if column.draws and not column.identity and column.default is not None:
            yield alter.format(table.identifier, sql.Identifier(column.name), printed(column.default))


def _owner(cursor: Cursor, oid: int) -> str:
    row = cursor.execute(_OWNER, (oid,)).fetchone()
    assert row is not None
    return str(row[0])


def _given_to(owner: str, tables: Sequence[Name]) -> Iterator[Statement]:
    for table in tables:
        yield sql.SQL("ALTER TABLE {} OWNER TO {}").format(table.identifier, sql.Identifier(owner))


def _oid(cursor: Cursor, name: Name) -> int:
    row = cursor.execute(_OID, (str(name),)).fetchone()
    assert row is not None
    return int(row[0])


def _run(cursor: Cursor, statements: Sequence[Statement] | Iterator[Statement]) -> None:
    for statement in statements:
        run_single(cursor, statement)


def _rename(cursor: Cursor, table: Name, new: Name) -> None:
    """Of a table, within its schema."""
    rename = sql.SQL("ALTER TABLE {} RENAME TO {}")
    cursor.execute(rename.format(table.identifier, sql.Identifier(new.name)))


_INDEXES = """
SELECT c.relname, row_number() OVER (PARTITION BY d.tail ORDER BY c.relname), d.tail
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
CROSS JOIN LATERAL (SELECT regexp_replace(pg_get_indexdef(i.indexrelid), '^.*? USING ', '') || i.indisunique
                           || i.indisprimary AS tail) AS d
WHERE i.indrelid = to_regclass(%s) ORDER BY c.relname
"""


def _index_names(cursor: Cursor, table: Name, root: Name) -> dict[str, str]:
    """Name of an index of the new root → name of the same index of the old table."""
    mine, theirs = (cursor.execute(_INDEXES, (str(name),)).fetchall() for name in (table, root))
    known = {(number, tail): str(name) for name, number, tail in mine}
    return {str(name): known[number, tail] for name, number, tail in theirs if (number, tail) in known}


def _rename_indexes(cursor: Cursor, schema: str, names: Mapping[str, str], *, old: bool) -> None:
    """Gives the new root's indexes, and the constraints behind them, the old names; the old ones make room first."""
    change = sql.SQL("ALTER INDEX {} RENAME TO {}")
    for new, name in names.items():
        if old:
            away = beside(Name(schema, name), "before_import")
            cursor.execute(change.format(sql.Identifier(schema, name), sql.Identifier(away.name)))
        cursor.execute(change.format(sql.Identifier(schema, new), sql.Identifier(name)))
