"""Why a connection failed, in words: from the exceptions of sockets and TLS."""

import socket
import ssl
from collections.abc import Iterator
from typing import Final, NamedTuple

from router.checks.finding import Problem

# X509_V_ERR_… of OpenSSL's x509_vfy.h.
_WRONG_TIME: Final = (9, 10)
_WRONG_NAME: Final = (62, 64)  # a host name, an IP address
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")
_WANTS_CERTIFICATE: Final = "CERTIFICATE_REQUIRED"


class Fixes(NamedTuple):
    """What to do, for one kind of server; each is an imperative."""

    start: str
    correct_host: str
    without_tls: str
    trust: str
    client_certificate: str


def describe(error: BaseException, fixes: Fixes, timeout: float) -> Problem | None:
    """The problem behind an exception; None if neither sockets nor TLS are its cause. `timeout` in seconds."""
    for cause in _causes(error):
        match cause:
            case ssl.SSLCertVerificationError():
                return _of_certificate(cause, fixes)
            case ssl.SSLError() if cause.reason in _NOT_TLS:
                return Problem("does not speak TLS", fixes.without_tls)
            case ssl.SSLError() if _WANTS_CERTIFICATE in (cause.reason or ""):
                return Problem("wants a certificate of its clients", fixes.client_certificate)
            case ssl.SSLError():
                return Problem(f"the TLS handshake fails ({cause.reason or cause})", fixes.trust)
            case socket.gaierror():
                return Problem("its host name is unknown", fixes.correct_host)
            case ConnectionRefusedError() | FileNotFoundError():
                return Problem("nothing listens there", fixes.start)
            case PermissionError():
                return Problem("this user may not connect to it", "allow it, or run as another user")
            case TimeoutError():
                return Problem(f"cannot be reached within {timeout:g} s", fixes.correct_host)
            case OSError() if cause.strerror and not isinstance(cause, ConnectionResetError):
                return Problem(f"cannot be reached: {cause.strerror}", fixes.correct_host)
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and what led to it, the deepest cause first."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    return reversed(chain)


def _of_certificate(error: ssl.SSLCertVerificationError, fixes: Fixes) -> Problem:
    message = error.verify_message.rstrip(".")
    if error.verify_code in _WRONG_NAME:
        return Problem(f"its certificate is for another host ({message})", fixes.correct_host)
    if error.verify_code in _WRONG_TIME:
        fix = "renew the certificate, and check the clocks of both machines"
        return Problem(f"its certificate is not valid now ({message})", fix)
    return Problem(f"its certificate is not trusted ({message})", fixes.trust)
