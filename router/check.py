"""`roundhouse check`: tests whether Redis and every engine of the configuration answer."""

import asyncio
import socket
import ssl
from types import MappingProxyType
from typing import Any, Final

import msgspec

from router.net.client.errors import EngineError
from router.net.client.target import RequestTarget
from router.net.client.transport import HTTPTransport
from router.settings import EngineSettings, Settings
from router.shared.redis import ask_server
from router.upstream.engine_kinds import MODELS_PATH, parse_model_list

CHECK_TIMEOUT: Final = 5.0
"""Seconds for each response."""

_MAX_PAGE: Final = 4 << 20  # bytes
_MAX_NAMES: Final = 10
_LONGEST_NAME: Final = 256
_STATUS_NOTES: Final = MappingProxyType(
    {
        401: "refuses the key with status 401; set api_key",
        403: "refuses the key with status 403; api_key may lack a right",
        404: "has no /v1/models (status 404); is the path of the URL right?",
    }
)
# X509_V_ERR_… of OpenSSL's x509_vfy.h.
_WRONG_TIME: Final = (9, 10)
_WRONG_NAME: Final = (62, 64)  # a host name, an IP address
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")

Finding = dict[str, Any]
"""`what` was checked, whether it is `ok`, and a `note` for a person."""


async def check_all(settings: Settings) -> list[Finding]:
    async with HTTPTransport() as transport:
        engines = [_check_engine(transport, engine, url) for engine in settings.engine for url in engine.addresses]
        return list(await asyncio.gather(_check_redis(settings), *engines))


async def _check_redis(settings: Settings) -> Finding:
    what = "redis (embedded)" if settings.redis_url != settings.cache.url else "redis"
    report = await ask_server(settings.redis_url, timeout=CHECK_TIMEOUT)
    if report.problem is not None:
        return {"what": what, "ok": False, "note": report.problem}
    note = f"version {report.version or 'unknown'}"
    return {
        "what": what,
        "ok": True,
        "note": note if report.primaries == 1 else f"{note}, {report.primaries} primaries",
    }


async def _check_engine(transport: HTTPTransport, engine: EngineSettings, url: str) -> Finding:
    what = f"engine {engine.name} at {url}"
    served = engine.served_model or engine.model
    try:
        status, page = await _get_models(transport, engine, url)
    except EngineError as error:
        return {"what": what, "ok": False, "note": _in_words(error)}
    names = _model_names(page)
    if names is None:
        return {
            "what": what,
            "ok": False,
            "note": _STATUS_NOTES.get(status, f"status {status} without a list of models"),
        }
    if served not in names:
        return {"what": what, "ok": False, "note": f"serves {_listed(names)} but not {served!r} (served_model)"}
    kind = parse_model_list(page, served).kind
    return {"what": what, "ok": True, "note": f"serves {served}" + (f" ({kind})" if kind is not None else "")}


def _model_names(page: bytes) -> list[str] | None:
    """None if the page is no list of models: the server may answer anything."""
    try:
        names = [model["id"] for model in msgspec.json.decode(page)["data"]]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return None
    return names if all(isinstance(name, str) for name in names) else None


def _listed(names: list[str]) -> str:
    """For a terminal, so without control characters; a hosted API has hundreds."""
    shown = [
        name if name.isprintable() and len(name) <= _LONGEST_NAME else repr(name[:_LONGEST_NAME]) for name in names
    ]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return (", ".join(shown[:_MAX_NAMES]) or "no model") + more


async def _get_models(transport: HTTPTransport, engine: EngineSettings, url: str) -> tuple[int, bytes]:
    """Raises EngineError."""
    target = RequestTarget(url, MODELS_PATH, headers=engine.request_headers, ca_file=engine.ca_file or "")
    timeouts = {"connect_timeout": CHECK_TIMEOUT, "head_timeout": CHECK_TIMEOUT, "total_timeout": CHECK_TIMEOUT}
    with await transport.send(target.origin, target.get_request, **timeouts) as response:
        return response.status, await response.read(_MAX_PAGE)


def _in_words(error: EngineError) -> str:
    """Why there was no response; the cause of an EngineError has the details."""
    cause = error.__cause__
    match cause:
        case ssl.SSLCertVerificationError():
            return _in_words_of_certificate(cause)
        case ssl.SSLError() if cause.reason in _NOT_TLS:
            return "does not speak TLS; is the URL http:// rather than https://?"
        case ssl.SSLError():
            return f"the TLS handshake fails ({cause.reason or cause})"
        case socket.gaierror():
            return "its host name is unknown"
        case ConnectionRefusedError() | FileNotFoundError():
            return "nothing listens there"
        case TimeoutError():
            return f"cannot be reached within {CHECK_TIMEOUT:g} s"
        case OSError() if cause.strerror:
            return f"cannot be reached: {cause.strerror}"
    if error.reason == "too-large":
        return f"has a list of models of more than {_MAX_PAGE >> 20} MiB, which is not read"
    if error.reason == "timeout":
        return f"does not answer within {CHECK_TIMEOUT:g} s"
    return f"does not answer in HTTP ({error})"


def _in_words_of_certificate(error: ssl.SSLCertVerificationError) -> str:
    message = error.verify_message.rstrip(".")
    if error.verify_code in _WRONG_NAME:
        return f"its certificate is for another host ({message}); is the host of the URL right?"
    if error.verify_code in _WRONG_TIME:
        return f"its certificate is not valid now ({message})"
    return f"its certificate is not trusted ({message}); set ca_file to its authority's certificate"
