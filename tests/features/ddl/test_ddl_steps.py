"""Files of schema changes as steps: what is split up, what is undone how, and what is refused in one sentence."""

import pytest

from balancer.errors import UserError
from balancer.features.ddl.steps import RootKey, read_change, undo_of
from balancer.naming import Name

pytestmark = pytest.mark.quick

ROOTS = {Name("public", "orders"): RootKey(("id",)), Name("s", "Big Table"): RootKey(("Tenant",))}


def texts(file: str) -> list[str]:
    return [step.text for step in read_change(file, ROOTS)]


def test_statements_are_told_apart_by_postgresqls_rules() -> None:
    file = """
        -- a comment; with a semicolon
        ALTER TABLE orders ADD COLUMN note text DEFAULT 'a;b';
        CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN; RETURN 1; END $$;
        COMMENT ON TABLE orders IS 'it''s; fine'
    """
    found = read_change(file, ROOTS)
    assert len(found) == 3
    assert found[0].undo == ('ALTER TABLE "public"."orders" DROP COLUMN IF EXISTS "note"',)
    assert found[1].undo is None
    assert "END $$" in found[1].text


def test_a_check_is_added_first_and_validated_then() -> None:
    assert texts("ALTER TABLE orders ADD CONSTRAINT positive CHECK (id > 0 AND id IN (1, 2))") == [
        "ALTER TABLE orders ADD CONSTRAINT positive CHECK (id > 0 AND id IN (1, 2))\nNOT VALID",
        'ALTER TABLE "public"."orders" VALIDATE CONSTRAINT "positive"',
    ]
    assert len(texts("ALTER TABLE orders ADD CONSTRAINT positive CHECK (id > 0) NOT VALID")) == 1
    assert texts("ALTER TABLE orders ADD CONSTRAINT positive CHECK (id > 0) -- why")[0].endswith("-- why\nNOT VALID")


def test_not_null_is_set_by_way_of_a_check() -> None:
    found = texts('alter table s."Big Table" alter column "My Note" set not null;')
    assert len(found) == 4
    assert 'ALTER TABLE "s"."Big Table" ADD CONSTRAINT "tb_not_null_' in found[0]
    assert 'CHECK ("My Note" IS NOT NULL) NOT VALID' in found[0]
    assert found[2] == 'alter table s."Big Table" alter column "My Note" set not null'


@pytest.mark.parametrize(
    ("file", "unique", "tail"),
    [
        ("CREATE INDEX CONCURRENTLY i ON orders (n)", False, "(n)"),
        ("create unique index if not exists I on public.orders(id, n) where n > 1", True, "(id, n) where n > 1"),
        (
            "CREATE INDEX i ON orders USING gin (n) WITH (fastupdate = off)",
            False,
            "USING gin (n) WITH (fastupdate = off)",
        ),
    ],
)
def test_an_index_of_a_root_is_built_leaf_by_leaf(file: str, unique: bool, tail: str) -> None:
    (step,) = read_change(file, ROOTS)
    assert step.index is not None
    assert (step.index.name, step.index.root, step.index.unique, step.index.tail) == (
        "i",
        Name("public", "orders"),
        unique,
        tail,
    )
    assert undo_of([step]) == [(1, ('DROP INDEX IF EXISTS "public"."i"',))]


def test_dropping_an_index_is_not_done_concurrently() -> None:
    assert texts("DROP INDEX CONCURRENTLY IF EXISTS i") == ["DROP INDEX IF EXISTS i"]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("", "there is no statement"),
        ("-- nothing;", "there is no statement"),
        ("a\0b", "zero byte"),
        ("DELETE FROM orders", "not a schema change"),
        ("BEGIN", "not a schema change"),
        ("CREATE DATABASE x", "DATABASE is not"),
        ("CREATE TEMP TABLE t (i int)", "TEMP is not"),
        ("ALTER SYSTEM SET fsync = off", "SYSTEM is not"),
        ("DROP ROLE x", "ROLE is not"),
        ("ALTER TABLE balancer.tablet ADD x int", "a schema of tablet-balancer's own"),
        ('CREATE VIEW v AS SELECT * FROM "balancer".tablet', "a schema of tablet-balancer's own"),
        ("ALTER TABLE ONLY orders ADD x int", "ONLY would leave"),
        ("ALTER TABLE orders RENAME TO sales", "knows public.orders by this name"),
        ("ALTER TABLE orders SET SCHEMA s", "knows public.orders by this name"),
        ("ALTER TABLE orders DETACH PARTITION orders_t1", "attached and detached by tablet-balancer"),
        ("ALTER TABLE orders DROP COLUMN id", "id is part of the key"),
        ("ALTER TABLE orders DROP id", "id is part of the key"),
        ("ALTER TABLE orders ADD x int, DROP COLUMN id", "id is part of the key"),
        ('ALTER TABLE s."Big Table" RENAME COLUMN "Tenant" TO t', "Tenant is part of the key"),
        ("ALTER TABLE orders ALTER id TYPE text", "id is part of the key"),
        ("ALTER TABLE orders ALTER COLUMN id SET DATA TYPE text", "id is part of the key"),
        ("ALTER TABLE orders ALTER n TYPE text", "--allow-rewrite"),
        ("ALTER TABLE orders ALTER n DROP DEFAULT, ALTER COLUMN n TYPE text", "--allow-rewrite"),
        ("ALTER TABLE orders ADD x int, ALTER n SET DATA TYPE numeric(1, 0)", "--allow-rewrite"),
        ("ALTER TABLE orders DROP m, ADD COLUMN IF NOT EXISTS x bigserial", "--allow-rewrite"),
        ("ALTER TABLE orders ADD x int GENERATED ALWAYS AS (n * 2) STORED, ADD y int", "--allow-rewrite"),
        ("ALTER TABLE orders ADD CHECK (id > 0)", "give the constraint a name"),
        ("ALTER TABLE orders ADD CONSTRAINT a CHECK (id > 0), ADD x int", "a statement of their own"),
        ("ALTER TABLE orders ALTER n SET NOT NULL, ADD x int", "a statement of their own"),
        ("CREATE INDEX ON orders (n)", "give the index a name"),
        ("CREATE INDEX i ON ONLY orders (n)", "ONLY would leave"),
        ("CREATE INDEX i orders (n)", "ON and a table are expected"),
        ("DROP TABLE orders", "is a sharded table"),
        ("ALTER TABLE", "a name is expected"),
        ("ALTER TABLE 'orders' ADD x int", "a name is expected"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_sentence(file: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        read_change(file, ROOTS)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_rewrites_a_table_is_done_by_who_says_so() -> None:
    (step,) = read_change("ALTER TABLE orders ALTER n TYPE text", ROOTS, allow_rewrite=True)
    assert step.rewrites
    (step,) = read_change("ALTER TABLE orders ADD type text, ADD stored int, ALTER n SET DEFAULT 1", ROOTS)
    assert not step.rewrites


def test_the_first_step_that_nothing_takes_back_is_named() -> None:
    steps = read_change("ALTER TABLE orders ADD x int; ALTER TABLE orders DROP y; CREATE INDEX i ON orders (x)", ROOTS)
    with pytest.raises(UserError, match="step 2 cannot be undone: ALTER TABLE orders DROP y"):
        undo_of(steps)
    assert [number for number, _ in undo_of(steps[:1])] == [1]
