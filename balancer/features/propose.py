"""`balancer init`: looks at a database with plain tables and proposes the files for sharding them. Changes nothing.

The plain tables of a database, as far as a proposal for sharding them needs. Only reads.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import psycopg
import typer
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from balancer.errors import Refused, UserError
from balancer.features.convert.statements import read_conversions
from balancer.features.reference.setup import inspect_reference
from balancer.features.tables.adopt import TableRequest
from balancer.naming import Name, parse_name
from balancer.nodes.catalog.preflight import Needs, Severity, TableNeeds, preflight
from balancer.nodes.catalog.roots import EVERYWHERE, full_names
from balancer.nodes.session.connection import Address, Connection, Cursor, connect, translated
from balancer.policies.keyspace.keys import KeyType
from balancer.policies.options import BalancerOptions
from balancer.policies.proposal import ForeignKey, Group, Proposal, SmallGroup, TableFacts, obstacles, propose, remarks
from balancer.terminal.output import Output, OutputOption, say, show_json

NODE = "first"
"""The node's name in the files until somebody changes it."""

DsnArgument = Annotated[str, typer.Argument(help="the database's address, as PostgreSQL's clients take it")]
FolderOption = Annotated[
    Path | None,
    typer.Option("--folder", help="write balancer.toml and bundles/NAME.toml there; default: only show them"),
]
BundleOption = Annotated[str, typer.Option("--bundle", help="the name of the bundle")]


def init(
    dsn: DsnArgument, folder: FolderOption = None, bundle: BundleOption = "main", output: OutputOption = Output.TEXT
) -> None:
    """Looks at a running database, proposes bundle files for it, and says what is in the way.

    It only reads the database, and does not overwrite existing files.
    """
    safe = without_password(dsn)
    if not bundle.replace("-", "").replace("_", "").isalnum() or not bundle.isascii():
        raise UserError(f"--bundle: {bundle!r} is not a name; letters, digits, - and _ are allowed")
    with connect(Address(NODE, dsn), purpose="init") as connection, translated(NODE):
        with connection.cursor() as cursor:
            found = read_tables(cursor)
        facts = [table for table in found if '"' not in table.name]
        strange = [
            f"{table.name} needs quotes, which bundle files do not take" for table in found if table not in facts
        ]
        proposal = propose(facts, BalancerOptions().desired_tablet_size)
        wrong = [*strange, *obstacles(proposal, facts), *_in_the_way(connection, proposal)]
        wrong += _unfit_references(connection, proposal)
    notes = [*remarks(proposal, facts)]
    where = (folder or Path()).absolute()
    files = {
        where / "balancer.toml": f'directory = "sqlite://{where}/directory.db"\n',
        where / "bundles" / f"{bundle}.toml": bundle_text(safe, proposal),
    }
    if folder is not None:
        _write(files)
    if output is Output.JSON:
        show_json(_document(proposal, wrong, notes, files if folder is not None else {}))
        return
    if folder is None:
        say(files[where / "bundles" / f"{bundle}.toml"])
    for text in _summary(proposal, wrong, notes):
        say(text)
    if folder is not None:
        say(f"wrote {', '.join(map(str, files))}")


def without_password(dsn: str) -> str:
    """The same address, for a file; the password is looked for elsewhere."""
    try:
        parameters = {name: value for name, value in conninfo_to_dict(dsn).items() if name != "password"}
    except psycopg.ProgrammingError:
        raise UserError("the DSN is not one that PostgreSQL's clients understand") from None
    return make_conninfo("", **parameters)


def _in_the_way(connection: Connection, proposal: Proposal) -> Iterator[str]:
    needs = [TableNeeds(tuple(map(parse_name, group.roots)), (group.key,)) for group in proposal.groups]
    for group, need in zip(proposal.groups, needs, strict=True):
        with connection.cursor() as cursor, full_names(cursor):
            found = read_conversions(cursor, need.roots, group.layout, need.key, widen=True)
        for conversion in found:
            yield from conversion.refusals
    for finding in preflight(connection, Needs(())):
        if finding.level in (Severity.ERROR, Severity.LIMIT):
            yield f"{finding.text}: {finding.remedy}" if finding.remedy else finding.text


def _unfit_references(connection: Connection, proposal: Proposal) -> Iterator[str]:
    """What `table adopt` would say about them."""
    for group in proposal.references:
        roots = tuple(map(parse_name, group.roots))
        try:
            inspect_reference(TableRequest("", group.name, roots, EVERYWHERE, (), "init"), {NODE: connection})
        except Refused as error:
            yield str(error)


def bundle_text(dsn: str, proposal: Proposal) -> str:
    """A bundle's file that `config check` accepts."""
    lines = [
        "# Proposed by `balancer init`; read it, change it, then `balancer config check`.",
        'mode = "observe"                    # observe: nothing is moved until you say approve or autonomous',
        "",
        f"[nodes.{NODE}]",
        f"dsn = {_quoted(dsn)}",
        f"# password: BALANCER_PASSWORD_{NODE.upper()}, password_file, or libpq's passfile",
    ]
    for group in proposal.groups:
        lines += ["", *_table_lines(group)]
    for reference in proposal.references:
        lines += ["", *_reference_lines(reference)]
    lines += [f"# {left.table} stays where it is: {left.reason}".replace("\n", " ") for left in proposal.left]
    return "\n".join(lines) + "\n"


def _table_lines(group: Group) -> Iterator[str]:
    yield f"# {group.reason}".replace("\n", " ")
    if group.widened:
        yield f"# --widen-keys is needed for {', '.join(group.widened)}".replace("\n", " ")
    yield f"[tables.{_quoted(group.name)}]"
    yield f"roots = [{', '.join(map(_quoted, group.roots))}]"
    yield f"layout = {_quoted(group.layout)}"
    yield f"key = [{_quoted(group.key)}]"
    if group.layout == "hash":
        yield f"tablets = {group.tablets}"


def _reference_lines(group: SmallGroup) -> Iterator[str]:
    yield f"# {group.reason}; `balancer table adopt` makes this node its home".replace("\n", " ")
    yield f"[tables.{_quoted(group.name)}]"
    yield f"roots = [{', '.join(map(_quoted, group.roots))}]"
    yield f"layout = {_quoted(EVERYWHERE)}"


def _quoted(text: str) -> str:
    """A basic string of TOML."""
    escaped = "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{escaped}"'


def _write(files: dict[Path, str]) -> None:
    for path in files:
        if path.exists():
            raise Refused(f"{path} already exists and is not overwritten; give another --folder")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _summary(proposal: Proposal, wrong: Sequence[str], notes: Sequence[str]) -> Iterator[str]:
    for group in proposal.groups:
        widen = " --widen-keys" if group.widened else ""
        yield f"table {group.name}: {', '.join(group.roots)}, {group.layout} by {group.key}{widen}; {group.reason}"
    for reference in proposal.references:
        yield f"table {reference.name}: {', '.join(reference.roots)}, {EVERYWHERE}; {reference.reason}"
    if not proposal.groups:
        yield "no plain table can be sharded"
    for left in proposal.left:
        yield f"{left.table} stays where it is: {left.reason}"
    for text in notes:
        yield f"note: {text}"
    for text in wrong:
        yield f"in the way: {text}"


def _document(proposal: Proposal, wrong: Sequence[str], notes: Sequence[str], files: dict[Path, str]) -> dict[str, Any]:
    return {
        "tables": [
            {
                "table": group.name,
                "roots": list(group.roots),
                "layout": group.layout,
                "key": [group.key],
                "tablets": group.tablets,
                "bytes": group.bytes,
                "widen_keys": list(group.widened),
                "reason": group.reason,
            }
            for group in proposal.groups
        ],
        "references": [
            {"table": one.name, "roots": list(one.roots), "bytes": one.bytes, "reason": one.reason}
            for one in proposal.references
        ],
        "left": [{"table": left.table, "reason": left.reason} for left in proposal.left],
        "notes": list(notes),
        "in_the_way": list(wrong),
        "files": [str(path) for path in files],
    }


_TABLES = """
SELECT c.oid::bigint, n.nspname, c.relname, pg_total_relation_size(c.oid)::bigint,
       ARRAY(SELECT ARRAY[a.attname::text, format_type(a.atttypid, NULL)]
             FROM pg_attribute a LEFT JOIN pg_collation l ON l.oid = a.attcollation
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
               AND format_type(a.atttypid, NULL) = ANY(%s) AND l.collisdeterministic IS NOT FALSE
             ORDER BY a.attnum),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid
               AND (i.indisprimary AND c.relreplident = 'd' OR i.indisreplident AND c.relreplident = 'i'))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND NOT c.relispartition AND n.nspname !~ '^(pg_|balancer)'
  AND n.nspname <> 'information_schema'
  AND NOT EXISTS (SELECT FROM pg_depend d
                  WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
ORDER BY n.nspname, c.relname
"""
_UNIQUE = """
SELECT ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS u (attnum, place)
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = u.attnum
             WHERE u.place <= i.indnkeyatts ORDER BY u.place)
FROM pg_index i WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid ORDER BY i.indisprimary DESC, i.indexrelid
"""
_FOREIGN_KEYS = """
SELECT k.conname, n.nspname, t.relname, array_agg(fa.attname::text ORDER BY u.place),
       array_agg(ta.attname::text ORDER BY u.place)
FROM pg_constraint k JOIN pg_class t ON t.oid = k.confrelid JOIN pg_namespace n ON n.oid = t.relnamespace
CROSS JOIN LATERAL unnest(k.conkey, k.confkey) WITH ORDINALITY AS u (mine, theirs, place)
JOIN pg_attribute fa ON fa.attrelid = k.conrelid AND fa.attnum = u.mine
JOIN pg_attribute ta ON ta.attrelid = k.confrelid AND ta.attnum = u.theirs
WHERE k.conrelid = %s AND k.contype = 'f' GROUP BY k.oid, 1, 2, 3 ORDER BY 1
"""


def read_tables(cursor: Cursor) -> list[TableFacts]:
    """All of them, by name; those of extensions and ours are left out."""
    found = []
    kinds = [str(kind) for kind in KeyType]
    for oid, schema, name, size, columns, identified in cursor.execute(_TABLES, (kinds,)).fetchall():
        keys = cursor.execute(_FOREIGN_KEYS, (oid,)).fetchall()
        unique = cursor.execute(_UNIQUE, (oid,)).fetchall()
        found.append(
            TableFacts(
                str(Name(schema, name)),
                size,
                tuple((column, kind) for column, kind in columns),
                tuple(tuple(row[0]) for row in unique),
                tuple(
                    ForeignKey(key, tuple(mine), str(Name(to_schema, to)), tuple(theirs))
                    for key, to_schema, to, mine, theirs in keys
                ),
                identified,
            )
        )
    return found
