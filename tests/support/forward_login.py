"""The login by which nodes reach each other's tablets, for tests of the forwarding."""

from dataclasses import replace

import psycopg
from psycopg import sql

from balancer.nodes.session.connection import Address

ROLE, PASSWORD = "balancer_forward", "forward-marked-secret"


def with_login(address: Address) -> Address:
    """The address with that login, which is made on the server if it is not there."""
    with psycopg.connect(address.dsn, autocommit=True) as connection:
        if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (ROLE,)).fetchone() is None:
            make = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
            connection.execute(make.format(sql.Identifier(ROLE), sql.Literal(PASSWORD)))
    return replace(address, forward_user=ROLE, forward_password=PASSWORD)
