"""Configurations, each with one thing wrong with it, in front of real servers; by the words of docs/check.md."""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self

from router.core.api_keys import KeyRecord, encode_record, hash_key
from router.core.cache.redis_keys import KEYS_RECORDS_KEY
from tests.support.certificate import certificate
from tests.support.foreign_script import ForeignScript
from tests.support.ports import free_port
from tests.support.redis_deployments import SERVICE, TLSSentinel
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, EngineSet, router_config, with_fallback
from tests.support.scripted_engine import served
from tests.support.simulated_engine import SimulatedEngine

_RIGHTS: Final = ("on", ">pw", "+@all", "~rh:1:*", "&rh:1:*")
_LAUNCH: Final = '[engine.launch]\ntarget = "{target}"\ndraft = "{draft}"\n'


class BrokenWorld:
    """The servers that the configurations name."""

    def __init__(self, engines: EngineSet, folder: Path) -> None:
        self.engines = engines
        self._folder = folder
        self._stack = AsyncExitStack()
        self.redis = RedisServer(port=free_port())
        self.closed_redis = RedisServer(port=free_port())
        self.member = RedisServer("--cluster-enabled", "yes", port=free_port())
        self.full = RedisServer("--maxmemory", "64mb", port=free_port())
        self.overfull = RedisServer("--maxmemory", "1")
        self.lonely = RedisServer("--min-replicas-to-write", "1")
        self.forgetful = RedisServer("--appendonly", "yes")
        self.sentinel = TLSSentinel()
        self.embedder = SimulatedEngine("intfloat/e5", runner="pooling")
        self.with_key = self.untrusted = self.other_host = ""
        self.other_authority = folder

    async def __aenter__(self) -> Self:
        servers = (self.redis, self.closed_redis, self.member, self.full, self.overfull, self.lonely, self.forgetful)
        for server in servers:
            self._stack.callback(server.remove)
            await server.start()
        await self.closed_redis.command("CONFIG", "SET", "requirepass", "pw")
        await self.forgetful.command("ACL", "SETUSER", "admin", "on", ">pw", "+@all", "~*", "&*")
        await self.forgetful.command("ACL", "SETUSER", "default", "off", "-@all")
        record = KeyRecord(hash=hash_key(b"k"), tenant="acme", name="ci", created=1)
        await self.full.command("HSET", KEYS_RECORDS_KEY, record.id, encode_record(record).decode())
        self._stack.callback(self.sentinel.remove)
        await self.sentinel.start()
        await self._stack.enter_async_context(self.embedder)
        for name, rules in {
            "reader": ("-hset", "-xadd"), "clerk": ("-scan", "-type"), "deaf": ("resetchannels",),
            "other": ("resetkeys", "~app:*"),
        }.items():  # fmt: skip
            await self.redis.command("ACL", "SETUSER", name, *_RIGHTS, *rules)
        here, there, elsewhere = (self._folder / name for name in ("here", "there", "elsewhere"))
        for folder in (here, there, elsewhere):
            folder.mkdir()
        self.with_key = await self._serve(ForeignScript(api_key="sk-right"))
        self.untrusted = await self._serve(ForeignScript(), certificate(here))
        self.named_other = certificate(there, name="DNS:engine.example")
        self.other_host = await self._serve(ForeignScript(), self.named_other)
        self.other_authority = certificate(elsewhere)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def with_redis(self, url: str) -> str:
        return router_config(url, {"mistral": ("mistral", "any", self.engines.mistral.url)})

    def as_user(self, name: str) -> str:
        return self.with_redis(f"redis://{name}:pw@127.0.0.1:{self.redis.port}")

    def with_engine(self, url: str, settings: str = "", *, model: str = "llama", router: str = "") -> str:
        return router_config(self.redis.url, {"one": (model, "any", url)}, rest=settings, router=router)

    def with_models(self, *, chat_falls_back: bool) -> str:
        own = {"chat": ("llama", "any", self.engines.chat.url), "embed": ("mistral", "any", self.embedder.url)}
        text = router_config(self.redis.url, own).replace("mistralai/Mistral-Simulated", "intfloat/e5")
        pair = ("llama", "mistral") if chat_falls_back else ("mistral", "llama")
        return with_fallback(text, *pair)

    async def _serve(self, engine: ForeignScript, pem: Path | None = None) -> str:
        return await self._stack.enter_async_context(served(engine, certificate=pem))


def _tenant_without_key(world: BrokenWorld) -> str:
    tenants = f'[[tenant]]\nname = "acme"\nkeys = ["{hash_key(b"k")}"]\n[[tenant]]\nname = "beta"\n'
    auth = f'[auth]\nmode = "keys"\nadmin_keys = ["{hash_key(b"a")}"]\n'
    return world.with_engine(world.engines.chat.url, auth + tenants)


def _same_engine_twice(world: BrokenWorld) -> str:
    port = world.engines.chat.port
    urls = {"one": f"http://127.0.0.1:{port}", "two": f"http://127.0.0.1:{port}/v1/"}
    return router_config(world.redis.url, {name: ("llama", "any", url) for name, url in urls.items()})


def _different_lengths(world: BrokenWorld) -> str:
    own = {"one": ("llama", "any", world.engines.chat.url), "two": ("llama", "any", world.engines.code.url)}
    return router_config(world.redis.url, own, rest="max_model_len = 2048")


BROKEN: Final[Mapping[str, Callable[[BrokenWorld], str]]] = {
    "Redis is not there": lambda w: w.with_redis(f"redis://127.0.0.1:{free_port()}"),
    "another server is at Redis' port": lambda w: w.with_redis(f"redis://127.0.0.1:{w.engines.chat.port}"),
    "the password is missing": lambda w: w.with_redis(f"redis://127.0.0.1:{w.closed_redis.port}"),
    "the password is wrong": lambda w: w.with_redis(f"redis://:no@127.0.0.1:{w.closed_redis.port}"),
    "the user lacks commands": lambda w: w.as_user("reader"),
    "the user lacks commands of `roundhouse cache`": lambda w: w.as_user("clerk"),
    "the user may use other keys only": lambda w: w.as_user("other"),
    "the user may use no channels": lambda w: w.as_user("deaf"),
    "Redis has no memory limit": lambda w: w.with_redis(f"redis://127.0.0.1:{w.redis.port}"),
    "Redis has a memory limit and evicts nothing": lambda w: w.with_redis(f"redis://127.0.0.1:{w.full.port}"),
    "Redis is full and evicts nothing": lambda w: w.with_redis(w.overfull.url),
    "Redis lacks replicas": lambda w: w.with_redis(w.lonely.url),
    "Redis loads its file as a user without rights": lambda w: w.with_redis(
        w.forgetful.url.replace("://", "://admin:pw@")
    ),
    "the Sentinels have TLS, the URL has not": lambda w: w.with_redis(
        w.sentinel.url.replace("rediss", "redis").partition("?")[0]
    ),
    "the URL has TLS, Redis has not": lambda w: w.with_redis(f"rediss://127.0.0.1:{w.redis.port}"),
    "the master has another name": lambda w: w.with_redis(w.sentinel.url.replace(SERVICE, "mymaster")),
    "a Sentinel URL with a server's port": lambda w: w.with_redis(
        f"redis+sentinel://127.0.0.1:{w.redis.port}/{SERVICE}"
    ),
    "a cluster URL for a single server": lambda w: w.with_redis(f"redis+cluster://127.0.0.1:{w.redis.port}"),
    "a server's URL for a cluster": lambda w: w.with_redis(f"redis://127.0.0.1:{w.member.port}"),
    "the engine is not there": lambda w: w.with_engine(f"http://127.0.0.1:{free_port()}"),
    "the engine wants a key": lambda w: w.with_engine(w.with_key),
    "the engine has another model": lambda w: w.with_engine(w.engines.mistral.url),
    "the engine's authority is unknown": lambda w: w.with_engine(w.untrusted),
    "`ca_file` is another authority's": lambda w: w.with_engine(w.untrusted, f'ca_file = "{w.other_authority}"'),
    "the certificate is another host's": lambda w: w.with_engine(w.other_host, f'ca_file = "{w.named_other}"'),
    "https for an engine without TLS": lambda w: w.with_engine(w.engines.chat.url.replace("http", "https")),
    "`max_model_len` is too large": lambda w: w.with_engine(w.engines.chat.url, "max_model_len = 8192"),
    "the engine has fewer ranks": lambda w: w.with_engine(w.engines.chat.url, "data_parallel = 2"),
    "engines of a model differ in context": _different_lengths,
    "the same engine twice": _same_engine_twice,
    "a chat model falls back on embeddings": lambda w: w.with_models(chat_falls_back=True),
    "embeddings fall back on a chat model": lambda w: w.with_models(chat_falls_back=False),
    "a draft that does not speculate": lambda w: w.with_engine(
        w.engines.mistral.url, _LAUNCH.format(target="mistralai/Mistral-Simulated", draft="small"), model="mistral"
    ),
    "the engine runs another target": lambda w: w.with_engine(
        w.engines.chat.url, _LAUNCH.format(target=f"{LLAMA}-2", draft="d")
    ),
    "the port is taken": lambda w: w.with_engine(w.engines.chat.url, router=f"port = {w.with_key.rpartition(':')[2]}"),
    "the host is another machine's": lambda w: w.with_engine(w.engines.chat.url, router='host = "192.0.2.77"'),
    "open to the network": lambda w: w.with_engine(w.engines.chat.url, router='host = "0.0.0.0"'),
    "Redis has keys, the file neither keys nor a mode": lambda w: w.with_redis(w.full.url),
    "a tenant without a key": _tenant_without_key,
    "no admin key": lambda w: _tenant_without_key(w).replace("admin_keys", "# admin_keys"),
    "the state directory cannot be written": lambda w: w.with_engine(
        w.engines.chat.url, _LAUNCH.format(target=LLAMA, draft="d"), router='state = "/dev/null/roundhouse"'
    ),
    "the folder of files cannot be written": lambda w: w.with_engine(
        w.engines.chat.url, '[batch]\nfolder = "/dev/null/files"\n'
    ),
    "there can be no pid file": lambda w: w.with_engine(w.engines.chat.url, router='state = "/dev/null/roundhouse"'),
    "the collector of traces is not there": lambda w: w.with_engine(
        w.engines.chat.url, f'[tracing]\nendpoint = "http://127.0.0.1:{free_port()}"'
    ),
}  # fmt: skip
"""By the first column of the table in docs/check.md."""
