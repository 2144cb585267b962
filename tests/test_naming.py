"""Names are read as PostgreSQL reads them and stay distinct when they have to be cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.errors import UserError
from balancer.naming import MAX_BYTES, Name, parse_name, partition_name

pytestmark = pytest.mark.quick
parts = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=80)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("public.orders", Name("public", "orders")),
        ("orders", Name("public", "orders")),
        ("Shop.Orders", Name("shop", "orders")),
        ('"Shop"."odd.name"', Name("Shop", "odd.name")),
        ('s."say ""x"""', Name("s", 'say "x"')),
    ],
)
def test_a_name_is_read_as_postgresql_reads_it(text: str, expected: Name) -> None:
    assert parse_name(text) == expected


@pytest.mark.parametrize("text", ["", "a.b.c", 'a."b', "a b", "."])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not a table's name"):
        parse_name(text)


@given(parts, parts)
def test_printing_and_reading_a_name_gives_it_back(schema: str, name: str) -> None:
    assert parse_name(str(Name(schema, name))) == Name(schema, name)


def test_a_partition_is_named_after_its_root_and_tablet() -> None:
    assert partition_name(Name("public", "orders"), 17) == Name("public", "orders_t17")


@given(parts, parts, st.integers(1, 2**62))
def test_partition_names_fit_and_roots_stay_apart(one: str, other: str, tablet: int) -> None:
    first, second = (partition_name(Name("s", name), tablet) for name in (one, other))
    assert len(first.name.encode()) <= MAX_BYTES
    assert first.name.endswith(f"_t{tablet}")
    assert (first == second) == (one == other)
