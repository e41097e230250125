"""The page at `/`, for a person with a browser. Programs get the 404 that any unknown path gets."""

import re
from collections.abc import Callable
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router.api.dashboard.routes import SECURITY_HEADERS

_HOST: Final = re.compile(r"[A-Za-z0-9.\-]+(:[0-9]+)?|\[[0-9A-Fa-f:]+\](:[0-9]+)?")
_ANY_HOST: Final = "ROUTER"


def home_route(render: Callable[[str], bytes]) -> Route:
    """`render` makes the page for the URL under which the browser reaches the router."""

    async def home(request: Request) -> Response:
        # Only a media type by its name: `*/*` is what curl and the SDKs send.
        if "text/html" not in request.headers.get("accept", "").lower():
            raise HTTPException(404)
        headers = {**SECURITY_HEADERS, "cache-control": "no-store", "vary": "accept"}
        return Response(render(_url(request)), headers=headers, media_type="text/html; charset=utf-8")

    return Route("/", home, methods=["GET"])


def _url(request: Request) -> str:
    """The text of `Host` goes into a command to copy, so it has to be one of a host."""
    host = request.headers.get("host", "")
    is_secure = request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
    return f"{'https' if is_secure else 'http'}://{host if _HOST.fullmatch(host) else _ANY_HOST}"
