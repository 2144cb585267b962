"""tablet-balancer: keeps a sharded PostgreSQL cluster balanced by itself."""

__version__ = "0.2.0"
