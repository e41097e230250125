"""The plan of `roundhouse up`, which the router's command line passes in JSON."""

from typing import Literal

import msgspec

from engines.spec import EngineSpec, GpuSpec
from engines.watchdog.settings import WatchdogSpec

EngineKind = Literal["auto", "vllm", "simulator"]


class RouterSpec(msgspec.Struct, frozen=True):
    """Where the router will listen, and the command that starts it. `admin_key_file`: None if it is to have no key."""

    host: str
    port: int
    argv: list[str]
    admin_key_file: str | None = None

    @property
    def env(self) -> dict[str, str]:
        """As a variable, so that the key is valid after a reload, too."""
        return {"ROUNDHOUSE_AUTH_ADMIN_KEY_FILE": self.admin_key_file} if self.admin_key_file is not None else {}

    @property
    def url(self) -> str:
        """Its URL for clients on this machine, also if it listens on all interfaces."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


class UpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The processes to run.

    - `state`: the folder for sockets, logs and Redis' data.
    - `control_socket`: where `up` takes requests, see engines.control.
    - `redis_socket`: the socket of the private Redis; None if Redis runs elsewhere, at `redis_url`.
    - `router`: None if only engines are started.
    - `vllm_python`: the interpreter that vLLM is installed in; None: this one.
    - `gpus`: those whose engines take turns.
    - `example_model`: the model in the banner's example.
    """

    state: str
    control_socket: str
    redis_socket: str | None
    redis_url: str | None
    router: RouterSpec | None
    kind: EngineKind
    vllm_python: str | None
    engines: list[EngineSpec]
    gpus: list[GpuSpec] = []
    example_model: str
    watchdog: WatchdogSpec = WatchdogSpec()

    @property
    def redis(self) -> str:
        """The URL of Redis, private or not."""
        return f"unix://{self.redis_socket}" if self.redis_socket is not None else self.redis_url or ""
