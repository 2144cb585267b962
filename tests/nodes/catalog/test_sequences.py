"""A new owner's sequences go on behind what was given out elsewhere, each in its own steps."""

import psycopg
import pytest

from balancer.nodes.catalog.sequences import raise_statements
from balancer.nodes.schema.install import install_schema
from balancer.nodes.session.connection import Connection, run_together


@pytest.mark.parametrize(
    ("sequence", "value", "following"),
    [
        ("START 1 INCREMENT 2", 10, 11),
        ("START 2 INCREMENT 2", 10, 12),
        ("START 1 INCREMENT 1", 10, 11),
        ("START 50", 10, 50),  # it is ahead already, and has given out nothing yet
        ("INCREMENT -3 START -1", -10, -13),
        ("START 5 INCREMENT 10", 5, 15),
        ("RESTART 5000", 300, 5000),  # by an operator, and not used since
        ("INCREMENT 10 RESTART 5000", 5004, 5010),
    ],
)
def test_a_sequence_is_raised_in_its_own_steps(
    connection: Connection, sequence: str, value: int, following: int
) -> None:
    install_schema(connection, "shop", "a")
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE SEQUENCE numbers {sequence.partition('RESTART')[0]}")
        if "RESTART" in sequence:
            cursor.execute(f"ALTER SEQUENCE numbers RESTART {sequence.partition('RESTART')[2]}")
        run_together(cursor, raise_statements([("public.numbers", value), ("nowhere", 1)]))
        assert cursor.execute("SELECT nextval('numbers')").fetchone() == (following,)
        run_together(cursor, raise_statements([("public.numbers", value)]))
        run_together(
            cursor, raise_statements([("public.numbers", 2**62)] if following > 0 else [])
        )  # far ahead is no error either


def test_a_sequence_that_cannot_go_so_far_is_put_at_its_end(connection: Connection) -> None:
    install_schema(connection, "shop", "a")
    with connection.cursor() as cursor:
        cursor.execute("CREATE SEQUENCE numbers MAXVALUE 100 INCREMENT 7")
        run_together(cursor, raise_statements([("public.numbers", 1000)]))
        with pytest.raises(psycopg.errors.SequenceGeneratorLimitExceeded):
            cursor.execute("SELECT nextval('numbers')")
