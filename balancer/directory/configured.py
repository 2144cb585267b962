"""Opens the directory that a configuration names, with its credentials. The daemon and the command line call it."""

import os
from pathlib import Path

from pydantic import SecretStr

from balancer.clock import Clock
from balancer.directory.contract import Directory
from balancer.directory.credentials import Credentials, Scheme, from_environment
from balancer.directory.model import Node
from balancer.directory.open import open_directory
from balancer.errors import UserError
from balancer.settings import BundleSettings, DaemonFile
from balancer.settings.files import DirectorySecurity
from balancer.untrusted import read_secret_file


def open_configured(daemon: DaemonFile, clock: Clock | None = None, *, create: bool = False) -> Directory:
    """The directory of an instance; if it does not exist, only callers that fill it make it."""
    security = daemon.directory_security
    known = credentials(security) if security != DirectorySecurity() else from_environment(os.environ)
    return open_directory(daemon.directory, credentials=known, clock=clock, lease=daemon.session_timeout, create=create)


def credentials(security: DirectorySecurity) -> Credentials:
    """What the section `[directory_security]` says."""
    scheme = Scheme.NONE
    if security.user:
        scheme = Scheme.SASL if security.sasl else Scheme.DIGEST
    return Credentials(
        scheme=scheme,
        user=security.user,
        password=_password(security, "password"),
        reader_user=security.reader_user,
        reader_password=_password(security, "reader_password"),
        previous_user=security.previous_user,
        previous_password=_password(security, "previous_password"),
        tls=security.tls,
        ca=_text(security.tls_ca),
        certificate=_text(security.tls_certificate),
        key=_text(security.tls_key),
    )


def _password(security: DirectorySecurity, name: str) -> str:
    given: SecretStr | None = getattr(security, name)
    if given is not None:
        return given.get_secret_value()
    file: Path | None = getattr(security, f"{name}_file")
    if file is None:
        return ""
    try:
        return read_secret_file(file)
    except ValueError as error:
        raise UserError(f"directory_security.{name}_file {error}") from None


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def records_of(bundle: BundleSettings) -> list[Node]:
    """The bundle's nodes as the directory records them: without passwords."""
    return [Node(node.id, bundle.name, node.dsn, zone=node.zone, weight=node.weight) for node in bundle.nodes.values()]
