"""POST /v1/files: a form whose file goes to the disk while it arrives, and is checked on its way there."""

import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from router.api.inference.endpoint import ClientDisconnectedError
from router.api.inference.tenant_requests import TenantRequest
from router.core.endpoints.requests.file_form import MAX_OVERHEAD, FileForm
from router.core.json_lines import JsonLineError, JsonLines
from router.core.printable import escape_unprintable
from router.errors import ApiError, bad_request
from router.net.server.client_connection import CLIENT_EXTENSION, ClientConnection
from router.shared.batches.file_folder import NewFile
from router.shared.batches.files import BatchFiles

PURPOSE: Final = "batch"
MIN_TTL, MAX_TTL = 3600, 2_592_000  # seconds: OpenAI's bounds of `expires_after`

MIN_RATE: Final = 64 << 10
"""Bytes a second that an upload needs, beside `router.receive`: the timeout of a request is for smaller ones."""

_FILE: Final = "file"
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_NUMBER: Final = re.compile(r"[0-9]{1,7}")
_FOLDERS: Final = re.compile(r".*[/\\]", re.DOTALL)
_MAX_FILENAME: Final = 255  # characters


class UploadLimits(NamedTuple):
    """Bytes of a file, and of one of its lines."""

    max_file: int
    max_line: int


class UploadedFile(NamedTuple):
    """What the form says of its file. `ttl`: seconds; None without `expires_after`."""

    filename: str
    purpose: str
    ttl: float | None


async def receive_file(request: TenantRequest, files: BatchFiles, file: NewFile, limits: UploadLimits) -> UploadedFile:
    """Writes the request's file. Nothing of it is decoded, parsed or written on the event loop.

    Raises ApiError (400, 413, 415), and ClientDisconnectedError if the client leaves, or is too slow.
    """
    headers = request.http.headers
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise ApiError(415, "The body must not have a Content-Encoding.", code="unsupported_encoding")
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limits.max_file + MAX_OVERHEAD:
        raise _too_large(limits.max_file)
    upload = _Upload(FileForm(headers.get("content-type", "").encode("latin-1"), _FILE), file, limits)
    held = 0
    client: ClientConnection = request.http.scope["extensions"][CLIENT_EXTENSION]
    client.allow_slow_body(MIN_RATE)
    async for data in _pieces(request.http):
        await files.run(upload.feed, data)
        if upload.held > held:
            request.memory.allocate(upload.held - held)
            held = upload.held
    await files.run(upload.end)
    return upload.result()


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    while True:
        message: Mapping[str, Any] = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        if data := message.get("body", b""):
            yield data
        if not message.get("more_body", False):
            return


class _Upload:
    """A form on its way to the disk. `held`: bytes in memory, of the last line and of what is not written yet."""

    def __init__(self, form: FileForm, file: NewFile, limits: UploadLimits) -> None:
        self._form = form
        self._file = file
        self._limits = limits
        self._lines = JsonLines(limits.max_line)
        self._received = 0

    @property
    def held(self) -> int:
        return self._lines.held + self._file.held

    def feed(self, data: bytes) -> None:
        self._received += len(data)
        content = self._form.feed(data)
        self._check_purpose()
        is_too_long = self._received > self._limits.max_file + MAX_OVERHEAD
        if is_too_long or self._file.size + len(content) > self._limits.max_file:
            raise _too_large(self._limits.max_file)
        with _as_refusal():
            self._lines.feed(content)
        self._file.write(content)

    def end(self) -> None:
        self._form.end()
        if not self._file.size:
            raise bad_request("The file is empty.", param=_FILE, code="empty_file")
        with _as_refusal():
            self._lines.end()

    def result(self) -> UploadedFile:
        fields = self._form.fields
        if "purpose" not in fields:
            raise bad_request(f"`purpose` is missing; it must be `{PURPOSE}`.", param="purpose")
        return UploadedFile(_shown_name(self._form.filename or b""), fields["purpose"], _ttl(fields))

    def _check_purpose(self) -> None:
        # As soon as it is known: often before the file.
        if self._form.fields.get("purpose", PURPOSE) != PURPOSE:
            raise bad_request(f"`purpose` must be `{PURPOSE}`.", param="purpose")


@contextlib.contextmanager
def _as_refusal() -> Iterator[None]:
    try:
        yield
    except JsonLineError as error:
        raise bad_request(f"The file is not JSON Lines: {error}.", param=_FILE, code="invalid_jsonl") from None


def _ttl(fields: Mapping[str, str]) -> float | None:
    """The seconds of `expires_after`. Raises ApiError (400)."""
    anchor, seconds = fields.get(_ANCHOR), fields.get(_SECONDS)
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise bad_request(f"`{_ANCHOR}` must be `created_at`.", param=_ANCHOR)
    if seconds is None or not _NUMBER.fullmatch(seconds) or not MIN_TTL <= int(seconds) <= MAX_TTL:
        raise bad_request(f"`{_SECONDS}` must be a number from {MIN_TTL} to {MAX_TTL}.", param=_SECONDS)
    return int(seconds)


def _shown_name(filename: bytes) -> str:
    """Without the client's folders, and of one line."""
    name = _FOLDERS.sub("", filename.decode(errors="replace"))
    return escape_unprintable(name)[:_MAX_FILENAME] or "file"


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"The file has more than {limit} bytes (batch.max_file).", param=_FILE, code="file_too_large")
