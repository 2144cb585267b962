"""What guards the home of a reference table calls a cast of its owner's: with the writer's rights, not with ours."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from balancer.naming import Name
from balancer.nodes.schema.install import install_schema
from balancer.nodes.session.connection import Connection
from balancer.nodes.tablets.reference_copies import guard_home
from tests.support.owned import run_as

CAST = """
CREATE TABLE public.seen (who name); GRANT INSERT ON public.seen TO PUBLIC;
CREATE TYPE public.mood AS ENUM ('good');
CREATE FUNCTION public.shown(public.mood) RETURNS json LANGUAGE plpgsql AS
    $$BEGIN INSERT INTO public.seen VALUES (current_user); RETURN '{}'; END$$;
CREATE CAST (public.mood AS json) WITH FUNCTION public.shown(public.mood);
CREATE TABLE public.countries (code int PRIMARY KEY, name text);
CREATE TABLE public.orders (country int REFERENCES public.countries) PARTITION BY HASH (country);
"""


@pytest.fixture
def owner(connection: Connection) -> Iterator[str]:
    role = f"r{uuid4().hex[:6]}"
    connection.execute(f"CREATE ROLE {role}; GRANT ALL ON SCHEMA public TO {role}".encode())
    run_as(connection, role, CAST)
    yield role
    connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())


def test_a_cast_to_json_in_a_home_does_not_run_as_the_balancer(connection: Connection, owner: str) -> None:
    install_schema(connection, "shop", "a")
    with connection.cursor() as cursor:
        guard_home(cursor, [Name("public", "countries")], 1)
    run_as(
        connection,
        owner,
        "ALTER TABLE public.countries ADD COLUMN more public.mood DEFAULT 'good'",
        "INSERT INTO public.countries VALUES (1, 'here')",
        "UPDATE public.countries SET name = 'there'",
    )
    assert connection.execute("SELECT DISTINCT who FROM public.seen").fetchall() in ([], [(owner,)])
    assert connection.execute("SELECT name FROM public.countries").fetchall() == [("there",)]
