"""The balancer's own connections for tests that also play the application: names without a schema are in public."""

from typing import Any

from balancer.nodes.session import connection
from balancer.nodes.session.connection import Address, Connection


def connect(address: Address, **how: Any) -> Connection:
    """As the balancer opens it, except for its pinned search_path and row_security."""
    opened = connection.connect(address, **how)
    opened.execute("SET search_path TO public; SET row_security TO on")
    if not opened.autocommit:
        opened.commit()
    return opened
