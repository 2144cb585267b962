"""A certificate for 127.0.0.1 that lives as long as a test."""

import subprocess
from pathlib import Path


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Certificate and key."""
    certificate, key = folder / "tls.crt", folder / "tls.key"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*words, "-out", certificate, "-keyout", key], check=True, capture_output=True)
    return certificate, key
