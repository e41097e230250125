"""The certificate authorities that engines' certificates are verified with."""

import ssl
from pathlib import Path

import certifi


def create_tls_context(ca_file: str) -> ssl.SSLContext:
    """`ca_file`: a PEM file of authorities; empty for the system's (SSL_CERT_FILE and SSL_CERT_DIR override these).

    Raises OSError (ssl.SSLError is one) if the file cannot be read, or holds no certificates.
    """
    if ca_file:
        return ssl.create_default_context(cafile=ca_file)
    context = ssl.create_default_context()
    # A slim image may have no store, and a directory of certificates is only read during a handshake.
    if not context.get_ca_certs() and not _has_system_store():
        context.load_verify_locations(certifi.where())
    return context


def _has_system_store() -> bool:
    paths = ssl.get_default_verify_paths()  # None for what does not exist
    return bool(paths.cafile) or bool(paths.capath and any(Path(paths.capath).iterdir()))
