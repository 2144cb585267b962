"""Lets any node answer for any key: on each node, roots in the schema `balancer_all` whose partitions are all foreign.

A root with a primary key or a unique index cannot have foreign partitions, so the application's own roots are left
alone: `balancer_all.orders` stands next to `public.orders`, without indexes, and each of its partitions is a
postgres_fdw table that leads to the partition's view on its owner (`nodes/schema/proof`). A query over it is an
ordinary query over the cluster. Between a switch and the next `set_forwards` it is refused with the code for "retry".

What it is not: a transaction that writes through it to several nodes is not atomic (postgres_fdw commits node by node).
So a row cannot be given the key of another tablet through it (`statements`). Called inside a `node_transaction`.

What an UPDATE of the key through `balancer_all` gets if the new key is another tablet's: a one-sentence refusal.

PostgreSQL does not move rows out of foreign partitions, and postgres_fdw commits node by node, so such a row cannot be
moved all or nothing through there. The partition's own constraint refuses it in any case; this only says so in helpful
words. It is a row trigger on the root, which PostgreSQL passes on to every partition, including later ones; it fires
only for statements that set a column of the key, in sessions of the login that other nodes use. Plain SQL on the node
moves rows between tablets of that node as it always did. Called inside a `node_transaction`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from balancer.errors import Refused
from balancer.naming import Name
from balancer.nodes.catalog.bounds import for_values
from balancer.nodes.schema.proof import remove_views, view_of
from balancer.nodes.session import peers
from balancer.nodes.session.connection import Address, Cursor, keep_out_of_logs
from balancer.nodes.tablets.partition import Place

SCHEMA = "balancer_all"
_SERVER_OPTIONS = "SELECT srvoptions FROM pg_foreign_server WHERE srvname = %s"
_PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE")


@dataclass(frozen=True, slots=True)
class Forward:
    """A partition of a tablet, and the node that owns it."""

    tablet: int
    place: Place
    node: str


def forwarded_name(name: Name) -> Name:
    """Where a root or a partition is found in our schema; names from schemas other than public are kept distinct."""
    return Name(SCHEMA, name.name if name.schema == "public" else f"{name.schema}.{name.name}")


def check_available(cursor: Cursor) -> None:
    """Raises `Refused` if the server cannot forward."""
    cursor.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'postgres_fdw'")
    if cursor.fetchone() is None:
        raise Refused("postgres_fdw is not installed on this server: it is in PostgreSQL's contrib package")


def check_login(cursor: Cursor, address: Address) -> None:
    """Raises `Refused` unless this node has a login for the other nodes that can do nothing else.

    Triggers and checks of the tables' owners run with its rights, so it must have none.
    """
    role = address.forward_user
    where = f"[nodes.{address.node}] forward_user"
    if not role:
        raise Refused(
            f"forwarding needs a login of its own on node {address.node}: set {where} and forward_password_file;"
            " balancer node grant-script --forward-role makes the role"
        )
    row = cursor.execute(_LOGIN, (role,)).fetchone()
    if row is None:
        raise Refused(f"{where} names the role {role}, which is not on node {address.node}")
    for found in row[0]:
        raise Refused(f"{where} names the role {role}, which {found}: owners' triggers would run with its rights")


_LOGIN = """
SELECT array_remove(ARRAY[
    CASE WHEN rolname = current_user THEN 'is the balancer''s own' END,
    CASE WHEN rolsuper THEN 'is a superuser' END,
    CASE WHEN rolcreaterole THEN 'may create roles' END,
    CASE WHEN rolcreatedb THEN 'may create databases' END,
    CASE WHEN rolreplication THEN 'may replicate' END,
    CASE WHEN rolbypassrls THEN 'goes round row level security' END,
    CASE WHEN EXISTS (SELECT FROM pg_auth_members m WHERE m.member = r.oid) THEN 'is a member of other roles' END,
    CASE WHEN EXISTS (SELECT FROM pg_class c WHERE c.relowner = r.oid) THEN 'owns tables' END], NULL)
FROM pg_roles r WHERE rolname = %s
"""


def check_roots(cursor: Cursor, roots: Iterable[Name]) -> None:
    """Raises `Refused` naming a root that could not be opened to other nodes without letting them see too much."""
    owners: dict[str, Name] = {}
    for root in dict.fromkeys(roots):
        row = cursor.execute(_ROOT, (str(root),)).fetchone()
        if row is None:
            continue
        secured, owner, superuser = row
        if secured:
            raise Refused(f"{root} has row level security, which forwarding would go round: it cannot be forwarded")
        if not superuser:
            owners.setdefault(str(owner), root)
    if len(owners) > 1:
        named = " and ".join(f"{root} of {owner}" for owner, root in list(owners.items())[:2])
        raise Refused(f"forwarding has one login for all tables, but they have several owners: {named}")


_ROOT = """
SELECT c.relrowsecurity OR EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid), r.rolname, r.rolsuper
FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE c.oid = to_regclass(%s)
"""


def set_servers(cursor: Cursor, addresses: Mapping[str, Address]) -> None:
    """How this node reaches the others, with the login that each has for it; only the owner may use or see it."""
    check_available(cursor)
    cursor.execute("CREATE EXTENSION IF NOT EXISTS postgres_fdw")
    cursor.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(SCHEMA)))
    cursor.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO PUBLIC").format(sql.Identifier(SCHEMA)))
    cursor.execute("SELECT srvname FROM pg_foreign_server")
    known = {name for (name,) in cursor.fetchall()}
    for node, address in addresses.items():
        _set_server(cursor, node, address, known)


def set_forwards(cursor: Cursor, forwards: Sequence[Forward]) -> int:
    """Makes our roots lead exactly where these say; returns how many partitions were changed.

    The views they lead to must be there: see `make_views`.
    """
    _set_roots(cursor, forwards)
    wanted = {forwarded_name(one.place.partition).name: one for one in forwards}
    present = _present(cursor)
    astray = [name for name, leads in present.items() if name not in wanted or leads != _leads(wanted[name])]
    missing = [name for name in wanted if name in astray or name not in present]
    for name in astray:
        cursor.execute(sql.SQL("DROP FOREIGN TABLE {}").format(sql.Identifier(SCHEMA, name)))
    for name in missing:
        _create(cursor, name, wanted[name])
    return len(set(astray) | set(missing))


def is_forwarding(cursor: Cursor) -> bool:
    """Whether anything here leads to other nodes."""
    cursor.execute("SELECT 1 FROM pg_foreign_server WHERE srvname LIKE %s LIMIT 1", (_server("%"),))
    return cursor.fetchone() is not None


def remove_forwarding(cursor: Cursor) -> None:
    """Removes everything again; the extension stays, as others may use it too."""
    cursor.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(SCHEMA)))
    remove_views(cursor)
    remove_explanations(cursor)
    cursor.execute("SELECT srvname FROM pg_foreign_server WHERE srvname LIKE %s", (_server("%"),))
    for (name,) in cursor.fetchall():
        cursor.execute(sql.SQL("DROP SERVER {} CASCADE").format(sql.Identifier(name)))


def _server(node: str) -> str:
    return f"{SCHEMA} {node}"


def _set_server(cursor: Cursor, node: str, address: Address, known: set[str]) -> None:
    """Makes it, or replaces its options: an address may have changed."""
    name = sql.Identifier(_server(node))
    options = peers.for_foreign_server(address)
    login = {"user": address.forward_user}
    if address.forward_password is not None:
        login["password"] = address.forward_password
    if _server(node) not in known:
        # Partitions on several nodes are scanned at the same time.
        made = _options({**options, "async_capable": "true"})
        cursor.execute(sql.SQL("CREATE SERVER {} FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({})").format(name, made))
    else:
        row = cursor.execute(_SERVER_OPTIONS, (_server(node),)).fetchone()
        before = dict(one.split("=", 1) for one in (row[0] if row else None) or ())
        before.pop("async_capable", None)
        if changes := _changes(before, options):
            cursor.execute(sql.SQL("ALTER SERVER {} OPTIONS ({})").format(name, changes))
    _set_login(cursor, node, login)


def _set_login(cursor: Cursor, node: str, login: Mapping[str, str]) -> None:
    """For everybody who may use our tables; replaced only where it differs, because it closes open connections."""
    cursor.execute("SELECT umoptions FROM pg_user_mappings WHERE srvname = %s AND umuser = 0", (_server(node),))
    row = cursor.fetchone()
    if row is not None and sorted(row[0] or ()) == sorted(f"{key}={value}" for key, value in login.items()):
        return
    name = sql.Identifier(_server(node))
    keep_out_of_logs(cursor)
    cursor.execute(sql.SQL("DROP USER MAPPING IF EXISTS FOR PUBLIC SERVER {}").format(name))
    cursor.execute(sql.SQL("CREATE USER MAPPING FOR PUBLIC SERVER {} OPTIONS ({})").format(name, _options(login)))


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> sql.Composable | None:
    """What ALTER SERVER must say; None: nothing."""
    gone = [sql.SQL("DROP {}").format(sql.Identifier(key)) for key in before if key not in after]
    added = {key: value for key, value in after.items() if key not in before}
    changed = {key: value for key, value in after.items() if before.get(key, value) != value}
    words = [*gone, *(_options(one, verb) for one, verb in ((added, "ADD "), (changed, "SET ")) if one)]
    return sql.SQL(", ").join(words) if words else None


def _options(options: Mapping[str, str], verb: str = "") -> sql.Composable:
    return sql.SQL(", ").join(
        sql.SQL(verb) + sql.Identifier(key) + sql.SQL(" ") + sql.Literal(value) for key, value in options.items()
    )


def _set_roots(cursor: Cursor, forwards: Sequence[Forward]) -> None:
    for root, place in {one.place.root: one.place for one in forwards}.items():
        method = "HASH" if hasattr(place.part, "modulus") else "RANGE"
        columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in place.columns)
        cursor.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (LIKE {} INCLUDING DEFAULTS) PARTITION BY " + method + " ({})"
            ).format(forwarded_name(root).identifier, root.identifier, columns)
        )
        _copy_rights(cursor, root)


def _copy_rights(cursor: Cursor, root: Name) -> None:
    """Roles that may use the application's root may use ours in the same way."""
    cursor.execute(
        "SELECT privilege_type, CASE grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(grantee) END"
        " FROM pg_class, aclexplode(coalesce(relacl, acldefault('r', relowner)))"
        " WHERE oid = to_regclass(%s) AND grantee <> relowner AND privilege_type = ANY(%s)",
        (str(root), list(_PRIVILEGES)),
    )
    for privilege, role in cursor.fetchall():
        grantee = sql.SQL("PUBLIC") if role is None else sql.Identifier(role)
        grant = sql.SQL("GRANT " + privilege + " ON {} TO {}")
        cursor.execute(grant.format(forwarded_name(root).identifier, grantee))


def _leads(forward: Forward) -> tuple[str, tuple[str, ...]]:
    view = view_of(forward.place.partition)
    return _server(forward.node), (f"schema_name={view.schema}", f"table_name={view.name}")


def _present(cursor: Cursor) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Each of our partitions, and where it leads."""
    cursor.execute(
        "SELECT c.relname, s.srvname, f.ftoptions FROM pg_foreign_table f JOIN pg_class c ON c.oid = f.ftrelid"
        " JOIN pg_foreign_server s ON s.oid = f.ftserver WHERE c.relnamespace = to_regnamespace(%s)",
        (SCHEMA,),
    )
    return {name: (server, tuple(options)) for name, server, options in cursor.fetchall()}


def _create(cursor: Cursor, name: str, forward: Forward) -> None:
    """A tablet's bounds never change under its id, so a partition that leads to the right node is right."""
    place, view = forward.place, view_of(forward.place.partition)
    cursor.execute(
        sql.SQL("CREATE FOREIGN TABLE {} PARTITION OF {} {} SERVER {} OPTIONS (schema_name {}, table_name {})").format(
            sql.Identifier(SCHEMA, name),
            forwarded_name(place.root).identifier,
            for_values(place.columns, place.part),
            sql.Identifier(_server(forward.node)),
            sql.Literal(view.schema),
            sql.Literal(view.name),
        )
    )


TRIGGER = "!balancer_rekey"

_PRESENT = """
SELECT n.nspname, c.relname, pg_get_triggerdef(t.oid)
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.tgname = %s AND t.tgparentid = 0
"""


def explain_rekeys(cursor: Cursor, places: Iterable[Place], login: str) -> int:
    """Puts it on the roots of these partitions; returns how many lacked it, or had another login's. Idempotent."""
    wanted = {place.root: place.columns for place in places}
    present = {(schema, name): text for schema, name, text in cursor.execute(_PRESENT, (TRIGGER,)).fetchall()}
    named = sql.Literal(login).as_string(cursor)
    missing = [root for root in wanted if named not in str(present.get((root.schema, root.name), ""))]
    for root in missing:
        columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in wanted[root])
        changed = sql.SQL(" OR ").join(
            sql.SQL("OLD.{0} IS DISTINCT FROM NEW.{0}").format(sql.Identifier(column.name)) for column in wanted[root]
        )
        trigger = sql.Identifier(TRIGGER)
        cursor.execute(sql.SQL("DROP TRIGGER IF EXISTS {} ON {}").format(trigger, root.identifier))
        cursor.execute(
            sql.SQL(
                "CREATE TRIGGER {} BEFORE UPDATE OF {} ON {} FOR EACH ROW WHEN (session_user = {} AND ({}))"
                " EXECUTE FUNCTION balancer.refuse_rekey()"
            ).format(trigger, columns, root.identifier, sql.Literal(login), changed)
        )
    return len(missing)


def remove_explanations(cursor: Cursor) -> None:
    """Removes it again, wherever it is."""
    for schema, name, _ in cursor.execute(_PRESENT, (TRIGGER,)).fetchall():
        cursor.execute(sql.SQL("DROP TRIGGER {} ON {}").format(sql.Identifier(TRIGGER), sql.Identifier(schema, name)))
