"""Asks a router's admin API over HTTP, with an administrator's key."""

from typing import Any, Final, TypeVar

import httpx
import msgspec

from router.telemetry.log_output import one_line

TIMEOUT: Final = 15.0
"""Seconds for each response: a router waits up to 5 for a Redis that does not answer."""

CONNECT_TIMEOUT: Final = 5.0

MAX_RESPONSE: Final = 8 << 20
"""Bytes of a document; a longer one is an error."""

_NO_SUCH_PAGE: Final = "not_found"
_MAX_MESSAGE: Final = 200  # characters of an error that the router sends

DocumentT = TypeVar("DocumentT")


class RouterError(Exception):
    """The router does not answer the question; the message says why, for people and without control characters."""


class KeyRefusedError(RouterError):
    """The router wants a key, or another one."""


class AdminClient:
    """Asks a router at `url`, which has no slash at its end. The key goes into a header only."""

    def __init__(self, url: str, key: str | None, what: str) -> None:
        """`what` it is asked for, in messages."""
        self.url = url
        self._what = what
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        # Nothing of the environment: a proxy would get the key.
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(TIMEOUT, connect=CONNECT_TIMEOUT), trust_env=False, headers=headers
        )

    async def ask(self, path: str, kind: type[DocumentT], question: bytes | None = None) -> DocumentT:
        """GET without a `question`, else POST. Raises RouterError."""
        try:
            async with self._http.stream(
                "GET" if question is None else "POST", self.url + path, content=question
            ) as response:
                body = await _read_up_to(response, MAX_RESPONSE)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RouterError(f"{self.url} does not answer ({type(error).__name__})") from None
        if response.status_code != 200:
            raise self._refusal(response.status_code, body)
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise RouterError(f"{self.url}{path} is not the {self._what} of a router of this version") from None

    async def aclose(self) -> None:
        await self._http.aclose()

    def _refusal(self, status: int, body: bytes) -> RouterError:
        message, code = _error_message(body)
        if status == 404 and code in (None, _NO_SUCH_PAGE):
            return RouterError(f"{self.url} has no {self._what}; it is not a router, or an older version")
        if status == 401:
            return KeyRefusedError(f"{self.url}: {message}")
        return RouterError(f"{self.url} answers with status {status}: {message}")


async def _read_up_to(response: httpx.Response, limit: int) -> bytes:
    parts = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > limit:
            raise RouterError(f"the response has more than {limit >> 20} MiB")
        parts.append(part)
    return b"".join(parts)


def _error_message(body: bytes) -> tuple[str, str | None]:
    """The message of an error, and its code if it is one of a router."""
    try:
        error: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        error = None
    match error:
        case {"error": {"message": str(message), "code": str(code)}}:
            return one_line(message[:_MAX_MESSAGE]), code
        case {"error": {"message": str(message)}}:
            return one_line(message[:_MAX_MESSAGE]), None
    return "without a message", None
