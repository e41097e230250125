"""Reads a router's status over HTTP, with an administrator's key."""

import asyncio
from typing import Any, Final, TypeVar

import httpx
import msgspec

from router.log_output import one_line
from router.shared.status_documents import HistoryDocument, RequestsDocument, StatusDocument

TIMEOUT: Final = 5.0
"""Seconds for each response."""

MAX_RESPONSE: Final = 8 << 20
"""Bytes of a document; a longer one is an error."""

_MAX_MESSAGE: Final = 200  # characters of an error that the router sends
_HISTORY: Final = "/admin/history?minutes=60"
_REQUESTS: Final = "/admin/requests?limit=50"

DocumentT = TypeVar("DocumentT")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The documents of one moment. The last two are None if the router cannot read them, as without Redis."""

    status: StatusDocument
    history: HistoryDocument | None
    requests: RequestsDocument | None


class RouterError(Exception):
    """The status cannot be read; the message says why, in words for people and without control characters."""


class KeyRefusedError(RouterError):
    """The router wants a key, or another one."""


class StatusClient:
    """Reads the documents of a router at `url`, which has no slash at its end. The key goes into a header only."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        # Nothing of the environment: a proxy would get the key.
        self._http = httpx.AsyncClient(timeout=TIMEOUT, trust_env=False, headers=headers)

    async def read(self) -> Snapshot:
        """Raises RouterError."""
        # First and alone: if nobody has watched, the router waits here until all processes have reported; and reading
        # the requests counts as watching.
        status = await self._get("/admin/status", StatusDocument)
        history, requests = await asyncio.gather(
            self._get(_HISTORY, HistoryDocument), self._get(_REQUESTS, RequestsDocument), return_exceptions=True
        )
        return Snapshot(status=status, history=_unless_failed(history), requests=_unless_failed(requests))

    async def _get(self, path: str, kind: type[DocumentT]) -> DocumentT:
        try:
            async with self._http.stream("GET", self.url + path) as response:
                body = await _read_up_to(response, MAX_RESPONSE)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RouterError(f"{self.url} does not answer ({type(error).__name__})") from None
        if response.status_code != 200:
            raise _refusal(self.url, response.status_code, body)
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise RouterError(f"{self.url}{path} is not the status of a router of this version") from None

    async def aclose(self) -> None:
        await self._http.aclose()


async def _read_up_to(response: httpx.Response, limit: int) -> bytes:
    parts = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > limit:
            raise RouterError(f"the response has more than {limit >> 20} MiB")
        parts.append(part)
    return b"".join(parts)


def _unless_failed(document: DocumentT | BaseException) -> DocumentT | None:
    if not isinstance(document, BaseException):
        return document
    if isinstance(document, RouterError):
        return None
    raise document


def _refusal(url: str, status: int, body: bytes) -> RouterError:
    if status == 404:
        return RouterError(f"{url} has no status; it is not a router, or an older version")
    message = _error_message(body)
    if status == 401:
        return KeyRefusedError(f"{url}: {message}")
    return RouterError(f"{url} answers with status {status}: {message}")


def _error_message(body: bytes) -> str:
    try:
        error: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        error = None
    match error:
        case {"error": {"message": str(message)}}:
            return one_line(message[:_MAX_MESSAGE])
    return "without a message"
