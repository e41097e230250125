"""/v1/files: the files of a tenant.

Source: https://platform.openai.com/docs/api-reference/files
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router.api.batches.file_upload import UploadLimits, receive_file
from router.api.inference.streamed_body import BrokenBodyError, StreamedBody
from router.api.inference.tenant_requests import Answer, TenantRequest, TenantRequests
from router.core.endpoints.chat import CHAT
from router.core.endpoints.endpoint import Endpoint
from router.errors import NOT_FOUND, ApiError, bad_request, unavailable
from router.shared.batches.file_record import FolderUnusableError, TooManyFilesError, UnknownFileError
from router.shared.batches.files import BatchFiles, StoredContent

FILES_PATH: Final = "/v1/files"
_FILE_PATH: Final = f"{FILES_PATH}/{{id}}"
_CONTENT_PATH: Final = f"{_FILE_PATH}/content"

MAX_LIMIT: Final = 10_000
_NUMBER: Final = re.compile(r"[0-9]{1,5}")
_MAX_SHOWN: Final = 128  # characters of an id that a client has sent

_encode: Final = msgspec.json.Encoder().encode


def endpoint_at(method: str, path: str) -> Endpoint:
    """What the log and the metrics call requests with the method: they have no field for it."""
    return CHAT.at(f"{method} {path}")


class FileRoutes:
    """The files of a tenant, with any of its keys: 404 for all else, 503 while their folder cannot be used."""

    def __init__(self, requests: TenantRequests, files: BatchFiles, limits: UploadLimits) -> None:
        self._requests = requests
        self._files = files
        self._limits = limits

    def routes(self) -> list[Route]:
        return [
            self._route("POST", FILES_PATH, self._create),
            self._route("GET", FILES_PATH, self._list),
            self._route("GET", _FILE_PATH, self._get),
            self._route("DELETE", _FILE_PATH, self._delete),
            self._route("GET", _CONTENT_PATH, self._content),
        ]

    def _route(self, method: str, path: str, answer: Answer) -> Route:
        handler: Callable[[Request], Awaitable[Response]] = self._requests.handler(
            endpoint_at(method, path), _with_errors(answer)
        )
        return Route(path, handler, methods=[method])

    async def _create(self, request: TenantRequest) -> bytes:
        async with self._files.new_file(request.tenant) as file:
            upload = await receive_file(request, self._files, file, self._limits)
            return _encode(await self._files.commit(file, upload.filename, upload.purpose, upload.ttl))

    async def _list(self, request: TenantRequest) -> bytes:
        query = request.http.query_params
        limit, order = _limit(query), _order(query)
        try:
            page = await self._files.list_files(
                request.tenant, purpose=query.get("purpose"), after=query.get("after"), limit=limit, order=order
            )
        except UnknownFileError:
            raise bad_request("`after` is the id of no file.", param="after") from None
        return _encode(
            {
                "object": "list",
                "data": page.records,
                "first_id": page.records[0].id if page.records else None,
                "last_id": page.records[-1].id if page.records else None,
                "has_more": page.has_more,
            }
        )

    async def _get(self, request: TenantRequest) -> bytes:
        return _encode(await self._files.find(request.tenant, _id(request)))

    async def _delete(self, request: TenantRequest) -> bytes:
        id_ = _id(request)
        await self._files.delete(request.tenant, id_)
        return _encode({"id": id_, "object": "file", "deleted": True})

    async def _content(self, request: TenantRequest) -> StreamedBody:
        return _ContentBody(await self._files.open(request.tenant, _id(request)))


class _ContentBody:
    """The content of a file as OpenAI sends it."""

    def __init__(self, content: StoredContent) -> None:
        self._content = content
        self.headers: Mapping[str, str] = {
            "content-type": "application/octet-stream",
            "content-length": str(content.record.size),
            "content-disposition": f"attachment; filename*=utf-8''{quote(content.record.filename, safe='')}",
            "x-content-type-options": "nosniff",
        }

    async def read(self) -> bytes:
        try:
            return await self._content.read()
        except FolderUnusableError:
            raise BrokenBodyError from None

    async def aclose(self) -> None:
        await self._content.aclose()


def _with_errors(answer: Callable[[TenantRequest], Awaitable[bytes | StreamedBody]]) -> Answer:
    async def answer_or_refuse(request: TenantRequest) -> bytes | StreamedBody:
        try:
            return await answer(request)
        except UnknownFileError:
            raise file_not_found(_id(request)) from None
        except TooManyFilesError as error:
            message = f"There are {error.limit} files already (batch.max_files); delete some first."
            raise bad_request(message, code="too_many_files") from None
        except FolderUnusableError:
            raise files_unavailable() from None

    return answer_or_refuse


def file_not_found(id_: str) -> ApiError:
    message = f"No such file: {id_[:_MAX_SHOWN]!r}. It has been deleted or has expired, or there never was one."
    return ApiError(404, message, kind=NOT_FOUND, param="id", code="file_not_found")


def files_unavailable() -> ApiError:
    return unavailable("The files cannot be read or written at present.", retry_after=5, code="files_unavailable")


def _id(request: TenantRequest) -> str:
    id_: str = request.http.path_params["id"]
    return id_


def _limit(query: Mapping[str, str]) -> int:
    limit = query.get("limit", str(MAX_LIMIT))
    if not _NUMBER.fullmatch(limit) or not 1 <= int(limit) <= MAX_LIMIT:
        raise bad_request(f"`limit` must be a number from 1 to {MAX_LIMIT}.", param="limit")
    return int(limit)


def _order(query: Mapping[str, str]) -> Literal["asc", "desc"]:
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise bad_request("`order` must be `asc` or `desc`.", param="order")
    return "asc" if order == "asc" else "desc"
