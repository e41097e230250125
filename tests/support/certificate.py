"""Certificates for servers of tests."""

import shutil
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")


def certificate(folder: Path, *, name: str = "IP:127.0.0.1") -> Path:
    """A self-signed certificate for 127.0.0.1 with its key, in one file. `name`: a subjectAltName."""
    path = folder / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", f"subjectAltName={name}"]
    subprocess.run([*command, "-keyout", path, "-out", folder / "c.pem"], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + (folder / "c.pem").read_bytes())
    return path
