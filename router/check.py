"""Does everything that the configuration names answer? What `roundhouse check` asks."""

import asyncio
import re
from typing import Any, Final

import httpx
import msgspec

from router.net.redis.errors import RedisBackendError
from router.settings import Engine, Settings
from router.shared.redis import open_link

CHECK_TIMEOUT: Final = 5.0
"""Seconds for each answer."""

Finding = dict[str, Any]
"""`what` was asked, whether it is `ok`, and a `note` for a person."""


async def check_all(settings: Settings) -> list[Finding]:
    """Asks Redis and every engine, all at once."""
    async with httpx.AsyncClient(timeout=CHECK_TIMEOUT, trust_env=False) as client:
        engines = [_check_engine(client, engine, url) for engine in settings.engine for url in engine.addresses]
        return list(await asyncio.gather(_check_redis(settings), *engines))


async def _check_redis(settings: Settings) -> Finding:
    where = "redis (embedded)" if settings.redis_url != settings.cache.url else "redis"
    link = open_link(settings.redis_url, timeout=CHECK_TIMEOUT)
    try:
        (info,) = await link.execute([("INFO", "server")], CHECK_TIMEOUT)
        servers = await link.servers()
    except RedisBackendError as error:
        return {"what": where, "ok": False, "note": f"does not answer ({error})"}
    finally:
        await link.aclose()
    if isinstance(info, Exception):
        return {"what": where, "ok": False, "note": f"does not do what it is asked ({info})"}
    version = re.search(rb"redis_version:(\S+)", info)
    note = f"version {version[1].decode() if version else 'unknown'}"
    return {"what": where, "ok": True, "note": note if len(servers) == 1 else f"{note}, {len(servers)} primaries"}


async def _check_engine(client: httpx.AsyncClient, engine: Engine, url: str) -> Finding:
    what = f"engine {engine.name} at {url}"
    served = engine.served_model or engine.model
    try:
        answer = await client.get(f"{url}/v1/models")
        names = [model["id"] for model in msgspec.json.decode(answer.content)["data"]]
    except httpx.HTTPError as error:
        return {"what": what, "ok": False, "note": f"does not answer ({type(error).__name__})"}
    except (msgspec.DecodeError, KeyError, TypeError):
        return {"what": what, "ok": False, "note": f"status {answer.status_code}, and no list of models"}
    if served not in names:
        return {"what": what, "ok": False, "note": f"serves {', '.join(names)} and not {served!r} (served_model)"}
    return {"what": what, "ok": True, "note": f"serves {served}"}
