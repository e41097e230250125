"""Who may use /admin and the dashboard: who sends an admin key, or the cookie of a session.

A browser sends the cookie on its own, so a page of another origin could make it send one. `SameSite=Strict` prevents
that; in addition, a request that changes something needs a header that such a page cannot set, and has to come from
the own origin (https://cheatsheetseries.owasp.org/cheatsheets/Cross-Site_Request_Forgery_Prevention_Cheat_Sheet.html).
"""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from starlette.requests import Request

from router.api.access.auth import AdminAuthenticator, invalid_key
from router.api.access.sessions import SESSION_COOKIE, Sessions
from router.core.api_keys import key_id
from router.errors import PERMISSION, ApiError

CSRF_HEADER: Final = "x-roundhouse-csrf"
"""The header, with the value 1, of changing requests with a cookie."""

SIGN_IN_PATH: Final = "/dashboard/sign-in"
"""The page that a sign-in link opens."""

_SAFE_METHODS: Final = ("GET", "HEAD")
_SESSION_PATHS: Final = ("/admin", "/dashboard")


class LinkStore(NamedTuple):
    """Where sign-in links are kept: `issue` makes the token of one for a key's hash; `redeem` gives that hash once."""

    issue: Callable[[str], Awaitable[str]]
    redeem: Callable[[str], Awaitable[str | None]]


class AdminAccess:
    """Checks a request's key or session. A session is never valid outside of /admin and /dashboard."""

    def __init__(
        self,
        authenticator: AdminAuthenticator,
        sessions: Sessions,
        refresh_secret: Callable[[], Awaitable[None]],
        links: LinkStore,
    ) -> None:
        """`refresh_secret` reads the secret of the sessions in Redis again."""
        self._authenticator = authenticator
        self._sessions = sessions
        self._refresh_secret = refresh_secret
        self._links = links

    @property
    def is_open(self) -> bool:
        """Whether the configuration has an admin key, so that somebody can have access."""
        return self._authenticator.has_keys

    async def check(self, request: Request) -> str:
        """Who sends it, for the audit: `key 0f786551` or `session of key 0f786551`.

        Raises ApiError: 401 without a valid key or session; 403 if there are no keys, or for a forged request.
        """
        has_session = request.url.path.startswith(_SESSION_PATHS)
        token = request.cookies.get(SESSION_COOKIE) if has_session else None
        if token is None or "authorization" in request.headers or not self.is_open:
            return f"key {key_id(self._authenticator.check(request.scope['headers']))}"
        key_hash = await self._find_key(token)
        if key_hash is None:
            raise invalid_key("The session has ended.")
        if request.method not in _SAFE_METHODS and not _is_deliberate(request):
            raise forbidden()
        return f"session of key {key_id(key_hash)}"

    async def has_access(self, request: Request) -> bool:
        try:
            await self.check(request)
        except ApiError:
            return False
        return True

    async def sign_in(self, key: bytes) -> str | None:
        """The token of a new session; None if the key is not valid."""
        return await self._start_session(self._authenticator.find(key))

    async def sign_in_with_link(self, link_token: str) -> str | None:
        """The same with the token of a link, which is of no use from then on."""
        # It is used up in any case, so that a link that someone has seen is of no use later.
        key_hash = await self._links.redeem(link_token)
        # The key may have left the configuration since the link was made.
        return await self._start_session(key_hash if key_hash and self._authenticator.knows(key_hash) else None)

    async def make_link(self, request: Request) -> str:
        """The token of a link that signs in once, for a request with an admin key itself. Raises ApiError."""
        if "authorization" not in request.headers:
            # Who stole a cookie could prolong its session for ever.
            message = "A sign-in link needs the admin key itself, as `Authorization: Bearer KEY`, not a session."
            raise ApiError(403, message, kind=PERMISSION, code="key_required")
        return await self._links.issue(self._authenticator.check(request.scope["headers"]))

    async def _start_session(self, key_hash: str | None) -> str | None:
        if key_hash is None:
            return None
        await self._refresh_secret()
        return self._sessions.issue(key_hash)

    async def _find_key(self, token: str) -> str | None:
        """The hash of a session's key; None if the session is not valid."""
        if (key_hash := self._sessions.find_key(token)) is not None:
            return key_hash
        # Another router may have written another secret since.
        await self._refresh_secret()
        return self._sessions.find_key(token)


def _is_deliberate(request: Request) -> bool:
    return request.headers.get(CSRF_HEADER) == "1" and comes_from_own_origin(request) is True


def comes_from_own_origin(request: Request) -> bool | None:
    """Whether a page of this origin sent it; None if the client does not say, as programs do.

    Browsers send Sec-Fetch-Site over TLS and to the own machine, and Origin with every changing request.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site == "same-origin"
    if origin is not None:
        # Not parsed as a URL: anybody may send it, and a malformed one would raise.
        return origin.partition("://")[2] == request.headers.get("host")
    return None


def forbidden() -> ApiError:
    message = f"The request does not come from the dashboard: `{CSRF_HEADER}: 1` and the same origin are required."
    return ApiError(403, message, kind=PERMISSION, code="cross_site_request")
