"""A new owner's sequences go on behind what was given out elsewhere, each in its own steps."""

import psycopg
import pytest

from balancer.nodes.connection import Connection, run_together
from balancer.nodes.sequences import raise_statements


@pytest.mark.parametrize(
    ("sequence", "value", "following"),
    [
        ("START 1 INCREMENT 2", 10, 11),
        ("START 2 INCREMENT 2", 10, 12),
        ("START 1 INCREMENT 1", 10, 11),
        ("START 50", 10, 50),  # it is ahead already, and has given out nothing yet
        ("INCREMENT -3 START -1", -10, -13),
        ("START 5 INCREMENT 10", 5, 15),
    ],
)
def test_a_sequence_is_raised_in_its_own_steps(
    connection: Connection, sequence: str, value: int, following: int
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE SEQUENCE numbers {sequence}")
        run_together(cursor, raise_statements([("numbers", value), ("nowhere", 1)]))
        assert cursor.execute("SELECT nextval('numbers')").fetchone() == (following,)
        run_together(cursor, raise_statements([("numbers", value)]))
        run_together(
            cursor, raise_statements([("numbers", 2**62)] if following > 0 else [])
        )  # far ahead is no error either


def test_a_sequence_that_cannot_go_so_far_is_put_at_its_end(connection: Connection) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE SEQUENCE numbers MAXVALUE 100 INCREMENT 7")
        run_together(cursor, raise_statements([("numbers", 1000)]))
        with pytest.raises(psycopg.errors.SequenceGeneratorLimitExceeded):
            cursor.execute("SELECT nextval('numbers')")
