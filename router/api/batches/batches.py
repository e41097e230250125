"""/v1/batches: create, get, list, cancel; and pause and resume, which OpenAI does not have.

Source: https://platform.openai.com/docs/api-reference/batch
"""

import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router.api.batches.file_upload import MAX_TTL, MIN_TTL
from router.api.inference.endpoint import read_body
from router.api.inference.tenant_requests import TenantRequest, TenantRequests
from router.core.batches.completion_window import parse_window
from router.core.endpoints.chat import CHAT
from router.core.endpoints.endpoint import Endpoint
from router.core.endpoints.table import ENDPOINT_BY_PATH
from router.errors import NOT_FOUND, RATE_LIMIT, ApiError, bad_request, unavailable
from router.net.redis.pipeline import RedisDownError
from router.shared.batches.batch_records import (
    BatchName,
    BatchNotFoundError,
    BatchRecords,
    BatchSpec,
    TooManyBatchesError,
)
from router.shared.batches.file_record import UnknownFileError
from router.shared.batches.files import BatchFiles

PATH: Final = "/v1/batches"
_ID_PATH: Final = f"{PATH}/{{id}}"
_MAX_BODY: Final = 1 << 16
_MAX_LIMIT: Final = 100
_DEFAULT_LIMIT: Final = 20
_MAX_METADATA: Final = 16
_NUMBER: Final = re.compile(r"[0-9]{1,3}")
_MAX_SHOWN: Final = 128  # characters of an id that a client has sent

_Text = Annotated[str, msgspec.Meta(max_length=512)]
_MetadataKey = Annotated[str, msgspec.Meta(max_length=64)]


class _ExpiresAfter(msgspec.Struct):
    anchor: Literal["created_at"]
    seconds: Annotated[int, msgspec.Meta(ge=MIN_TTL, le=MAX_TTL)]


class _CreateBody(msgspec.Struct):
    input_file_id: _Text
    endpoint: _Text
    completion_window: _Text
    metadata: dict[_MetadataKey, _Text] | None = None
    output_expires_after: _ExpiresAfter | None = None


_decode: Final = msgspec.json.Decoder(_CreateBody).decode
_encode: Final = msgspec.json.Encoder().encode

_Answer = Callable[[TenantRequest], Awaitable[Any]]


class BatchRoutes:
    """The batches of tenants, with any of their keys: 404 for those of others, 503 while Redis does not answer."""

    def __init__(
        self, requests: TenantRequests, records: BatchRecords, files: BatchFiles, *, max_batches: int,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        """`max_batches`: of a tenant that have not ended. `clock`: see BatchRecords."""
        self._requests = requests
        self._records = records
        self._files = files
        self._max_batches = max_batches
        self._clock = clock

    def routes(self) -> list[Route]:
        return [
            self._route("POST", PATH, self._create),
            self._route("GET", PATH, self._list),
            self._route("GET", _ID_PATH, self._get),
            self._route("POST", f"{_ID_PATH}/cancel", self._cancel),
            self._route("POST", f"{_ID_PATH}/pause", self._pause),
            self._route("POST", f"{_ID_PATH}/resume", self._resume),
        ]

    def _route(self, method: str, path: str, answer: _Answer) -> Route:
        return Route(path, self._handler(at(method, path), answer), methods=[method])

    def _handler(self, endpoint: Endpoint, answer: _Answer) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: TenantRequest) -> bytes:
            try:
                return _encode(await answer(request))
            except BatchNotFoundError:
                raise _no_batch(request.http.path_params["id"]) from None
            except RedisDownError:
                raise unavailable("Batches need Redis, which does not answer.", code="redis_down") from None

        return self._requests.handler(endpoint, respond)

    # -- answers ------------------------------------------------------------------------------------------------------

    async def _create(self, request: TenantRequest) -> Any:
        body = await read_body(request.http.scope["headers"], request.http.receive, _MAX_BODY, request.memory)
        try:
            asked = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise bad_request(f"The body is no request for a batch: {error}.", code="invalid_batch") from None
        if asked.endpoint not in ENDPOINT_BY_PATH:
            known = ", ".join(sorted(ENDPOINT_BY_PATH))
            raise bad_request(f"`endpoint` must be one of {known}.", param="endpoint", code="invalid_endpoint")
        window = parse_window(asked.completion_window)
        metadata = asked.metadata or {}
        if len(metadata) > _MAX_METADATA:
            raise bad_request(
                f"`metadata` has more than {_MAX_METADATA} pairs.", param="metadata", code="invalid_metadata"
            )
        try:
            await self._files.find(request.tenant, asked.input_file_id)
        except UnknownFileError:
            raise bad_request(
                f"There is no file {asked.input_file_id[:_MAX_SHOWN]!r}.", param="input_file_id", code="file_not_found"
            ) from None
        now = int(self._clock())
        expires_after = asked.output_expires_after
        spec = BatchSpec(
            endpoint=asked.endpoint, input_file_id=asked.input_file_id, completion_window=asked.completion_window,
            created_at=now, expires_at=now + window, metadata=asked.metadata,
            cache_control=metadata.get("cache_control", ""),
            output_ttl=expires_after.seconds if expires_after is not None else None,
        )  # fmt: skip
        name = BatchName(request.tenant, f"batch_{secrets.token_hex(12)}")
        try:
            await self._records.create(name, spec, max_open=self._max_batches)
        except TooManyBatchesError:
            raise ApiError(
                429, f"{self._max_batches} batches of the tenant have not ended, which is the maximum.",
                kind=RATE_LIMIT, code="batch_limit", retry_after=60,
            ) from None  # fmt: skip
        return (await self._records.find(name)).shown

    async def _get(self, request: TenantRequest) -> Any:
        return (await self._records.find(_name(request))).shown

    async def _list(self, request: TenantRequest) -> Any:
        query = request.http.query_params
        limit = _limit(query.get("limit", str(_DEFAULT_LIMIT)))
        ids = await self._records.ids(request.tenant)
        after = query.get("after")
        if after is not None:
            if after not in ids:
                raise bad_request(f"There is no batch {after[:_MAX_SHOWN]!r}.", param="after", code="invalid_after")
            ids = ids[ids.index(after) + 1 :]
        shown = await self._records.find_all(request.tenant, ids[:limit])
        return {
            "object": "list",
            "data": shown,
            "first_id": shown[0].id if shown else None,
            "last_id": shown[-1].id if shown else None,
            "has_more": len(ids) > limit,
        }

    async def _cancel(self, request: TenantRequest) -> Any:
        name = _name(request)
        before = await self._records.cancel(name)
        if before not in ("validating", "in_progress", "cancelling", "cancelled"):
            raise ApiError(
                409, f"A batch that is {before} cannot be cancelled.", param="id", code="batch_not_cancellable"
            )
        return (await self._records.find(name)).shown

    async def _pause(self, request: TenantRequest) -> Any:
        return await self._set_paused(request, paused=True)

    async def _resume(self, request: TenantRequest) -> Any:
        return await self._set_paused(request, paused=False)

    async def _set_paused(self, request: TenantRequest, *, paused: bool) -> Any:
        name = _name(request)
        status = await self._records.pause(name, paused=paused)
        if status not in ("validating", "in_progress"):
            raise ApiError(409, f"A batch that is {status} does not run.", param="id", code="batch_not_running")
        return (await self._records.find(name)).shown


def at(method: str, path: str) -> Endpoint:
    """What the log calls it; the form of its errors is OpenAI's."""
    return CHAT.at(f"{method} {path}")


def _name(request: TenantRequest) -> BatchName:
    id_: str = request.http.path_params["id"]
    return BatchName(request.tenant, id_)


def _no_batch(id_: str) -> ApiError:
    return ApiError(404, f"There is no batch {id_[:_MAX_SHOWN]!r}.", kind=NOT_FOUND, param="id", code="batch_not_found")


def _limit(text: str) -> int:
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= _MAX_LIMIT:
        raise bad_request(f"`limit` must be a number from 1 to {_MAX_LIMIT}.", param="limit")
    return int(text)
