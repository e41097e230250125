"""`roundhouse check`: asks Redis and every engine of the configuration, and judges what `serve` will meet.

It generates nothing, and writes nothing to Redis: a production system may be checked.
"""

import asyncio
import time
from typing import Final

import msgspec

from router.checks.access_findings import judge_access
from router.checks.engine_facts import ask_engines
from router.checks.engine_findings import judge_engine
from router.checks.file_store import check_file_store
from router.checks.finding import Finding
from router.checks.machine import examine_machine, judge_machine
from router.checks.model_findings import judge_models
from router.checks.pages import CHECK_TIMEOUT
from router.checks.redis_deployment import ask_redis
from router.checks.redis_facts import RedisFacts
from router.checks.redis_findings import judge_redis
from router.checks.stored_keys import ask_for_stored_keys
from router.checks.tracing_findings import check_collector
from router.net.client.transport import HTTPTransport
from router.settings import Settings
from router.settings.tables import EMBEDDED

_START_EMBEDDED: Final = "start `roundhouse up`, which runs it; `roundhouse serve` needs a Redis of its own here"


async def check_all(settings: Settings, *, timeout: float = CHECK_TIMEOUT) -> list[Finding]:
    """Findings about Redis, the engines, the models, this machine, and so on. `timeout` in seconds, per reply."""
    async with HTTPTransport() as transport:
        redis, engines, machine, traces, stored, files = await asyncio.gather(
            ask_redis(settings, timeout=timeout),
            ask_engines(transport, settings, timeout=timeout),
            examine_machine(transport, settings, timeout=timeout),
            check_collector(transport, settings.tracing, timeout=timeout),
            ask_for_stored_keys(settings, timeout=timeout),
            check_file_store(settings, timeout=timeout),
        )
    embedded = settings.cache.url == EMBEDDED
    name, redis_facts = ("redis (embedded)", _of_up(redis)) if embedded else ("redis", redis)
    findings = [*judge_redis(name, redis_facts, retention=settings.cache.retention)]
    waking = {model.name for model in settings.model if model.wake is not None}
    sharing = {name for gpu in settings.gpu for name in gpu.engines}
    for facts in engines:
        findings += judge_engine(facts, may_sleep=facts.engine.model in waking or facts.engine.name in sharing)
    return [
        *findings,
        *judge_models(settings, engines),
        *judge_access(settings, stored, time.time()),
        *judge_machine(settings, machine),
        *files,
        *traces,
    ]


def _of_up(redis: RedisFacts) -> RedisFacts:
    """Nobody corrects the address of a Redis that `roundhouse up` starts."""
    if redis.problem is None:
        return redis
    return msgspec.structs.replace(redis, problem=redis.problem._replace(fix=_START_EMBEDDED))
