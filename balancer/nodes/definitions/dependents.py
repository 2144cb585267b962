"""What refers to a relation from outside it, and how to make it refer to another one that takes over the name.

PostgreSQL binds views, rules, policies and functions to a relation by its oid, so they would follow a renamed table.
Each is printed while the name is still the old relation's, and the same text is run again when the name is the new
one's: CREATE OR REPLACE keeps the object itself, its owner, its grants and what depends on it. None of it is evaluated
by that. What cannot be carried this way is in `refusals`, by name. The caller reads with full names (`full_names`).
Only reads.

Foreign keys between tables that were converted together, or went back together: validated after the swap.

The swap leaves them on the leaves (or on the tables that are plain again), enforced and not validated. A scan alongside
the writers validates each; then the root gets it too, in an instant, because PostgreSQL merges it with the leaf's equal
one. They are found from the catalog alone, so a crash in between loses nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from balancer.naming import Name
from balancer.nodes.definitions.table_parts import grantee
from balancer.nodes.session.connection import Cursor, Statement, printed


@dataclass(frozen=True, slots=True)
class Dependents:
    """Of one relation."""

    locks: tuple[tuple[Name, Statement], ...] = ()
    """What the statements below would lock, by name."""
    before: tuple[Statement, ...] = ()
    """While the name is still the old relation's."""
    after: tuple[Statement, ...] = ()
    """When it is the new one's."""
    materialised: tuple[Name, ...] = ()
    """Materialised views: they cannot be replaced, only made again."""
    refusals: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Everything that is carried, for people."""


_DEPENDENTS = """
SELECT DISTINCT d.classid::regclass::text, d.objid::bigint, pg_describe_object(d.classid, d.objid, 0)
FROM pg_depend d
WHERE d.deptype NOT IN ('i', 'e')
  AND (d.refclassid = 'pg_class'::regclass AND d.refobjid = %(oid)s
       OR d.refclassid = 'pg_type'::regclass AND d.refobjid IN (
           SELECT t.oid FROM pg_type t WHERE t.typrelid = %(oid)s
           UNION SELECT t.typarray FROM pg_type t WHERE t.typrelid = %(oid)s))
ORDER BY 1, 2
"""

# What belongs to the relation itself: its own parts carry it.
_OWN = """
SELECT CASE %(class)s
    WHEN 'pg_attrdef' THEN EXISTS (SELECT FROM pg_attrdef WHERE oid = %(id)s AND adrelid = %(oid)s)
    WHEN 'pg_constraint' THEN EXISTS (SELECT FROM pg_constraint WHERE oid = %(id)s
                                      AND (conrelid = %(oid)s OR contype = 'f'))
    WHEN 'pg_class' THEN EXISTS (
        SELECT FROM pg_class c WHERE c.oid = %(id)s
          AND (c.relkind = 'S' OR c.oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = %(oid)s)
               OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = %(oid)s)))
    WHEN 'pg_trigger' THEN EXISTS (SELECT FROM pg_trigger WHERE oid = %(id)s AND tgrelid = %(oid)s)
    WHEN 'pg_rewrite' THEN EXISTS (SELECT FROM pg_rewrite WHERE oid = %(id)s AND ev_class = %(oid)s)
    WHEN 'pg_policy' THEN EXISTS (SELECT FROM pg_policy WHERE oid = %(id)s AND polrelid = %(oid)s)
    WHEN 'pg_statistic_ext' THEN true
    WHEN 'pg_publication_rel' THEN true
    ELSE false END
"""

_RULE = """
SELECT r.rulename, c.relkind::text, n.nspname, c.relname, pg_get_userbyid(c.relowner),
       pg_has_role(c.relowner, 'USAGE'), c.relpersistence = 't', pg_get_viewdef(c.oid), pg_get_ruledef(r.oid),
       coalesce(c.reloptions, '{}')
FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE r.oid = %s
"""

_POLICY = """
SELECT p.polname, n.nspname, c.relname, pg_get_userbyid(c.relowner), pg_has_role(c.relowner, 'USAGE'),
       pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)
FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.oid = %s
"""

_FUNCTION = """
SELECT p.oid::regprocedure::text, p.prokind::text, pg_get_userbyid(p.proowner), pg_has_role(p.proowner, 'USAGE'),
       CASE WHEN p.prokind IN ('f', 'p') THEN pg_get_functiondef(p.oid) END,
       EXISTS (SELECT FROM pg_depend d JOIN pg_type t ON t.oid = d.refobjid
               WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.refclassid = 'pg_type'::regclass
                 AND (t.typrelid = %(oid)s OR t.typelem = (SELECT reltype FROM pg_class WHERE oid = %(oid)s))),
       EXISTS (SELECT FROM pg_depend d WHERE d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid),
       obj_description(p.oid, 'pg_proc'),
       ARRAY(SELECT CASE a.grantee WHEN 0 THEN '' ELSE pg_get_userbyid(a.grantee) END || CASE WHEN a.is_grantable
                 AND a.grantee <> p.proowner THEN '*' ELSE '.' END
             FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a ORDER BY 1)
FROM pg_proc p WHERE p.oid = %(id)s
"""


class _Found:
    """What is gathered while walking the catalog's list."""

    def __init__(self) -> None:
        self.locks: dict[Name, Statement] = {}
        self.before: list[Statement] = []
        self.after: list[Statement] = []
        self.materialised: list[Name] = []
        self.refusals: list[str] = []
        self.names: list[str] = []


def read_dependents(cursor: Cursor, oid: int, name: Name) -> Dependents:
    """Everything that would still refer to this relation after its name has gone to another one."""
    found = _Found()
    for kind, number, text in cursor.execute(_DEPENDENTS, {"oid": oid}).fetchall():
        own = cursor.execute(_OWN, {"class": kind, "id": number, "oid": oid}).fetchone()
        if own is not None and own[0]:
            continue
        if kind == "pg_rewrite":
            _rule(cursor, found, number, name, text)
        elif kind == "pg_policy":
            _other_policy(cursor, found, number, name, text)
        elif kind == "pg_proc":
            row = cursor.execute(_FUNCTION, {"id": number, "oid": oid}).fetchone()
            assert row is not None, text
            _function(found, row, name, text)
        else:
            found.refusals.append(f"{text} uses {name} in a way that is not carried over: drop it")
    return Dependents(
        tuple(found.locks.items()),
        tuple(found.before),
        tuple(found.after),
        tuple(sorted(set(found.materialised))),
        tuple(found.refusals),
        tuple(found.names),
    )


def view_statement(name: Name, options: Sequence[str], text: str) -> Statement:
    """Replaces a view by this text; it stays the same view."""
    head = sql.SQL("CREATE OR REPLACE VIEW {}").format(name.identifier)
    if options:
        pairs = (option.partition("=") for option in options)
        given = [sql.SQL("{} = {}").format(sql.Identifier(key), sql.Literal(value)) for key, _, value in pairs]
        head += sql.SQL(" WITH ({})").format(sql.SQL(", ").join(given))
    return head + sql.SQL(" AS ") + printed(text.rstrip().rstrip(";"))


def _rule(cursor: Cursor, found: _Found, rule: int, name: Name, text: str) -> None:
    row = cursor.execute(_RULE, (rule,)).fetchone()
    assert row is not None, text
    _, kind, schema, relation, owner, acts, temporary, definition, rule_text, options = row
    where = Name(schema, relation)
    if schema.startswith("balancer_"):
        found.refusals.append(f"{name} is forwarded to other nodes: `balancer forward --off` first")
    elif temporary:
        found.refusals.append(f"the temporary view {where} of a session reads {name}: end that session")
    elif not acts:
        found.refusals.append(f"the balancer's role does not act for {owner}, who owns {where}, which reads {name}")
    elif kind == "m":
        found.materialised.append(where)
        found.names.append(f"materialised view {where}")
    elif kind == "v" and row[0] == "_RETURN":
        # Gives the view to its current owner: this locks it and, unlike LOCK, nothing below it.
        found.locks[where] = sql.SQL("ALTER VIEW {} OWNER TO {}").format(where.identifier, sql.Identifier(owner))
        found.after.append(view_statement(where, options, definition))
        found.names.append(f"view {where}")
    elif rule_text.startswith("CREATE RULE "):
        lock = "ALTER VIEW {} OWNER TO {}" if kind == "v" else "ALTER TABLE {} OWNER TO {}"
        found.locks[where] = sql.SQL(lock).format(where.identifier, sql.Identifier(owner))
        found.after.append(printed("CREATE OR REPLACE RULE " + rule_text.removeprefix("CREATE RULE ").rstrip(";")))
        found.names.append(f"{text}")
    else:
        found.refusals.append(f"{text} uses {name} in a way that is not carried over: drop it")


def _other_policy(cursor: Cursor, found: _Found, policy: int, name: Name, text: str) -> None:
    row = cursor.execute(_POLICY, (policy,)).fetchone()
    assert row is not None, text
    polname, schema, relation, owner, acts, using, check = row
    where = Name(schema, relation)
    if not acts:
        found.refusals.append(
            f"the balancer's role does not act for {owner}, who owns {where}, whose policy reads {name}"
        )
        return
    found.locks[where] = sql.SQL("ALTER TABLE {} OWNER TO {}").format(where.identifier, sql.Identifier(owner))
    alter = sql.SQL("ALTER POLICY {} ON {}").format(sql.Identifier(polname), where.identifier)
    if using is not None:
        alter += sql.SQL(" USING ({})").format(printed(using))
    if check is not None:
        alter += sql.SQL(" WITH CHECK ({})").format(printed(check))
    found.after.append(alter)
    found.names.append(text)


def _function(found: _Found, row: tuple[Any, ...], name: Name, text: str) -> None:
    signature, kind, owner, acts, definition, by_type, used, comment, acl = row
    if definition is None:
        found.refusals.append(f"{text} uses {name} in a way that is not carried over: drop it")
    elif not acts:
        found.refusals.append(f"the balancer's role does not act for {owner}, who owns {text}, which uses {name}")
    elif not by_type:
        found.after.append(printed(definition))
        found.names.append(text)
    elif used:
        found.refusals.append(f"{text} has the row type of {name} in its signature, and others depend on it: drop it")
    else:
        word = "PROCEDURE" if kind == "p" else "FUNCTION"
        # It has another type now, so it is another one: made again with what it had.
        found.before.append(printed(f"DROP {word} {signature}"))
        found.after.append(printed(definition))
        found.after += _function_parts(word, signature, owner, acl, comment)
        found.names.append(text)


def _function_parts(
    word: str, signature: str, owner: str, acl: Sequence[str], comment: str | None
) -> Iterator[Statement]:
    yield printed(f"ALTER {word} {signature} OWNER TO ") + sql.Identifier(owner)
    yield printed(f"REVOKE ALL ON {word} {signature} FROM PUBLIC, ") + sql.Identifier(owner)
    for entry in acl:
        role, option = entry[:-1] or None, " WITH GRANT OPTION" if entry.endswith("*") else ""
        yield printed(f"GRANT EXECUTE ON {word} {signature} TO ") + grantee(role) + sql.SQL(option)
    if comment is not None:
        yield printed(f"COMMENT ON {word} {signature} IS ") + sql.Literal(comment)


_KEYS = """
SELECT k.conname, pg_get_constraintdef(k.oid), k.convalidated, n.nspname, c.relname,
       obj_description(k.oid, 'pg_constraint')
FROM pg_constraint k JOIN pg_class c ON c.oid = k.confrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE k.conrelid = to_regclass(%s) AND k.contype = 'f' AND k.conparentid = 0
  AND k.confrelid = ANY(SELECT to_regclass(name)::oid FROM unnest(%s::text[]) AS name)
ORDER BY k.conname
"""


@dataclass(frozen=True, slots=True)
class NearKey:
    """A foreign key that is still to be validated."""

    table: Name
    name: str
    definition: str
    validated: bool
    referenced: Name
    comment: str | None

    def validate(self) -> Statement:
        """Scans every row, alongside the writers."""
        alter = sql.SQL("ALTER TABLE {} VALIDATE CONSTRAINT {}")
        return alter.format(self.table.identifier, sql.Identifier(self.name))

    def locks(self, roots: Sequence[Name], root: Name) -> list[Statement]:
        """What `give` locks, in the order of the roots: writers mostly begin with the referenced one."""
        lock = sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE")
        return [lock.format(name.identifier) for name in roots if name in (root, self.referenced)]

    def drop(self) -> Statement:
        """Takes it from where it waits."""
        alter = sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}")
        return alter.format(self.table.identifier, sql.Identifier(self.name))

    def give(self, root: Name, *, valid: bool = True) -> list[Statement]:
        """The root gets it, when it is validated; another table may get it before."""
        add = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}{}")
        text = printed(self.definition.removesuffix(" NOT VALID"))
        rest = sql.SQL("" if valid else " NOT VALID")
        statements: list[Statement] = [add.format(root.identifier, sql.Identifier(self.name), text, rest)]
        if self.comment is not None:
            said = sql.SQL("COMMENT ON CONSTRAINT {} ON {} IS {}")
            statements.append(said.format(sql.Identifier(self.name), root.identifier, sql.Literal(self.comment)))
        return statements


def read_near_keys(cursor: Cursor, tables: Sequence[Name], to: Sequence[Name]) -> list[NearKey]:
    """These tables' own foreign keys that point to one of `to`; the caller has set full names."""
    return [
        NearKey(table, name, text, validated, Name(schema, relation), comment)
        for table in tables
        for name, text, validated, schema, relation, comment in cursor.execute(
            _KEYS, (str(table), [str(other) for other in to])
        ).fetchall()
    ]
