"""The definition of a root as statements, so that a node that lacks it can be given the same one.

Read from the catalog, without partitions: columns, keys, indexes, statistics, triggers, policies, grants, comments.
What a table needs beyond itself (types, functions, roles, tables that foreign keys point to) must be on the other node
already; sequences do not travel, because two nodes would hand out the same number. Both sides have full names and are
sent one by one, because nothing guarantees a catalog's text.

Sequences that belong to columns of a table, carried to another table that takes its name.

A serial column's sequence stays and gets another owner column. The sequence of an identity column belongs to the
column for good: a new one of the same name is made and continues where the old one stood; nobody draws from either in
between, because the old one is renamed first, which keeps everybody out until the end of the transaction. Only reads;
the statements run in one transaction.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

from psycopg import sql

from balancer.errors import Refused
from balancer.naming import Name, partition_name
from balancer.nodes.catalog.owners_code import check_named, code_named
from balancer.nodes.catalog.roots import Root, find_root, full_names
from balancer.nodes.catalog.sequences import in_lane
from balancer.nodes.definitions import table_parts
from balancer.nodes.definitions.table_parts import ColumnPart, Grant, grantee
from balancer.nodes.session.connection import Cursor, Statement, printed, run_single

_UNUSUAL = """
SELECT c.relrowsecurity, c.relforcerowsecurity,
       array_remove(ARRAY[
           (SELECT 'the rewrite rule ' || quote_ident(min(rulename)) FROM pg_rewrite WHERE ev_class = c.oid),
           (SELECT 'a label of ' || min(provider) FROM pg_seclabel
            WHERE classoid = 'pg_class'::regclass AND objoid = c.oid),
           (SELECT 'the tablespace ' || quote_ident(spcname) FROM pg_tablespace WHERE oid = c.reltablespace),
           CASE WHEN c.reloftype <> 0 THEN 'the type ' || c.reloftype::regtype END], NULL)
FROM pg_class c WHERE c.oid = %s
"""


@dataclass(frozen=True, slots=True)
class Definition:
    """Statements that make a root, in order; foreign keys apart, because they need the other roots first."""

    root: Name
    statements: tuple[Statement, ...]
    foreign_keys: tuple[Statement, ...]
    grants: tuple[Grant, ...]
    comments: tuple[Statement, ...]
    roles: frozenset[str]
    """Every role that is named in it."""
    code: tuple[tuple[str, str], ...]
    """Functions, operators and domains that it uses: PostgreSQL calls them while it makes indexes and columns."""
    whole: bool = False
    plain: bool = False
    """Not partitioned."""


def read_plain_definition(cursor: Cursor, name: Name) -> Definition:
    """What makes the same plain table elsewhere, with its columns' sequences: one node at a time is written to."""
    row = cursor.execute(_PLAIN, (str(name),)).fetchone()
    if row is None:
        raise Refused(f"there is no table {name}")
    with full_names(cursor):
        return _read_definition(cursor, Root(name, int(row[0]), "", (), str(row[1])), whole=True)


_PLAIN = "SELECT oid::bigint, pg_get_userbyid(relowner) FROM pg_class WHERE oid = to_regclass(%s)"


def read_definition(
    cursor: Cursor, root: Root, *, whole: bool = False, lane: int | None = None, drawing: bool = True
) -> Definition:
    """What makes the same root elsewhere. Refuses what cannot be made there, and columns that draw from a sequence.

    For a whole table the columns' own sequences are made there too: one node at a time draws from them. So are those of
    a table whose nodes have lanes. `drawing` off: such columns come without a default, and get theirs later.
    """
    with full_names(cursor):
        return _read_definition(cursor, root, whole=whole, lane=lane, drawing=drawing)


def make_roots(cursor: Cursor, definitions: Sequence[Definition], *, trusted: bool = False) -> None:
    """Makes the roots that are missing, then their foreign keys; inside the caller's transaction.

    Raises `Refused` if that would run code of their owners with our rights, unless those are `trusted`.
    """
    missing = [one for one in definitions if not _is_there(cursor, one)]
    _check_roles(cursor, missing)
    with full_names(cursor):
        for definition in () if trusted else missing:
            check_named(cursor, definition.root, definition.code)
        for definition in missing:
            for statement in definition.statements:
                run_single(cursor, statement)
        for definition in missing:
            for statement in definition.foreign_keys:
                run_single(cursor, statement)
            _set_grants(cursor, definition)
            for statement in definition.comments:
                run_single(cursor, statement)


def _is_there(cursor: Cursor, definition: Definition) -> bool:
    if definition.plain:
        return cursor.execute(_PLAIN, (str(definition.root),)).fetchone() is not None
    return find_root(cursor, definition.root, whole=definition.whole) is not None


def _check_roles(cursor: Cursor, definitions: Sequence[Definition]) -> None:
    wanted = frozenset[str]().union(*(definition.roles for definition in definitions))
    rows = cursor.execute("SELECT rolname FROM pg_roles WHERE rolname = ANY(%s)", (list(wanted),)).fetchall()
    absent = sorted(wanted - {str(name) for (name,) in rows})
    if absent:
        names = ", ".join(str(definition.root) for definition in definitions)
        raise Refused(f"the owner, the grants or the policies of {names} name roles that are not here: {absent}")


def _read_definition(
    cursor: Cursor, root: Root, *, whole: bool, lane: int | None = None, drawing: bool = True
) -> Definition:
    table = root.name.identifier
    row = cursor.execute(_UNUSUAL, (root.oid,)).fetchone()
    assert row is not None
    secured, forced, unusual = row
    if unusual:
        raise Refused(f"{root.name} has {unusual[0]}, which is not made on other nodes: make the table there yourself")
    made = whole or lane is not None
    sequences = new_sequences(cursor, root.oid, root.name, lane) if made else NewSequences()
    columns = table_parts.read_columns(cursor, root.oid)
    if not drawing:
        columns = tuple(replace(one, default=None, draws=False) if one.draws else one for one in columns)
    check_no_sequences(root.name, columns, sequences.columns)
    written = sql.SQL(", ").join(column.clause() for column in columns)
    statements: list[Statement] = [
        sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(root.name.schema)),
        *sequences.before,
        sql.SQL("CREATE TABLE {} ({}){}").format(table, written, _partitioning(cursor, root)),
        *sequences.after,
        sql.SQL("ALTER TABLE {} OWNER TO {}").format(table, sql.Identifier(root.owner)),
        *table_parts.read_storage(cursor, root.oid, root.name),
    ]
    foreign_keys: list[Statement] = []
    for _, kind, statement in table_parts.read_constraints(cursor, root.oid, root.name):
        (foreign_keys if kind == "f" else statements).append(statement)
    statements += [statement for _, statement in table_parts.read_indexes(cursor, root.oid)]
    statements += table_parts.read_statistics(cursor, root.oid)
    statements += table_parts.make_triggers(table_parts.read_triggers(cursor, root.oid), root.name)
    _, policies, policy_roles = table_parts.read_policies(cursor, root.oid, root.name)
    statements += policies
    statements += table_parts.row_security(root.name, secured=secured, forced=forced)
    grants = table_parts.read_grants(cursor, root.oid)
    return Definition(
        root.name,
        tuple(statements),
        tuple(foreign_keys),
        grants,
        tuple(table_parts.read_comments(cursor, root.oid, root.name)),
        frozenset({root.owner, *policy_roles, *(grant.role for grant in grants if grant.role is not None)}),
        code_named(cursor, root.oid),
        whole,
        not root.layout,
    )


def check_no_sequences(table: Name, columns: Sequence[ColumnPart], but: Set[str] = frozenset()) -> None:
    """Raises `Refused` for a column whose numbers two nodes would hand out; `but` draw on one node at a time."""
    for column in columns:
        if (column.identity or column.draws) and column.name not in but:
            raise Refused(
                f'column "{column.name}" of {table} draws from a sequence, and two nodes would hand out the same'
                " numbers: say spread_sequences = true for the table, or make it on the other nodes yourself"
            )


def _partitioning(cursor: Cursor, root: Root) -> sql.Composable:
    if not root.layout:
        return sql.SQL("")
    row = cursor.execute("SELECT pg_get_partkeydef(%s)", (root.oid,)).fetchone()
    assert row is not None
    return sql.SQL(" PARTITION BY {}").format(printed(row[0]))


def _set_grants(cursor: Cursor, definition: Definition) -> None:
    """Exactly these grants: default privileges of this database may have given others."""
    version = cursor.connection.info.server_version
    roles = table_parts.roles_with_rights(cursor, definition.root)
    for statement in table_parts.set_grants(definition.root, roles, definition.grants, version):
        run_single(cursor, statement)


_SERIAL = """
SELECT n.nspname, s.relname, a.attname
FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S' JOIN pg_namespace n ON n.oid = s.relnamespace
JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %s AND d.deptype = 'a'
ORDER BY 1, 2
"""

_IDENTITY = """
SELECT n.nspname, c.relname, a.attname, a.attidentity::text, s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache,
       s.seqcycle, obj_description(c.oid, 'pg_class'),
       ARRAY(SELECT CASE g.grantee WHEN 0 THEN '' ELSE pg_get_userbyid(g.grantee) END FROM aclexplode(c.relacl) g
             WHERE g.grantee <> c.relowner ORDER BY g.grantee, g.privilege_type),
       ARRAY(SELECT g.privilege_type || CASE WHEN g.is_grantable THEN '*' ELSE '' END FROM aclexplode(c.relacl) g
             WHERE g.grantee <> c.relowner ORDER BY g.grantee, g.privilege_type)
FROM pg_depend d JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S' JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_sequence s ON s.seqrelid = c.oid
JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid AND a.attidentity <> ''
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %s AND d.deptype = 'i'
ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class OwnedSequences:
    """What carries the sequences of one table."""

    aside: tuple[Statement, ...]
    """While the table has its name: renames the sequences of identity columns."""
    give: tuple[Statement, ...]
    """When the other table has the name: the columns there draw from where the old ones stood."""
    end: tuple[Statement, ...]
    """Ends identities of the old table, under its new name."""


def carry_sequences(cursor: Cursor, oid: int, name: Name, old: Name) -> OwnedSequences:
    """Of the table with this oid and name; `old` is what it will be called."""
    aside: list[Statement] = []
    give: list[Statement] = []
    end: list[Statement] = []
    for schema, sequence, column in cursor.execute(_SERIAL, (oid,)).fetchall():
        owned = sql.SQL("ALTER SEQUENCE {} OWNED BY {}")
        give.append(owned.format(sql.Identifier(schema, sequence), sql.Identifier(*name, column)))
    for row in cursor.execute(_IDENTITY, (oid,)).fetchall():
        schema, sequence, column, always = row[:4]
        made, former = Name(schema, sequence), partition_name(Name(schema, sequence), 0)
        rename = sql.SQL("ALTER SEQUENCE {} RENAME TO {}")
        aside.append(rename.format(made.identifier, sql.Identifier(former.name)))
        give.append(_add_identity(name, column, always == "a", made, row[4:10]))
        go_on = sql.SQL("SELECT setval({}::regclass, last_value, is_called) FROM {}")
        give.append(go_on.format(sql.Literal(str(made)), former.identifier))
        comment, roles, privileges = row[10:]
        if comment is not None:
            give.append(sql.SQL("COMMENT ON SEQUENCE {} IS {}").format(made.identifier, sql.Literal(comment)))
        give += _grant_sequence(made, roles, privileges)
        drop = sql.SQL("ALTER TABLE {} ALTER COLUMN {} DROP IDENTITY")
        end.append(drop.format(old.identifier, sql.Identifier(column)))
    return OwnedSequences(tuple(aside), tuple(give), tuple(end))


@dataclass(frozen=True, slots=True)
class NewSequences:
    """What makes the sequences of a table's columns for the same table on another node, not used yet."""

    before: tuple[Statement, ...] = ()
    """Before the table is there."""
    after: tuple[Statement, ...] = ()
    columns: frozenset[str] = frozenset()
    """The columns that draw from them."""


_SHAPE = """
SELECT format_type(seqtypid, NULL), pg_sequence_last_value(seqrelid), seqstart, seqincrement, seqmin, seqmax, seqcache,
       seqcycle
FROM pg_sequence WHERE seqrelid = %s::regclass
"""
_GRANTS = """
SELECT CASE g.grantee WHEN 0 THEN '' ELSE pg_get_userbyid(g.grantee) END,
       g.privilege_type || CASE WHEN g.is_grantable THEN '*' ELSE '' END
FROM pg_class c, aclexplode(c.relacl) g WHERE c.oid = %s::regclass AND g.grantee <> c.relowner ORDER BY 1, 2
"""


def new_sequences(cursor: Cursor, oid: int, name: Name, lane: int | None = None) -> NewSequences:
    """For a table of which one node at a time has rows: a move raises the sequence of the new owner to the old one's.

    Where several nodes have rows at once, two sequences would hand out the same numbers, unless each node has a lane of
    its own (see `nodes/catalog/sequences`).
    """
    before: list[Statement] = []
    after: list[Statement] = []
    columns = set()
    for schema, sequence, column in cursor.execute(_SERIAL, (oid,)).fetchall():
        made = Name(schema, sequence)
        kind, last, *shape = cursor.execute(_SHAPE, (str(made),)).fetchall()[0]
        shape = shape if lane is None else in_lane(shape, last, lane)
        create = sql.SQL("CREATE SEQUENCE {} AS {} {}")
        before.append(create.format(made.identifier, sql.SQL(kind), _sequence_options(shape)))
        owned = sql.SQL("ALTER SEQUENCE {} OWNED BY {}")
        after.append(owned.format(made.identifier, sql.Identifier(*name, column)))
        rights = cursor.execute(_GRANTS, (str(made),)).fetchall()
        after += _grant_sequence(made, [role for role, _ in rights], [privilege for _, privilege in rights])
        columns.add(column)
    for row in cursor.execute(_IDENTITY, (oid,)).fetchall():
        schema, sequence, column, always = row[:4]
        made = Name(schema, sequence)
        _, last, *shape = cursor.execute(_SHAPE, (str(made),)).fetchall()[0]
        shape = shape if lane is None else in_lane(shape, last, lane)
        after.append(_add_identity(name, column, always == "a", made, shape))
        after += _grant_sequence(made, *row[11:])
        columns.add(column)
    return NewSequences(tuple(before), tuple(after), frozenset(columns))


def _grant_sequence(sequence: Name, roles: Sequence[str], privileges: Sequence[str]) -> Iterator[Statement]:
    for role, privilege in zip(roles, privileges, strict=True):
        option = " WITH GRANT OPTION" if privilege.endswith("*") else ""
        grant = sql.SQL("GRANT " + privilege.rstrip("*") + " ON SEQUENCE {} TO {}" + option)
        yield grant.format(sequence.identifier, grantee(role or None))


def _sequence_options(shape: Sequence[object]) -> sql.Composed:
    start, increment, least, most, cache, cycle = shape
    return sql.SQL("START WITH {} INCREMENT BY {} MINVALUE {} MAXVALUE {} CACHE {} {} CYCLE").format(
        *(sql.Literal(value) for value in (start, increment, least, most, cache)), sql.SQL("" if cycle else "NO")
    )


def _add_identity(table: Name, column: str, always: bool, sequence: Name, shape: Sequence[object]) -> Statement:
    options = sql.SQL("SEQUENCE NAME {} {}").format(sequence.identifier, _sequence_options(shape))
    kind = sql.SQL("ALWAYS" if always else "BY DEFAULT")
    add = sql.SQL("ALTER TABLE {} ALTER COLUMN {} ADD GENERATED {} AS IDENTITY ({})")
    return add.format(table.identifier, sql.Identifier(column), kind, options)
