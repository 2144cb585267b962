"""What is proposed for a database of plain tables: those that share a key stay together, small ones where they are."""

import pytest

from balancer.policies.proposal import LITTLE, ForeignKey, Proposal, TableFacts, Unsharded, obstacles, propose

pytestmark = pytest.mark.quick

GB = 1 << 30
BIG = "bigint"


def table(name: str, size: float, columns: str, unique: str = "", *keys: ForeignKey) -> TableFacts:
    """`columns` and `unique` as words; several unique keys are separated by a comma."""
    named = tuple((column, BIG) for column in columns.split())
    return TableFacts(name, int(size * GB), named, tuple(tuple(one.split()) for one in unique.split(",") if one), keys)


def groups(proposal: Proposal) -> list[tuple[tuple[str, ...], str]]:
    return [(group.roots, group.key) for group in proposal.groups]


def test_tables_of_one_tenant_stay_together() -> None:
    found = propose(
        [
            table("public.users", 0.001, "id", "id"),
            table(
                "public.orders", 50, "user_id id", "user_id id", ForeignKey("f", ("user_id",), "public.users", ("id",))
            ),
            table("public.items", 30, "user_id order_id line", "user_id order_id line"),
        ],
        10 * GB,
    )
    assert groups(found) == [(("public.orders", "public.items"), "user_id")]
    assert (found.groups[0].tablets, found.groups[0].layout) == (8, "hash")
    assert [(one.name, one.roots) for one in found.references] == [("users", ("public.users",))]
    assert found.references[0].reason == "small, and public.orders refers to it: every node gets a copy"
    assert found.left == ()


def test_the_key_is_the_column_that_most_bytes_have_without_wider_keys() -> None:
    found = propose([table("a", 5, "id tenant", "id"), table("b", 4, "id tenant", "tenant id")], GB)
    assert groups(found)[0][1] == "id"
    found = propose([table("a", 5, "id tenant", "tenant id"), table("b", 4, "n tenant", "n")], GB)
    assert groups(found)[0] == (("a",), "tenant")  # b would need a wider key, and nothing ties it to a


def test_a_number_of_its_own_is_no_key_for_others() -> None:
    tie = ForeignKey("f", ("user_id", "order_id"), "orders", ("user_id", "id"))
    tables = [
        table("users", 0.01, "id", "id"),
        table("orders", 5, "id user_id", "user_id id", ForeignKey("u", ("user_id",), "users", ("id",))),
        table("items", 1, "id user_id order_id", "id", tie),
    ]
    assert groups(propose(tables, GB)) == [(("orders", "items"), "user_id")]
    paired = ForeignKey("p", ("id",), "orders", ("id",))
    found = propose([table("orders", 5, "id", "id"), table("notes", 1, "id", "id", paired)], GB)
    assert groups(found) == [(("orders", "notes"), "id")]


def test_a_table_is_widened_only_where_a_foreign_key_ties_it() -> None:
    tie = ForeignKey("f", ("tenant", "a_id"), "a", ("tenant", "id"))
    found = propose([table("a", 5, "id tenant", "tenant id"), table("b", 4, "n tenant a_id", "n", tie)], GB)
    assert groups(found) == [(("a", "b"), "tenant")]
    assert found.groups[0].widened == ("b",)


def test_a_foreign_key_that_does_not_pair_the_key_keeps_a_table_out() -> None:
    odd = ForeignKey("odd", ("a_id",), "a", ("id",))
    tables = [table("a", 5, "id tenant", "tenant id"), table("b", 0.01, "tenant a_id", "tenant a_id", odd)]
    found = propose(tables, GB)
    assert groups(found) == [(("a",), "tenant")]
    assert found.left == (
        Unsharded(
            "b", "its foreign key odd to a does not pair the key tenant: add the column, or drop the foreign key"
        ),
    )
    assert [text.split(",")[0] for text in obstacles(found, tables)] == ["foreign key odd of b points to a"]


def test_large_tables_without_a_common_key_are_tables_of_their_own() -> None:
    found = propose([table("s.log", 5, "id", "id"), table("t.log", 4, "n", "n"), table("u.tiny", 0.001, "x")], GB)
    assert groups(found) == [(("s.log",), "id"), (("t.log",), "n")]
    assert [group.name for group in found.groups] == ["log", "t_log"]
    assert [left.table for left in found.left] == ["u.tiny"]


def test_a_key_of_time_is_cut_into_ranges() -> None:
    events = TableFacts("events", GB, (("at", "timestamp with time zone"),), ())
    assert propose([events], GB).groups[0].layout == "range"


def test_an_empty_database_and_tables_without_a_key_are_no_mistake() -> None:
    assert propose([], GB) == Proposal((), ())
    assert propose([TableFacts("blobs", GB, (), ())], GB).left == (Unsharded("blobs", "no column of it can be a key"),)
    assert propose([table("a", 0, "id", "id")], GB).groups[0].tablets == 1


def test_a_huge_table_has_no_more_tablets_than_a_file_takes() -> None:
    assert propose([table("a", 1e9, "id", "id")], GB).groups[0].tablets == 8192


def refer(to: str) -> ForeignKey:
    return ForeignKey(f"to_{to}", (f"{to}_id",), to, ("id",))


def test_what_reference_tables_refer_to_comes_with_them() -> None:
    orders = table("orders", 5, "user_id city_id kind_id", "user_id", refer("city"), refer("kind"))
    small = [table("city", 0.001, "id country_id", "id", refer("country")), table("country", 0.001, "id", "id")]
    found = propose([orders, *small, table("kind", 0.001, "id", "id"), table("other", 0.001, "id", "id")], GB)
    assert [(one.name, one.roots) for one in found.references] == [("city", ("city", "country")), ("kind", ("kind",))]
    assert [left.table for left in found.left] == ["other"]


@pytest.mark.parametrize(
    ("referenced", "others", "reason"),
    [
        (table("city", 0.001, "id"), [], "it has no primary key"),
        (table("city", 0.4, "id", "id", refer("city")), [], "its foreign key to_city points to city"),
        (
            table("city", 0.001, "id big_id", "id", refer("big")),
            [table("big", 4, "id", "id")],
            "does not pair the key",
        ),
    ],
)
def test_what_cannot_be_on_every_node_is_no_reference_table(
    referenced: TableFacts, others: list[TableFacts], reason: str
) -> None:
    found = propose([table("orders", 5, "user_id city_id", "user_id", refer("city")), referenced, *others], GB)
    assert found.references == ()
    assert [left.table for left in found.left] == ["city"]
    assert reason in found.left[0].reason


def test_a_table_of_a_few_megabytes_is_small_in_a_small_database() -> None:
    orders = TableFacts("orders", 1 << 20, (("user_id", BIG), ("city_id", BIG)), (("user_id",),), (refer("city"),))
    for size, copied in ((LITTLE, 1), (LITTLE + 1, 0)):
        city = TableFacts("city", size, (), (("id",),))
        assert len(propose([orders, city], GB).references) == copied
