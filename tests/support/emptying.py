"""Makes a database as good as new: faster than making a new one."""

import psycopg


def empty(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Drops everything that is not PostgreSQL's own."""
    connection.execute("DROP FOREIGN DATA WRAPPER IF EXISTS w CASCADE")
    schemas = connection.execute(
        "SELECT quote_ident(nspname) FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema)'"
    ).fetchall()
    for (schema,) in schemas:
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())
    connection.execute("ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM PUBLIC")
    connection.execute("CREATE SCHEMA public")
    connection.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")
