"""Asks a router for a tenant's files and batches over HTTP."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, NoReturn, Self
from urllib.parse import quote, urlencode

import httpx
import msgspec

from router.commands.batch.batch_view import Batch
from router.telemetry.log_output import one_line

CONNECT_TIMEOUT: Final = 5.0
TIMEOUT: Final = 60.0
"""Seconds in which nothing arrives: a router checks a large file before it answers."""

PAGE_SIZE: Final = 100
_MAX_DOCUMENT: Final = 16 << 20  # bytes
_MAX_MESSAGE: Final = 300  # characters of an error that the router sends
_MAX_RETRY_AFTER: Final = 60.0
_PASSING: Final = frozenset({429, 500, 502, 503, 504})


class ApiClientError(Exception):
    """The router does not do what it is asked for; the message says why, without control characters."""


class KeyNeededError(ApiClientError):
    """The router wants a key, or another one."""


class PassingError(ApiClientError):
    """It may do so later. `retry_after`: seconds that the router asks to wait, 0 if it does not say."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after: Final = retry_after


class NoAnswerError(PassingError):
    """Nobody knows whether the router has done it."""


class ApiClient:
    """- The key goes into a header only, and to no proxy of the environment.
    - Neither a file that is sent nor one that is fetched is in memory as a whole.
    - All methods raise ApiClientError, and PassingError if another try may help.
    """

    def __init__(self, url: str, key: str | None) -> None:
        """`url`: without a slash, or a `/v1`, at its end."""
        self.url: Final = url
        self._http = httpx.Client(
            base_url=url, timeout=httpx.Timeout(TIMEOUT, connect=CONNECT_TIMEOUT), trust_env=False,
            headers={"authorization": f"Bearer {key}"} if key is not None else {},
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    # -- files --------------------------------------------------------------------------------------------------------

    def upload(self, path: Path, on_bytes: Callable[[int], None]) -> str:
        """The id of the new file. `on_bytes` gets how many are sent, again and again. Raises OSError, too."""
        # `purpose` comes first in the form, so that a router refuses a wrong one before the file.
        with path.open("rb") as file:
            part = (path.name, _Counted(file, on_bytes), "application/jsonl")
            answer = self._ask("POST", "/v1/files", data={"purpose": "batch"}, files={"file": part})
        return self._id_of(answer)

    def delete_file(self, id_: str) -> None:
        self._ask("DELETE", f"/v1/files/{_quoted(id_)}")

    def fetch(self, id_: str, write: Callable[[bytes], object], on_bytes: Callable[[int, int | None], None]) -> None:
        """Writes the content of a file. `on_bytes` gets how many bytes there are, and of how many, if that is known."""
        with self._answer("GET", f"/v1/files/{_quoted(id_)}/content") as response:
            size = response.headers.get("content-length", "")
            total = int(size) if size.isdecimal() else None
            done = 0
            for piece in response.iter_bytes():
                write(piece)
                done += len(piece)
                on_bytes(done, total)

    # -- batches ------------------------------------------------------------------------------------------------------

    def create(self, file_id: str, endpoint: str, window: str, metadata: Mapping[str, str]) -> Batch:
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window}
        return self._batch(self._ask("POST", "/v1/batches", json=body | ({"metadata": metadata} if metadata else {})))

    def find(self, id_: str) -> Batch:
        return self._batch(self._ask("GET", f"/v1/batches/{_quoted(id_)}"))

    def change(self, id_: str, action: str) -> Batch:
        """`action`: cancel, pause or resume."""
        return self._batch(self._ask("POST", f"/v1/batches/{_quoted(id_)}/{action}"))

    def pages(self) -> Iterator[list[Batch]]:
        """All batches, the newest first."""
        after: str | None = None
        while True:
            query = {"limit": str(PAGE_SIZE)} | ({"after": after} if after is not None else {})
            page = self._ask("GET", f"/v1/batches?{urlencode(query)}")
            if not isinstance(page, dict) or not isinstance(page.get("data"), list):
                self._not_understood("/v1/batches")
            batches = [self._batch(each) for each in page["data"]]
            yield batches
            # A page without batches has none after which the next one could begin.
            if not page.get("has_more") or not batches:
                return
            after = batches[-1].view.id

    # -- requests -----------------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, **content: Any) -> Any:
        with self._answer(method, path, **content) as response:
            body = _read_document(response)
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._not_understood(path)

    @contextlib.contextmanager
    def _answer(self, method: str, path: str, **content: Any) -> Iterator[httpx.Response]:
        try:
            # Streamed, also where a document is short: only so is its size bounded.
            with self._http.stream(method, path, **content) as response:
                if response.status_code != 200:
                    raise self._refusal(response)
                yield response
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NoAnswerError(f"{self.url} does not answer ({type(error).__name__})") from None

    def _refusal(self, response: httpx.Response) -> ApiClientError:
        status = response.status_code
        message, is_routers = _error_message(_read_document(response))
        if status == 404 and not is_routers:
            return ApiClientError(f"{self.url} has no batches; it is not a router, or an older version")
        if status == 401:
            return KeyNeededError(f"{self.url}: {message}")
        if status in _PASSING:
            return PassingError(f"{self.url} answers with status {status}: {message}", _retry_after(response))
        return ApiClientError(f"{self.url} answers with status {status}: {message}")

    def _batch(self, shown: Any) -> Batch:
        try:
            return Batch(shown)
        except msgspec.ValidationError:
            self._not_understood("/v1/batches")

    def _id_of(self, answer: Any) -> str:
        id_ = answer.get("id") if isinstance(answer, dict) else None
        return id_ if isinstance(id_, str) else self._not_understood("/v1/files")

    def _not_understood(self, path: str) -> NoReturn:
        raise ApiClientError(f"{self.url}{path.partition('?')[0]} does not answer as a router of this version")


class _Counted:
    """A file that says how much of it was read. httpx takes its size from `fileno`."""

    def __init__(self, file: BinaryIO, on_bytes: Callable[[int], None]) -> None:
        self._file = file
        self._on_bytes = on_bytes

    def fileno(self) -> int:
        return self._file.fileno()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        # Not a sum of what was read: httpx reads from the beginning again if it sends the file twice.
        self._on_bytes(self._file.tell())
        return data


def _quoted(id_: str) -> str:
    # An argument may have any characters, also those that would lead to another path.
    return quote(id_, safe="", errors="replace")


def _read_document(response: httpx.Response) -> bytes:
    parts = []
    size = 0
    for part in response.iter_bytes():
        size += len(part)
        if size > _MAX_DOCUMENT:
            raise ApiClientError(f"the response has more than {_MAX_DOCUMENT >> 20} MiB")
        parts.append(part)
    return b"".join(parts)


def _error_message(body: bytes) -> tuple[str, bool]:
    """The message of an error, and whether it is one of a router that has such a path."""
    try:
        error: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        error = None
    match error:
        case {"error": {"message": str(message)} as fields}:
            return one_line(message[:_MAX_MESSAGE]), fields.get("code") not in (None, "not_found")
    return "without a message", False


def _retry_after(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return min(_MAX_RETRY_AFTER, float(text)) if text.isdecimal() else 0.0
