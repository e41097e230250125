"""What /v1/files and /v1/batches answer if the configuration has no folder for them."""

from typing import Final, NoReturn

from starlette.requests import Request
from starlette.routing import Route

from router.errors import NOT_FOUND, ApiError

_PATHS: Final = ("/v1/files", "/v1/files/{rest:path}", "/v1/batches", "/v1/batches/{rest:path}")


def turned_off_routes() -> list[Route]:
    return [Route(path, _refuse, methods=["GET", "POST", "DELETE"]) for path in _PATHS]


async def _refuse(_: Request) -> NoReturn:
    message = "Files and batches are turned off: the configuration of the router has no batch.folder."
    raise ApiError(404, message, kind=NOT_FOUND, code="batches_turned_off")
