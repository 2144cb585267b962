"""The owner of tables that are imported cannot have his code run with the balancer's rights, whenever he brings it."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from balancer.directory.contract import Directory
from balancer.directory.open import open_directory
from balancer.embedded.postgres import PostgresServer
from balancer.errors import Refused
from tests.support.owned import plain_role
from tests.support.self_sharded import TABLETS, importer
from tests.support.servers import Database

pytestmark = pytest.mark.always

# No rollback takes a file back, and a transaction that only reads may write one: if it has the rights of a superuser.
SPY = """
CREATE FUNCTION public.write_down() RETURNS void LANGUAGE plpgsql AS
    $$BEGIN COPY (SELECT current_user) TO '{file}'; EXCEPTION WHEN insufficient_privilege THEN RETURN; END$$;
CREATE FUNCTION public.spy(bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
    $$BEGIN PERFORM public.write_down(); RETURN $1; END$$;
CREATE FUNCTION public.spying() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN PERFORM public.write_down(); RETURN NEW; END$$;
CREATE TABLE public.orders (id bigint PRIMARY KEY, n bigint NOT NULL DEFAULT 0);
INSERT INTO public.orders SELECT g FROM generate_series(1, 20) AS g;
"""
HOSTILE = {
    "check": ("begin", "ALTER TABLE orders ADD CONSTRAINT bad CHECK (spy(n) = n)"),
    "check of the root": ("copy from a", "ALTER TABLE orders_import ADD CONSTRAINT bad CHECK (spy(n) = n)"),
    "trigger": (
        "copy from a",
        "CREATE TRIGGER bad BEFORE INSERT ON orders_import FOR EACH ROW EXECUTE FUNCTION spying()",
    ),
    "folded while following": (
        "follow",
        "UPDATE orders SET n = 1 WHERE id = 1; CREATE INDEX bad ON orders (id, (spy(1)))",
    ),
    "folded while copying": ("copy from a", "CREATE INDEX bad ON orders (id, (spy(1)))"),
    "index": ("copy from a", "CREATE INDEX bad ON orders_import (spy(n))"),
}


@pytest.fixture
def dsns(
    postgres15: PostgresServer, postgres18: PostgresServer, database: Callable[[PostgresServer], Database]
) -> dict[str, str]:
    return {"a": database(postgres15).dsn, "b": database(postgres18).dsn}


@pytest.fixture
def seen(server_folder: Path, tmp_path: Path) -> Path:
    """Where code of the owner's writes if it has our rights."""
    folder = server_folder / f"seen-{tmp_path.name}"
    folder.mkdir()
    folder.chmod(0o777)  # servers may run as another user
    return folder / "who"


@pytest.fixture
def owner(dsns: dict[str, str], seen: Path) -> Iterator[str]:
    with plain_role(dsns, SPY.format(file=seen)) as role:
        yield role


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with open_directory(f"sqlite://{tmp_path}/directory.db") as opened:
        yield opened


@pytest.mark.parametrize(("when", "statement"), HOSTILE.values(), ids=HOSTILE)
def test_code_of_the_owner_never_runs_as_us(
    directory: Directory, dsns: dict[str, str], owner: str, seen: Path, when: str, statement: str
) -> None:
    with psycopg.connect(dsns["b"], autocommit=True) as connection:
        connection.execute("DELETE FROM orders")

    def observe(step: str) -> None:
        if step == when:
            with psycopg.connect(dsns["a"], autocommit=True) as connection:
                connection.execute(f'SET SESSION AUTHORIZATION "{owner}"'.encode())
                with suppress(psycopg.errors.InsufficientPrivilege):  # it is not his
                    connection.execute(statement.encode())

    with suppress(Refused), importer(directory, dsns, observe) as work:
        work.run(TABLETS, ())
    assert not seen.exists()


def test_in_the_end_they_are_the_owners_everywhere(directory: Directory, dsns: dict[str, str], owner: str) -> None:
    """Also on a node that never had the tables; and who may do what is as it was."""
    for node, statement in (("a", "GRANT SELECT, TRIGGER ON orders TO PUBLIC"), ("b", "DROP TABLE orders")):
        with psycopg.connect(dsns[node], autocommit=True) as connection:
            connection.execute(statement.encode())
    with importer(directory, dsns) as work:
        work.run(TABLETS, ())
    for dsn in dsns.values():
        with psycopg.connect(dsn) as connection:
            owners = connection.execute(
                "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class WHERE relkind IN ('r', 'p')"
                " AND relname LIKE 'orders%'"
            ).fetchall()
            assert owners == [(owner,)]
            rights = connection.execute(
                "SELECT privilege_type FROM pg_class c, aclexplode(relacl) g WHERE c.oid = 'orders'::regclass"
                " AND grantee = 0 ORDER BY 1"
            ).fetchall()
            assert rights == [("SELECT",), ("TRIGGER",)]
            assert connection.execute(
                "SELECT DISTINCT pg_get_userbyid(grantee) FROM pg_class c, aclexplode(relacl) g"
                " WHERE c.relname LIKE 'orders%' AND grantee <> 0"
            ).fetchall() == [(owner,)]
