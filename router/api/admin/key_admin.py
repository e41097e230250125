"""The admin API of the API keys: list, create, revoke."""

import logging
from typing import Any, Final

import msgspec
from starlette.requests import Request

from router.api.admin.audit import RequestAudit
from router.api.inference.endpoint import read_body
from router.errors import bad_request
from router.settings import Settings
from router.shared.audit.changes import key_created, key_revoked
from router.store.admin.keys import create_key, list_keys, parse_expiry, revoke_key
from router.store.admin.scan import RedisClient

log = logging.getLogger("roundhouse.admin")

_MAX_BODY: Final = 4096  # bytes


class NewKeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`expires`: a duration such as `90d`; None is never."""

    tenant: str
    name: str
    expires: str | None = None


class KeyAdmin:
    """The handlers under /admin/keys; AdminRoutes authenticates their requests. No log line has a key."""

    def __init__(self, settings: Settings, redis: RedisClient, audit: RequestAudit) -> None:
        self._settings = settings
        self._audit = audit
        self._redis = redis

    async def list(self, _: Request) -> Any:
        return {"keys": await list_keys(self._redis, self._settings)}

    async def create(self, request: Request) -> Any:
        """The response has the key, which nothing else has."""
        body = await read_body(request.scope["headers"], request.receive, _MAX_BODY)
        try:
            wanted = msgspec.json.decode(body, type=NewKeyRequest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise bad_request(f"Invalid request for a key: {error}", code="invalid_key_request") from None
        created = await create_key(
            self._redis,
            self._settings,
            tenant=wanted.tenant,
            name=wanted.name,
            expires_in=parse_expiry(wanted.expires),
            on_written=lambda record: self._audit.record(request, key_created(record)),
        )
        log.info("created the key %s (%s) of the tenant %s", created.key_id, created.name, created.tenant)
        return created

    async def revoke(self, request: Request) -> Any:
        tenant = request.query_params.get("tenant")
        revoked = await revoke_key(
            self._redis,
            self._settings,
            request.path_params["key"],
            tenant,
            lambda record: self._audit.record(request, key_revoked(record)),
        )
        log.info("revoked the key %s (%s) of the tenant %s", revoked.key_id, revoked.name, revoked.tenant)
        return revoked
