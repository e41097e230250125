"""Asks Redis for its API keys: a tenant without one in the file may have one there."""

from collections.abc import Collection

from router.core.api_keys import KeyRecord
from router.net.redis.errors import RedisBackendError
from router.settings import Settings
from router.shared.connection.redis import open_backend
from router.shared.credentials.key_records import decode_records, read_records_command


async def ask_for_stored_keys(settings: Settings, *, timeout: float) -> Collection[KeyRecord] | None:
    """The keys in Redis, revoked and expired ones too; None if Redis does not tell. `timeout` in seconds, per reply."""
    backend = open_backend(settings.redis_url, timeout=timeout)
    try:
        (reply,) = await backend.execute([read_records_command()], timeout)
    except RedisBackendError:  # the findings about Redis say why
        return None
    finally:
        await backend.aclose()
    return None if isinstance(reply, Exception) else decode_records(reply).by_id.values()
