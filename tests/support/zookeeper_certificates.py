"""A certificate authority for one test, made by openssl: certificates with the names that the test wants."""

import subprocess
from pathlib import Path


class Authority:
    """Makes certificates in a folder."""

    def __init__(self, folder: Path, name: str = "tests") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = folder / f"{name}-ca.key"
        self.certificate = folder / f"{name}-ca.pem"
        _openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", self._key, "-out", self.certificate),
        )

    def issue(self, name: str, alternatives: str) -> Path:
        """A PEM file with a key and its certificate for these alternative names, as in `DNS:localhost`."""
        key, request, certificate, extension = (
            self._folder / f"{name}.{suffix}" for suffix in ("key", "csr", "crt", "ext")
        )
        extension.write_text(f"subjectAltName={alternatives}\n")
        _openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", key, "-out", request),
        )
        _openssl(
            *("x509", "-req", "-days", "2", "-in", request, "-CA", self.certificate, "-CAkey", self._key),
            *("-CAcreateserial", "-extfile", extension, "-out", certificate),
        )
        both = self._folder / f"{name}.pem"
        both.write_text(key.read_text() + certificate.read_text())
        both.chmod(0o644)
        return both


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
