"""How a node is reached by other nodes' servers: the one place that says it, for subscriptions and foreign servers.

An address says how *we* reach a node. Another server has other files, perhaps an older libpq, and takes the first host
that answers, be it a standby. So of the address, what is true everywhere is passed on:

- files of ours (`sslrootcert`, `sslcert`, `sslkey`, `service`, `passfile`, …) are not: `peer_sslrootcert` and its like
  say where they are on the other servers, or `peer_dsn` says everything. What a service file says is passed on;
- a certificate that the other server then cannot verify is bound to the password instead: SCRAM with channel binding
  (`sslmode=require channel_binding=require`) proves that who has the certificate has the password's verifier. Where
  there is no password, the other server looks for the authority where libpq does (`~/.postgresql/root.crt`);
- of several hosts the one that takes writes is meant, and one that does not answer must not be waited for for minutes.

Called by migrations, reference tables and forwarding. Pure but for the open connection that is asked what it used.
"""

from typing import Final

from psycopg.conninfo import make_conninfo

from balancer.nodes.session.connection import Address, Connection, Target, parameters_of

_FILES: Final = frozenset(
    ("sslrootcert", "sslcert", "sslkey", "sslcrl", "sslcrldir", "sslpassword", "service", "servicefile", "passfile")
)
_NEWER: Final = frozenset(
    (
        *("sslcertmode", "sslnegotiation", "require_auth", "load_balance_hosts", "gssdelegation"),
        *("min_protocol_version", "max_protocol_version"),
    )
)
"""What libpq of PostgreSQL 15 does not know, and fails with."""
_OURS: Final = frozenset(("application_name", "options", "client_encoding", "replication", "fallback_application_name"))
"""What our own sessions set for themselves."""
_VERIFIES: Final = ("verify-ca", "verify-full")
_SYSTEM: Final = "system"
"""As `sslrootcert`: the authorities of the host, wherever they are."""
_PATIENCE: Final = 5
"""Seconds for each of several hosts."""


def for_subscription(address: Address, connected: Connection | None = None) -> str:
    """For CREATE SUBSCRIPTION on another node, with the password. Not for printing.

    The other server does not see our passfile: a password that libpq found there is taken from an open connection."""
    password = address.password
    if password is None and connected is not None:
        password = connected.info.password or None
    secret = {} if password is None else {"password": password}
    return make_conninfo("", **peer_parameters(address, connected, with_password=password is not None), **secret)


def for_foreign_server(address: Address) -> dict[str, str]:
    """The options of a foreign server on another node; user and password belong to its user mapping."""
    return {
        name: value
        for name, value in peer_parameters(address, with_password=address.forward_password is not None).items()
        if name in _OF_A_FOREIGN_SERVER
    }


_OF_A_FOREIGN_SERVER: Final = frozenset(
    (
        *("host", "hostaddr", "port", "dbname", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslsni"),
        *("channel_binding", "target_session_attrs", "connect_timeout", "gssencmode", "krbsrvname"),
        *("ssl_min_protocol_version", "ssl_max_protocol_version"),
    )
)


def peer_parameters(
    address: Address, connected: Connection | None = None, *, with_password: bool = False
) -> dict[str, str]:
    """What another server says to libpq to reach this node, without the password."""
    if address.peer_dsn:
        found = {name: str(value) for name, value in parameters_of(_at(address.peer_dsn, address.node)).items()}
    else:
        found = _passed_on(address, connected)
    found |= dict(address.peer_files)
    if found.get("sslmode") in _VERIFIES and "sslrootcert" not in found and with_password and not address.peer_dsn:
        found |= {"sslmode": "require", "channel_binding": "require"}
    if "," in found.get("host", "") or "," in found.get("hostaddr", ""):
        found["target_session_attrs"] = str(Target.PRIMARY)
        found.setdefault("connect_timeout", str(_PATIENCE))
    found.pop("password", None)
    return found


def _at(dsn: str, node: str) -> Address:
    return Address(node, dsn)


def _passed_on(address: Address, connected: Connection | None) -> dict[str, str]:
    said = {name: str(value) for name, value in parameters_of(address).items()}
    if "service" in said and connected is not None:
        used = connected.info.get_parameters()
        said |= {name: value for name, value in used.items() if name not in _OURS and name not in _SESSION}
    authority = said.get("sslrootcert")
    found = {name: value for name, value in said.items() if name not in _FILES and name not in _NEWER}
    return found | ({"sslrootcert": _SYSTEM} if authority == _SYSTEM else {})


_SESSION: Final = frozenset(
    (
        *("connect_timeout", "tcp_user_timeout", "keepalives_idle", "keepalives_interval", "keepalives_count"),
        "target_session_attrs",
    )
)
