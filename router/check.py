"""`roundhouse check`: tests whether Redis and every engine of the configuration answer."""

import asyncio
import re
from typing import Any, Final

import httpx
import msgspec

from router.net.redis.errors import RedisBackendError
from router.settings import EngineSettings, Settings
from router.shared.redis import open_backend

CHECK_TIMEOUT: Final = 5.0
"""Seconds for each response."""

Finding = dict[str, Any]
"""`what` was checked, whether it is `ok`, and a `note` for a person."""


async def check_all(settings: Settings) -> list[Finding]:
    async with httpx.AsyncClient(timeout=CHECK_TIMEOUT, trust_env=False) as client:
        engines = [_check_engine(client, engine, url) for engine in settings.engine for url in engine.addresses]
        return list(await asyncio.gather(_check_redis(settings), *engines))


async def _check_redis(settings: Settings) -> Finding:
    what = "redis (embedded)" if settings.redis_url != settings.cache.url else "redis"
    backend = open_backend(settings.redis_url, timeout=CHECK_TIMEOUT)
    try:
        (info,) = await backend.execute([("INFO", "server")], CHECK_TIMEOUT)
        servers = await backend.servers()
    except RedisBackendError as error:
        return {"what": what, "ok": False, "note": f"does not answer ({error})"}
    finally:
        await backend.aclose()
    if isinstance(info, Exception):
        return {"what": what, "ok": False, "note": f"returns an error ({info})"}
    version = re.search(rb"redis_version:(\S+)", info)
    note = f"version {version[1].decode() if version else 'unknown'}"
    return {"what": what, "ok": True, "note": note if len(servers) == 1 else f"{note}, {len(servers)} primaries"}


async def _check_engine(client: httpx.AsyncClient, engine: EngineSettings, url: str) -> Finding:
    what = f"engine {engine.name} at {url}"
    served = engine.served_model or engine.model
    try:
        response = await client.get(f"{url}/v1/models")
        names = [model["id"] for model in msgspec.json.decode(response.content)["data"]]
    except httpx.HTTPError as error:
        return {"what": what, "ok": False, "note": f"does not answer ({type(error).__name__})"}
    except (msgspec.DecodeError, KeyError, TypeError):
        return {"what": what, "ok": False, "note": f"status {response.status_code} without a list of models"}
    if served not in names:
        return {"what": what, "ok": False, "note": f"serves {', '.join(names)} but not {served!r} (served_model)"}
    return {"what": what, "ok": True, "note": f"serves {served}"}
