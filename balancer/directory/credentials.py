"""Who we are to ZooKeeper, who else may read, and how we know the server. Secrets come from the environment or from
files, never from an address: addresses are shown in logs and process lists.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from balancer.errors import UserError
from balancer.untrusted import read_secret_file

PREFIX = "BALANCER_DIRECTORY_"


class Scheme(StrEnum):
    """How the client proves who it is."""

    NONE = "none"
    DIGEST = "digest"
    SASL = "sasl"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Authentication and TLS of one client. With TLS, the server's certificate and host name are always checked."""

    scheme: Scheme = Scheme.NONE
    user: str = ""
    password: str = field(default="", repr=False)
    mechanism: str = "DIGEST-MD5"
    """Of SASL: DIGEST-MD5, or GSSAPI with the process's own Kerberos ticket."""
    reader_user: str = ""
    """Given only to a writer: who may read what it creates. Applications log in as this user."""
    reader_password: str = field(default="", repr=False)
    """Only for the digest scheme, whose access lists name users by a hash of it."""
    previous_user: str = ""
    """A digest user as whom we also log in, until `directory secure` has taken over what it owns."""
    previous_password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    """For an instance's HTTP, where the directory is followed through it: the readers' token is enough."""
    tls: bool = False
    ca: str | None = None
    """File with certificates to trust instead of the system's."""
    certificate: str | None = None
    """File with the client's own certificate, if the server asks for one."""
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)

    def client_options(self) -> dict[str, Any]:
        """The arguments for kazoo; `UserError` for what cannot work."""
        options: dict[str, Any] = {}
        self._check_users()
        logins: list[tuple[str, str]] = []
        if self.scheme is Scheme.DIGEST:
            if not self.user or not self.password:
                raise UserError(f"digest authentication needs {PREFIX}USER and {PREFIX}PASSWORD (or …_FILE)")
            logins.append(("digest", f"{self.user}:{self.password}"))
        elif self.scheme is Scheme.SASL:
            options["sasl_options"] = self._sasl_options()
        if self.previous_user:
            logins.append(("digest", f"{self.previous_user}:{self.previous_password}"))
        return options | ({"auth_data": logins} if logins else {})

    def _check_users(self) -> None:
        for user in (self.user, self.reader_user, self.previous_user):
            if ":" in user and self.scheme is Scheme.DIGEST:
                raise UserError(f"a user of the directory cannot have a colon in its name: {user!r}")
        if not self.reader_user:
            return
        if self.scheme is Scheme.NONE:
            raise UserError("a reader_user of the directory needs a user beside it: the writer, who is not the reader")
        if self.reader_user == self.user:
            raise UserError(f"the directory's reader_user and user are both {self.user!r}: they must be two")
        if self.scheme is Scheme.DIGEST and not self.reader_password:
            raise UserError("the directory's reader_user needs a reader_password (or …_file): access lists contain it")

    def tls_context(self) -> ssl.SSLContext | None:
        """The context of a TLS connection; None: without TLS."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=_readable(self.ca))
            if self.certificate:
                context.load_cert_chain(
                    _readable(self.certificate) or "", _readable(self.key), lambda: self.key_password or ""
                )
        except (ssl.SSLError, OSError) as error:
            raise UserError(f"the files for TLS cannot be used: {error}") from None
        return context

    def _sasl_options(self) -> dict[str, str]:
        if find_spec("puresasl") is None:
            raise UserError("SASL authentication needs the package pure-sasl: pip install pure-sasl")
        if self.mechanism == "GSSAPI":
            return {"mechanism": "GSSAPI"} | ({"principal": self.user} if self.user else {})
        if not self.user or not self.password:
            raise UserError(f"SASL {self.mechanism} needs {PREFIX}USER and {PREFIX}PASSWORD (or …_FILE)")
        return {"mechanism": self.mechanism, "username": self.user, "password": self.password}


def from_environment(environ: Mapping[str, str]) -> Credentials:
    """Credentials as `BALANCER_DIRECTORY_*` gives them; every secret may be in a file named by `…_FILE`."""
    try:
        scheme = Scheme(environ.get(f"{PREFIX}AUTH", Scheme.NONE))
    except ValueError:
        allowed = ", ".join(Scheme)
        raise UserError(f"{PREFIX}AUTH is {environ[f'{PREFIX}AUTH']!r}; allowed are {allowed}") from None
    return Credentials(
        scheme,
        environ.get(f"{PREFIX}USER", ""),
        _secret(environ, "PASSWORD") or "",
        environ.get(f"{PREFIX}SASL_MECHANISM", "DIGEST-MD5"),
        reader_user=environ.get(f"{PREFIX}READER_USER", ""),
        reader_password=_secret(environ, "READER_PASSWORD") or "",
        previous_user=environ.get(f"{PREFIX}PREVIOUS_USER", ""),
        previous_password=_secret(environ, "PREVIOUS_PASSWORD") or "",
        token=_secret(environ, "TOKEN") or "",
        tls=environ.get(f"{PREFIX}TLS", "").lower() in ("1", "true", "yes"),
        ca=environ.get(f"{PREFIX}CA") or None,
        certificate=environ.get(f"{PREFIX}CERTIFICATE") or None,
        key=environ.get(f"{PREFIX}KEY") or None,
        key_password=_secret(environ, "KEY_PASSWORD"),
    )


def _secret(environ: Mapping[str, str], name: str) -> str | None:
    file = environ.get(f"{PREFIX}{name}_FILE")
    if not file:
        return environ.get(f"{PREFIX}{name}")
    try:
        return read_secret_file(Path(file))
    except ValueError as error:
        raise UserError(f"{PREFIX}{name}_FILE {error} ({file})") from None


def _readable(file: str | None) -> str | None:
    if file is not None and not Path(file).is_file():
        raise UserError(f"the file {file} for TLS does not exist")
    return file
